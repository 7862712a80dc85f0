"""Files of contents for tests: the view's data, read whole and in ranges."""

from __future__ import annotations

import random

from glassfs.cache import BlockCache
from glassfs.content import Content
from glassfs.content.data import SizedData
from glassfs.view import file_of

KEY = b"key"
PLACE = ("version", "place")
"""The key of a content in these tests: what the tree gives to a view."""


class Noted(SizedData):
    """Zeros, and the ranges that were read of them: offset and size."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.read_ranges: list[tuple[int, int]] = []

    @property
    def bytes_read(self) -> int:
        return sum(size for _, size in self.read_ranges)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        assert 0 <= offset <= offset + len(buffer) <= self._size
        self.read_ranges.append((offset, len(buffer)))
        buffer[:] = bytes(len(buffer))


def file_bytes(content: Content, suffix: str, budget: int = 8 << 20) -> bytes:
    """The bytes of the file for a content. Its size, and any range of it, agree with the whole."""
    shown = file_of(content, BlockCache(budget), PLACE)
    assert shown.suffix == suffix
    size = shown.data.size
    whole = shown.data.read(0, size)
    again = file_of(content, BlockCache(budget), PLACE).data
    chance = random.Random(size)
    for _ in range(10 if size else 0):
        start = chance.randrange(size)
        end = min(size, start + chance.choice((1, 3, 50, 70_000)))
        assert again.read(start, end - start) == whole[start:end]
    return whole
