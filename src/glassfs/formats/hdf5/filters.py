"""The filters of a pipeline that are undone here (§5), of a chunk in memory or as a stream. Any thread.

What a chunk has before and after each filter has a known size, but for the output of the compressor. So a pipeline has
at most one, with nothing but checksums behind it; others are left to the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from glassfs.codec import DEFLATE as DEFLATE_CODEC
from glassfs.codec import LZ4, ZSTD, checksum, compression, deflate, lzf
from glassfs.errors import Damaged
from glassfs.formats.hdf5.description import Filter

DEFLATE, SHUFFLE, FLETCHER32, LZF, LZ4_BLOCKS, ZSTD_FRAME = 1, 2, 3, 32000, 32004, 32015
_CHECKSUM_SIZE = 4
_SLACK = 64 << 10
LARGEST_ITEM = 4 << 10
"""Bytes of shuffled items in a chunk that is read as a stream: each byte of them is read apart."""
_FEW = 16
_LZ4_HEADER, _LZ4_SIZE = 12, 4

Bytes = bytes | bytearray | memoryview


def are_known(filters: Sequence[Filter]) -> bool:
    """Return whether all filters are undone here, in this order."""
    codes = [one.code for one in filters]
    while codes and codes[-1] == FLETCHER32:
        codes.pop()
    if codes and codes[-1] in _COMPRESSORS:
        codes.pop()
    return all(code in (SHUFFLE, FLETCHER32) for code in codes)


def are_streamed(filters: Sequence[Filter], is_short: bool = True) -> bool:
    """Return whether filters that are known can be undone in little memory, and are if memory ``is_short``.

    A stream of LZ4 takes up to twenty times as long.
    """
    return not any(
        one.code == LZF or (one.code == LZ4_BLOCKS and not is_short)
        or (one.code == SHUFFLE and item_of(one) > LARGEST_ITEM) for one in filters
    )


def has_compressor(applied: Sequence[Filter]) -> bool:
    """Return whether the stored size of a chunk depends on its bytes."""
    return any(one.code in _COMPRESSORS for one in applied)


def stream_cost(applied: Sequence[Filter], size: int) -> int:
    """Return the memory in bytes that the filters of a chunk of ``size`` raw bytes take as a stream."""
    return compression.stream_cost(ZSTD if any(one.code == ZSTD_FRAME for one in applied) else DEFLATE_CODEC, size)


def most_stored(size: int) -> int:
    """Return the most bytes that a stored chunk of ``size`` raw bytes may take."""
    return 2 * size + _SLACK


def active(filters: Sequence[Filter], mask: int) -> list[Filter]:
    """Return the filters of a chunk. Bit i of ``mask`` says that filter i was left out."""
    return [one for number, one in enumerate(filters) if not mask >> number & 1]


def size_before(filters: Sequence[Filter], size: int) -> int:
    """Return the bytes of a chunk of ``size`` raw bytes to which these filters were applied, without a compressor."""
    return size + _CHECKSUM_SIZE * sum(one.code == FLETCHER32 for one in filters)


def item_of(used: Filter) -> int:
    """Return the bytes of an item of a shuffle; 0 if that is unknown."""
    return used.values[0] if used.values else 0


def undone(stored: bytearray, applied: Sequence[Filter], size: int) -> bytes | bytearray:
    """Return the ``size`` raw bytes of a stored chunk.

    Raises Damaged if a checksum does not match, or the bytes are not as many.
    """
    raw: Bytes = stored
    for number in reversed(range(len(applied))):
        raw = _UNDO[applied[number].code](raw, applied[number], size_before(applied[:number], size))
    demand(len(raw), size)
    return bytes(raw) if isinstance(raw, memoryview) else raw


def undone_into(buffer: memoryview, stored: bytearray, applied: Sequence[Filter]) -> None:
    """Fill ``buffer`` with the raw bytes of a stored chunk, without a copy of them if a shuffle is undone last.

    Raises Damaged as ``undone`` does. The buffer may have been written then.
    """
    size = len(buffer)
    is_shuffled = bool(applied) and applied[0].code == SHUFFLE
    raw: Bytes = stored
    for number in reversed(range(is_shuffled, len(applied))):
        raw = _UNDO[applied[number].code](raw, applied[number], size_before(applied[:number], size))
    demand(len(raw), size)
    if is_shuffled:
        _unshuffle_into(buffer, raw, applied[0])
    else:
        buffer[:] = raw


def streamed(used: Filter, pieces: Iterable[bytes], size: int | None) -> Iterator[bytes]:
    """Yield the bytes before one filter, other than shuffle, was applied.

    Raises Damaged unless they are ``size``, which is None for compressed ones.
    """
    stored = iter(pieces)
    if size is None:
        yield from _unchecked_stream(stored, 0)
        return
    found = 0
    for piece in _STREAMS[used.code](stored, size):
        found += len(piece)
        if found > size:
            break
        yield piece
    demand(found, size)
    for _ in stored:  # a checksum behind also covers what the decoder did not need
        pass


def demand(found: int, size: int) -> None:
    """Raise Damaged unless a chunk has as many bytes as it needs."""
    if found != size:
        has = f"more than {size}" if found > size else str(found)
        raise Damaged(f"a chunk has {has} bytes, but its shape needs {size}")


def planes_of(used: Filter, size: int) -> tuple[int, int]:
    """Return item size and number of the whole items that were shuffled; of one item if nothing was changed."""
    item = item_of(used)
    if not 0 < item <= max(1, size):
        raise Damaged(f"a shuffle of items of {item} bytes cannot be undone")
    return (1, 1) if item == 1 else (item, size // item)


def _inflate(data: Bytes, used: Filter, size: int) -> Bytes:
    return deflate.decompress_zlib(data, size)


def _unlzf(data: Bytes, used: Filter, size: int) -> Bytes:
    return lzf.decompress(data, size)


def _unzstd(data: Bytes, used: Filter, size: int) -> Bytes:
    return compression.decompress(ZSTD, bytes(data) if isinstance(data, memoryview) else data, size)


def _unlz4(data: Bytes, used: Filter, size: int) -> Bytes:
    """Undo a sequence of blocks: sizes of all and of a block, and before each its stored size, all big-endian."""
    whole, most = _lz4_sizes(data[:_LZ4_HEADER], size)
    data = memoryview(data)
    blocks, position, left = [], _LZ4_HEADER, whole
    while left:
        taken = min(most, left)
        stored = int.from_bytes(data[position : position + _LZ4_SIZE], "big")
        start = position + _LZ4_SIZE
        position, left = start + stored, left - taken
        if position > len(data):
            raise Damaged("lz4 data are cut short")
        block = bytes(data[start:position])
        blocks.append(block if stored == taken else compression.decompress(LZ4, block, taken))
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _lz4_sizes(header: Bytes, size: int) -> tuple[int, int]:
    """Return the sizes of all raw bytes and of a block."""
    whole, most = int.from_bytes(header[:8], "big"), int.from_bytes(header[8:], "big")
    if len(header) < _LZ4_HEADER or (whole and not most):
        raise Damaged("lz4 data begin with wrong sizes")
    demand(whole, size)
    return whole, most


def _unshuffle(data: Bytes, used: Filter, size: int) -> Bytes:
    """Undo the shuffle: all first bytes of the items, then all second ones … and bytes that are no whole item."""
    demand(len(data), size)
    if planes_of(used, size)[1] < 2:
        return data
    raw = bytearray(size)
    _unshuffle_into(memoryview(raw), data, used)
    return raw


def _unshuffle_into(raw: memoryview, data: Bytes, used: Filter) -> None:
    """Fill ``raw`` with what was shuffled to ``data``, which has as many bytes."""
    import numpy as np

    item, count = planes_of(used, len(data))
    planes = np.frombuffer(data, np.uint8, count * item).reshape(item, count)
    items = np.frombuffer(raw, np.uint8, count * item).reshape(count, item)
    if item <= _FEW:
        for number in range(item):  # much faster than transposing
            items[:, number] = planes[number]
    else:
        items[...] = planes.T
    raw[count * item :] = data[count * item :]


def _unchecked(data: Bytes, used: Filter, size: int) -> Bytes:
    """Check and remove the checksum."""
    if len(data) < _CHECKSUM_SIZE:
        raise Damaged("a chunk is shorter than its checksum")
    raw = memoryview(data)[:-_CHECKSUM_SIZE]
    found = checksum.Fletcher32()
    found.update(raw)
    _demand_sum(found, data[-_CHECKSUM_SIZE:])
    return raw


def _demand_sum(found: checksum.Fletcher32, stored: Bytes) -> None:
    """Raise Damaged for a wrong checksum. Old releases of HDF5 wrote the bytes of each half in the other order."""
    value = found.value
    swapped = (value & 0x00FF00FF) << 8 | value >> 8 & 0x00FF00FF
    if int.from_bytes(stored, "little") not in (value, swapped):
        raise Damaged("its checksum does not match")


def _inflate_stream(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    return deflate.decompress_zlib_stream(pieces)


def _unzstd_stream(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    return compression.decompress_stream(ZSTD, pieces, size)


def _unlz4_stream(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    stored = _Stored(pieces)
    whole, most = _lz4_sizes(stored.take(_LZ4_HEADER), size)
    while whole:
        taken = min(most, whole)
        whole -= taken
        count = int.from_bytes(stored.take(_LZ4_SIZE), "big")
        block = stored.pieces(count)
        if count == taken:
            yield from block
        else:
            yield from compression.decompress_stream(LZ4, block, taken)


def _unchecked_stream(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    found, held = checksum.Fletcher32(), b""
    for piece in pieces:
        held += piece
        raw, held = held[:-_CHECKSUM_SIZE], held[-_CHECKSUM_SIZE:]
        found.update(raw)
        yield raw
    if len(held) < _CHECKSUM_SIZE:
        raise Damaged("a chunk is shorter than its checksum")
    _demand_sum(found, held)


class _Stored:
    """Bytes that come in pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next ``size`` bytes. Raises Damaged if there are fewer."""
        while size:
            while not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    raise Damaged("lz4 data are cut short")
                self._rest = memoryview(piece)
            taken, self._rest = self._rest[:size], self._rest[size:]
            size -= len(taken)
            yield bytes(taken)

    def take(self, size: int) -> bytes:
        return b"".join(self.pieces(size))


_COMPRESSORS = (DEFLATE, LZF, LZ4_BLOCKS, ZSTD_FRAME)
_UNDO: dict[int, Callable[[Bytes, Filter, int], Bytes]] = {
    DEFLATE: _inflate, SHUFFLE: _unshuffle, FLETCHER32: _unchecked, LZF: _unlzf, LZ4_BLOCKS: _unlz4,
    ZSTD_FRAME: _unzstd,
}
_STREAMS: dict[int, Callable[[Iterable[bytes], int], Iterator[bytes]]] = {
    DEFLATE: _inflate_stream, FLETCHER32: _unchecked_stream, LZ4_BLOCKS: _unlz4_stream, ZSTD_FRAME: _unzstd_stream,
}
