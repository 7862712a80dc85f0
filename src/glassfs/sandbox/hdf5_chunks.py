"""Which chunks of a dataset are stored, as h5py says it (docs/formats/hdf5.md, §4). Only workers import this module."""

from __future__ import annotations

import ctypes
from array import array
from enum import IntEnum
from typing import Any

import numpy as np
from h5py import h5s

from glassfs.sandbox.hdf5_values import Id, declared


class IndexType(IntEnum):
    """Indexes of chunks (``H5D_chunk_index_t``)."""

    OLD_TREE = 0
    EXTENSIBLE_ARRAY = 4


_index_type = declared("H5Dget_chunk_index_type", ctypes.c_int, Id, ctypes.POINTER(ctypes.c_int))
_options = declared("H5Pget_chunk_opts", ctypes.c_int, Id, ctypes.POINTER(ctypes.c_uint))
_stored_size = declared(
    "H5Dget_chunk_storage_size", ctypes.c_int, Id, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64),
)


def are_listed(dataset: Any, properties: Any) -> bool:
    """Return whether the library lists the chunks of a dataset as it reads them. Raises ValueError."""
    options = ctypes.c_uint()
    if _options(properties.id, options) < 0:
        raise ValueError("has unknown options of chunks")
    # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS: no mask says which filters those at the edge have. And in an extensible
    # array the axis that grows is the first one, but the library lists places as if it were not.
    is_array = _type_of_index(dataset) == IndexType.EXTENSIBLE_ARRAY
    limits = dataset.get_space().get_simple_extent_dims(True) if is_array else ()
    return not options.value & 2 and h5s.UNLIMITED not in limits[1:]


def stored_chunks(dataset: Any, most: int) -> bytes:
    """Return number, offset, size and filter mask of each stored chunk, as 64-bit integers, by rising numbers.

    A chunk's number counts the chunks of the whole dataset in C order. The size of a chunk that the library lists, but
    does not find by its key, is 0. Raises ValueError if there are more than
    ``most``, or if they are listed in another order or place.
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
    steps = dataset.get_create_plist().get_chunk()
    places = np.frombuffer(found, np.uint64).reshape(-1, len(steps))
    rows = np.frombuffer(others, np.uint64).reshape(-1, 4)
    # Places are elements, of which the first of a chunk is a multiple of its shape.
    along, rest = np.divmod(places, np.array(steps, np.uint64))
    grid = [-(-length // step) for length, step in zip(dataset.shape, steps, strict=True)]
    if rest.any() or (along >= np.array(grid, np.uint64)).any():
        raise ValueError("lists a chunk outside of its shape")
    rows[:, 0] = numbers = np.ravel_multi_index(tuple(along.astype(np.int64).T), grid)
    # The library searches a tree for a chunk, and does not find one out of order.
    if (numbers[1:] <= numbers[:-1]).any():
        raise ValueError("does not list its chunks in their order")
    if _type_of_index(dataset) == IndexType.OLD_TREE:
        # It searches a tree of version 1 by the keys of the upper nodes, which neither order nor checksum protects.
        first, step = places.ctypes.data, places.strides[0]
        starts = range(first, first + places.nbytes, step)
        lost = [_size_at(dataset, at) != size for at, size in zip(starts, rows[:, 2].tolist(), strict=True)]
        rows[lost, 2] = 0
    return rows.tobytes()


def stored_size(dataset: Any, start: list[int]) -> int:
    """Return the bytes of the chunk that begins at ``start``, 0 if it is not stored."""
    return _size_at(dataset, (ctypes.c_uint64 * len(start))(*start))


def _type_of_index(dataset: Any) -> int:
    index = ctypes.c_int()
    if _index_type(dataset.id, index) < 0:
        raise ValueError("has an unknown index of chunks")
    return index.value


def _size_at(dataset: Any, start: Any) -> int:
    size = ctypes.c_uint64()
    return size.value if _stored_size(dataset.id, start, size) >= 0 else 0
