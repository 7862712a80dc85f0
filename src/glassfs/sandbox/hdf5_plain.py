"""Datasets as most are, described with few calls of the library, and types that were seen before. For workers only.

An identifier of h5py is an object of Python, which takes longer to make than what is then asked of most datasets.
"""

from __future__ import annotations

import ctypes
from typing import Any

from h5py import h5i

from glassfs.sandbox.hdf5_types import described_type
from glassfs.sandbox.hdf5_values import Id, declared

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
