"""Which chunks of a dataset are stored, as h5py says it (docs/formats/hdf5.md, §4). Only workers import this module."""

from __future__ import annotations

import ctypes
import io
from array import array
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5s

MOST_CHUNKS = 2_000_000
AT_ONCE = 4096
RECORD = 4
"""Numbers of a chunk in the answer: its number, offset, size and filter mask."""
_EXTENSIBLE_ARRAY = 4

# h5py does not offer it. Symbols of the library are found through any module of h5py.
_index_type = ctypes.CDLL(h5d.__file__).H5Dget_chunk_index_type
_index_type.argtypes = ctypes.c_int64, ctypes.POINTER(ctypes.c_int)


def stored_chunks(dataset: Any) -> bytes | bytearray:
    """Return number, offset, size and filter mask of each stored chunk, as 64-bit integers, by rising numbers.

    A chunk's number counts the chunks of the whole dataset in C order. Raises ValueError if there are too many, or if
    the library would not find them where it lists them.
    """
    chunks = dataset.get_num_chunks()
    if chunks > MOST_CHUNKS:
        raise ValueError(f"has {chunks} chunks, of which at most {MOST_CHUNKS} can be listed")
    found = _Rows(dataset)
    if chunks:
        dataset.chunk_iter(found.add)
    return found.sorted()


class _Rows:
    """Collects chunks, in little more memory than the answer has."""

    def __init__(self, dataset: Any) -> None:
        self._shape = dataset.get_create_plist().get_chunk()
        self._grid = _in_chunks(dataset.shape, self._shape)
        limits = dataset.get_space().get_simple_extent_dims(True)
        self._limits = _in_chunks(limits, self._shape)
        self._is_extensible = _is_extensible_array(dataset)
        self._growing = limits.index(h5s.UNLIMITED) if self._is_extensible else 0
        self._found = bytearray()
        self._last = -1
        self._places, self._others = array("Q"), array("Q")

    def add(self, chunk: Any) -> None:
        self._places.extend(chunk.chunk_offset)
        self._others.extend((chunk.byte_offset, chunk.size, chunk.filter_mask))
        if len(self._places) == AT_ONCE * len(self._shape):
            self._flush()

    def sorted(self) -> bytes | bytearray:
        self._flush()
        if not self._growing:
            return self._found
        rows = np.frombuffer(self._found, np.uint64).reshape(-1, RECORD)
        return rows[np.argsort(rows[:, 0], kind="stable")].tobytes()

    def _flush(self) -> None:
        if not self._places:
            return
        places = np.frombuffer(self._places, np.uint64).reshape(-1, len(self._shape))
        along, rest = np.divmod(places, np.array(self._shape, np.uint64))
        if self._growing and _MISPLACES:
            along = self._replaced(along)
        if rest.any() or (along >= np.array(self._grid, np.uint64)).any():
            raise ValueError("lists a chunk outside of its shape")
        numbers = _number(along, self._grid)
        # The library searches a tree for a chunk, and does not find one that is not in its place.
        if not self._is_extensible and (int(numbers[0]) <= self._last or (numbers[1:] <= numbers[:-1]).any()):
            raise ValueError("does not list its chunks in their order")
        self._last = int(numbers[-1])
        others = np.frombuffer(self._others, np.uint64).reshape(-1, RECORD - 1)
        self._found += np.concatenate([numbers[:, None], others], axis=1).tobytes()
        self._places, self._others = array("Q"), array("Q")

    def _replaced(self, along: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the places of chunks that the library lists as if the axis that grows were where it is in C order.

        In an extensible array it is the first axis.
        """
        numbers = _number(along[:, self._growing :], self._limits[self._growing :])
        others = [axis for axis in range(len(self._limits)) if axis != self._growing]
        found = np.empty_like(along)
        for axis in reversed(others):
            numbers, found[:, axis] = np.divmod(numbers, np.uint64(self._limits[axis]))
        found[:, self._growing] = numbers
        return found


def _in_chunks(dimensions: Any, shape: Any) -> list[int]:
    return [-(-length // step) for length, step in zip(dimensions, shape, strict=True)]


def _number(along: np.ndarray[Any, Any], grid: list[int]) -> np.ndarray[Any, Any]:
    """Return the numbers of places in C order."""
    numbers = np.zeros(len(along), np.uint64)
    for axis, length in enumerate(grid):
        numbers = numbers * np.uint64(length) + along[:, axis]
    return numbers


def _is_extensible_array(dataset: Any) -> bool:
    kind = ctypes.c_int()
    if _index_type(dataset.id, ctypes.byref(kind)) < 0:
        raise ValueError("has an unknown index of chunks")
    return kind.value == _EXTENSIBLE_ARRAY


def _misplaces() -> bool:
    """Return whether this release of HDF5 lists wrong places in extensible arrays that grow along a later axis."""
    with h5py.File(io.BytesIO(), "w", libver="latest") as file:
        made = file.create_dataset("x", (2, 2), "u1", chunks=(1, 1), maxshape=(2, None))
        made[...] = 1
        places: list[tuple[int, ...]] = []
        made.id.chunk_iter(lambda chunk: places.append(chunk.chunk_offset))
        return max(place[1] for place in places) > 1


_MISPLACES = _misplaces()
