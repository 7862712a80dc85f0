"""Types of an HDF5 file, as the worker describes them (docs/formats/hdf5.md, §6). Only workers import this module."""

from __future__ import annotations

from typing import Any

import numpy as np
from h5py import h5t

from glassfs.sandbox.hdf5_values import text_of

DEEPEST_TYPE = 8
_FIXED, _COMPOUND, _REFERENCE, _ENUM, _VLEN, _ARRAY, _OPAQUE = (
    h5t.STRING, h5t.COMPOUND, h5t.REFERENCE, h5t.ENUM, h5t.VLEN, h5t.ARRAY, h5t.OPAQUE,
)
_FLOATS = {2: (h5t.IEEE_F16LE, h5t.IEEE_F16BE), 4: (h5t.IEEE_F32LE, h5t.IEEE_F32BE),
           8: (h5t.IEEE_F64LE, h5t.IEEE_F64BE)}
_INTEGERS = {
    1: (h5t.STD_I8LE, h5t.STD_I8BE, h5t.STD_U8LE, h5t.STD_U8BE, h5t.STD_B8LE, h5t.STD_B8BE),
    2: (h5t.STD_I16LE, h5t.STD_I16BE, h5t.STD_U16LE, h5t.STD_U16BE, h5t.STD_B16LE, h5t.STD_B16BE),
    4: (h5t.STD_I32LE, h5t.STD_I32BE, h5t.STD_U32LE, h5t.STD_U32BE, h5t.STD_B32LE, h5t.STD_B32BE),
    8: (h5t.STD_I64LE, h5t.STD_I64BE, h5t.STD_U64LE, h5t.STD_U64BE, h5t.STD_B64LE, h5t.STD_B64BE),
}


def described_type(kind: Any, depth: int) -> dict[str, Any]:
    """Describe a type: its class; for numbers the dtypes ``stored`` and ``shown``, None if only the library decodes it.

    ``dims`` are the dimensions of an array type, ``fields`` those of a compound.
    """
    code = kind.get_class()
    if depth > DEEPEST_TYPE:
        return {"class": "unknown", "name": "deeply nested type"}
    if code == _FIXED:
        return {"class": "text", "name": "string"}
    if code == _VLEN:
        base = described_type(kind.get_super(), depth + 1)
        return {"class": "ragged" if base["class"] == "number" else "unknown", "base": base, "name": "sequences"}
    if code == _ARRAY:
        base = described_type(kind.get_super(), depth + 1)
        return {**base, "dims": [*kind.get_array_dims(), *base.get("dims", [])]}
    if code in (_OPAQUE, _REFERENCE):
        return {"class": "bytes", "name": "opaque" if code == _OPAQUE else "reference"}
    number = _number(kind, code)
    if number is not None:
        return {"class": "number", **number}
    if code == _COMPOUND:
        return _described_compound(kind, depth)
    return {"class": "unknown", "name": "type of class " + str(code)}


def _described_compound(kind: Any, depth: int) -> dict[str, Any]:
    names = [kind.get_member_name(number) for number in range(kind.get_nmembers())]
    types = [described_type(kind.get_member_type(number), depth + 1) for number in range(len(names))]
    offsets = [kind.get_member_offset(number) for number in range(len(names))]
    is_plain = all(one["class"] == "number" for one in types)
    fields = [
        {**one, "name": text_of(name), "offset": offset}
        for name, offset, one in zip(names, offsets, types, strict=True)
    ]
    if not is_plain:
        return {"class": "unknown", "name": "compound"}
    shown = [[field["name"], field["shown"], *([field["dims"]] if field.get("dims") else [])] for field in fields]
    return {"class": "compound", "name": "compound", "fields": fields, "shown": shown}


def _number(kind: Any, code: int) -> dict[str, Any] | None:
    """Describe an integer, a float, a boolean, an enumeration or a complex number; None for other types."""
    size = kind.get_size()
    if code in (h5t.INTEGER, h5t.BITFIELD, _ENUM):
        base = kind.get_super() if code == _ENUM else kind
        if size not in _INTEGERS:
            return None
        sign = "i" if base.get_class() == h5t.INTEGER and base.get_sign() == h5t.SGN_2 else "u"
        is_plain = any(base.equal(known) for known in _INTEGERS[size])
        order = ">" if base.get_order() == h5t.ORDER_BE else "<"
        stored, shown = _descr(order, sign, size), _descr("<", sign, size)
        if code == _ENUM and kind.dtype == np.bool_:
            shown = "|b1"
        return {"stored": stored if is_plain else None, "shown": shown, "name": shown}
    if code == h5t.FLOAT:
        return _float(kind, size, "f")
    if kind.dtype.kind == "c" and size in (8, 16):
        part = kind.get_member_type(0) if code == _COMPOUND else kind.get_super()
        found = _float(part, size // 2, "c")
        is_packed = code != _COMPOUND or (kind.get_member_offset(0) == 0 and kind.get_member_offset(1) == size // 2)
        return found if found is None or is_packed else {**found, "stored": None}
    return None


def _float(kind: Any, size: int, letter: str) -> dict[str, Any] | None:
    if size not in _FLOATS:
        return None
    little, big = _FLOATS[size]
    shown = _descr("<", letter, size * (2 if letter == "c" else 1))
    stored = shown if kind.equal(little) else ">" + shown[1:] if kind.equal(big) else None
    return {"stored": stored, "shown": shown, "name": shown}


def _descr(order: str, letter: str, size: int) -> str:
    return f"{'|' if size == 1 else order}{letter}{size}"


def dtype_of(descr: Any) -> np.dtype[Any]:
    """Return the dtype of a descr that went through JSON: fields are lists."""
    if isinstance(descr, str):
        return np.dtype(descr)
    return np.dtype([(name, dtype_of(one), *map(tuple, dims)) for name, one, *dims in descr])
