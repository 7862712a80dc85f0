"""Values of an HDF5 file for JSON: attributes and strings. Only workers import this module."""

from __future__ import annotations

from math import prod
from typing import Any

import h5py
import numpy as np
from h5py import h5s

LARGEST_ATTRIBUTE = 1 << 20


def attribute_value(holder: Any, attribute: Any, left: list[int]) -> Any:
    """Return the value of an attribute for JSON; a description of one that is large. ``left`` is the budget."""
    if attribute.get_space().get_simple_extent_type() == h5s.NULL:
        return None
    size = prod(attribute.shape) * attribute.get_type().get_size()
    if size > min(LARGEST_ATTRIBUTE, left[0]):
        return {"too_large": size, "shape": list(attribute.shape)}
    value = h5py.AttributeManager(_Holder(holder)).__getitem__(attribute.name.decode("utf-8", "surrogateescape"))
    return _json(value, left)


class _Holder:
    """What ``AttributeManager`` needs of an object."""

    def __init__(self, identifier: Any) -> None:
        self.id = identifier


def _json(value: Any, left: list[int]) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.names is None:
        return [_json(item, left) for item in value] if value.ndim else _json(value[()], left)
    if isinstance(value, (np.void, np.ndarray)) and value.dtype.names:
        if isinstance(value, np.ndarray) and value.ndim:
            return [_json(item, left) for item in value]
        return {name: _json(value[name], left) for name in value.dtype.names}
    left[0] -= len(value) if isinstance(value, (str, bytes)) else 8
    if left[0] < 0:
        raise ValueError("is too large")
    if isinstance(value, (str, bytes)):
        return text_of(value)
    if isinstance(value, (h5py.Reference, h5py.RegionReference)):
        return "reference"
    if isinstance(value, np.void):
        return value.tobytes().hex()
    if isinstance(value, (complex, np.complexfloating)):
        return {"real": float(value.real), "imag": float(value.imag)}
    item = value.item() if isinstance(value, np.generic) else value
    return item if isinstance(item, (bool, int, float, type(None))) else text_of(str(item))


def text_of(value: Any) -> str:
    """Decode a string; bytes that are not UTF-8 become backslash escapes."""
    if value is None:
        return ""
    if isinstance(value, np.ndarray):
        value = value.item() if value.size == 1 else b""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes):
        return str(value)
    return value.decode("utf-8", "backslashreplace")
