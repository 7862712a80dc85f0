"""Parse part of a source with a bounded cursor. Too slow for blocks of data. One thread.

The cursor reads a window at a time: a chain of small fields costs one read of the source, a long skip none.
"""

from __future__ import annotations

import struct
from typing import Any

from glassfs.errors import Damaged
from glassfs.source.contract import Source

WINDOW = 4096


class Reader:
    """Reads ``source`` from ``start`` to ``end``; ``what`` names that part in messages.

    Every method raises Damaged, naming ``what``, if the part is too short. Nothing larger than the part is ever
    allocated.
    """

    def __init__(self, source: Source, start: int, end: int, what: str, window: int = WINDOW) -> None:
        if not 0 <= start <= end <= source.size:
            raise source.damage(f"lies outside the file ({start} to {end} of {source.size} bytes)", what)
        self.source = source
        self.position = start
        self.end = end
        self.what = what
        self._window = window
        self._data = b""
        self._data_start = start

    @property
    def remaining(self) -> int:
        return self.end - self.position

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        start = self.position
        self.skip(size)
        first = start - self._data_start
        if not 0 <= first <= len(self._data) - size:
            self._data = self.source.read(start, min(max(size, self._window), self.end - start))
            self._data_start, first = start, 0
        return self._data[first : first + size]

    def peek(self, size: int) -> bytes:
        """Return up to ``size`` next bytes without moving on; fewer at the end."""
        start = self.position
        data = self.take(min(size, self.remaining))
        self.position = start
        return data

    def skip(self, size: int) -> None:
        if not 0 <= size <= self.end - self.position:
            raise self.damage(f"needs {size} bytes at {self.position}, but ends at {self.end}")
        self.position += size

    def unpack(self, layout: str) -> tuple[Any, ...]:
        """Return the fields of a ``struct`` layout."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def u8(self) -> int:
        return self.take(1)[0]

    def damage(self, reason: str) -> Damaged:
        """Return an exception that names the source and the part."""
        return self.source.damage(reason, self.what)
