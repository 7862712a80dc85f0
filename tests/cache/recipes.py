"""Blocks for the tests of the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from glassfs.cache import BlockCache
from glassfs.cache.budget import MemoryBudget
from tests.waiting import wait_for, wait_until

PIECE = 1 << 18


class Block:
    """A recipe that counts its calls. Its bytes repeat its number."""

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
        """Return the bytes of ``pieces``: 1000 of each value."""
        first, last = offset // 1000, (offset + size) // 1000
        thousands = b"".join(bytes([self.number + value & 255]) * 1000 for value in range(first, last + 1))
        return thousands[offset - first * 1000 :][:size]


class Gated(Block):
    """A recipe whose ``whole`` waits until ``gate`` is set."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(number, size)
        self.entered = threading.Event()
        self.gate = threading.Event()

    def whole(self) -> bytes:
        self.entered.set()
        wait_for(self.gate)
        return super().whole()


def read(cache: BlockCache, block: Block, offset: int, size: int) -> bytes:
    buffer = bytearray(size)
    cache.read_into(block, memoryview(buffer), offset)
    return bytes(buffer)


def in_line(threads: Executor, memory: MemoryBudget, do: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Submit a call that has to wait for memory; return when it is in the queue."""
    before = len(memory._queue)
    waiting = threads.submit(do, *arguments)
    wait_until(lambda: len(memory._queue) > before)
    return waiting


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
