"""How a content looks as files: for each content, the files that stand for it and, for films, a folder of frames.

Views know contents, never formats. A further view is a module with a function ``content, cache, key → file`` and a line
in the table below. ``key`` begins with the version of the container and tells this content of it from all others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import (
    Array,
    Blob,
    Content,
    Data,
    Document,
    Image,
    Json,
    Null,
    Picture,
    RaggedText,
    Records,
    Scalar,
    Series,
    Text,
)
from glassfs.view import film, json, lines, npy, png, stored, text


class File(NamedTuple):
    """A file for a content: what follows the content's name, and the bytes."""

    suffix: str
    data: Data


Key = tuple[Hashable, ...]
_View = Callable[[Any, BlockCache, Key], tuple[str, Data]]

_VIEWS: dict[type[Content], _View] = {
    Array: npy.view,
    Blob: stored.blob,
    Document: json.view,
    Image: png.view,
    Json: stored.json,
    Null: stored.null,
    Picture: stored.picture,
    RaggedText: lines.ragged_text,
    Records: lines.records,
    Scalar: text.scalar,
    Text: stored.text,
}


def file_of(content: Content, cache: BlockCache, key: Key) -> File:
    """The file for a content that is not a group."""
    return File(*_view(type(content))(content, cache, key))


def data_of(content: Content, cache: BlockCache, key: Key) -> Data:
    """The bytes of that file."""
    return _view(type(content))(content, cache, key)[1]


def folder_of(content: Content) -> Series | None:
    """What else a content shows, in a folder of its name."""
    return film.frames(content) if isinstance(content, Array) else None


def _view(kind: type[Content]) -> _View:
    """The view of a kind of content, or of the nearest kind that it derives from."""
    for base in kind.__mro__:
        if base in _VIEWS:
            return _VIEWS[base]
    raise TypeError(f"there is no view for a content of type {kind.__name__}")
