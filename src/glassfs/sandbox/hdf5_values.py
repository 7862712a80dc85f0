"""Values of an HDF5 file, in the memory types of this machine: attributes, strings and rows of variable length.

The library converts what it reads to these types; h5py returns rows of sequences in the byte order of the file. Only
workers import this module.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from h5py import h5d, h5s, h5t

LARGEST_ATTRIBUTE = 1 << 20
MOST_TEXT = 8 << 20
"""Bytes of strings in one answer, or that the attributes of an object take as values of Python."""
VALUE_COST, LIST_COST, OBJECT_COST = 40, 64, 240
"""Bytes of a number, and of a list and an object beside what is in them."""

# h5py does not offer these.
_library = ctypes.CDLL(h5d.__file__)
_native_type, _reclaim, _fill_value, _unregister = (
    _library.H5Tget_native_type, _library.H5Treclaim, _library.H5Pget_fill_value, _library.H5Tunregister,
)
_native_type.argtypes, _native_type.restype = (ctypes.c_int64, ctypes.c_int), ctypes.c_int64
_reclaim.argtypes = ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
_fill_value.argtypes = ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
_unregister.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
for _name in (b"ibo", b"ibo(opt)"):
    # These swap the bytes of integers, and lose the sign of those that have fewer bits than their bytes.
    _unregister(-1, _name, -1, -1, None)


def elements_as(kind: Any, dataset: Any, space: Any) -> np.ndarray[Any, Any]:
    """Return the selected elements of a dataset as bytes of the memory type ``kind``."""
    raw = np.zeros(space.get_select_npoints(), f"V{kind.get_size()}")
    dataset.read(h5s.create_simple(raw.shape), space, raw, kind)
    return raw


def texts(dataset: Any, first: int, count: int) -> list[str]:
    """Return strings from number ``first`` on, in C order, also those of arrays; of many bytes only the first ones."""
    whole = kind = dataset.get_type()
    inner = 1
    while kind.get_class() == h5t.ARRAY:
        inner *= prod(kind.get_array_dims())
        kind = kind.get_super()
    size = kind.get_size()
    start, end = first // inner, -(-(first + min(count, MOST_TEXT // size + 1)) // inner)
    found: list[str] = []
    left = MOST_TEXT
    with _held(whole, dataset, start, end - start) as raw:
        begin = first - start * inner
        for value in _strings(kind, raw[begin * size : (begin + count) * size]):
            left -= len(value)
            if left < 0 and found:
                break
            found.append(text_of(value))
    return found


def rows(dataset: Any, base: Any, first: int, count: int, most: int) -> tuple[list[int], list[bytes]]:
    """Return the lengths of rows of variable length, and their values in the memory type ``base``.

    Of more than ``most`` bytes only the first rows. Raises ValueError if the first one alone has more.
    """
    lengths: list[int] = []
    values: list[bytes] = []
    with _held(h5t.vlen_create(base), dataset, first, count) as raw:
        for length, at in _sequences(raw):
            size = length * base.get_size()
            most -= size
            if most < 0 and lengths:
                break
            if most < 0:
                raise ValueError(f"has a row of {size} bytes")
            lengths.append(length)
            values.append(ctypes.string_at(at, size))
    return lengths, values


def fill_value(properties: Any, kind: Any) -> bytes:
    """Return the fill value of a dataset with these properties in the memory type ``kind``."""
    raw = ctypes.create_string_buffer(kind.get_size())
    if _fill_value(properties.id, kind.id, raw) < 0:
        raise ValueError("has an unknown fill value")
    return raw.raw


def native(kind: Any) -> Any:
    """Return the type of this machine's memory for a type of the file."""
    return type(kind)(_native_type(kind.id, 0))


@contextmanager
def _held(kind: Any, dataset: Any, first: int, count: int) -> Iterator[memoryview]:
    """Yield elements as ``elements_as`` does, from number ``first`` on in C order, until the library frees theirs."""
    space, shape = dataset.get_space(), dataset.shape
    if shape:
        inner = prod(shape[1:])
        start, end = first // inner, -(-(first + count) // inner)
        space.select_hyperslab((start, *(0,) * (len(shape) - 1)), (end - start, *shape[1:]))
        first -= start * inner
    raw = elements_as(kind, dataset, space)
    try:
        yield raw[first : first + count].view(np.uint8).data
    finally:
        _free(kind, raw)


def _free(kind: Any, raw: np.ndarray[Any, Any]) -> None:
    """Free the memory of sequences and strings of variable length."""
    space = h5s.create_simple(raw.shape)
    _reclaim(kind.id, space.id, 0, raw.ctypes.data)


def attribute_value(attribute: Any, left: list[int]) -> Any:
    """Return the value of an attribute for JSON; a description of one that is large. ``left`` is the budget."""
    if attribute.get_space().get_simple_extent_type() == h5s.NULL:
        return None
    shape = attribute.shape
    size = prod(shape) * attribute.get_type().get_size()
    if size > min(LARGEST_ATTRIBUTE, left[0]):
        return {"too_large": size, "shape": list(shape)}
    if not size:
        return _nested([], shape)
    kind = native(attribute.get_type())
    raw = np.zeros(prod(shape), f"V{kind.get_size()}")
    attribute.read(raw, kind)
    try:
        return _nested(_values(kind, raw.view(np.uint8).data, left), shape)
    finally:
        _free(kind, raw)


def _values(kind: Any, raw: memoryview, left: list[int]) -> list[Any]:
    """Return the values of elements of a memory type for JSON. Raises ValueError if they exceed the budget."""
    code, size = kind.get_class(), kind.get_size()
    count = len(raw) // size
    left[0] -= count * {h5t.VLEN: LIST_COST, h5t.COMPOUND: OBJECT_COST}.get(code, VALUE_COST)
    if left[0] < 0:
        raise ValueError("is too large")
    if code == h5t.STRING:
        found = []
        for value in _strings(kind, raw):
            left[0] -= len(value)
            found.append(text_of(value))
        return found
    if code == h5t.VLEN:
        base = kind.get_super()
        return [
            _values(base, memoryview(ctypes.string_at(at, length * base.get_size())), left)
            for length, at in _sequences(raw)
        ]
    if code == h5t.ARRAY:
        return list(_nested(_values(kind.get_super(), raw, left), (count, *kind.get_array_dims())))
    if code == h5t.REFERENCE:
        return ["reference"] * count
    if code == h5t.OPAQUE:
        return [bytes(raw[at : at + size]).hex() for at in range(0, len(raw), size)]
    if code == h5t.COMPOUND and kind.dtype.kind != "c":
        return _structures(kind, np.frombuffer(raw, np.uint8).reshape(count, size), left)
    numbers = np.frombuffer(raw, kind.get_super().dtype if code == h5t.ENUM else kind.dtype)
    is_truth = code == h5t.ENUM and kind.dtype == np.bool_  # of any size in memory
    return [_number(value) for value in (numbers.astype(np.bool_) if is_truth else numbers).tolist()]


def _structures(kind: Any, raw: np.ndarray[Any, Any], left: list[int]) -> list[Any]:
    names, columns = [], []
    for number in range(kind.get_nmembers()):
        member, at = kind.get_member_type(number), kind.get_member_offset(number)
        names.append(text_of(kind.get_member_name(number)))
        columns.append(_values(member, memoryview(raw[:, at : at + member.get_size()].tobytes()), left))
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
