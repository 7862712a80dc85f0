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


def stored_chunks(dataset: Any, most: int) -> bytes:
    """Return number, offset, size and filter mask of each stored chunk, as 64-bit integers, by rising numbers.

    A chunk's number counts the chunks of the whole dataset in C order. The masks are those that the library applies
    when it reads. Raises ValueError if there are more than ``most``, or if the library cannot say how it reads them.
    """
    chunks = dataset.get_num_chunks()
    if chunks > most:
        raise ValueError(f"has {chunks} chunks, of which at most {most} can be listed: a larger cache_size allows more")
    if not chunks:
        return b""
    found, others = array("Q"), array("Q")

    def add(chunk: Any) -> None:
        found.extend(chunk.chunk_offset)
        others.extend((0, chunk.byte_offset, chunk.size, chunk.filter_mask))

    dataset.chunk_iter(add)
    properties = dataset.get_create_plist()
    index, options = ctypes.c_int(), ctypes.c_uint()
    if _index_type(dataset.id, index) < 0 or _options(properties.id, options) < 0:
        raise ValueError("has an unknown index of chunks")
    shape = np.array(properties.get_chunk(), np.uint64)
    places = np.frombuffer(found, np.uint64).reshape(-1, len(shape))
    rows = np.frombuffer(others, np.uint64).reshape(-1, 4)
    # Places are elements, of which the first of a chunk is a multiple of its shape.
    along, rest = np.divmod(places, shape)
    grid = _in_chunks(dataset.shape, shape)
    limits = dataset.get_space().get_simple_extent_dims(True)
    growing = limits.index(h5s.UNLIMITED) if index.value == IndexType.EXTENSIBLE_ARRAY else 0
    if growing and _MISPLACES:
        along = _replaced(along, _in_chunks(limits, shape), growing)
    if rest.any() or (along >= np.array(grid, np.uint64)).any():
        raise ValueError("lists a chunk outside of its shape")
    rows[:, 0] = numbers = _number(along, grid)
    # The library searches a tree for a chunk, and does not find one out of order.
    if index.value != IndexType.EXTENSIBLE_ARRAY and (numbers[1:] <= numbers[:-1]).any():
        raise ValueError("does not list its chunks in their order")
    if options.value & 2:  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS
        is_edge = (along >= np.array(dataset.shape, np.uint64) // shape).any(axis=1)
        rows[is_edge, 3] = Mask.UNFILTERED
    if index.value == IndexType.OLD_TREE:
        # It searches a tree of version 1 by the keys of the upper nodes, which neither order nor checksum protects.
        first, step = places.ctypes.data, places.strides[0]
        starts = range(first, first + places.nbytes, step)
        lost = [_size_at(dataset, at) != size for at, size in zip(starts, rows[:, 2].tolist(), strict=True)]
        rows[lost, 3] |= np.uint64(Mask.NOT_FOUND)
    return rows[np.argsort(numbers, kind="stable")].tobytes()


def stored_size(dataset: Any, start: list[int]) -> int:
    """Return the bytes of the chunk that begins at ``start``, 0 if it is not stored."""
    return _size_at(dataset, (ctypes.c_uint64 * len(start))(*start))


def _size_at(dataset: Any, start: Any) -> int:
    size = ctypes.c_uint64()
    return size.value if _stored_size(dataset.id, start, size) >= 0 else 0


def _replaced(along: np.ndarray[Any, Any], limits: list[int], growing: int) -> np.ndarray[Any, Any]:
    """Return the places of chunks that the library lists as if the axis that grows were where it is in C order.

    In an extensible array it is the first axis.
    """
    # The library has counted with the growing axis first, but computed places as if it were not. The number that it
    # counted is found from the place, and divided again with the axes in their true order.
    numbers = _number(along[:, growing:], limits[growing:])
    found = np.empty_like(along)
    for axis in reversed(range(len(limits))):
        if axis != growing:
            numbers, found[:, axis] = np.divmod(numbers, np.uint64(limits[axis]))
    found[:, growing] = numbers
    return found


def _in_chunks(dimensions: Any, shape: Any) -> list[int]:
    return [-(-length // int(step)) for length, step in zip(dimensions, shape, strict=True)]


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
