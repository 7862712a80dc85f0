"""NPY files: their header (docs/formats/npz.md §6), and the array in them. Any thread; nothing is read here."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable
from math import prod
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import dtypes
from glassfs.content.data import Data, Slice
from glassfs.content.model import Array, Order
from glassfs.content.ordering import array_as_stored
from glassfs.errors import Damaged

MAGIC = b"\x93NUMPY"
PREFIX = 12  # bytes that have the length of the header in all versions
LONGEST = 64 << 10
LOOKED_AT = 1 << 10
"""Bytes read to find a header, which has 128 unless the type is a structure."""
MOST_AXES = 32
_VERSIONS = {(1, 0): (2, "latin1"), (2, 0): (4, "latin1"), (3, 0): (4, "utf-8")}
_KEYS = {"descr", "fortran_order", "shape"}
_PLAIN = re.compile(
    r"\|(?:b1|[iu]1|[SV][1-9]\d{0,8})"
    r"|[<>](?:[iu][248]|f[248]|c(?:8|16)|U(?P<characters>[1-9]\d{0,7})"
    r"|[mM]8\[[1-9]?\d{0,8}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])"
)
"""Descriptions as NumPy writes them, of types whose size needs no NumPy to find out."""
_ESCAPED = r"\\(?:[\\'\"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5})"
_TOKEN = re.compile(
    rf"\s*(?:u?'(?:[^'\\\n]|{_ESCAPED})*'|u?\"(?:[^\"\\\n]|{_ESCAPED})*\"|\d+(?!\w)|(?:True|False)\b|[](){{}}:,[]|\Z)"
)
_NAMED = re.compile(r"[<>=|]?[?bBhHiIuclLqQfdgFDGSUVOmMe]\d{0,9}(?:\[\d{0,9}[a-zA-Z]{1,2}\])?")
"""Texts and types of which neither the parser of Python nor NumPy warns users: nothing else is given to them."""


class ArrayHeader(NamedTuple):
    """What a header says: the items are of ``dtype``, in ``order``, and begin after ``length`` bytes."""

    dtype: str
    order: Order
    shape: tuple[int, ...]
    length: int
    nbytes: int
    """Bytes of all items."""

    def array(self, cache: BlockCache, identity: tuple[Hashable, ...], key: bytes, file: Data) -> Array:
        """Return the array in a file with this header. For ``identity`` see ``array_as_stored``."""
        items = Slice(file, self.length, self.nbytes)
        return array_as_stored(cache, identity, key, items, self.dtype, self.shape, self.order)


def length_of(start: bytes) -> int | None:
    """Return the bytes of the header of a file with these first PREFIX bytes; None if it is no NPY file to read."""
    found = _VERSIONS.get((start[6], start[7])) if len(start) >= PREFIX and start.startswith(MAGIC) else None
    if found is None:
        return None
    length = 8 + found[0] + int.from_bytes(start[8 : 8 + found[0]], "little")
    return length if length <= LONGEST else None


def parsed(head: bytes, size: int) -> ArrayHeader | None:
    """Return what the whole header of a file of ``size`` bytes says.

    None if NumPy would not read the file either or would warn of it, if its items are pickled objects or have no bytes,
    and for shapes that the file is too short for.
    """
    size_of_length, encoding = _VERSIONS[head[6], head[7]]
    try:
        text = head[8 + size_of_length :].decode(encoding)
        if not _is_written_plainly(text):
            return None
        found = ast.literal_eval(text.strip())
    except dtypes.NOT_A_TYPE:
        return None
    if not isinstance(found, dict) or found.keys() != _KEYS:
        return None
    shape, is_fortran = found["shape"], found["fortran_order"]
    if type(shape) is not tuple or len(shape) > MOST_AXES or type(is_fortran) is not bool:
        return None
    if any(type(length) is not int or not 0 <= length < 1 << 62 for length in shape):
        return None
    described = _type(found["descr"])
    if described is None:
        return None
    dtype, item = described
    nbytes = item * prod(shape)
    if len(head) + nbytes > size or item * prod(filter(None, shape)) >= 1 << 62:
        return None
    return ArrayHeader(dtype, "F" if is_fortran else "C", shape, len(head), nbytes)


def _is_written_plainly(text: str) -> bool:
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            return False
        place = max(token.end(), place + 1)
    return True


def _is_named_plainly(descr: Any) -> bool:
    """Return whether a type consists of names and shapes as NumPy writes them."""
    if isinstance(descr, str):
        return _NAMED.fullmatch(descr) is not None
    return isinstance(descr, list) and all(
        type(field) is tuple and len(field) in (2, 3) and _is_named_plainly(field[1])
        and all(type(shape) is tuple for shape in field[2:])
        for field in descr
    )


def _type(descr: Any) -> tuple[str, int] | None:
    """Return the description of a type and the size of an item, None for types that are not read."""
    plain = _PLAIN.fullmatch(descr) if isinstance(descr, str) else None
    if plain is not None:
        size = 8 if descr[1] in "mM" else 4 * int(plain["characters"]) if plain["characters"] else int(descr[2:])
        return descr, size
    if not _is_named_plainly(descr):
        return None
    try:
        dtype = dtypes.parsed(descr if isinstance(descr, str) else repr(descr))
        described = dtypes.description_of(dtype)
        is_same = dtypes.parsed(described) == dtype
    except (Damaged, ValueError):
        return None
    if dtype.hasobject or dtype.subdtype or not dtype.itemsize or not is_same:
        return None
    return described, dtype.itemsize
