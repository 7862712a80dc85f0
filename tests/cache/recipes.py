"""Blocks for the tests of the cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator

from glassfs.cache import BlockCache

PIECE = 1 << 18


class Block:
    """A recipe that counts what it is asked for. It gives its number over and over."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.wholes = 0
        self.pieces_given = 0
        self.error: Exception | None = None
        self.fails_at = size

    @property
    def key(self) -> Hashable:
        return self.number

    @property
    def cost(self) -> int:
        return self.size

    @property
    def stream_cost(self) -> int:
        return PIECE

    def whole(self) -> bytes:
        self.wholes += 1
        if self.error is not None:
            raise self.error
        return bytes([self.number % 256]) * self.size

    def pieces(self) -> Iterator[bytes]:
        self.wholes += 1
        for start in range(0, self.size, PIECE):
            if self.error is not None and start + PIECE > self.fails_at:
                raise self.error
            self.pieces_given += 1
            yield self.expected(start, min(PIECE, self.size - start))

    def expected(self, offset: int, size: int) -> bytes:
        return bytes(self.number + place // 1000 & 255 for place in range(offset, offset + size))


class Gated(Block):
    """A recipe that waits in ``whole`` until it is let go."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(number, size)
        self.entered = threading.Event()
        self.gate = threading.Event()

    def whole(self) -> bytes:
        self.entered.set()
        assert self.gate.wait(60)
        return super().whole()


def read(cache: BlockCache, block: Block, offset: int, size: int) -> bytes:
    buffer = bytearray(size)
    cache.read_into(block, memoryview(buffer), offset)
    return bytes(buffer)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)
