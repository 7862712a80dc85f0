"""The filters of a pipeline that are undone here: deflate, shuffle, fletcher32 and lzf (§5). Any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassfs.codec import checksum, deflate, lzf
from glassfs.errors import Damaged
from glassfs.formats.hdf5.description import Filter

DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
_CHECKSUM_SIZE = 4
_SLACK = 64 << 10


def are_known(filters: Sequence[Filter]) -> bool:
    """Return whether all filters are undone here."""
    return all(one.code in _UNDO for one in filters)


def most_stored(size: int) -> int:
    """Return the most bytes that a stored chunk of ``size`` raw bytes may take."""
    return 2 * size + _SLACK


def undone(stored: bytearray, filters: Sequence[Filter], mask: int, size: int) -> bytes | bytearray:
    """Return the ``size`` raw bytes of a stored chunk. Bit i of ``mask`` says that filter i was left out.

    Raises Damaged if a checksum does not match, or the bytes are not as many.
    """
    active = [one for number, one in enumerate(filters) if not mask >> number & 1]
    raw: bytes | bytearray = stored
    while active:
        last = active.pop()
        raw = _UNDO[last.code](raw, last, _most(active, size))
    if len(raw) != size:
        raise Damaged(f"a chunk has {len(raw)} bytes, but its shape needs {size}")
    return raw


def _most(before: Sequence[Filter], size: int) -> int:
    """Return the most bytes that the filters before give for ``size`` raw bytes."""
    if any(one.code in (DEFLATE, LZF) for one in before):
        return most_stored(size)
    return size + _CHECKSUM_SIZE * sum(one.code == FLETCHER32 for one in before)


def _inflate(data: bytes | bytearray, used: Filter, most: int) -> bytes | bytearray:
    return deflate.decompress_zlib(data, most)


def _unlzf(data: bytes | bytearray, used: Filter, most: int) -> bytes | bytearray:
    return lzf.decompress(data, most)


def _unshuffle(data: bytes | bytearray, used: Filter, most: int) -> bytes | bytearray:
    """Undo the shuffle: all first bytes of the items, then all second ones … and bytes that are no whole item."""
    import numpy as np

    item = used.values[0] if used.values else 0
    if not 0 < item <= max(1, most):
        raise Damaged(f"a shuffle of items of {item} bytes cannot be undone")
    count = len(data) // item
    if item == 1 or count < 2:
        return data
    raw = bytearray(len(data))
    planes = np.frombuffer(data, np.uint8, count * item).reshape(item, count)
    items = np.frombuffer(raw, np.uint8, count * item).reshape(count, item)
    if item <= _FEW:
        for number in range(item):  # much faster than transposing
            items[:, number] = planes[number]
    else:
        items[...] = planes.T
    raw[count * item :] = data[count * item :]
    return raw


_FEW = 16


def _unchecked(data: bytes | bytearray, used: Filter, most: int) -> bytes | bytearray:
    """Check and remove the checksum. Old releases of HDF5 wrote the bytes of each half in the other order."""
    if len(data) < _CHECKSUM_SIZE:
        raise Damaged("a chunk is shorter than its checksum")
    raw = memoryview(data)[:-_CHECKSUM_SIZE]
    stored = int.from_bytes(data[-_CHECKSUM_SIZE:], "little")
    found = checksum.fletcher32(raw)
    swapped = (found & 0x00FF00FF) << 8 | found >> 8 & 0x00FF00FF
    if stored not in (found, swapped):
        raise Damaged("its checksum does not match")
    return bytes(raw)


_UNDO: dict[int, Callable[[bytes | bytearray, Filter, int], bytes | bytearray]] = {
    DEFLATE: _inflate, SHUFFLE: _unshuffle, FLETCHER32: _unchecked, LZF: _unlzf,
}
