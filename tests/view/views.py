"""Files of contents for tests: the view's data, read whole and in ranges."""

from __future__ import annotations

import random
from collections.abc import Callable

from glassfs.cache import BlockCache
from glassfs.content import Content, Data
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
        assert 0 <= offset <= offset + len(buffer) <= self.size
        self.read_ranges.append((offset, len(buffer)))
        buffer[:] = bytes(len(buffer))


def whole(make: Callable[[], Data]) -> bytes:
    """Return all bytes, after checking that the size and ranges of a second object agree."""
    data = make()
    size = data.size
    found = data.read(0, size)
    again = make()
    assert again.size == size
    chance = random.Random(size)
    for _ in range(10 if size else 0):
        start = chance.randrange(size)
        end = min(size, start + chance.choice((1, 3, 50, 70_000)))
        assert again.read(start, end - start) == found[start:end]
    return found


def file_bytes(content: Content, suffix: str, budget: int = 8 << 20) -> bytes:
    """Return the bytes of the file for a content."""
    assert file_of(content, BlockCache(budget), PLACE).suffix == suffix
    return whole(lambda: file_of(content, BlockCache(budget), PLACE).data)
