"""The views that every tree has: for each content one file and, for videos, a directory of frames.

Each is a module with a function ``content, cache, key → suffix, data`` and a line in the table below. Contents without
a file, such as tables, only describe others: derived views show them, if at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import (
    Array,
    Blob,
    Content,
    Data,
    Document,
    EncodedImage,
    Image,
    Json,
    Null,
    Part,
    RaggedText,
    Records,
    Scalar,
    Series,
    Text,
)
from glassfs.view import json, lines, npy, png, stored, text, video
from glassfs.view.contract import File, Key

_View = Callable[[Any, BlockCache, Key], tuple[str, Data]]

_VIEWS: dict[type[Content], _View] = {
    Array: npy.view,
    Blob: stored.blob,
    Document: json.view,
    Image: png.view,
    Json: stored.json,
    Null: stored.null,
    Part: stored.part,
    EncodedImage: stored.image,
    RaggedText: lines.ragged_text,
    Records: lines.records,
    Scalar: text.scalar,
    Text: stored.text,
}


def has_file(content: Content) -> bool:
    """Return whether a content, not a collection, has a file."""
    return any(base in _VIEWS for base in type(content).__mro__)


def file_of(content: Content, cache: BlockCache, key: Key) -> File:
    """Return the file of a content."""
    return File(*_view(type(content))(content, cache, key))


def data_of(content: Content, cache: BlockCache, key: Key) -> Data:
    """Return the bytes of a content's file."""
    return _view(type(content))(content, cache, key)[1]


def folder_of(content: Content) -> Series | None:
    """Return the further contents in a directory named like the content: the frames of a video."""
    return video.frames(content) if isinstance(content, Array) else None


def _view(kind: type[Content]) -> _View:
    """Return the view of a kind of content, or of the nearest kind from which it derives."""
    for base in kind.__mro__:
        if base in _VIEWS:
            return _VIEWS[base]
    raise TypeError(f"there is no file for a content of type {kind.__name__}")
