"""Blocks too large for memory: unlinked files, decoding as far as readers need it, errors."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.cache.blocks import SPOOLS
from glassfs.content import Stream
from glassfs.errors import Changed, Damaged, NoSpool, Unavailable
from glassfs.settings import settings
from tests.cache.recipes import PIECE, Block, in_line, read
from tests.source.test_local import held
from tests.waiting import wait_until


def test_first_bytes_come_before_the_block_is_decoded() -> None:
    cache, block = BlockCache(1 << 20), Block(5, 100 * PIECE)
    assert read(cache, block, 10, 100) == block.expected(10, 100)
    assert block.pieces_given == 1
    assert cache.used == block.stream_cost


def test_many_threads_read_the_right_bytes() -> None:
    cache, block = BlockCache(1 << 20), Block(5, 10 * PIECE + 123)
    expected = block.expected(0, block.size)
    offsets = [number * 999_983 % (block.size - 5000) for number in range(60)]
    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(lambda offset: read(cache, block, offset, 5000), offsets))
    assert parts == [expected[offset : offset + 5000] for offset in offsets]
    assert block.wholes == 1
    assert read(cache, block, block.size - 1, 1) == expected[-1:]


def test_spool_file_has_no_name_and_goes_with_the_cache(tmp_path: Path) -> None:
    cache = BlockCache(1000, str(tmp_path))
    read(cache, Block(1, 1 << 20), 1 << 19, 100)
    assert os.listdir(tmp_path) == []
    assert held(tmp_path) == 1
    for number in range(2, 4 * SPOOLS):
        read(cache, Block(number, 600), 0, 1)
    wait_until(lambda: held(tmp_path) == SPOOLS)
    del cache
    wait_until(lambda: gc.collect() >= 0 and not held(tmp_path))


def test_damage_spares_the_bytes_before_it_and_is_cached() -> None:
    """Finding it again would cost decoding everything before it."""
    cache, block = BlockCache(1 << 20), Block(5, 40 * PIECE)
    block.error, block.fails_at = Damaged("bad"), 20 * PIECE
    assert read(cache, block, 0, 100) == block.expected(0, 100)
    for _ in range(5):
        with pytest.raises(Damaged, match="bad"):
            read(cache, block, 30 * PIECE, 100)
    assert block.wholes == 1


@pytest.mark.parametrize("size", [100, 1 << 20], ids=["block", "spool"])
@pytest.mark.parametrize("error, raised", [
    (Changed("closed"), Changed), (OSError(28, "No space left on device"), OSError), (MemoryError(), Unavailable),
])
def test_errors_that_pass_are_not_cached(error: Exception, raised: type[Exception], size: int) -> None:
    cache, block = BlockCache(1 << 20), Block(5, size)
    block.error, block.fails_at = error, 0
    with pytest.raises(raised):
        read(cache, block, 0, 10)
    block.error = None
    assert read(cache, block, 0, 10) == block.expected(0, 10)


def test_block_that_ends_early_is_damage() -> None:
    class Short(Block):
        def pieces(self) -> Iterator[bytes]:
            yield bytes(1000)

    cache, block = BlockCache(1000), Short(5, 3000)
    assert read(cache, block, 0, 1000) == bytes(1000)
    with pytest.raises(Damaged, match="gives 1000 bytes, but 3000 are declared"):
        read(cache, block, 1500, 10)


def test_missing_spool_folder_is_reported(tmp_path: Path) -> None:
    cache = BlockCache(1 << 20, str(tmp_path / "none"))
    for _ in range(2):
        with pytest.raises(NoSpool, match=r"none: a block of 1048576 bytes cannot be kept"):
            read(cache, Block(1, 1 << 20), 0, 1)
    assert cache.used == 0


def test_idle_decoder_releases_its_memory() -> None:
    cache, block = BlockCache(1 << 20), Block(5, 40 * PIECE)
    assert read(cache, block, 0, 10) == block.expected(0, 10)
    with cache.reserved(1 << 20):
        assert cache.used == 1 << 20
        assert read(cache, block, 100, 10) == block.expected(100, 10)
        assert block.wholes == 1
    assert read(cache, block, 39 * PIECE, 10) == block.expected(39 * PIECE, 10)
    assert block.wholes == 2
    cache.clear()
    assert cache.used == 0


def test_whole_block_needs_no_source() -> None:
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


def test_spool_file_that_cannot_be_read_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reader gets another file."""
    cache, block = BlockCache(1 << 20), Block(5, 4 * PIECE)
    read(cache, block, 0, 4 * PIECE)

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    for answer in (failing, lambda *_: 0):
        with monkeypatch.context() as patch, pytest.raises(NoSpool, match="cannot be kept there"):
            patch.setattr(os, "preadv", answer)
            read(cache, block, 0, 100)
        assert read(cache, block, 0, 100) == block.expected(0, 100)


def test_readers_of_more_decoders_than_fit_finish_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than idle files are kept."""
    for name in ("kept_gap", "kept"):
        monkeypatch.setattr(settings, name, 1e6)
    monkeypatch.setattr(settings, "memory", 600)
    cache = BlockCache(PIECE)  # a decoder takes all of it
    made, steps = [Block(number, 6 * PIECE) for number in range(SPOOLS + 4)], range(0, 6 * PIECE, PIECE)

    def read_all(block: Block) -> None:
        for offset in steps:
            assert read(cache, block, offset, 10) == block.expected(offset, 10)

    read(cache, made[0], 0, 10)
    with ThreadPoolExecutor(len(made)) as threads:
        others = [in_line(threads, cache.memory, read_all, block) for block in made[1:]]
        read_all(made[0])
        for other in others:
            other.result(60)
    assert {block.wholes for block in made} == {1}


def test_full_disk_takes_files_that_no_thread_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has gone must not keep others from their blocks."""
    write = os.pwrite

    def written(descriptor: int, data: memoryview, offset: int) -> int:
        if held(tmp_path) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", written)
    cache, first, second = BlockCache(1 << 20, str(tmp_path)), Block(5, 30 * PIECE), Block(6, 30 * PIECE)
    assert read(cache, first, 20 * PIECE, 100) == first.expected(20 * PIECE, 100)
    assert read(cache, second, 20 * PIECE, 100) == second.expected(20 * PIECE, 100)
    assert read(cache, first, 0, 100) == first.expected(0, 100)


def test_file_is_given_up_when_it_was_not_read_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, block = BlockCache(1000, str(tmp_path)), Block(5, 1 << 20)
    read(cache, block, 0, 100)
    cache.drop_idle()
    assert held(tmp_path) == 1
    monkeypatch.setattr(settings, "spool_kept", -1.0)
    cache.drop_idle()
    wait_until(lambda: not held(tmp_path))
    assert read(cache, block, 0, 100) == block.expected(0, 100)


def lines(count: int, made: list[int]) -> Callable[[], Iterator[bytes]]:
    """Return what makes a stream of so many pieces, and notes their numbers."""
    def make() -> Iterator[bytes]:
        for number in range(count):
            made.append(number)
            yield bytes([number]) * PIECE

    return make


@pytest.mark.parametrize("count", [0, 1, 9])
def test_stream_is_made_once_for_its_size_and_all_reads(count: int, tmp_path: Path) -> None:
    cache, made = BlockCache(64 << 20, str(tmp_path)), list[int]()
    stream = Stream(cache, ("version", "lines"), lines(count, made))
    assert not stream.is_sized and not made
    with ThreadPoolExecutor(3) as threads:
        assert set(threads.map(lambda _: stream.size, range(3))) == {count * PIECE}
    assert stream.read(0, count * PIECE) == b"".join(bytes([number]) * PIECE for number in range(count))
    assert held(tmp_path) == (count == 9)
    assert len(made) == count + 5 * (count == 9)  # the first MiB of a long one is made again


def test_size_of_a_stream_is_known_after_its_bytes_were_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, made = BlockCache(64 << 20, str(tmp_path)), list[int]()
    assert Stream(cache, ("version", "lines"), lines(9, made)).size == 9 * PIECE
    monkeypatch.setattr(settings, "spool_kept", -1.0)
    cache.drop_idle()
    assert not held(tmp_path)
    del made[:]
    again = Stream(cache, ("version", "lines"), lines(9, made))
    assert again.size == 9 * PIECE and not made
    assert again.read(9 * PIECE - 1, 1) == b"\x08" and made == list(range(9))


def test_canceled_size_of_a_stream_is_continued_by_the_next_reader(tmp_path: Path) -> None:
    cache, made, doing = BlockCache(64 << 20, str(tmp_path)), list[int](), work.Work()

    def make() -> Iterator[bytes]:
        for piece in lines(20, made)():
            if len(made) == 15:
                doing.cancel()
            yield piece

    stream = Stream(cache, ("version", "lines"), make)
    with pytest.raises(work.Canceled):
        work.done_for(doing, lambda: stream.size)
    assert 15 <= len(made) < 25
    assert stream.size == 20 * PIECE and len(made) <= 25


def test_stream_that_is_stopped_inside_a_piece_does_not_end_there(tmp_path: Path) -> None:
    cache, made = BlockCache(64 << 20, str(tmp_path)), list[int]()

    def make() -> Iterator[bytes]:
        for piece in lines(9, made)():
            if len(made) == 5 + 7:  # after the five that were made in memory
                raise work.Canceled
            yield piece

    stream = Stream(cache, ("version", "lines"), make)
    with pytest.raises(work.Canceled):
        _ = stream.size
    assert stream.size == 9 * PIECE and stream.read(9 * PIECE - 1, 1) == b"\x08"


def test_files_beyond_their_bound_are_given_up(tmp_path: Path) -> None:
    cache = BlockCache(1000, str(tmp_path), spool_size=6 * PIECE)
    for number in range(4):
        block = Block(number, 4 * PIECE)
        read(cache, block, 4 * PIECE - 1, 1)
    wait_until(lambda: held(tmp_path) == 1)
    assert block.wholes == 1 and read(cache, block, 0, 1) == block.expected(0, 1) and block.wholes == 1
