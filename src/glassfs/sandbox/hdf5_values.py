"""Values of an HDF5 file, in the memory types of this machine, and types, as the worker describes them: attributes,
strings and rows of variable length (docs/formats/hdf5.md §6).

The library converts what it reads to these types; h5py returns rows of sequences in the byte order of the file. Only
workers import this module.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from h5py import h5d, h5s, h5t
from h5py.h5t import ARRAY, BITFIELD, COMPOUND, ENUM, FLOAT, INTEGER, OPAQUE, REFERENCE, STRING, VLEN

from glassfs.sizes import PIECE

MOST_TEXT = 8 << 20
"""Bytes that the attributes of an object take as values of Python."""

Refer = Callable[[Any, memoryview], Iterator[bytes]]
"""What yields the texts of references of a type: paths, and b"" for references to nothing."""

# h5py does not offer some functions of the library, or leaks what sequences refer to. Symbols of the library are found
# through any module of h5py.
_library, Id = ctypes.CDLL(h5d.__file__), ctypes.c_int64


def declared(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the library."""
    found = getattr(_library, name)
    found.argtypes, found.restype = arguments, result
    return found


_native_type = declared("H5Tget_native_type", Id, Id, ctypes.c_int)
_reclaim = declared("H5Treclaim", ctypes.c_int, Id, Id, Id, ctypes.c_void_p)
_fill_value = declared("H5Pget_fill_value", ctypes.c_int, Id, Id, ctypes.c_void_p)
_read = declared("H5Dread", ctypes.c_int, Id, Id, Id, Id, Id, ctypes.c_void_p)
_read_attribute = declared("H5Aread", ctypes.c_int, Id, Id, ctypes.c_void_p)
_unregister = declared("H5Tunregister", ctypes.c_int, ctypes.c_int, ctypes.c_char_p, Id, Id, ctypes.c_void_p)
for _name in (b"ibo", b"ibo(opt)"):
    # These swap the bytes of integers, and lose the sign of those that have fewer bits than their bytes.
    _unregister(-1, _name, -1, -1, None)


def rows(dataset: Any, base: Any, first: int, count: int, has_values: bool) -> tuple[list[int], list[bytes]]:
    """Return the lengths of rows of variable length; and if asked for their values, in the memory type ``base``.

    Of more than 1 MiB only the first rows.
    """
    lengths: list[int] = []
    values: list[bytes] = []
    for raw in _held(h5t.vlen_create(base), dataset, first, first + count):
        for length, at in _sequences(raw):
            lengths.append(length)
            if has_values:
                values.append(ctypes.string_at(at, length * base.get_size()))
        if sum(lengths) * base.get_size() > PIECE:
            break
    return lengths, values


def values(dataset: Any, kind: Any, first: int, count: int, refer: Refer) -> list[Any]:
    """Return elements from number ``first`` on, in C order and in the memory type ``kind``, for JSON.

    References are what ``refer`` yields for them. Of many bytes only the first elements, at least one. Raises
    ValueError if this one is larger than an attribute may be.
    """
    found: list[Any] = []
    left = [MOST_TEXT]
    for raw in _held(kind, dataset, first, first + count):
        try:
            found += _values(kind, raw, left, refer)
        except ValueError:
            if not found:
                raise
            break
        if left[0] < MOST_TEXT - PIECE:
            break
    return found


def fill_value(properties: Any, kind: Any) -> str:
    """Return the fill value of a dataset with these properties in Base64, as its elements are stored; "" for zeros."""
    if properties.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return ""
    raw = ctypes.create_string_buffer(kind.get_size())
    if _fill_value(properties.id, kind.id, raw) < 0:
        raise ValueError("has an unknown fill value")
    if len(raw) > 4096:  # it is a part of the description
        raise ValueError(f"has a fill value of {len(raw)} bytes")
    return base64.b64encode(raw.raw).decode() if any(raw.raw) else ""


def native(kind: Any) -> Any:
    """Return the type of this machine's memory for a type of the file."""
    return type(kind)(_native_type(kind.id, 0))


def _held(kind: Any, dataset: Any, first: int, end: int) -> Iterator[memoryview]:
    """Yield elements in C order, as bytes of the memory type ``kind``, and free what these refer to.

    Each time twice as many are read: how much memory they take is known only then.
    """
    demand_own(dataset)
    some = 1
    while first < end:
        space = dataset.get_space()
        if dataset.shape:
            # Elements are selected one by one, as a range in C order is no box of the dataset.
            numbers = np.arange(first, min(first + some, end))
            space.select_elements(np.stack(np.unravel_index(numbers, dataset.shape), axis=1).astype(np.uint64))
        raw = np.zeros(space.get_select_npoints(), f"V{kind.get_size()}")
        memory = h5s.create_simple(raw.shape)
        _demand(_read(dataset.id, kind.id, memory.id, space.id, 0, raw.ctypes.data))
        try:
            # The caller copies the values before it goes on: then the memory that they refer to is freed.
            yield raw.view(np.uint8).data
        finally:
            _free(kind, raw)
        first += some
        some *= 2


def demand_own(dataset: Any) -> None:
    """Raise ValueError if elements are in other files: the library would take this file for any of them."""
    properties = dataset.get_create_plist()
    if properties.get_layout() == h5d.VIRTUAL or properties.get_external_count():
        raise ValueError("has its values in other datasets or files")


def _demand(status: int) -> None:
    if status < 0:
        raise OSError("cannot be read: it is damaged, or takes more memory than a worker may have")


def _free(kind: Any, raw: np.ndarray[Any, Any]) -> None:
    """Free the memory of sequences and strings of variable length."""
    space = h5s.create_simple(raw.shape)
    _reclaim(kind.id, space.id, 0, raw.ctypes.data)


def attribute_value(attribute: Any, left: list[int], refer: Refer | None = None) -> Any:
    """Return the value of an attribute for JSON; a description of one that is large. ``left`` is the budget.

    ``refer`` yields what references refer to, if the caller wants to know.
    """
    if attribute.get_space().get_simple_extent_type() == h5s.NULL:
        return None
    shape = attribute.shape
    size = prod(shape) * attribute.get_type().get_size()
    if size > min(PIECE, left[0]):
        return {"too_large": size, "shape": list(shape)}
    if not size:
        return []
    kind = native(attribute.get_type())
    raw = np.zeros(prod(shape), f"V{kind.get_size()}")
    _demand(_read_attribute(attribute.id, kind.id, raw.ctypes.data))
    try:
        return _nested(_values(kind, raw.view(np.uint8).data, left, refer), shape)
    finally:
        _free(kind, raw)


def _values(kind: Any, raw: memoryview, left: list[int], refer: Refer | None = None) -> list[Any]:
    """Return the values of elements of a memory type for JSON. Raises ValueError if they exceed the budget."""
    code, size = kind.get_class(), kind.get_size()
    count = len(raw) // size
    # Bytes of a list and of a dictionary, beside what is in them, and of a number.
    _take(left, count * {VLEN: 64, COMPOUND: 240}.get(code, 40))
    if code == STRING:
        found = []
        for value in _strings(kind, raw):
            _take(left, len(value))
            found.append(text_of(value))
        return found
    if code == VLEN:
        base = kind.get_super()
        return [
            _values(base, memoryview(ctypes.string_at(at, length * base.get_size())), left, refer)
            for length, at in _sequences(raw)
        ]
    if code == ARRAY:
        return list(_nested(_values(kind.get_super(), raw, left, refer), (count, *kind.get_array_dims())))
    if code == REFERENCE:
        if refer is None:
            return ["reference"] * count
        paths = [text_of(value) or None for value in refer(kind, raw)]
        _take(left, sum(len(path or "") for path in paths))
        return paths
    if code == OPAQUE:
        return [bytes(raw[at : at + size]).hex() for at in range(0, len(raw), size)]
    if code == COMPOUND and kind.dtype.kind != "c":
        rows, names, columns = np.frombuffer(raw, np.uint8).reshape(count, size), [], []
        for number in range(kind.get_nmembers()):
            member, at = kind.get_member_type(number), kind.get_member_offset(number)
            names.append(text_of(kind.get_member_name(number)))
            columns.append(_values(member, memoryview(rows[:, at : at + member.get_size()].tobytes()), left, refer))
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    numbers = np.frombuffer(raw, kind.get_super().dtype if code == ENUM else kind.dtype)
    is_truth = code == ENUM and kind.dtype == np.bool_  # of any size in memory
    return [_number(value) for value in (numbers.astype(np.bool_) if is_truth else numbers).tolist()]


def _take(left: list[int], size: int) -> None:
    left[0] -= size
    if left[0] < 0:
        raise ValueError(f"has values of more than {MOST_TEXT >> 20} MiB")


def _number(value: Any) -> Any:
    if isinstance(value, complex):
        return {"real": value.real, "imag": value.imag}
    return value if isinstance(value, (bool, int, float)) else str(value)


def _strings(kind: Any, raw: memoryview) -> Iterator[bytes]:
    if kind.is_variable_str():
        for at in np.frombuffer(raw, np.uint64).tolist():
            yield ctypes.string_at(at) if at else b""
        return
    size, padding = kind.get_size(), kind.get_strpad()
    for at in range(0, len(raw), size):
        value = bytes(raw[at : at + size])
        if padding == h5t.STR_NULLTERM:
            yield value.partition(b"\0")[0]
        else:
            yield value.rstrip(b" \0" if padding == h5t.STR_SPACEPAD else b"\0")  # zeros where nothing was written


def _sequences(raw: memoryview) -> list[list[int]]:
    """Return length and address of sequences."""
    return np.frombuffer(raw, np.uint64).reshape(-1, 2).tolist()


def _nested(values: list[Any], shape: Sequence[int]) -> Any:
    """Return values as lists in lists, that of no axis as itself."""
    return np.fromiter(values, object, len(values)).reshape(shape).tolist()


def text_of(value: bytes) -> str:
    """Decode a string; bytes that are not UTF-8 become backslash escapes."""
    return value.decode("utf-8", "backslashreplace")


_OTHERS = {INTEGER: "integer", FLOAT: "float", BITFIELD: "bit field", ENUM: "enumeration"}
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
    if code == STRING:
        if kind.is_variable_str():
            return {"class": "text", "name": "text"}
        padding = _PADDINGS.get(kind.get_strpad(), "zeros")
        return {"class": "text", "name": "text", "padding": padding, "shown": f"|S{kind.get_size()}"}
    if code in (VLEN, ARRAY):
        base = described_type(kind.get_super(), depth + 1, bits)
        return _made_of("rows", base) if code == VLEN else _made_of("array", base, kind.get_array_dims())
    if code in (OPAQUE, h5t.TIME):
        return {"class": "bytes", "name": "opaque" if code == OPAQUE else "time", "shown": f"|V{kind.get_size()}"}
    if code == REFERENCE:
        # Those of later releases have another size in memory than in the file.
        is_plain = kind.equal(h5t.STD_REF_OBJ) or kind.equal(h5t.STD_REF_DSETREG)
        return {"class": "bytes" if is_plain else "unknown", "name": "reference"}
    number = _described_number(kind, code, bits)
    if number is not None:
        return {"class": "number", **number}
    if code == COMPOUND:
        return _described_compound(kind, depth, bits)
    # NumPy has no type for their values: a float of 80 bits, for example, is another type on each machine.
    size = kind.get_size()
    return {"class": "bytes", "name": f"{_OTHERS.get(code, 'value')} of {size} bytes", "shown": f"|V{size}"}


def _made_of(outer: str, base: dict[str, Any], dims: Sequence[int] = ()) -> dict[str, Any]:
    """Describe an array of these dimensions, or rows of variable length, whose values are of a type."""
    if outer == "array" and base["class"] in ("number", "text", "bytes", "compound"):
        return {**base, "dims": [*dims, *base.get("dims", [])]}
    what = "ragged" if (outer, base["class"]) == ("rows", "number") else "json"
    if base["class"] == "unknown" or (outer, base["name"]) == ("rows", "time"):  # which the library does not convert
        what = "unknown"
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


def _described_number(kind: Any, code: int, bits: str) -> dict[str, Any] | None:
    """Describe an integer, a float, a boolean, an enumeration or a complex number; None for other types."""
    size = kind.get_size()
    if code in (INTEGER, BITFIELD, ENUM):
        base = kind.get_super() if code == ENUM else kind
        # Others are widened: of three bytes to four.
        size = next((known for known in (1, 2, 4, 8) if known >= size), 0)
        if not size:
            return None
        sign = "i" if base.get_class() == INTEGER and base.get_sign() == h5t.SGN_2 else "u"
        usual = (f"STD_{one}{8 * size}{order}" for one in "IUB" for order in ("LE", "BE"))
        is_plain = kind.get_size() == size and any(base.equal(getattr(h5t, name)) for name in usual)
        order = ">" if base.get_order() == h5t.ORDER_BE else "<"
        stored, shown = _descr(order, sign, size), _descr("<", sign, size)
        if code == ENUM and _is_truth(kind):
            shown, is_plain = "|b1", is_plain and size == 1
        if code == BITFIELD and size == 1:
            shown = _descr("<", bits, size)
        found: dict[str, Any] = {"stored": stored if is_plain else None, "shown": shown, "name": shown}
        if code == ENUM and shown != "|b1":
            found["names"] = {
                text_of(kind.get_member_name(number)): kind.get_member_value(number)
                for number in range(kind.get_nmembers())
            }
        return found
    if code == FLOAT:
        return _float(kind, size, "f")
    if size in (8, 16) and _is_complex(kind):
        pair = _float(kind.get_member_type(0) if code == COMPOUND else kind.get_super(), size // 2, "c")
        is_packed = code != COMPOUND or (kind.get_member_offset(0) == 0 and kind.get_member_offset(1) == size // 2)
        return pair if pair is None or is_packed else {**pair, "stored": None}
    return None


def _is_truth(kind: Any) -> bool:
    with suppress(TypeError, ValueError):  # of sizes that NumPy does not have
        return bool(kind.dtype == np.bool_)
    return False


def _is_complex(kind: Any) -> bool:
    if kind.get_class() == COMPOUND:
        if kind.get_nmembers() != 2:
            return False  # of many fields it takes long to find what NumPy calls them
        names = [kind.get_member_name(number) for number in range(2)]
        real, imaginary = (kind.get_member_type(number) for number in range(2))
        if names == [b"real", b"imag"] and real.get_class() == FLOAT and real.equal(imaginary):
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
    if code == ARRAY:
        return h5t.array_create(memory_type(kind.get_super(), shown), kind.get_array_dims())
    if code == COMPOUND and not isinstance(shown, list):  # complex, with parts of any names
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
    return native(kind) if code == BITFIELD else h5t.py_create(np.dtype(shown))  # no integers are made of these


def member_type(kind: Any, members: Sequence[int]) -> Any:
    """Return the type in memory of a compound that has only one member, as ``members`` say: of that one, and so on."""
    if not members:
        return native(kind)
    return compound_of([(members[0], member_type(kind.get_member_type(members[0]), members[1:]))], kind)


def compound_of(members: list[tuple[int, Any]], kind: Any) -> Any:
    """Return a type in memory of some members of a compound in the file, one behind another."""
    made = h5t.create(COMPOUND, sum(member.get_size() for _, member in members))
    end = 0
    for number, member in members:
        made.insert(kind.get_member_name(number), end, member)
        end += member.get_size()
    return made
