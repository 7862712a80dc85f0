"""Writes kastore stores, also those that kastore packages do not write: appended, unsorted, repeated keys.

    with KastoreWriter("run.kas") as store:
        store.add("nodes/time", numpy.zeros(10))
        store.add_rows("sites/ancestral_state", [b"A", b"", b"TTG"])
        store.add_chunks("big", "float64", 3_000_000, (numpy.random.rand(1_000_000) for _ in range(3)))

Nothing is written before the end of the block, as the index comes first; arrays are kept by reference until then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np

MAGIC = b"\x89KAS\r\n\x1a\n"
TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
KINDS = {np.dtype(name): kind for kind, name in enumerate(TYPES)}
HEADER = np.dtype([("magic", "V8"), ("major", "<u2"), ("minor", "<u2"), ("items", "<u4"), ("size", "<u8"), ("", "V40")])
DESCRIPTOR = np.dtype([
    ("kind", "u1"), ("", "V7"), ("key_start", "<u8"), ("key_length", "<u8"), ("start", "<u8"), ("length", "<u8"),
    ("reserved", "V24"),
])


class _Entry(NamedTuple):
    key: bytes
    dtype: np.dtype[Any]
    length: int
    chunks: Iterable[Any]


class KastoreWriter:
    """Writes one store to ``path`` when the ``with`` block ends without an exception.

    ``append`` puts it behind what the file holds. ``sort`` orders the keys as kastore's readers want them; without it
    they stay in the order in which they were added. Equal keys are written as often as they are added.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False, sort: bool = True) -> None:
        self._path = path
        self._mode = "ab" if append else "wb"
        self._sort = sort
        self._entries: list[_Entry] = []

    def __enter__(self) -> KastoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            with open(self._path, self._mode) as file:
                self._write(file)

    def add(self, key: str | bytes, values: Any) -> None:
        """Add a one-dimensional array of one of TYPES, or values that NumPy converts to one."""
        array = np.asarray(values)
        if array.ndim != 1:
            raise ValueError(f"{key!r}: {array.ndim} dimensions, kastore has one")
        self.add_chunks(key, array.dtype, len(array), [array])

    def add_chunks(self, key: str | bytes, dtype: Any, length: int, chunks: Iterable[Any]) -> None:
        """Add an array of ``length`` elements that need not be in memory as a whole."""
        raw_key = key.encode() if isinstance(key, str) else key
        element = np.dtype(dtype).newbyteorder("<")
        if element not in KINDS:
            raise ValueError(f"{key!r}: kastore has no {element.name}")
        self._entries.append(_Entry(raw_key, element, length, chunks))

    def add_text(self, key: str | bytes, text: str | bytes, dtype: str = "uint8") -> None:
        """Add text as an array of bytes; tskit stores its top-level properties as int8."""
        raw = text.encode() if isinstance(text, str) else text
        self.add(key, np.frombuffer(raw, dtype))

    def add_rows(self, key: str, rows: Sequence[bytes], offset_dtype: str = "uint32") -> None:
        """Add a ragged column of bytes in tskit's form: concatenated rows, and ``key_offset``."""
        self.add_text(key, b"".join(rows))
        self.add(f"{key}_offset", np.array([*accumulate(map(len, rows), initial=0)], offset_dtype))

    def _write(self, file: IO[bytes]) -> None:
        entries = sorted(self._entries, key=lambda entry: entry.key) if self._sort else self._entries
        count = len(entries)
        first_key = HEADER.itemsize + DESCRIPTOR.itemsize * count
        key_lengths = np.fromiter((len(entry.key) for entry in entries), np.int64, count)
        key_ends = first_key + np.cumsum(key_lengths)
        sizes = np.fromiter((entry.length * entry.dtype.itemsize for entry in entries), np.int64, count)
        first_array = _aligned(int(key_ends[-1]) if count else first_key)
        starts = first_array + np.cumsum((sizes + 7) & ~7) - ((sizes + 7) & ~7)
        header = np.zeros((), HEADER)
        header["magic"], header["major"], header["items"] = np.void(MAGIC), 1, count
        header["size"] = starts[-1] + sizes[-1] if count else first_key
        index = np.zeros(count, DESCRIPTOR)
        index["kind"] = np.fromiter((KINDS[entry.dtype] for entry in entries), np.uint8, count)
        index["key_start"], index["key_length"] = key_ends - key_lengths, key_lengths
        index["start"], index["length"] = starts, sizes // np.fromiter((e.dtype.itemsize for e in entries), int, count)
        keys = b"".join(entry.key for entry in entries)
        file.write(header.tobytes())
        file.write(index.tobytes())
        file.write(keys)
        position = first_key + len(keys)
        for entry, start, size in zip(entries, starts.tolist(), sizes.tolist(), strict=True):
            file.write(bytes(start - position))
            position = start + _write_chunks(file, entry)
            if position != start + size:
                raise ValueError(f"{entry.key!r}: {position - start} bytes given, {size} announced")


def _write_chunks(file: IO[bytes], entry: _Entry) -> int:
    written = 0
    for chunk in entry.chunks:
        written += file.write(np.ascontiguousarray(chunk, entry.dtype).data)
    return written


def _aligned(position: int) -> int:
    return (position + 7) & ~7
