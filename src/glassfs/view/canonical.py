"""The views that every tree has: for each content one file and, for videos, a directory of frames.

Contents without a file, such as tables, only describe others: derived views show them, if at all.

Arrays are NPY files: the container's own if it stores one, else byte for byte what ``numpy.save`` writes. The format is
NumPy's own, ``numpy/lib/format.py``. NumPy itself is not needed: any range is header or array bytes.
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
    Location,
    Memory,
    Null,
    Part,
    RaggedText,
    Records,
    Rendered,
    Scalar,
    Series,
    Text,
    dtypes,
    video,
)
from glassfs.lru import cached_if_short
from glassfs.view import lines
from glassfs.view.contract import File, Key
from glassfs.view.json import render
from glassfs.view.png import Png

MAGIC = b"\x93NUMPY"
LONGEST = (1 << 16) - 12
"""Bytes of text in a header of version 1, whose length has 16 bits, as NumPy aligns it."""

_View = Callable[[Any, BlockCache, Key], tuple[str, Data]]
"""Returns the suffix of a content's file, and its bytes."""


class Npy(Data):
    """Header and items of an array."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._known = b"" if callable(array.shape) else header(array.dtype, array.shape)
        """The header, empty if finding the shape takes a pass over the data."""

    @property
    def is_sized(self) -> bool:
        return bool(self._known) and self._array.data.is_sized

    @property
    def size(self) -> int:
        return len(self._known or self._header()) + self._array.data.size

    def location(self) -> Location | None:
        return self._array.data.location()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        header = self._header()
        if offset < len(header):
            taken = min(len(buffer), len(header) - offset)
            buffer[:taken] = header[offset : offset + taken]
            buffer, offset = buffer[taken:], offset + taken
        if buffer:
            self._array.data.read_into(buffer, offset - len(header))

    def _header(self) -> bytes:
        return self._known or header(self._array.dtype, self._array.resolved_shape)


@cached_if_short(4096)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header that ``numpy.save`` writes for an array in C order; ``dtype`` is its description."""
    literal = dtype if dtype.startswith(dtypes.STRUCTURED) else repr(dtype)
    text = f"{{'descr': {literal}, 'fortran_order': False, 'shape': {shape!r}, }}"
    if shape:
        text += " " * (21 - len(repr(shape[0])))  # NumPy leaves space for the first axis to grow to this many digits
    version, length_size = 1, 2
    try:
        encoded = text.encode("latin1")
    except UnicodeEncodeError:  # a name of a field
        encoded, version, length_size = text.encode(), 3, 4
    if version == 1 and len(encoded) > LONGEST:
        version, length_size = 2, 4
    # Spaces and a newline align the array to 64 bytes.
    length = len(encoded) + 65 - (len(MAGIC) + 2 + length_size + len(encoded) + 1) % 64
    return MAGIC + bytes((version, 0)) + length.to_bytes(length_size, "little") + encoded.ljust(length - 1) + b"\n"


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
