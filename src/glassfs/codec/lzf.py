"""LZF decompression: the algorithm of liblzf, which h5py writes. Any thread.

A byte below 32 begins as many literals, plus one. Others begin a match: three bits of length (7: a byte follows that is
added), and thirteen of distance.
"""

from __future__ import annotations

from glassfs.errors import Damaged


def decompress(data: bytes | bytearray | memoryview, most: int) -> bytearray:
    """Return the raw bytes, at most ``most`` of them. Raises Damaged."""
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
