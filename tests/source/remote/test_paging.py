"""Pages of objects that are elsewhere: which requests they cost, what memory, and what goes wrong."""

from __future__ import annotations

import random

from glassfs.source.remote.paging import Paged, Pages
from glassfs.source.remote.server import Facts
from tests.source.remote.counting import CountingServer, content

K, M = 1 << 10, 1 << 20
PAGE = 256 * K
PATH = ("run.kdb",)


def read(paged: Paged, offset: int, size: int) -> bytes:
    buffer = bytearray(size)
    paged.scatter([memoryview(buffer)], offset)
    return bytes(buffer)


def opened(server: CountingServer, facts: Facts, budget: int = 64 * M) -> Paged:
    paged = Pages(budget).object(server, PATH, facts)
    paged.put_head(content(facts, 0, min(PAGE, facts.size)))
    return paged


def test_a_sequential_read_fetches_each_byte_once() -> None:
    server = CountingServer()
    facts = server.put(100 * M + 12345)
    paged = opened(server, facts)
    for offset in range(0, facts.size, 128 * K):
        size = min(128 * K, facts.size - offset)
        assert read(paged, offset, size) == content(facts, offset, size)
    assert server.fetched == facts.size - PAGE
    assert len(server.requests) < 75
    assert max(size for _, size in server.requests) == 2 * M


def test_small_random_reads_cost_a_block_each() -> None:
    server = CountingServer()
    facts = server.put(256 * M)
    paged = opened(server, facts)
    chance = random.Random(1)
    for _ in range(100):
        offset = chance.randrange(facts.size - 4 * K)
        assert read(paged, offset, 4 * K) == content(facts, offset, 4 * K)
    assert len(server.requests) <= 100
    assert max(size for _, size in server.requests) <= 512 * K
