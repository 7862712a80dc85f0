"""The views that every tree has: for each content one file and, for videos, a directory of frames.

Contents without a file, such as tables, only describe others: derived views show them, if at all.
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
    Memory,
    Null,
    Part,
    RaggedText,
    Records,
    Rendered,
    Scalar,
    Series,
    Text,
    video,
)
from glassfs.view import lines
from glassfs.view.contract import File, Key
from glassfs.view.json import render
from glassfs.view.npy import Npy
from glassfs.view.png import Png

_View = Callable[[Any, BlockCache, Key], tuple[str, Data]]
"""Returns the suffix of a content's file, and its bytes."""


def _scalar(content: Scalar, cache: BlockCache, key: Key) -> tuple[str, Data]:
    """Show integers in full, and doubles with the fewest digits that identify them, always with a point or exponent."""
    value = content.value
    text = ("true" if value else "false") if isinstance(value, bool) else repr(value)
    return ".txt", Memory(text.encode() + b"\n")


def _document(content: Document, cache: BlockCache, key: Key) -> tuple[str, Data]:
    return ".json", Rendered(cache, key, lambda: render(content.value()), cost=content.cost)


_VIEWS: dict[type[Content], _View] = {
    Array: lambda content, cache, key: (f"{content.label}.npy", content.file or Npy(content)),
    Blob: lambda content, cache, key: (".bin", content.data),
    Document: _document,
    Image: lambda content, cache, key: (".png", Png(content, cache, key)),
    Json: lambda content, cache, key: (".json", content.data),
    Null: lambda content, cache, key: (".null", Memory(b"")),
    Part: lambda content, cache, key: ("", content.data),
    EncodedImage: lambda content, cache, key: (f".{'jpg' if content.media == 'jpeg' else content.media}", content.data),
    RaggedText: lines.ragged_text,
    Records: lines.records,
    Scalar: _scalar,
    Text: lambda content, cache, key: (".txt", content.data),
}


def has_file(content: Content) -> bool:
    """Return whether a content, not a collection, has a file."""
    return any(base in _VIEWS for base in type(content).__mro__)


def file_of(content: Content, cache: BlockCache, key: Key) -> File:
    """Return the file of a content, shown like the nearest kind from which its kind derives."""
    for base in type(content).__mro__:
        view = _VIEWS.get(base)
        if view is not None:
            return tuple.__new__(File, view(content, cache, key))  # without a call: there are many files
    raise TypeError(f"there is no file for a content of type {type(content).__name__}")


def data_of(content: Content, cache: BlockCache, key: Key) -> Data:
    return file_of(content, cache, key).data


def folder_of(content: Content) -> Series | None:
    """Return the further contents in a directory named like the content: the frames of a video."""
    return video.frames(content) if isinstance(content, Array) else None
