"""Blocks in memory: the budget, one decode for all readers, errors, decoding ahead."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.cache import BlockCache, blocks
from glassfs.errors import Damaged
from glassfs.settings import settings
from glassfs.work import CORES
from tests.cache.recipes import Block, Gated, in_line, interrupted, read
from tests.waiting import wait_for, wait_until


@contextmanager
def busy_workers(cache: BlockCache) -> Iterator[list[Gated]]:
    """Occupy all threads that decode ahead; yield the blocks that they are making."""
    busy = [Gated(number, 100) for number in range(1, CORES + 1)]
    for block in busy:
        assert cache.prefetch(block)
    for block in busy:
        wait_for(block.entered)
    yield busy
    for block in busy:
        block.gate.set()


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 60)), max_size=80), st.integers(0, 300))
def test_least_recently_used_blocks_are_evicted(uses: list[tuple[int, int]], budget: int) -> None:
    """Reference model: blocks in the order of their last use, as many from the end as fit in the budget."""
    cache, hits = BlockCache(budget), 0
    cached: list[int] = []
    for number, offset in uses:
        block = Block(number, 10 + number * 5)
        if block.size > budget // 2:
            continue
        offset = min(offset, block.size)
        assert read(cache, block, offset, block.size - offset) == bytes([number]) * (block.size - offset)
        hits += number in cached
        assert block.wholes == (number not in cached)
        cached = [other for other in cached if other != number] + [number]
        while sum(10 + other * 5 for other in cached) > budget:
            del cached[0]
        assert cache.used == sum(10 + other * 5 for other in cached) <= budget
        assert cache.hits == hits


@pytest.mark.parametrize("error", [None, Damaged("block 7 is bad")])
def test_concurrent_readers_share_one_decode(error: Exception | None) -> None:
    """They share its error as well, which is not cached."""
    cache, block = BlockCache(1 << 20), Gated(7, 20_000)
    block.error = error
    with ThreadPoolExecutor(16) as threads:
        readers = [threads.submit(read, cache, block, number, 10) for number in range(16)]
        wait_until(lambda: sum(pending.readers for pending in cache._pending.values()) == 16)
        assert not any(reader.done() for reader in readers)
        block.gate.set()
        for reader in readers:
            if error is None:
                assert reader.result(60) == b"\7" * 10
            else:
                with pytest.raises(Damaged, match="block 7 is bad"):
                    reader.result(60)
    assert block.wholes == 1
    block.error = None
    assert read(cache, block, 0, 2) == b"\7\7"
    assert cache.used == 20_000


def test_tiny_block_is_cached_once_however_many_make_it() -> None:
    cache, block = BlockCache(1 << 20), Gated(7, 100)
    with ThreadPoolExecutor(8) as threads:
        readers = [threads.submit(read, cache, block, number, 10) for number in range(8)]
        wait_for(block.entered)
        block.gate.set()
        assert all(reader.result(60) == b"\7" * 10 for reader in readers)
    made = block.wholes
    assert read(cache, block, 0, 10) == b"\7" * 10
    assert block.wholes == made
    assert cache.used == 100


def test_failed_recipe_is_not_kept_alive() -> None:
    """Neither the block nor its source waits for the garbage collector."""
    cache, block = BlockCache(1000), Block(1, 100)
    block.error = Damaged("bad")
    alive = weakref.ref(block)
    gc.disable()
    try:
        with pytest.raises(Damaged):
            read(cache, block, 0, 1)
        block.error = None
        del block
        assert alive() is None
    finally:
        gc.enable()


def test_forgetting_a_version_spares_others() -> None:
    class Versioned(Block):
        @property
        def key(self) -> Any:
            return ("new", self.number) if self.number else ()

    cache = BlockCache(1000)
    for number in (0, 1):
        read(cache, Versioned(number, 100), 0, 1)
    cache.notes.put(("old", 1), (1,))
    cache.notes.put(("new", 1), (2,))
    cache.forget("old")
    assert (cache.used, cache.notes.get(("old", 1)), cache.notes.get(("new", 1))) == (200, None, (2,))
    cache.forget("new")
    assert (cache.used, cache.notes.items()) == (100, [])


# Decoding ahead

def test_prefetched_block_is_cached() -> None:
    cache, block = BlockCache(1 << 20), Gated(1, 100)
    cache.prefetch(block)
    wait_for(block.entered)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read, cache, block, 0, 1)  # joins the decode
        block.gate.set()
        assert reader.result(60) == b"\1"
    cache.prefetch(block)
    assert read(cache, block, 0, 1) == b"\1"
    assert block.wholes == 1


def test_queued_prefetch_never_delays_a_reader() -> None:
    """All workers are busy: the reader decodes the block itself."""
    cache, queued = BlockCache(1 << 20), Block(200, 100)
    with busy_workers(cache) as busy:
        cache.prefetch(queued)
        assert read(cache, queued, 0, 1) == b"\xc8"
    wait_until(lambda: cache.used == 100 * (len(busy) + 1))
    assert queued.wholes == 1


def test_failed_prefetch_is_tried_again() -> None:
    cache, block = BlockCache(1 << 20), Block(1, 100)
    block.error = Damaged("bad")
    cache.prefetch(block)
    wait_until(lambda: block.wholes == 1)
    with pytest.raises(Damaged):
        read(cache, block, 0, 1)
    block.error = None
    assert read(cache, block, 0, 1) == b"\1"


# The memory budget

class Outer(Gated):
    """Made from another block, which it reads once its gate is open; it needs ``needs`` bytes itself."""

    def __init__(self, cache: BlockCache, number: int, needs: int, inner: Block) -> None:
        super().__init__(number, 10)
        self.cache, self.needs, self.inner = cache, needs, inner

    @property
    def cost(self) -> int:
        return self.needs

    def whole(self) -> bytes:
        raw = super().whole()
        read(self.cache, self.inner, 0, 1)
        return raw


def test_memory_is_reserved_only_to_make_a_block() -> None:
    cache, cached, large = BlockCache(1000), Block(1, 300), Block(2, 400)
    read(cache, cached, 0, 1)
    with ThreadPoolExecutor(2) as threads:
        with cache.reserved(700):
            waiting = in_line(threads, cache.memory, read, cache, large, 0, 1)
            assert large.wholes == 0
            assert threads.submit(read, cache, cached, 0, 1).result(60) == b"\1"
        assert waiting.result(60) == b"\2"
    assert cache.used <= 1000


@pytest.mark.parametrize(("budget", "size"), [(1000, 400), (1 << 20, 1 << 20)], ids=["block", "spool"])
def test_block_that_a_memory_holder_waits_for_goes_first(
    budget: int, size: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the holder would wait for the block, and the block for the memory."""
    monkeypatch.setattr(settings, "memory", 120)
    cache, inner = BlockCache(budget), Block(1, size)
    outer = Outer(cache, 2, budget * 9 // 10, inner)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read, cache, outer, 0, 1)
        wait_for(outer.entered)
        second = in_line(threads, cache.memory, read, cache, inner, 0, 1)
        outer.gate.set()
        assert first.result(60) == b"\2"
        assert second.result(60) == b"\1"
    assert inner.wholes == 1
    cache.clear()
    wait_until(lambda: cache.used == 0)  # a thread that decodes ahead may still have a decoder


def test_prefetch_does_not_wait_for_memory() -> None:
    cache, ahead = BlockCache(1000), Block(1, 400)
    with cache.reserved(900):
        cache.prefetch(ahead)
        wait_until(lambda: not cache._pending)
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(read, cache, Block(2, 50), 0, 1).result(60) == b"\2"
    assert ahead.wholes == 0
    assert read(cache, ahead, 0, 1) == b"\1"


def test_recipe_whose_cost_fails_delays_no_reader() -> None:
    class Costly(Block):
        @property
        def cost(self) -> int:
            if self.error is not None:
                raise self.error
            return self.size

    cache, block = BlockCache(1000), Costly(1, 100)
    block.error = Damaged("no cost")
    with ThreadPoolExecutor(1) as threads:
        for _ in range(2):
            with pytest.raises(Damaged, match="no cost"):
                threads.submit(read, cache, block, 0, 1).result(60)
        block.error = None
        assert threads.submit(read, cache, block, 0, 1).result(60) == b"\1"


@pytest.mark.parametrize(("budget", "size"), [(1000, 400), (1 << 20, 1 << 20)], ids=["block", "spool"])
def test_maker_interrupted_in_the_queue_leaves_the_block(
    budget: int, size: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, block = BlockCache(budget), Block(1, size)
    with ThreadPoolExecutor(1) as threads:
        with cache.reserved(budget), monkeypatch.context() as patch:
            patch.setattr(cache.memory, "reserve", interrupted)
            with pytest.raises(KeyboardInterrupt):
                threads.submit(read, cache, block, 0, 1).result(60)
        assert threads.submit(read, cache, block, 0, 1).result(60) == b"\1"
    cache.clear()
    wait_until(lambda: cache.used == 0)  # a thread that decodes ahead may still have a decoder


def test_interrupted_reader_does_not_pin_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, block = BlockCache(1000), Gated(1, 400)
    with ThreadPoolExecutor(1) as threads:
        maker: Future[bytes] = threads.submit(read, cache, block, 0, 1)
        wait_for(block.entered)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(blocks.work, "is_done", interrupted)
            read(cache, block, 0, 1)
        block.gate.set()
        assert maker.result(60) == b"\1"
    cache.clear()
    assert cache.used == 0


def test_block_made_for_its_size_is_dropped_if_too_large() -> None:
    cache, block = BlockCache(1000), Block(1, 600)
    assert cache.size_of(block) == 600
    assert cache.used == 0


def test_idle_cache_keeps_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "IDLE_BYTES", 150)
    cache, made = BlockCache(1000), [Block(number, 100) for number in range(4)]
    for block in made:
        read(cache, block, 0, 100)
    cache.drop_idle()
    now = time.monotonic() + settings.cache_idle
    monkeypatch.setattr(time, "monotonic", lambda: now)
    read(cache, made[0], 0, 100)
    cache.drop_idle()
    now += settings.cache_idle - 1
    cache.drop_idle()
    assert cache.used == 400 and not cache.drops, "it was read meanwhile"
    now += 2
    cache.drop_idle()
    assert cache.used == 100 and cache.drops == 1
    read(cache, made[0], 0, 100)
    assert made[0].wholes == 1, "the block used last stays"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader is too slow for its block to be kept, on the slowest machine."""
    for name in ("kept_gap", "kept"):
        monkeypatch.setattr(settings, name, 1e6)
    monkeypatch.setattr(blocks, "KEPT_TIMES", 1e6)
    monkeypatch.setattr(settings, "memory", 600)


@pytest.mark.usefixtures("kept")
def test_readers_of_more_blocks_than_fit_finish_one_after_another() -> None:
    order: list[int] = []

    class Noted(Block):
        def whole(self) -> bytes:
            order.append(self.number)
            return super().whole()

    cache, made = BlockCache(1000), [Noted(number, 400) for number in range(6)]

    def read_all(block: Block) -> None:
        for offset in range(0, block.size, 10):
            assert read(cache, block, offset, 10) == bytes([block.number]) * 10

    for block in made[:2]:
        read(cache, block, 0, 10)
    with ThreadPoolExecutor(4) as threads:
        others = [in_line(threads, cache.memory, read_all, block) for block in made[2:]]
        read_all(made[0])
        for other in others:
            other.result(60)
        read_all(made[1])
    assert order == [0, 1, 2, 3, 4, 5], "each is made once, when its turn comes"


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("name", ["kept_gap", "kept", "KEPT_TIMES"])
def test_reader_that_stops_or_never_ends_keeps_no_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks if name.isupper() else settings, name, 0.0)
    cache, first, second = BlockCache(1000), Block(1, 400), Block(2, 400)
    third = Block(3, 400)
    for block in (first, second, third):
        read(cache, block, 0, 10)
    assert read(cache, first, 10, 10) == bytes([1]) * 10
    assert first.wholes == 2


def test_other_caches_are_evicted_last() -> None:
    cache, block = BlockCache(1000), Block(1, 300)
    asked: list[int] = []

    def evict(wanted: int) -> int:
        asked.append(wanted)
        return 500

    cache.share(evict)
    cache.memory.release(0, 500)
    read(cache, block, 0, 300)
    with cache.reserved(400):
        assert not asked and cache.used == 900
    with cache.reserved(600):
        assert asked == [100] and cache.used == 600
