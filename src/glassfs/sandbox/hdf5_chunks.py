"""Which chunks of a dataset are stored, as h5py says it (docs/formats/hdf5.md, §4). Only workers import this module."""

from __future__ import annotations

import ctypes
import io
from array import array
from enum import IntEnum
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5s

AT_ONCE = 4096
"""Chunks that are collected before they are numbered."""


class Mask(IntEnum):
    """Filter masks: that of a chunk without any filter, and a bit of one that the library does not find by its key."""

    UNFILTERED = 0xFFFF_FFFF
    NOT_FOUND = 1 << 32


class IndexType(IntEnum):
    """Indexes of chunks (``H5D_chunk_index_t``)."""

    OLD_TREE = 0
    EXTENSIBLE_ARRAY = 4



# h5py does not offer these. Symbols of the library are found through any module of h5py.
_library = ctypes.CDLL(h5d.__file__)
_index_type, _options, _stored_size = (
    _library.H5Dget_chunk_index_type, _library.H5Pget_chunk_opts, _library.H5Dget_chunk_storage_size,
)
_index_type.argtypes = ctypes.c_int64, ctypes.POINTER(ctypes.c_int)
_options.argtypes = ctypes.c_int64, ctypes.POINTER(ctypes.c_uint)
_stored_size.argtypes = ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)


def stored_chunks(dataset: Any, most: int) -> bytes | bytearray:
    """Return number, offset, size and filter mask of each stored chunk, as 64-bit integers, by rising numbers.

    A chunk's number counts the chunks of the whole dataset in C order. The masks are those that the library applies
    when it reads. Raises ValueError if there are more than ``most``, or if the library cannot say how it reads them.
    """
    chunks = dataset.get_num_chunks()
    if chunks > most:
        raise ValueError(f"has {chunks} chunks, of which at most {most} can be listed: a larger cache_size allows more")
    found = _ChunkList(dataset)
    if chunks:
        dataset.chunk_iter(found.add)
    return found.sorted()


def stored_size(dataset: Any, start: list[int]) -> int:
    """Return the bytes of the chunk that begins at ``start``, 0 if it is not stored."""
    size = ctypes.c_uint64()
    found = _stored_size(dataset.id, (ctypes.c_uint64 * len(start))(*start), size)
    return size.value if found >= 0 else 0


class _ChunkList:
    """Collects chunks, in little more memory than the answer has."""

    def __init__(self, dataset: Any) -> None:
        properties = dataset.get_create_plist()
        self._dataset = dataset
        self._shape = properties.get_chunk()
        self._grid = _in_chunks(dataset.shape, self._shape)
        self._whole = [length // step for length, step in zip(dataset.shape, self._shape, strict=True)]
        limits = dataset.get_space().get_simple_extent_dims(True)
        self._limits = _in_chunks(limits, self._shape)
        index, options = ctypes.c_int(), ctypes.c_uint()
        if _index_type(dataset.id, index) < 0 or _options(properties.id, options) < 0:
            raise ValueError("has an unknown index of chunks")
        # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS
        self._has_raw_edges = bool(options.value & 2)
        self._is_old_tree = index.value == IndexType.OLD_TREE
        self._is_extensible = index.value == IndexType.EXTENSIBLE_ARRAY
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
        rows = np.frombuffer(self._found, np.uint64).reshape(-1, 4)
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
        # The library searches a tree for a chunk, and does not find one out of order.
        if not self._is_extensible and (int(numbers[0]) <= self._last or (numbers[1:] <= numbers[:-1]).any()):
            raise ValueError("does not list its chunks in their order")
        self._last = int(numbers[-1])
        others = np.frombuffer(self._others, np.uint64).reshape(-1, 3).copy()
        if self._has_raw_edges:
            others[(along >= np.array(self._whole, np.uint64)).any(axis=1), -1] = Mask.UNFILTERED
        if self._is_old_tree:
            others[self._sizes_by_key(places) != others[:, 1], -1] |= np.uint64(Mask.NOT_FOUND)
        self._found += np.concatenate([numbers[:, None], others], axis=1).tobytes()
        self._places, self._others = array("Q"), array("Q")

    def _sizes_by_key(self, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the sizes of chunks that the library finds when it reads them, 0 for others.

        It searches a tree of version 1 by the keys of the upper nodes, which neither order nor checksum protects.
        """
        found, size = np.zeros(len(places), np.uint64), ctypes.c_uint64()
        start, step = places.ctypes.data, places.strides[0]
        for number, at in enumerate(range(start, start + places.nbytes, step)):
            if _stored_size(self._dataset.id, at, size) >= 0:
                found[number] = size.value
        return found

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


def _misplaces() -> bool:
    """Return whether this release of HDF5 lists wrong places in extensible arrays that grow along a later axis."""
    with h5py.File(io.BytesIO(), "w", libver="latest") as file:
        made = file.create_dataset("x", (2, 2), "u1", chunks=(1, 1), maxshape=(2, None))
        made[...] = 1
        places: list[tuple[int, ...]] = []
        made.id.chunk_iter(lambda chunk: places.append(chunk.chunk_offset))
        return max(place[1] for place in places) > 1


_MISPLACES = _misplaces()
