"""Values of an HDF5 file, in the memory types of this machine: attributes, strings and rows of variable length.

The library converts what it reads to these types; h5py returns rows of sequences in the byte order of the file. Only
workers import this module.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from h5py import h5d, h5s, h5t

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
        return _nested([], shape)
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
    _take(left, count * {h5t.VLEN: 64, h5t.COMPOUND: 240}.get(code, 40))
    if code == h5t.STRING:
        found = []
        for value in _strings(kind, raw):
            _take(left, len(value))
            found.append(text_of(value))
        return found
    if code == h5t.VLEN:
        base = kind.get_super()
        return [
            _values(base, memoryview(ctypes.string_at(at, length * base.get_size())), left, refer)
            for length, at in _sequences(raw)
        ]
    if code == h5t.ARRAY:
        return list(_nested(_values(kind.get_super(), raw, left, refer), (count, *kind.get_array_dims())))
    if code == h5t.REFERENCE:
        if refer is None:
            return ["reference"] * count
        paths = [text_of(value) or None for value in refer(kind, raw)]
        _take(left, sum(len(path or "") for path in paths))
        return paths
    if code == h5t.OPAQUE:
        return [bytes(raw[at : at + size]).hex() for at in range(0, len(raw), size)]
    if code == h5t.COMPOUND and kind.dtype.kind != "c":
        return _structures(kind, np.frombuffer(raw, np.uint8).reshape(count, size), left, refer)
    numbers = np.frombuffer(raw, kind.get_super().dtype if code == h5t.ENUM else kind.dtype)
    is_truth = code == h5t.ENUM and kind.dtype == np.bool_  # of any size in memory
    return [_number(value) for value in (numbers.astype(np.bool_) if is_truth else numbers).tolist()]


def _take(left: list[int], size: int) -> None:
    left[0] -= size
    if left[0] < 0:
        raise ValueError(f"has values of more than {MOST_TEXT >> 20} MiB")


def _structures(kind: Any, raw: np.ndarray[Any, Any], left: list[int], refer: Refer | None) -> list[Any]:
    names, columns = [], []
    for number in range(kind.get_nmembers()):
        member, at = kind.get_member_type(number), kind.get_member_offset(number)
        names.append(text_of(kind.get_member_name(number)))
        columns.append(_values(member, memoryview(raw[:, at : at + member.get_size()].tobytes()), left, refer))
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


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
    for length in reversed(shape[1:]):
        values = [values[at : at + length] for at in range(0, len(values), length)] if length else []
    return values if shape else values[0]


def text_of(value: bytes) -> str:
    """Decode a string; bytes that are not UTF-8 become backslash escapes."""
    return value.decode("utf-8", "backslashreplace")
