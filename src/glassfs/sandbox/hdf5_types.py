"""Types of an HDF5 file, as the worker describes them (docs/formats/hdf5.md, §6). Only workers import this module."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from h5py import h5t

from glassfs.sandbox.hdf5_values import native, text_of

_FIXED, _COMPOUND, _REFERENCE, _ENUM, _VLEN, _ARRAY, _OPAQUE = (
    h5t.STRING, h5t.COMPOUND, h5t.REFERENCE, h5t.ENUM, h5t.VLEN, h5t.ARRAY, h5t.OPAQUE,
)
_OTHERS = {h5t.INTEGER: "integer", h5t.FLOAT: "float", h5t.BITFIELD: "bit field", _ENUM: "enumeration",
           h5t.TIME: "time"}
_FLOATS = {size: [getattr(h5t, f"IEEE_F{8 * size}{order}") for order in ("LE", "BE")] for size in (2, 4, 8)}
_INTEGERS = {
    size: [getattr(h5t, f"STD_{kind}{8 * size}{order}") for kind in "IUB" for order in ("LE", "BE")]
    for size in (1, 2, 4, 8)
}
_SHOWN = {
    ("array", "number"): "number", ("array", "text"): "text", ("array", "bytes"): "bytes",
    ("rows", "number"): "ragged", ("compound", "number"): "compound",
}
"""The class of a type that is made of others: an array, rows of variable length or a compound. Others are not shown."""


def described_type(kind: Any, depth: int) -> dict[str, Any]:
    """Describe a type: its class, which is ``unknown`` if it is not shown, and what to call it.

    Numbers have the dtypes ``stored`` and ``shown``, the first None if only the library decodes it. ``dims`` are the
    dimensions of an array type, ``base`` is the type of the values in rows, ``fields`` are those of a compound.
    """
    code = kind.get_class()
    if depth > 8:
        return {"class": "unknown", "name": "deeply nested type"}
    if code == _FIXED:
        return {"class": "text", "name": "text"}
    if code == _VLEN:
        base = described_type(kind.get_super(), depth + 1)
        return {"class": _class_of("rows", base), "base": base, "name": f"rows of {_called(base)}"}
    if code == _ARRAY:
        base = described_type(kind.get_super(), depth + 1)
        what = _class_of("array", base)
        if what == "unknown":
            return {"class": what, "name": f"array of {_called(base)}"}
        return {**base, "class": what, "dims": [*kind.get_array_dims(), *base.get("dims", [])]}
    if code == _OPAQUE:
        return {"class": "bytes", "name": "opaque"}
    if code == _REFERENCE:
        # Those of later releases have another size in memory than in the file.
        is_plain = kind.equal(h5t.STD_REF_OBJ) or kind.equal(h5t.STD_REF_DSETREG)
        return {"class": "bytes" if is_plain else "unknown", "name": "reference"}
    number = _number(kind, code)
    if number is not None:
        return {"class": "number", **number}
    if code == _COMPOUND:
        return _described_compound(kind, depth)
    # NumPy has no type for their values: a float of 80 bits, for example, is another type on each machine.
    return {"class": "bytes", "name": f"{_OTHERS.get(code, 'value')} of {kind.get_size()} bytes"}


def enumeration(kind: Any) -> Any:
    """Return the enumeration that a type is, or an array of it; None for other types, and for booleans."""
    while kind.get_class() == _ARRAY:
        kind = kind.get_super()
    return kind if kind.get_class() == _ENUM and not _is_truth(kind) else None


def _is_truth(kind: Any) -> bool:
    with suppress(TypeError, ValueError):  # of sizes that NumPy does not have
        return bool(kind.dtype == np.bool_)
    return False


def _described_compound(kind: Any, depth: int) -> dict[str, Any]:
    members = range(kind.get_nmembers())
    types = [described_type(kind.get_member_type(number), depth + 1) for number in members]
    hidden = sorted({_called(one) for one in types if _class_of("compound", one) == "unknown"})
    if hidden or not types:
        return {"class": "unknown", "name": "compound with " + (" and ".join(hidden) or "nothing")}
    fields = [
        {**one, "name": text_of(kind.get_member_name(number)), "offset": kind.get_member_offset(number)}
        for number, one in zip(members, types, strict=True)
    ]
    shown = [[field["name"], field["shown"], *([field["dims"]] if field.get("dims") else [])] for field in fields]
    return {"class": "compound", "name": "compound", "fields": fields, "shown": shown}


def _class_of(outer: str, inner: dict[str, Any]) -> str:
    return _SHOWN.get((outer, inner["class"]), "unknown")


def _called(described: dict[str, Any]) -> str:
    name: str = {"number": "numbers", "compound": "compounds"}.get(described["class"], described["name"])
    return f"arrays of {name}" if described.get("dims") else name


def _number(kind: Any, code: int) -> dict[str, Any] | None:
    """Describe an integer, a float, a boolean, an enumeration or a complex number; None for other types."""
    size = kind.get_size()
    if code in (h5t.INTEGER, h5t.BITFIELD, _ENUM):
        base = kind.get_super() if code == _ENUM else kind
        # Others are widened: of three bytes to four.
        size = next((known for known in _INTEGERS if known >= size), 0)
        if not size:
            return None
        sign = "i" if base.get_class() == h5t.INTEGER and base.get_sign() == h5t.SGN_2 else "u"
        is_plain = kind.get_size() == size and any(base.equal(known) for known in _INTEGERS[size])
        order = ">" if base.get_order() == h5t.ORDER_BE else "<"
        stored, shown = _descr(order, sign, size), _descr("<", sign, size)
        if code == _ENUM and _is_truth(kind):
            shown, is_plain = "|b1", is_plain and size == 1
        return {"stored": stored if is_plain else None, "shown": shown, "name": shown}
    if code == h5t.FLOAT:
        return _float(kind, size, "f")
    if size in (8, 16) and _is_complex(kind):
        part = kind.get_member_type(0) if code == _COMPOUND else kind.get_super()
        found = _float(part, size // 2, "c")
        is_packed = code != _COMPOUND or (kind.get_member_offset(0) == 0 and kind.get_member_offset(1) == size // 2)
        return found if found is None or is_packed else {**found, "stored": None}
    return None


def _is_complex(kind: Any) -> bool:
    if kind.get_class() == _COMPOUND and kind.get_nmembers() == 2:  # as MATLAB stores them
        names = [kind.get_member_name(number) for number in range(2)]
        real, imaginary = (kind.get_member_type(number) for number in range(2))
        if names == [b"real", b"imag"] and real.get_class() == h5t.FLOAT and real.equal(imaginary):
            return True
    with suppress(TypeError, NotImplementedError):  # of types that NumPy does not have
        return bool(kind.dtype.kind == "c")
    return False


def _float(kind: Any, size: int, letter: str) -> dict[str, Any] | None:
    known = _FLOATS.get(size, [])
    order = next((order for order, one in zip("<>", known, strict=False) if kind.equal(one)), "")
    if not order:
        size = kind.dtype.itemsize  # of a float with the range of this one: bfloat16 has that of four bytes
    if size not in _FLOATS:
        return None
    item = size * (2 if letter == "c" else 1)
    shown = _descr("<", letter, item)
    return {"stored": _descr(order, letter, item) if order else None, "shown": shown, "name": shown}


def _descr(order: str, letter: str, size: int) -> str:
    return f"{'|' if size == 1 else order}{letter}{size}"


def memory_type(kind: Any, shown: Any) -> Any:
    """Return the type in memory of values that are shown as the descr ``shown``, in which fields are lists."""
    code = kind.get_class()
    if code == _ARRAY:
        return h5t.array_create(memory_type(kind.get_super(), shown), kind.get_array_dims())
    is_complex = code == _COMPOUND and not isinstance(shown, list)  # whose parts may have other names than in h5py
    if is_complex:
        shown = [("", f"<f{int(shown[2:]) // 2}")] * 2
    if isinstance(shown, list):
        members = [memory_type(kind.get_member_type(number), one[1]) for number, one in enumerate(shown)]
        made = h5t.create(_COMPOUND, sum(member.get_size() for member in members))
        end = 0
        for number, member in enumerate(members):
            made.insert(kind.get_member_name(number), end, member)
            end += member.get_size()
        return made
    return native(kind) if code == h5t.BITFIELD else h5t.py_create(np.dtype(shown))  # no integers are made of these
