"""The cache of decoded blocks: its budget, one decode for all who wait, errors, spool files, decoding ahead."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs import cache as cache_module
from glassfs.cache import BlockCache
from glassfs.errors import Changed, Damaged

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
        assert self.gate.wait(20)
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
    cache, block = BlockCache(1 << 20), Gated(7, 1000)
    with ThreadPoolExecutor(32) as threads:
        readers = [threads.submit(read, cache, block, number, 10) for number in range(32)]
        assert block.entered.wait(10)
        time.sleep(0.05)
        assert not any(reader.done() for reader in readers)
        block.gate.set()
        assert all(reader.result() == b"\7" * 10 for reader in readers)
    assert block.wholes == 1


def test_a_slow_block_does_not_hold_up_others() -> None:
    cache, slow = BlockCache(1 << 20), Gated(1, 100)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(read, cache, slow, 0, 1)
        assert slow.entered.wait(10)
        assert read(cache, Block(2, 100), 0, 1) == b"\2"
        assert not waiting.done()
        slow.gate.set()
        assert waiting.result() == b"\1"


def test_an_error_reaches_all_who_wait_and_is_not_kept() -> None:
    cache, block = BlockCache(1 << 20), Gated(3, 100)
    block.error = Damaged("block 3 is bad")
    with ThreadPoolExecutor(8) as threads:
        readers = [threads.submit(read, cache, block, 0, 10) for _ in range(8)]
        assert block.entered.wait(10)
        time.sleep(0.05)
        block.gate.set()
        for reader in readers:
            with pytest.raises(Damaged, match="block 3 is bad"):
                reader.result()
    block.error = None
    assert read(cache, block, 0, 2) == b"\3\3"
    assert cache.used == 100


def test_errors_of_the_interpreter_reach_the_readers_too() -> None:
    cache, block = BlockCache(1 << 20), Block(3, 100)
    block.error = MemoryError()
    with pytest.raises(MemoryError):
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
    assert block.entered.wait(10)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read, cache, block, 0, 1)
        block.gate.set()
        assert reader.result() == b"\1"
    assert block.wholes == 1


def test_a_queued_prefetch_never_holds_up_a_reader() -> None:
    """All workers are busy: the reader decodes the block itself."""
    cache = BlockCache(1 << 20)
    busy = [Gated(number, 100) for number in range(1, cache_module.WORKERS + 1)]
    for block in busy:
        cache.prefetch(block)
    for block in busy:
        assert block.entered.wait(10)
    queued = Block(200, 100)
    cache.prefetch(queued)
    assert read(cache, queued, 0, 1) == b"\xc8"
    for block in busy:
        block.gate.set()
    wait_until(lambda: cache.used == 100 * (len(busy) + 1))
    assert queued.wholes == 1


def test_a_failed_prefetch_hurts_nobody() -> None:
    cache, block = BlockCache(1 << 20), Block(1, 100)
    block.error = Damaged("bad")
    cache.prefetch(block)
    wait_until(lambda: block.wholes == 1)
    with pytest.raises(Damaged):
        read(cache, block, 0, 1)
    block.error = None
    assert read(cache, block, 0, 1) == b"\1"


def test_a_prefetch_that_comes_late_is_dropped() -> None:
    """Whoever it was for has gone, while all workers were busy."""
    cache = BlockCache(1 << 20)
    busy = [Gated(number, 100) for number in range(1, cache_module.WORKERS + 1)]
    for block in busy:
        cache.prefetch(block)
    late = Block(200, 100)
    cache.prefetch(late)
    time.sleep(2 * cache_module.PATIENCE)
    for block in busy:
        block.gate.set()
    wait_until(lambda: cache.used == 100 * len(busy))
    after = Block(201, 100)
    cache.prefetch(after)
    wait_until(lambda: after.wholes == 1)
    assert late.wholes == 0
    assert read(cache, late, 0, 1) == b"\xc8"


def test_all_caches_share_their_threads() -> None:
    """Somebody may open thousands of containers in one process."""
    for number in range(100):
        cache, block = BlockCache(1 << 20), Block(number, 100)
        cache.prefetch(block)
        wait_until(lambda cache=cache: cache.used == 100)  # type: ignore[misc]
    assert sum(thread.name.startswith("glassfs-ahead") for thread in threading.enumerate()) <= cache_module.WORKERS


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
    monkeypatch.setattr(cache_module, "LONGEST_DELAY", 10)
    monkeypatch.setattr(Counted, "most", 0)
    cache = BlockCache(1 << 20)
    inner = [Counted(number, 100) for number in range(1, 9)]
    outer = [Counted(number + 100, 100) for number in range(24)]
    for number, block in enumerate(outer):
        block.cache, block.inner = cache, inner[number % len(inner)]
    with ThreadPoolExecutor(24) as threads:
        list(threads.map(lambda block: read(cache, block, 0, 1), outer))
    assert all(block.wholes == 1 for block in inner + outer)
    assert Counted.most == cache_module.WORKERS


def test_waiting_for_a_disk_is_no_work() -> None:
    """Recipes that say so wait all at the same time."""
    cache = BlockCache(1 << 20)
    together = threading.Barrier(8, timeout=10)

    class Waiting(Block):
        def whole(self) -> bytes:
            with cache.waiting():
                together.wait()
            return super().whole()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: read(cache, Waiting(number, 100), 0, 1), range(8)))
    assert cache.used == 800


# Blocks too large to keep.


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes ahead by four pieces only."""
    monkeypatch.setattr(cache_module, "READ_AHEAD", 4 * PIECE)


def test_the_first_bytes_of_a_large_block_come_before_its_last(small_steps: None) -> None:
    cache, block = BlockCache(1 << 20), Block(5, 100 * PIECE)
    assert read(cache, block, 10, 100) == block.expected(10, 100)
    time.sleep(0.1)
    assert block.pieces_given <= 10
    assert cache.used == 0


def test_nothing_is_decoded_ahead_for_readers_that_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "READ_AHEAD", 200 * PIECE)

    cache, block = BlockCache(1 << 20), Block(5, 200 * PIECE)
    read(cache, block, 0, 100)
    wait_until(lambda: block.pieces_given > 1)
    time.sleep(2 * cache_module.PATIENCE)
    given = block.pieces_given
    time.sleep(2 * cache_module.PATIENCE)
    assert block.pieces_given == given < 150
    assert read(cache, block, 150 * PIECE, 10) == block.expected(150 * PIECE, 10)


def test_a_large_block_reads_right_from_many_threads(small_steps: None) -> None:
    cache, block = BlockCache(1 << 20), Block(5, 10 * PIECE + 123)
    expected = block.expected(0, block.size)
    places = [number * 999_983 % (block.size - 5000) for number in range(60)]
    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(lambda place: read(cache, block, place, 5000), places))
    assert parts == [expected[place : place + 5000] for place in places]
    assert block.wholes == 1
    assert read(cache, block, block.size - 1, 1) == expected[-1:]


def test_a_spool_file_has_no_name_and_goes_with_the_cache(tmp_path: Path) -> None:
    def spool_files() -> list[str]:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.lexists(link) and str(tmp_path) in os.readlink(link)]

    cache = BlockCache(1000, str(tmp_path))
    read(cache, Block(1, 1 << 20), 1 << 19, 100)
    assert os.listdir(tmp_path) == []
    assert len(spool_files()) == 1
    del cache
    wait_until(lambda: gc.collect() >= 0 and spool_files() == [])


def test_the_number_of_spool_files_is_bounded(tmp_path: Path) -> None:
    cache = BlockCache(1000, str(tmp_path))
    before = len(os.listdir("/dev/fd"))
    for number in range(4 * cache_module.SPOOLS):
        read(cache, Block(number, 600), 0, 1)
    wait_until(lambda: len(os.listdir("/dev/fd")) <= before + cache_module.SPOOLS + 1)


def test_damage_in_a_large_block_spares_what_comes_before(small_steps: None) -> None:
    cache, block = BlockCache(1 << 20), Block(5, 40 * PIECE)
    block.error, block.fails_at = Changed("the file was changed"), 20 * PIECE
    assert read(cache, block, 0, 100) == block.expected(0, 100)
    for _ in range(2):
        with pytest.raises(Changed, match="the file was changed"):
            read(cache, block, 30 * PIECE, 100)


@pytest.mark.parametrize("error", [Changed("closed"), OSError(28, "No space left on device"), MemoryError()])
def test_a_large_block_that_failed_is_tried_again(error: Exception) -> None:
    """A full disk or a lack of memory passes."""
    cache, block = BlockCache(1000), Block(5, 1 << 20)
    block.error, block.fails_at = error, 0
    with pytest.raises(type(error)):
        read(cache, block, 0, 10)
    block.error = None
    assert read(cache, block, 0, 10) == block.expected(0, 10)


def test_damage_of_a_large_block_is_found_once() -> None:
    """Each further read would cost decoding all that comes before it."""
    cache, block = BlockCache(1000), Block(5, 1 << 20)
    block.error, block.fails_at = Damaged("bad"), 3 * PIECE
    for _ in range(5):
        with pytest.raises(Damaged, match="bad"):
            read(cache, block, 3 * PIECE, 10)
    assert block.wholes == 1


def test_a_large_block_that_ends_early_is_damage() -> None:
    class Short(Block):
        def pieces(self) -> Iterator[bytes]:
            yield bytes(1000)

    cache, block = BlockCache(1000), Short(5, 3000)
    assert read(cache, block, 0, 1000) == bytes(1000)
    with pytest.raises(Damaged, match="1000 bytes, declared are 3000"):
        read(cache, block, 1500, 10)
