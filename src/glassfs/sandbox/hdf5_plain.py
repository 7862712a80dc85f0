"""Datasets as most are, described with few calls of the library, and types that were seen before. Only workers import it.

An identifier of h5py is an object of Python, which takes longer to make than what is then asked of most datasets.
"""

from __future__ import annotations

import ctypes
from typing import Any

from h5py import h5d, h5i

from glassfs.sandbox.hdf5_types import described_type

MOST_TYPES = 32
"""Types of a container that are recognized: describing one takes ten times as long."""
_MOST_AXES = 32
_UNDEFINED = (1 << 64) - 1

_library = ctypes.CDLL(h5d.__file__)
_open, _class, _type, _space = _library.H5Oopen, _library.H5Iget_type, _library.H5Dget_type, _library.H5Dget_space
_open.argtypes, _open.restype = (ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64), ctypes.c_int64
_close, _equal, _offset, _stored = (
    _library.H5Idec_ref, _library.H5Tequal, _library.H5Dget_offset, _library.H5Dget_storage_size,
)
for _one in (_class, _type, _space, _close, _offset, _stored):
    _one.argtypes = (ctypes.c_int64,)
_type.restype = _space.restype = ctypes.c_int64
_offset.restype = _stored.restype = ctypes.c_uint64
_equal.argtypes = ctypes.c_int64, ctypes.c_int64
_facts, _axes = _library.H5Oget_info2, _library.H5Sget_simple_extent_dims
_facts.argtypes = ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint
_axes.argtypes = ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p


class _Facts(ctypes.Structure):
    """``H5O_info1_t``, of which the library fills in what it is asked for: H5O_INFO_BASIC and H5O_INFO_NUM_ATTRS."""

    _fields_ = (
        ("file", ctypes.c_ulong), ("address", ctypes.c_uint64), ("type", ctypes.c_int), ("names", ctypes.c_uint),
        ("times", ctypes.c_int64 * 4), ("attributes", ctypes.c_uint64), ("rest", ctypes.c_uint64 * 16),
    )


class PlainDatasets:
    """The datasets of a container that begins at ``base`` of its file, and their types."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._known: list[tuple[Any, int, int, str, dict[str, Any]]] = []
        self._facts, self._axes = _Facts(), (ctypes.c_uint64 * _MOST_AXES)()
        self._places = ctypes.addressof(self._facts), ctypes.addressof(self._axes)

    def type_of(self, kind: Any, bits: str) -> dict[str, Any]:
        """Describe a type, the first ones only once."""
        found = self._find(kind.id, bits)
        if found is None:
            found = kind.get_size(), described_type(kind, 0, bits)
            if len(self._known) < MOST_TYPES:
                self._known.append((kind, kind.id, found[0], bits, found[1]))
        return found[1]

    def _find(self, kind: int, bits: str) -> tuple[int, dict[str, Any]] | None:
        """Return size and description of a type; None if it is not known."""
        for _, known, size, letter, described in self._known:
            if letter == bits and _equal(kind, known) > 0:
                return size, described
        return None

    def described(self, group: int, name: bytes) -> dict[str, Any] | None:
        """Describe a dataset of a known type with axes and stored values, contiguous, with one name and no attributes.

        Return None for any other object, and if the library cannot open it.
        """
        opened = [_open(group, name, 0)]
        try:
            if opened[0] < 0 or _class(opened[0]) != h5i.DATASET or _facts(opened[0], self._places[0], 1 | 4) < 0:
                return None
            # All but contiguous ones have no offset; without stored values it may lie before the container.
            offset, stored = _offset(opened[0]), _stored(opened[0])
            has_more = self._facts.attributes or self._facts.names != 1
            if has_more or not stored or not self._base <= offset < _UNDEFINED:
                return None
            opened += _type(opened[0]), _space(opened[0])
            kind, axes = self._find(opened[1], "u"), _axes(opened[2], self._places[1], None)
            if kind is None or axes < 1:
                return None
            return {
                "kind": "dataset", "type": kind[1], "size": kind[0], "shape": self._axes[:axes], "stored": stored,
                "offset": offset,
            }
        finally:
            for one in opened:
                if one >= 0:
                    _close(one)
