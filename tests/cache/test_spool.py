"""Blocks too large for memory: files that nobody sees, decoding as far as readers need it, what goes wrong."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from glassfs.cache import BlockCache, spool
from glassfs.cache.blocks import SPOOLS
from glassfs.errors import Changed, Damaged, NoSpool, Unavailable
from tests.cache.recipes import PIECE, Block, Gated, read, wait_until


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes ahead by four pieces only."""
    monkeypatch.setattr(spool, "READ_AHEAD", 4 * PIECE)


def test_the_first_bytes_of_a_large_block_come_before_its_last(small_steps: None) -> None:
    cache, block = BlockCache(1 << 20), Block(5, 100 * PIECE)
    assert read(cache, block, 10, 100) == block.expected(10, 100)
    time.sleep(0.1)
    assert block.pieces_given <= 10
    assert cache.used <= block.stream_cost


@pytest.mark.slow
def test_nothing_is_decoded_ahead_for_readers_that_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "READ_AHEAD", 200 * PIECE)

    cache, block = BlockCache(1 << 20), Block(5, 200 * PIECE)
    read(cache, block, 0, 100)
    wait_until(lambda: block.pieces_given > 1)
    time.sleep(2 * spool.IDLE_SECONDS)
    given = block.pieces_given
    time.sleep(2 * spool.IDLE_SECONDS)
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
    for number in range(4 * SPOOLS):
        read(cache, Block(number, 600), 0, 1)
    wait_until(lambda: len(os.listdir("/dev/fd")) <= before + SPOOLS + 1)


def test_damage_in_a_large_block_spares_what_comes_before(small_steps: None) -> None:
    cache, block = BlockCache(1 << 20), Block(5, 40 * PIECE)
    block.error, block.fails_at = Changed("the file was changed"), 20 * PIECE
    assert read(cache, block, 0, 100) == block.expected(0, 100)
    for _ in range(2):
        with pytest.raises(Changed, match="the file was changed"):
            read(cache, block, 30 * PIECE, 100)


@pytest.mark.parametrize("error, told", [
    (Changed("closed"), Changed), (OSError(28, "No space left on device"), OSError), (MemoryError(), Unavailable),
])
def test_a_large_block_that_failed_is_tried_again(error: Exception, told: type[Exception]) -> None:
    """A full disk or a lack of memory passes."""
    cache, block = BlockCache(1000), Block(5, 1 << 20)
    block.error, block.fails_at = error, 0
    with pytest.raises(told):
        read(cache, block, 0, 10)
    block.error = None
    assert read(cache, block, 0, 10) == block.expected(0, 10)


def test_damage_of_a_large_block_is_found_once() -> None:
    """Each further read would cost decoding all that comes before it."""
    cache, block = BlockCache(1 << 20), Block(5, 1 << 20)
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
    with pytest.raises(Damaged, match="gives 1000 bytes, but 3000 are declared"):
        read(cache, block, 1500, 10)


def test_a_folder_for_spools_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    cache = BlockCache(1 << 20, str(tmp_path / "none"))
    for _ in range(2):
        with pytest.raises(NoSpool, match=r"none: a block of 1048576 bytes cannot be written"):
            read(cache, Block(1, 1 << 20), 0, 1)
    assert cache.used == 0


def test_a_decoder_that_nobody_needs_gives_up_its_memory_and_is_made_again(small_steps: None) -> None:
    cache, block = BlockCache(1 << 20), Block(5, 40 * PIECE)
    assert read(cache, block, 0, 10) == block.expected(0, 10)
    with cache.reserved(1 << 20):
        assert cache.used <= (1 << 20) + PIECE
        time.sleep(2 * spool.IDLE_SECONDS)
        assert block.wholes == 1, "reading ahead makes no decoder again"
    assert read(cache, block, 39 * PIECE, 10) == block.expected(39 * PIECE, 10)
    assert block.wholes <= 2
    cache.clear()
    assert cache.used == 0


def test_a_block_that_is_whole_needs_no_source() -> None:
    cache, block = BlockCache(1 << 20), Block(5, 4 * PIECE)
    expected, same = block.expected(0, 4 * PIECE), Block(5, 4 * PIECE)
    assert read(cache, block, 0, 4 * PIECE) == expected
    alive = weakref.ref(block)
    gc.disable()
    try:
        del block
        wait_until(lambda: alive() is None)
    finally:
        gc.enable()
    assert read(cache, same, PIECE, 100) == expected[PIECE : PIECE + 100]
    assert same.wholes == 0


def test_a_reader_who_is_interrupted_in_the_line_leaves_the_block_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, block = BlockCache(1 << 20), Block(5, 4 * PIECE)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as threads:
        with cache.reserved(1 << 20), monkeypatch.context() as patch:
            patch.setattr(cache.memory, "reserve", interrupted)
            with pytest.raises(KeyboardInterrupt):
                threads.submit(read, cache, block, 0, 1).result(60)
        assert threads.submit(read, cache, block, 0, 10).result(60) == block.expected(0, 10)


def test_a_decoder_that_waits_for_room_is_made_for_one_who_holds_it() -> None:
    """A block that is made of a larger one, which another reader has asked for."""
    cache, large = BlockCache(1 << 20), Block(5, 4 * PIECE)

    class Outer(Gated):
        @property
        def cost(self) -> int:
            return 1 << 20

        def whole(self) -> bytes:
            raw = super().whole()
            assert read(cache, large, 100, 10) == large.expected(100, 10)
            return raw

    outer = Outer(1, 10)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read, cache, outer, 0, 1)
        assert outer.entered.wait(60)
        second = threads.submit(read, cache, large, 0, 10)
        wait_until(lambda: len(cache.memory._queue) == 1)
        outer.gate.set()
        assert first.result(60) == b"\1"
        assert second.result(60) == large.expected(0, 10)
