"""Types of an HDF5 file, as the worker describes them (docs/formats/hdf5.md, §6). Only workers import this module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from h5py import h5t

from glassfs.sandbox.hdf5_values import native, text_of

_FIXED, _COMPOUND, _REFERENCE, _ENUM, _VLEN, _ARRAY, _OPAQUE = (
    h5t.STRING, h5t.COMPOUND, h5t.REFERENCE, h5t.ENUM, h5t.VLEN, h5t.ARRAY, h5t.OPAQUE,
)
_OTHERS = {h5t.INTEGER: "integer", h5t.FLOAT: "float", h5t.BITFIELD: "bit field", _ENUM: "enumeration"}
_SHOWN = {
    ("array", "number"): "number", ("array", "text"): "text", ("array", "bytes"): "bytes",
    ("array", "compound"): "compound", ("rows", "number"): "ragged",
}
"""The class of an array, or of rows of variable length, of another type. Others are ``json``."""
_DEEP = "deeply nested type"
_PADDINGS = {h5t.STR_NULLTERM: "end", h5t.STR_NULLPAD: "zeros", h5t.STR_SPACEPAD: "spaces"}


def described_type(kind: Any, depth: int, bits: str = "u") -> dict[str, Any]:
    """Describe a type: its class, which is ``unknown`` if it is not shown, and what to call it.

    Numbers have the dtypes ``stored`` and ``shown``, the first None if only the library decodes it; other values of a
    fixed size have ``shown``. ``dims`` are the dimensions of an array type, ``base`` is the type of the values in rows,
    ``fields`` are those of a compound, ``size`` its bytes in the file; ``names`` are those of the values of an
    enumeration. Values that a structure of NumPy cannot have are ``json``. ``bits`` is the letter of the dtype of bit
    fields of one byte.
    """
    code = kind.get_class()
    if depth > 8:
        return {"class": "unknown", "name": _DEEP}
    if code == _FIXED:
        if kind.is_variable_str():
            return {"class": "text", "name": "text"}
        padding = _PADDINGS.get(kind.get_strpad(), "zeros")
        return {"class": "text", "name": "text", "padding": padding, "shown": f"|S{kind.get_size()}"}
    if code in (_VLEN, _ARRAY):
        base = described_type(kind.get_super(), depth + 1, bits)
        return _made_of("rows", base) if code == _VLEN else _made_of("array", base, kind.get_array_dims())
    if code in (_OPAQUE, h5t.TIME):
        return {"class": "bytes", "name": "opaque" if code == _OPAQUE else "time", "shown": f"|V{kind.get_size()}"}
    if code == _REFERENCE:
        # Those of later releases have another size in memory than in the file.
        is_plain = kind.equal(h5t.STD_REF_OBJ) or kind.equal(h5t.STD_REF_DSETREG)
        return {"class": "bytes" if is_plain else "unknown", "name": "reference"}
    number = _number(kind, code, bits)
    if number is not None:
        return {"class": "number", **number}
    if code == _COMPOUND:
        return _described_compound(kind, depth, bits)
    # NumPy has no type for their values: a float of 80 bits, for example, is another type on each machine.
    size = kind.get_size()
    return {"class": "bytes", "name": f"{_OTHERS.get(code, 'value')} of {size} bytes", "shown": f"|V{size}"}


def _made_of(outer: str, base: dict[str, Any], dims: Sequence[int] = ()) -> dict[str, Any]:
    """Describe an array of these dimensions, or rows of variable length, whose values are of a type."""
    what = _SHOWN.get((outer, base["class"]), "json")
    if base["class"] == "unknown" or (outer, base["name"]) == ("rows", "time"):  # which the library does not convert
        what = "unknown"
    if dims and what in ("number", "text", "bytes", "compound"):
        return {**base, "dims": [*dims, *base.get("dims", [])]}
    found = {"class": what, "name": f"{outer} of {_called(base)}"}
    return {**found, "base": base} if what == "ragged" else found


def _described_compound(kind: Any, depth: int, bits: str) -> dict[str, Any]:
    members = range(kind.get_nmembers())
    types = [described_type(kind.get_member_type(number), depth + 1, bits) for number in members]
    hidden = sorted({_called(one) for one in types if one["class"] == "unknown"})
    if _DEEP in hidden:
        return {"class": "unknown", "name": _DEEP}
    if hidden or not types:
        return {"class": "unknown", "name": "compound with " + (" and ".join(hidden) or "nothing")}
    fields = [
        {**one, "name": text_of(kind.get_member_name(number)), "offset": kind.get_member_offset(number)}
        for number, one in zip(members, types, strict=True)
    ]
    is_structure = all("shown" in one or one["class"] == "compound" for one in types)
    what = "compound" if is_structure else "json"
    return {"class": what, "name": "compound", "fields": fields, "size": kind.get_size()}


def _called(described: dict[str, Any]) -> str:
    name: str = {"number": "numbers", "compound": "compounds"}.get(described["class"], described["name"])
    return f"arrays of {name}" if described.get("dims") else name


def _number(kind: Any, code: int, bits: str) -> dict[str, Any] | None:
    """Describe an integer, a float, a boolean, an enumeration or a complex number; None for other types."""
    size = kind.get_size()
    if code in (h5t.INTEGER, h5t.BITFIELD, _ENUM):
        base = kind.get_super() if code == _ENUM else kind
        # Others are widened: of three bytes to four.
        size = next((known for known in (1, 2, 4, 8) if known >= size), 0)
        if not size:
            return None
        sign = "i" if base.get_class() == h5t.INTEGER and base.get_sign() == h5t.SGN_2 else "u"
        usual = (f"STD_{one}{8 * size}{order}" for one in "IUB" for order in ("LE", "BE"))
        is_plain = kind.get_size() == size and any(base.equal(getattr(h5t, name)) for name in usual)
        order = ">" if base.get_order() == h5t.ORDER_BE else "<"
        stored, shown = _descr(order, sign, size), _descr("<", sign, size)
        if code == _ENUM and _is_truth(kind):
            shown, is_plain = "|b1", is_plain and size == 1
        if code == h5t.BITFIELD and size == 1:
            shown = _descr("<", bits, size)
        found: dict[str, Any] = {"stored": stored if is_plain else None, "shown": shown, "name": shown}
        return found | {"names": _names_of(kind)} if code == _ENUM and shown != "|b1" else found
    if code == h5t.FLOAT:
        return _float(kind, size, "f")
    if size in (8, 16) and _is_complex(kind):
        part = kind.get_member_type(0) if code == _COMPOUND else kind.get_super()
        pair = _float(part, size // 2, "c")
        is_packed = code != _COMPOUND or (kind.get_member_offset(0) == 0 and kind.get_member_offset(1) == size // 2)
        return pair if pair is None or is_packed else {**pair, "stored": None}
    return None


def _is_truth(kind: Any) -> bool:
    with suppress(TypeError, ValueError):  # of sizes that NumPy does not have
        return bool(kind.dtype == np.bool_)
    return False


def _names_of(kind: Any) -> dict[str, int]:
    """Return the names of the values of an enumeration."""
    numbers = range(kind.get_nmembers())
    return {text_of(kind.get_member_name(number)): kind.get_member_value(number) for number in numbers}


def _is_complex(kind: Any) -> bool:
    if kind.get_class() == _COMPOUND:
        if kind.get_nmembers() != 2:
            return False  # of many fields it takes long to find what NumPy calls them
        names = [kind.get_member_name(number) for number in range(2)]
        real, imaginary = (kind.get_member_type(number) for number in range(2))
        if names == [b"real", b"imag"] and real.get_class() == h5t.FLOAT and real.equal(imaginary):
            return True  # as MATLAB stores them
    with suppress(TypeError, NotImplementedError):  # of types that NumPy does not have
        return bool(kind.dtype.kind == "c")
    return False


def _float(kind: Any, size: int, letter: str) -> dict[str, Any] | None:
    sizes = 2, 4, 8
    order = next((one for one in "<>" if size in sizes and kind.equal(h5t.py_create(np.dtype(f"{one}f{size}")))), "")
    if not order:
        size = kind.dtype.itemsize  # of a float with the range of this one: bfloat16 has that of four bytes
    if size not in sizes:
        return None
    item = size * (2 if letter == "c" else 1)
    shown = _descr("<", letter, item)
    return {"stored": _descr(order, letter, item) if order else None, "shown": shown, "name": shown}


def _descr(order: str, letter: str, size: int) -> str:
    return f"{'|' if size == 1 else order}{letter}{size}"


def memory_type(kind: Any, shown: Any) -> Any:
    """Return the type in memory of values that are shown as the descr ``shown``, in which fields are lists.

    There may be fewer fields than in the file: the library finds them by their names.
    """
    code = kind.get_class()
    if code == _ARRAY:
        return h5t.array_create(memory_type(kind.get_super(), shown), kind.get_array_dims())
    if code == _COMPOUND and not isinstance(shown, list):  # complex, with parts of any names
        part = f"<f{int(shown[2:]) // 2}"
        return compound_of([(number, memory_type(kind.get_member_type(number), part)) for number in range(2)], kind)
    if isinstance(shown, list):
        names = [text_of(kind.get_member_name(number)) for number in range(kind.get_nmembers())]
        return compound_of([
            (number, memory_type(kind.get_member_type(number), one[1]))
            for one in shown for number in [names.index(one[0])]
        ], kind)
    # What has no other form in memory is left as it is: also strings, whose padding converting them would change.
    if shown.startswith(("|S", "|V")):
        return kind
    return native(kind) if code == h5t.BITFIELD else h5t.py_create(np.dtype(shown))  # no integers are made of these


def member_type(kind: Any, members: Sequence[int]) -> Any:
    """Return the type in memory of a compound that has only one member, as ``members`` say: of that one, and so on."""
    if not members:
        return native(kind)
    return compound_of([(members[0], member_type(kind.get_member_type(members[0]), members[1:]))], kind)


def compound_of(members: list[tuple[int, Any]], kind: Any) -> Any:
    """Return a type in memory of some members of a compound in the file, one behind another."""
    made = h5t.create(_COMPOUND, sum(member.get_size() for _, member in members))
    end = 0
    for number, member in members:
        made.insert(kind.get_member_name(number), end, member)
        end += member.get_size()
    return made
