"""How a content looks as files: for each content, the files that stand for it and, for films, a folder of frames.

Views know contents, never formats. A further view is a module with a function ``content, cache → files`` and a line in
the table below.
"""

from __future__ import annotations

from collections.abc import Callable
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


_VIEWS: dict[type[Content], Callable[[Any, BlockCache], tuple[str, Data]]] = {
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


def file_of(content: Content, cache: BlockCache) -> File:
    """The file for a content that is not a group."""
    return File(*_VIEWS[type(content)](content, cache))


def data_of(content: Content, cache: BlockCache) -> Data:
    """The bytes of that file."""
    return _VIEWS[type(content)](content, cache)[1]


def folder_of(content: Content) -> Series | None:
    """What else a content shows, in a folder of its name."""
    return film.frames(content) if isinstance(content, Array) else None
