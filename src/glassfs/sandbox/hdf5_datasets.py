"""Datasets: those like most, described with few calls of the library; types that were seen before; and which chunks are
stored, as h5py says it (docs/formats/hdf5.md, §3, §4). Only workers import this module.

An identifier of h5py is an object of Python, which takes longer to make than what is then asked of most datasets.
"""

from __future__ import annotations

import ctypes
from array import array
from enum import IntEnum
from typing import Any

import numpy as np
from h5py import h5i, h5s

from glassfs.sandbox.hdf5_values import Id, declared, described_type

MOST_TYPES = 32
"""Types of a container that are recognized: describing one takes ten times as long."""
_UNDEFINED = (1 << 64) - 1
_Number = ctypes.c_uint64

_open, _class = declared("H5Oopen_by_addr", Id, Id, _Number), declared("H5Iget_type", ctypes.c_int, Id)
_close = declared("H5Idec_ref", ctypes.c_int, Id)
_facts = declared("H5Oget_info2", ctypes.c_int, Id, ctypes.c_void_p, ctypes.c_uint)
_type, _equal = declared("H5Dget_type", Id, Id), declared("H5Tequal", ctypes.c_int, Id, Id)
_space = declared("H5Dget_space", Id, Id)
_axes = declared("H5Sget_simple_extent_dims", ctypes.c_int, Id, ctypes.c_void_p, ctypes.c_void_p)
_offset, _stored = declared("H5Dget_offset", _Number, Id), declared("H5Dget_storage_size", _Number, Id)
_index_type = declared("H5Dget_chunk_index_type", ctypes.c_int, Id, ctypes.POINTER(ctypes.c_int))
_options = declared("H5Pget_chunk_opts", ctypes.c_int, Id, ctypes.POINTER(ctypes.c_uint))
_stored_size = declared(
    "H5Dget_chunk_storage_size", ctypes.c_int, Id, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64),
)


class _Facts(ctypes.Structure):
    """``H5O_info1_t``, of which the library fills in what it is asked for: H5O_INFO_BASIC and H5O_INFO_NUM_ATTRS."""

    _fields_ = (
        ("file", ctypes.c_ulong), ("address", _Number), ("type", ctypes.c_int), ("names", ctypes.c_uint),
        ("times", _Number * 4), ("attributes", _Number), ("rest", _Number * 16),
    )


class PlainDatasets:
    """The datasets of a container that begins at ``base`` of its file, and their types."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._known: list[tuple[Any, int, str, dict[str, Any]]] = []
        self._facts, self._axes = _Facts(), (_Number * 32)()
        self._places = ctypes.addressof(self._facts), ctypes.addressof(self._axes)

    def type_of(self, kind: Any, bits: str) -> dict[str, Any]:
        """Describe a type, the first ones only once."""
        found = self._find(kind.id, bits)
        if found is not None:
            return found[1]
        described = described_type(kind, 0, bits)
        if len(self._known) < MOST_TYPES:
            self._known.append((kind, kind.get_size(), bits, described))
        return described

    def _find(self, kind: int, bits: str) -> tuple[int, dict[str, Any]] | None:
        """Return size and description of a type; None if it is not known."""
        for known, size, letter, described in self._known:
            if letter == bits and _equal(kind, known.id) > 0:
                return size, described
        return None

    def described(self, group: int, address: int) -> dict[str, Any] | None:
        """Describe the dataset at an address, as a link in a group has it; None for what is not as most are.

        Most have a known type, axes, one name, no attributes, and stored values that are contiguous.
        """
        opened = [_open(group, address)]
        try:
            if opened[0] < 0 or _class(opened[0]) != h5i.DATASET or _facts(opened[0], self._places[0], 1 | 4) < 0:
                return None
            # All but contiguous ones have no offset; without stored values it may lie before the container.
            offset, stored = _offset(opened[0]), _stored(opened[0])
            is_plain = self._facts.names == 1 and not self._facts.attributes
            if not is_plain or not stored or not self._base <= offset < _UNDEFINED:
                return None
            opened += _type(opened[0]), _space(opened[0])
            kind, axes = self._find(opened[1], "u"), _axes(opened[2], self._places[1], None)
            if kind is None or axes < 1:
                return None
            shape = self._axes[:axes]
            return {
                "kind": "dataset", "type": kind[1], "size": kind[0], "shape": shape, "stored": stored, "offset": offset,
            }
        finally:
            for one in opened:
                if one >= 0:
                    _close(one)


class IndexType(IntEnum):
    """Indexes of chunks (``H5D_chunk_index_t``)."""

    OLD_TREE = 0
    EXTENSIBLE_ARRAY = 4


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
    does not find by its key, is 0. Raises ValueError if there are more than ``most``, if they are listed in another
    order or place, or if two of them overlap.
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
    # Sorted by offset, a chunk that begins before the end of the previous one overlaps it. No writer shares bytes
    # between chunks: one of the two places is wrong, and nothing says which.
    ordered = rows[np.argsort(rows[:, 1], kind="stable")]
    if (ordered[1:, 1] - ordered[:-1, 1] < ordered[:-1, 2]).any():
        raise ValueError("lists two chunks that overlap in the file")
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
