"""The filters of a pipeline that are undone here (§5). Any thread.

What a chunk has before and after each filter has a known size, but for the output of the compressor. So a pipeline has
at most one, with nothing but checksums behind it; others are left to the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from glassfs.codec import checksum, compression, deflate
from glassfs.codec.compression import LZ4, ZSTD
from glassfs.errors import Damaged
from glassfs.formats.hdf5.description import Filter
from glassfs.lazy import np


class Code(IntEnum):
    """The registered numbers of filters."""

    DEFLATE = 1
    SHUFFLE = 2
    FLETCHER32 = 3
    LZF = 32000
    LZ4 = 32004
    ZSTD = 32015


CHECKSUM_SIZE = 4
_COMPRESSORS = (Code.DEFLATE, Code.LZF, Code.LZ4, Code.ZSTD)

Bytes = bytes | bytearray | memoryview


def are_known(filters: Sequence[Filter]) -> bool:
    """Return whether all filters are undone here, in this order."""
    codes = [one.code for one in filters]
    # Checksums behind the compressor have a known size, whatever the compressor gives.
    while codes and codes[-1] == Code.FLETCHER32:
        codes.pop()
    if codes and codes[-1] in _COMPRESSORS:
        codes.pop()
    return all(code in (Code.SHUFFLE, Code.FLETCHER32) for code in codes)


def most_stored(size: int) -> int:
    """Return the most bytes that a stored chunk of ``size`` raw bytes may take."""
    return 2 * size + (64 << 10)


def undo(stored: Bytes, applied: Sequence[Filter], buffer: memoryview) -> None:
    """Fill ``buffer`` with the raw bytes of a stored chunk.

    Raises Damaged if a checksum does not match, or the bytes are not as many. The buffer may have been written then.
    """
    size = len(buffer)
    raw: Bytes = stored
    # A shuffle that was applied first is undone into the buffer, which saves a copy.
    is_shuffled = bool(applied) and applied[0].code == Code.SHUFFLE
    for number in reversed(range(is_shuffled, len(applied))):
        checksums = sum(one.code == Code.FLETCHER32 for one in applied[:number])
        raw = _UNDO[applied[number].code](raw, applied[number], size + CHECKSUM_SIZE * checksums)
    _demand(len(raw), size)
    if is_shuffled:
        _unshuffle_into(buffer, raw, applied[0])
    else:
        buffer[:] = raw


def _demand(given: int, size: int) -> None:
    """Raise Damaged unless a chunk has as many bytes as it needs."""
    if given != size:
        has = f"more than {size}" if given > size else str(given)
        raise Damaged(f"a chunk has {has} bytes, but its shape needs {size}")


def _unlz4(data: Bytes, used: Filter, size: int) -> Bytes:
    """Undo a sequence of blocks: sizes of all and of a block, and before each its stored size, all big-endian."""
    whole, most = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:12], "big")
    if len(data) < 12 or (whole and not most):
        raise Damaged("lz4 data begin with wrong sizes")
    _demand(whole, size)
    data = memoryview(data)
    blocks, position, left = [], 12, whole
    while left:
        taken = min(most, left)
        start = position + 4
        stored = int.from_bytes(data[position:start], "big")
        position, left = start + stored, left - taken
        if position > len(data):
            raise Damaged("lz4 data are cut short")
        block = bytes(data[start:position])
        blocks.append(block if stored == taken else compression.decompress(LZ4, block, taken))
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _unshuffle(data: Bytes, used: Filter, size: int) -> Bytes:
    """Undo the shuffle: all first bytes of the items, then all second ones … and bytes that are no whole item."""
    _demand(len(data), size)
    raw = bytearray(size)
    _unshuffle_into(memoryview(raw), data, used)
    return raw


def _unshuffle_into(raw: memoryview, data: Bytes, used: Filter) -> None:
    """Fill ``raw`` with what was shuffled to ``data``, which has as many bytes."""
    item = used.values[0] if used.values else 0
    if not 0 < item <= len(data):
        raise Damaged(f"a shuffle of items of {item} bytes cannot be undone")
    count = len(data) // item
    # NumPy transposes byte by byte. For the usual sizes of items, copying one plane at a time is several times as fast.
    planes = np.frombuffer(data, np.uint8, count * item).reshape(item, count)
    items = np.frombuffer(raw, np.uint8, count * item).reshape(count, item)
    if item <= 16:
        for number in range(item):  # much faster than transposing
            items[:, number] = planes[number]
    else:
        items[...] = planes.T
    raw[count * item :] = data[count * item :]


def _unchecked(data: Bytes, used: Filter, size: int) -> Bytes:
    """Check and remove the checksum."""
    raw, stored = memoryview(data)[:-CHECKSUM_SIZE], bytes(data[-CHECKSUM_SIZE:])
    if len(stored) < CHECKSUM_SIZE:
        raise Damaged("a chunk is shorter than its checksum")
    value = checksum.fletcher32(raw)
    # Old releases of HDF5 wrote the bytes of each half in the other order.
    swapped = (value & 0x00FF00FF) << 8 | value >> 8 & 0x00FF00FF
    if int.from_bytes(stored, "little") not in (value, swapped):
        raise Damaged("its checksum does not match")
    return raw


def _decompressed_lzf(data: Bytes, used: Filter, most: int) -> bytearray:
    """Decompress LZF, the algorithm of liblzf, to at most ``most`` bytes.

    A byte below 32 begins as many literals, plus one. Others begin a match: three bits of length (7: a byte follows
    that is added), and thirteen of distance.
    """
    raw = bytearray()
    position, end = 0, len(data)
    stored = bytes(data)
    try:
        while position < end:
            control = stored[position]
            position += 1
            if control < 32:
                control += 1
                if position + control > end:
                    raise Damaged("lzf data are cut short")
                raw += stored[position : position + control]
                position += control
            else:
                length = control >> 5
                if length == 7:  # the rest of it follows
                    length += stored[position]
                    position += 1
                length += 2
                start = len(raw) - ((control & 31) << 8) - stored[position] - 1
                position += 1
                if start < 0:
                    raise Damaged("lzf data refer to bytes before their beginning")
                run = raw[start : start + length]
                if len(run) < length:  # the match overlaps what it makes
                    run = (run * (length // len(run) + 1))[:length]
                raw += run
            if len(raw) > most:
                raise Damaged(f"lzf data give more than {most} bytes")
    except IndexError:
        raise Damaged("lzf data are cut short") from None
    return raw


_UNDO: dict[int, Callable[[Bytes, Filter, int], Bytes]] = {
    Code.DEFLATE: lambda data, used, size: deflate.decompress_zlib(data, size),
    Code.SHUFFLE: _unshuffle, Code.FLETCHER32: _unchecked, Code.LZ4: _unlz4,
    Code.LZF: _decompressed_lzf,
    Code.ZSTD: lambda data, used, size: compression.decompress(
        ZSTD, bytes(data) if isinstance(data, memoryview) else data, size,
    ),
}
