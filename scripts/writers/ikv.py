"""Writes iKv documents: iKv1, iKv2 and the text form.

Values are Python's: None, bool, int, float, str or bytes, dict and list. A list becomes a mixed array, or an array of
strings if all its items are; ``Typed`` says which type an array has, and a NumPy array of integers, doubles or
booleans is one of its type. Keys are str or bytes.

    write_ikv2("save.ikv", {"name": "north field", "yields": numpy.array([3.5, 4.25])}, root_name="save")
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

NULL, STRING, INTEGER, DOUBLE, BOOLEAN, OBJECT, ARRAY = range(7)
MIXED = NULL
INDEXED_ROOT = 1

Path: TypeAlias = "str | PathLike[str]"
Name: TypeAlias = "str | bytes"


@dataclass(frozen=True)
class Typed:
    """An array with a declared type of its elements."""

    element: int
    items: Sequence[Any]


def write_ikv1(path: Path, value: Any, root_name: Name = "root") -> None:
    """Write any value as the root of an iKv1 document."""
    _write(path, ikv1(value, root_name))


def write_ikv2(path: Path, members: dict[Any, Any], root_name: Name = "root", is_sorted: bool = True) -> None:
    """Write an object as the indexed root of an iKv2 document, sorted by key bytes unless ``is_sorted`` is false."""
    _write(path, ikv2(members, root_name, is_sorted))


def ikv1(value: Any, root_name: Name = "root") -> bytes:
    """Return the bytes of an iKv1 document."""
    return b"iKv1b" + struct.pack("<I", 1) + string(root_name) + node(value)


def ikv2(
    members: dict[Any, Any] | Iterable[tuple[Name, Any]], root_name: Name = "root", is_sorted: bool = True,
    flags: int = INDEXED_ROOT,
) -> bytes:
    """Return the bytes of an iKv2 document. ``members`` may be pairs, so that keys can repeat."""
    pairs = [(raw_name(key), value) for key, value in (members.items() if isinstance(members, dict) else members)]
    if is_sorted:
        pairs.sort(key=lambda pair: pair[0])
    encoded = [(key, *payload(value)) for key, value in pairs]
    return ikv2_of([(key, tag, body) for key, tag, body in encoded], root_name, flags)


def ikv2_of(entries: Sequence[tuple[bytes, int, bytes]], root_name: Name = "root", flags: int = INDEXED_ROOT) -> bytes:
    """Return the bytes of an iKv2 document with entries of any key, type and payload."""
    head = bytearray(b"iKv2b" + struct.pack("<II", 2, flags) + string(root_name) + varint(len(entries)))
    for key, _, _ in entries:
        head += string(key)
    offset = len(head) + 9 * len(entries)
    index = bytearray()
    for _, tag, body in entries:
        index += struct.pack("<BII", tag, offset, len(body))
        offset += len(body)
    return bytes(head + index) + b"".join(body for _, _, body in entries)


def node(value: Any) -> bytes:
    """Return a value with its type in front."""
    tag, body = payload(value)
    return bytes((tag,)) + body


def payload(value: Any) -> tuple[int, bytes]:
    """Return a value's type, and its bytes without the type."""
    if value is None:
        return NULL, b""
    if isinstance(value, (bool, np.bool_)):
        return BOOLEAN, b"\1" if value else b"\0"
    if isinstance(value, (str, bytes)):
        return STRING, string(value)
    if isinstance(value, (int, np.integer)):
        return INTEGER, integer(int(value))
    if isinstance(value, (float, np.floating)):
        return DOUBLE, struct.pack("<d", value)
    if isinstance(value, dict):
        return OBJECT, varint(len(value)) + b"".join(string(key) + node(item) for key, item in value.items())
    if isinstance(value, Typed):
        return ARRAY, typed_array(value.element, value.items)
    if isinstance(value, np.ndarray):
        return ARRAY, typed_array({"b": BOOLEAN, "i": INTEGER, "u": INTEGER, "f": DOUBLE}[value.dtype.kind], value)
    element = STRING if value and all(isinstance(item, (str, bytes)) for item in value) else MIXED
    return ARRAY, typed_array(element, value)


def typed_array(element: int, items: Sequence[Any] | np.ndarray[Any, Any]) -> bytes:
    """Return an array's payload. Items of the types MIXED, OBJECT and ARRAY each have their own type."""
    if element == INTEGER:
        packed = _integers(np.asarray(items, np.int64))
    elif element == DOUBLE:
        packed = np.asarray(items, "<f8").tobytes()
    elif element == BOOLEAN:
        packed = np.asarray(items, np.bool_).tobytes()
    elif element == STRING:
        packed = b"".join(map(string, items))
    else:
        packed = b"".join(map(node, items))
    return bytes((element,)) + varint(len(items)) + packed


def string(text: Name) -> bytes:
    raw = raw_name(text)
    return varint(len(raw)) + raw


def raw_name(text: Name) -> bytes:
    return text.encode() if isinstance(text, str) else text


def integer(value: int) -> bytes:
    return varint(2 * value if value >= 0 else -2 * value - 1)


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def text(members: dict[Any, Any], root_name: str = "root", version: int = 2) -> bytes:
    """Return the bytes of a text document in the layout of the reference writer."""
    return b"ikv%d " % version + _quoted(raw_name(root_name)) + b"\n" + _text(members, 0) + b"\n"


def _text(value: Any, depth: int) -> bytes:
    if isinstance(value, (str, bytes)):
        return _quoted(raw_name(value))
    if isinstance(value, (dict, list, Typed, np.ndarray)):
        indent = b"    " * (depth + 1)
        if isinstance(value, dict):
            lines = [indent + _quoted(raw_name(key)) + b" " + _text(item, depth + 1) for key, item in value.items()]
        else:
            items = value.items if isinstance(value, Typed) else value
            lines = [indent + _text(item, depth + 1) for item in items]
        opening, closing = b"{}" if isinstance(value, dict) else b"[]"
        return b"\n".join([bytes((opening,)), *lines, b"    " * depth + bytes((closing,))])
    if value is None:
        return b"null"
    if isinstance(value, (bool, np.bool_)):
        return b"true" if value else b"false"
    return repr(value.item() if isinstance(value, np.generic) else value).encode()


def _quoted(raw: bytes) -> bytes:
    for character, escape in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t")):
        raw = raw.replace(character, escape)
    return b'"' + raw + b'"'


def _integers(values: np.ndarray[Any, Any]) -> bytes:
    """Return the integers of an array, concatenated."""
    zigzag = (values.astype(np.uint64) << np.uint64(1)) ^ (values >> np.int64(63)).astype(np.uint64)
    septets = np.empty((len(values), 10), np.uint8)
    for place in range(10):
        septets[:, place] = (zigzag >> np.uint64(7 * place)) & np.uint64(0x7F)
    lengths = np.maximum(1, 10 - np.argmax(septets[:, ::-1] != 0, axis=1))
    lengths[zigzag == 0] = 1
    places = np.arange(10)
    septets[places < lengths[:, None] - 1] |= 0x80
    return bytes(septets[places < lengths[:, None]])


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
