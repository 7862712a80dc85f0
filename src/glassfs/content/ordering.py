"""Arrays whose items a container stores in an order of bytes or axes of its own.

Views get the items in C order and little-endian, converted when they are read. Python programs get them as they are
stored, which NumPy can use without a copy. Any thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from math import prod

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import dtypes
from glassfs.content.blocks import Stream
from glassfs.content.data import Data
from glassfs.content.model import Array, AsStored, Order
from glassfs.content.parts import Converted, Gathered
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
