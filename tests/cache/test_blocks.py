"""Blocks in memory: the budget, one decode for all who wait, errors, decoding ahead."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.cache import BlockCache, blocks, cores
from glassfs.cache import budget as budget_module
from glassfs.cache.cores import CORES
from glassfs.cache.spool import IDLE_SECONDS
from glassfs.errors import Damaged, Unavailable
from tests.cache.recipes import Block, Gated, read, wait_until


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes too late to be made ahead, on the slowest machine."""
    monkeypatch.setattr(blocks, "STALE_SECONDS", 600)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 60)), max_size=80), st.integers(0, 300))
def test_it_behaves_like_a_list_of_the_blocks_used_last(uses: list[tuple[int, int]], budget: int) -> None:
    """Reference model: blocks in the order of their last use, as many from the end as fit in the budget."""
    cache, hits = BlockCache(budget), 0
    kept: list[int] = []
    for number, offset in uses:
        block = Block(number, 10 + number * 5)
        if block.size > budget // 2:
            continue
        offset = min(offset, block.size)
        assert read(cache, block, offset, block.size - offset) == bytes([number]) * (block.size - offset)
        hits += number in kept
        assert block.wholes == (number not in kept)
        kept = [other for other in kept if other != number] + [number]
        while sum(10 + other * 5 for other in kept) > budget:
            del kept[0]
        assert cache.used == sum(10 + other * 5 for other in kept) <= budget
        assert cache.hits == hits


def test_many_threads_cost_one_decode() -> None:
    cache, block = BlockCache(1 << 20), Gated(7, 20_000)
    with ThreadPoolExecutor(32) as threads:
        readers = [threads.submit(read, cache, block, number, 10) for number in range(32)]
        assert block.entered.wait(60)
        time.sleep(0.05)
        assert not any(reader.done() for reader in readers)
        block.gate.set()
        assert all(reader.result() == b"\7" * 10 for reader in readers)
    assert block.wholes == 1


def test_a_tiny_block_is_kept_once_however_many_make_it() -> None:
    cache, block = BlockCache(1 << 20), Gated(7, 100)
    with ThreadPoolExecutor(8) as threads:
        readers = [threads.submit(read, cache, block, number, 10) for number in range(8)]
        assert block.entered.wait(60)
        block.gate.set()
        assert all(reader.result() == b"\7" * 10 for reader in readers)
    made = block.wholes
    assert read(cache, block, 0, 10) == b"\7" * 10
    assert block.wholes == made
    assert cache.used == 100


def test_a_slow_block_does_not_hold_up_others() -> None:
    cache, slow = BlockCache(1 << 20), Gated(1, 100)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(read, cache, slow, 0, 1)
        assert slow.entered.wait(60)
        assert read(cache, Block(2, 100), 0, 1) == b"\2"
        assert not waiting.done()
        slow.gate.set()
        assert waiting.result() == b"\1"


def test_an_error_reaches_all_who_wait_and_is_not_kept() -> None:
    cache, block = BlockCache(1 << 20), Gated(3, 100)
    block.error = Damaged("block 3 is bad")
    with ThreadPoolExecutor(8) as threads:
        readers = [threads.submit(read, cache, block, 0, 10) for _ in range(8)]
        assert block.entered.wait(60)
        time.sleep(0.05)
        block.gate.set()
        for reader in readers:
            with pytest.raises(Damaged, match="block 3 is bad"):
                reader.result()
    block.error = None
    assert read(cache, block, 0, 2) == b"\3\3"
    assert cache.used == 100


def test_a_lack_of_memory_reaches_the_readers_and_is_no_verdict() -> None:
    cache, block = BlockCache(1 << 20), Block(3, 100)
    block.error = MemoryError()
    with pytest.raises(Unavailable):
        read(cache, block, 0, 1)
    block.error = None
    assert read(cache, block, 0, 1) == b"\3"


def test_prefetched_blocks_are_there() -> None:
    cache, block = BlockCache(1 << 20), Block(1, 100)
    cache.prefetch(block)
    wait_until(lambda: cache.used == 100)
    assert read(cache, block, 0, 1) == b"\1"
    cache.prefetch(block)
    assert block.wholes == 1


def test_a_reader_joins_a_prefetch_under_way() -> None:
    cache, block = BlockCache(1 << 20), Gated(1, 100)
    cache.prefetch(block)
    assert block.entered.wait(60)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read, cache, block, 0, 1)
        block.gate.set()
        assert reader.result() == b"\1"
    assert block.wholes == 1


def test_a_queued_prefetch_never_holds_up_a_reader() -> None:
    """All workers are busy: the reader decodes the block itself."""
    cache = BlockCache(1 << 20)
    busy = [Gated(number, 100) for number in range(1, CORES + 1)]
    for block in busy:
        cache.prefetch(block)
    for block in busy:
        assert block.entered.wait(60)
    queued = Block(200, 100)
    cache.prefetch(queued)
    assert read(cache, queued, 0, 1) == b"\xc8"
    for block in busy:
        block.gate.set()
    wait_until(lambda: cache.used == 100 * (len(busy) + 1))
    assert queued.wholes == 1


def test_a_prefetch_is_refused_while_enough_is_being_made() -> None:
    """Whoever reads on asks again; what is made already, or is too large to be made ahead, need not be asked for."""
    cache = BlockCache(1 << 20)
    busy = [Gated(number, 100) for number in range(1, CORES + 1)]
    assert all(cache.prefetch(block) for block in busy)
    queued, refused, large = Block(200, 100), Block(201, 100), Block(202, 1 << 20)
    assert cache.prefetch(queued)
    assert not cache.prefetch(refused)
    assert cache.prefetch(queued)
    assert cache.prefetch(large)
    for block in busy:
        block.gate.set()
    wait_until(lambda: cache.used == 100 * (len(busy) + 1))
    assert cache.prefetch(busy[0])
    assert cache.prefetch(refused)
    wait_until(lambda: refused.wholes == 1)
    assert busy[0].wholes == queued.wholes == 1
    assert large.wholes == 0


def test_a_failed_prefetch_hurts_nobody() -> None:
    cache, block = BlockCache(1 << 20), Block(1, 100)
    block.error = Damaged("bad")
    cache.prefetch(block)
    wait_until(lambda: block.wholes == 1)
    with pytest.raises(Damaged):
        read(cache, block, 0, 1)
    block.error = None
    assert read(cache, block, 0, 1) == b"\1"


def test_a_prefetch_that_comes_late_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever it was for has gone, while all workers were busy."""
    cache = BlockCache(1 << 20)
    busy = [Gated(number, 100) for number in range(1, CORES + 1)]
    for block in busy:
        cache.prefetch(block)
    for block in busy:
        assert block.entered.wait(60)
    monkeypatch.setattr(blocks, "STALE_SECONDS", IDLE_SECONDS)
    late = Block(200, 100)
    cache.prefetch(late)
    time.sleep(2 * IDLE_SECONDS)
    for block in busy:
        block.gate.set()
    wait_until(lambda: cache.used == 100 * len(busy))
    after = Block(201, 100)

    def is_made() -> bool:
        cache.prefetch(after)  # again and again: on a busy machine this one comes late, too
        return after.wholes == 1

    wait_until(is_made)
    assert late.wholes == 0
    assert read(cache, late, 0, 1) == b"\xc8"


def test_all_caches_share_their_threads() -> None:
    """Somebody may open thousands of containers in one process."""
    for number in range(100):
        cache, block = BlockCache(1 << 20), Block(number, 100)
        cache.prefetch(block)
        wait_until(lambda cache=cache: cache.used == 100)  # type: ignore[misc]
    assert sum(thread.name.startswith("glassfs-ahead") for thread in threading.enumerate()) <= CORES


def test_a_forked_process_decodes_ahead_as_well() -> None:
    cache = BlockCache(1 << 20)
    cache.prefetch(Block(1, 100))
    wait_until(lambda: cache.used == 100)
    child = os.fork()
    if child == 0:
        try:
            cache.prefetch(Block(2, 100))
            wait_until(lambda: cache.used == 200)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


class Counted(Block):
    """A recipe that tells how many are at work at the same time; ``inner`` is another one that it is made of."""

    lock = threading.Lock()
    now = most = 0
    cache: BlockCache
    inner: Block | None = None

    def whole(self) -> bytes:
        self._work(1)
        time.sleep(0.002)
        self._work(-1)
        if self.inner is not None:
            read(self.cache, self.inner, 0, 1)
        return super().whole()

    def _work(self, change: int) -> None:
        with Counted.lock:
            Counted.now += change
            Counted.most = max(Counted.most, Counted.now)


def test_no_more_blocks_are_made_at_a_time_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many readers there are, and though blocks are made of blocks that other readers make."""
    monkeypatch.setattr(cores, "LONGEST_WAIT_SECONDS", 10)
    monkeypatch.setattr(Counted, "most", 0)
    cache = BlockCache(1 << 20)
    inner = [Counted(number, 20_000) for number in range(1, 9)]
    outer = [Counted(number + 100, 20_000) for number in range(24)]
    for number, block in enumerate(outer):
        block.cache, block.inner = cache, inner[number % len(inner)]
    with ThreadPoolExecutor(24) as threads:
        list(threads.map(lambda block: read(cache, block, 0, 1), outer))
    assert all(block.wholes == 1 for block in inner + outer)
    assert Counted.most == CORES


def test_waiting_for_a_disk_is_no_work() -> None:
    """Recipes that say so wait all at the same time."""
    cache = BlockCache(1 << 20)
    together = threading.Barrier(8, timeout=60)

    class Waiting(Block):
        def whole(self) -> bytes:
            with cache.waiting():
                together.wait()
            return super().whole()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: read(cache, Waiting(number, 100), 0, 1), range(8)))
    assert cache.used == 800


# Room in the budget


class Outer(Gated):
    """Made of another block, which it reads when it is let go; it needs ``cost`` bytes itself."""

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


def line(cache: BlockCache) -> int:
    """How many wait for memory."""
    return len(cache.memory._queue)


def test_room_is_taken_before_a_block_is_made_and_not_for_what_is_there() -> None:
    cache, kept, large = BlockCache(1000), Block(1, 300), Block(2, 400)
    read(cache, kept, 0, 1)
    with ThreadPoolExecutor(2) as threads:
        with cache.reserved(700):
            waiting = threads.submit(read, cache, large, 0, 1)
            wait_until(lambda: line(cache) == 1)
            assert large.wholes == 0
            assert threads.submit(read, cache, kept, 0, 1).result(60) == b"\1"
        assert waiting.result(60) == b"\2"
    assert cache.used <= 1000


def test_a_block_that_waits_for_room_is_made_for_one_who_holds_it() -> None:
    """Else that one would wait for the block, and the block for the memory."""
    cache, inner = BlockCache(1000), Block(1, 400)
    outer = Outer(cache, 2, 900, inner)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read, cache, outer, 0, 1)
        assert outer.entered.wait(60)
        second = threads.submit(read, cache, inner, 0, 1)
        wait_until(lambda: line(cache) == 1)
        outer.gate.set()
        assert first.result(60) == b"\2"
        assert second.result(60) == b"\1"
    assert inner.wholes == 1
    cache.clear()
    assert cache.used == 0


def test_blocks_of_blocks_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "NESTED_TIMEOUT_SECONDS", 600)
    monkeypatch.setattr(budget_module, "TIMEOUT_SECONDS", 600)
    cache = BlockCache(1000)
    seen: list[int] = []

    class Inner(Block):
        def whole(self) -> bytes:
            seen.append(cache.used)
            time.sleep(0.005)
            return super().whole()

    outer = [Outer(cache, number, 10, Inner(100 + number, 400)) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        readers = [threads.submit(read, cache, block, 0, 1) for block in outer]
        for block in outer:
            assert block.entered.wait(60)
        for block in outer:
            block.gate.set()
        for reader in readers:
            reader.result(60)
    assert max(seen) <= 1000
    cache.clear()
    assert cache.used == 0


def test_a_prefetch_waits_for_no_room_and_holds_up_nobody() -> None:
    cache, ahead = BlockCache(1000), Block(1, 400)
    with cache.reserved(900):
        cache.prefetch(ahead)
        wait_until(lambda: not cache._pending)
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(read, cache, Block(2, 50), 0, 1).result(60) == b"\2"
    assert ahead.wholes == 0
    assert read(cache, ahead, 0, 1) == b"\1"


def test_a_recipe_that_fails_to_tell_its_cost_holds_up_nobody() -> None:
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


def test_a_maker_who_is_interrupted_in_the_line_leaves_the_block_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, block = BlockCache(1000), Block(1, 400)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as threads:
        with cache.reserved(900), monkeypatch.context() as patch:
            patch.setattr(cache.memory, "reserve", interrupted)
            with pytest.raises(KeyboardInterrupt):
                threads.submit(read, cache, block, 0, 1).result(60)
        assert threads.submit(read, cache, block, 0, 1).result(60) == b"\1"
    assert cache.used == 400


def test_a_reader_who_is_interrupted_does_not_pin_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, block = BlockCache(1000), Gated(1, 400)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as threads:
        maker = threads.submit(read, cache, block, 0, 1)
        assert block.entered.wait(60)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(blocks, "wait", interrupted)
            read(cache, block, 0, 1)
        block.gate.set()
        assert maker.result(60) == b"\1"
    cache.clear()
    assert cache.used == 0


def test_a_block_made_for_its_size_alone_is_not_kept_if_it_is_too_large() -> None:
    cache, block = BlockCache(1000), Block(1, 600)
    assert cache.size_of(block) == 600
    assert cache.used == 0


def test_what_failed_is_held_by_nothing() -> None:
    """Neither the block nor its source may wait for the garbage collector."""
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


def test_what_is_forgotten_is_of_that_version_only() -> None:
    class Versioned(Block):
        @property
        def key(self) -> Any:
            return ("new", self.number) if self.number else ()

    cache = BlockCache(1000)
    for number in (0, 1):
        read(cache, Versioned(number, 100), 0, 1)
    cache.forget("old")
    assert cache.used == 200
    cache.forget("new")
    assert cache.used == 100
