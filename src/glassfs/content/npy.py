"""Arrays as containers store them: in an order of bytes or axes of their own, or as NPY files. Any thread.

Views get the items in C order and little-endian, converted when they are read. Python programs get them as they are
stored, which NumPy can use without a copy. ``parsed`` reads the header of an NPY file (docs/formats/npz.md §6).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import dtypes
from glassfs.content.blocks import Stream
from glassfs.content.data import Converted, Data, Gathered, Slice
from glassfs.content.model import Array, AsStored, Order
from glassfs.errors import Damaged
from glassfs.lazy import np
from glassfs.sizes import PIECE

BOX = 32 << 20
"""Bytes of items that are transposed at once if the array is too large for memory."""
SHORTEST_RUN = 4 << 10
"""Bytes; adjacent items of fewer bytes are picked out of what lies between them, which is read along."""


def array_as_stored(
    cache: BlockCache, identity: tuple[Hashable, ...], key: bytes, data: Data, dtype: str, shape: tuple[int, ...],
    order: Order = "C",
) -> Array:
    """Return an array of the items in ``data``, which are of any byte order, and of C or Fortran order (``"F"``).

    ``dtype`` describes the stored items (``>f4``, for example). ``identity`` begins with the version of the source and
    differs from that of other arrays: the cache keeps transposed items by it. Raises Damaged for a type that NumPy does
    not know.
    """
    shown = dtypes.little_endian(dtype)
    is_transposed = order == "F" and sum(length > 1 for length in shape) > 1 and data.size > 0
    if shown == dtype and not is_transposed:
        return Array(key, data, dtype, shape)
    item = dtypes.parsed(dtype).itemsize
    rows = data
    if is_transposed:
        # A large array is transposed some rows at a time, each time in a pass over the data.
        size, make = item * prod(shape), partial(_pieces, data, shape, item)
        cost = 2 * min(BOX, size) + 3 * PIECE
        rows = Stream(cache, (*identity, "in C order"), make, lambda: cost, size, data.location)
    values = rows if shown == dtype or not item else Converted(
        rows, item, item, rows.size, lambda raw: _little_endian(raw, dtype)
    )
    stored = AsStored(data, dtype, order if is_transposed else "C", rows)
    return Array(key, values, shown, shape, dtype, as_stored=stored)


def _little_endian(raw: bytes, dtype: str) -> bytes:
    """Return items with the bytes of their numbers reversed where they are big-endian; NumPy keeps every bit.

    Bytes between the fields of structures become zeros.
    """
    values = np.frombuffer(raw, dtypes.parsed(dtype))
    converted = np.zeros(len(values), dtypes.parsed(dtypes.little_endian(dtype)))
    converted[:] = values
    return converted.tobytes()


def _pieces(data: Data, shape: tuple[int, ...], item: int) -> Iterator[bytes]:
    """Yield items in C order. ``data`` has them in Fortran order: those of the first axis are adjacent."""
    if len(shape) == 1:
        yield from data.pieces()
        return
    # Items of the first axis are adjacent in the data, so some rows of all other axes are gathered into a box at a
    # time, which fits into memory, and the box is transposed there.
    length, rest = shape[0], shape[1:]
    count = prod(rest)
    at_once = BOX // (item * count)
    if not at_once:  # each row is an array that has to be transposed by itself
        for number in range(length):
            yield from _pieces(Gathered(data, number * item, item, length * item, count), rest, item)
        return
    for first in range(0, length, at_once):
        taken = min(at_once, length - first)
        box = b"".join(_runs(data, first * item, taken * item, length * item, count))
        yield np.frombuffer(box, f"V{item}").reshape((taken, *rest), order="F").tobytes()  # in C order


def _runs(data: Data, offset: int, width: int, stride: int, count: int) -> Iterator[bytes]:
    """Yield the ``width`` bytes from ``offset`` on of each of ``count`` records of ``stride`` bytes."""
    if width == stride or width < SHORTEST_RUN:
        for piece in Gathered(data, offset, width, stride, count).pieces():
            work.check()
            yield piece
        return
    # Runs are so long that reading what lies between them as well would take longer than a read for each.
    for start in range(offset, offset + stride * count, stride):
        work.check()
        yield data.read(start, width)


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
