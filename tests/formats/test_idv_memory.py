"""ML.NET data views: lifetime of caches, read-ahead, and memory."""

from __future__ import annotations

import gc
import logging
import struct
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
import pytest
from writers.idv import Codec, IdvWriter, vector

from glassfs.cache import BlockCache, Recipe
from glassfs.content import Array
from glassfs.content.allowance import Allowance
from glassfs.errors import Damaged, Refused
from glassfs.formats.idv import columns
from glassfs.formats.idv.table import IdvFile, read_header
from glassfs.formats.registry import Opening, open_container
from glassfs.view.json import line
from tests.formats.exercise import peak_memory, visit
from tests.formats.idv_files import MIB, raw_column, records
from tests.formats.test_fuzz import idv
from tests.helpers import CountingSource, contents_of, only, open_path
from tests.waiting import wait_until

# -- lifetime ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_damaged", [False, True])
def test_nothing_of_a_closed_container_is_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_damaged: bool,
) -> None:
    """Without the garbage collector: no cache of a module and no cycle of references keeps it."""
    caplog.set_level(logging.CRITICAL, "glassfs")  # a captured record keeps its error and the frames of its traceback
    path = tmp_path / "made.idv"
    data = idv(tmp_path)
    path.write_bytes(data[:300] + bytes(300) + data[600:] if is_damaged else data)
    cache = BlockCache(MIB)
    gc.disable()
    try:
        source = CountingSource(path)
        container = open_container(Opening(source, cache))
        contents = [content for found in contents_of(container.root).values() for content in found]
        alive = [weakref.ref(content.data) for content in contents if isinstance(content, Array)]
        alive.append(weakref.ref(source))
        for content in contents:
            visit(content)
        list(container.check())
        container.close()
        del source, container, contents, content
        assert len(alive) > 5
        # Blocks may still be being made ahead.
        wait_until(lambda: all(found() is None for found in alive), what="the end of everything that was opened")
    finally:
        gc.enable()


# -- read-ahead -----------------------------------------------------

BLOCKS, ROWS = 12, 1024
BLOCK = ROWS * 16 * 4


class PrefetchLog(BlockCache):
    """A cache that logs requested prefetches and performs none."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.ahead: list[Hashable] = []

    def prefetch(self, recipe: Recipe) -> bool:
        self.ahead.append(recipe.key)
        return True


@pytest.mark.parametrize(("budget", "distance"), [(64 << 20, 3), (8 * BLOCK, 2), (BLOCK, 1)])
@pytest.mark.parametrize("is_vector", [False, True])
def test_sequential_reads_decode_blocks_ahead(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, budget: int, distance: int, is_vector: bool,
) -> None:
    """As many blocks as there are cores, within the cache's budget."""
    monkeypatch.setattr(columns, "CORES", 3)
    values = np.arange(BLOCKS * ROWS * 16, dtype="<f4").reshape((-1, 16) if is_vector else -1)
    path = make(lambda view: view.add("v", values), rows_per_block=ROWS if is_vector else ROWS * 16)

    def ahead_of(*ranges: tuple[int, int]) -> int:
        cache = PrefetchLog(budget)
        data = only(open_container(Opening(CountingSource(path), cache)), "columns/v").data
        for start, size in ranges:
            assert data.read(start, size) == values.tobytes()[start : start + size]
        assert len(set(cache.ahead)) == len(cache.ahead)
        return len(cache.ahead)

    assert ahead_of((0, 64)) == 0
    assert ahead_of((0, BLOCK)) == ahead_of((0, 64), (64, 64)) == distance
    assert ahead_of((0, 64), (64, 64), (BLOCK, 64)) == distance + 1
    assert ahead_of((5 * BLOCK, BLOCK)) == 0
    assert ahead_of((5 * BLOCK, 64), (9 * BLOCK, 64), (BLOCK, 64), (7 * BLOCK, 64)) == 0


# -- memory ----------------------------------------------------------------------------------------

TEXTS = {
    "plain": ["plain text " * 30] * 500, "escapes": ["\1" * (2 * MIB)], "wide": ["\U0001f600é" * MIB],
    "wide and escapes": ["\U0001f600" + "\1" * (2 * MIB)], "short": ["a", "", "é"] * 300,
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("is_vector", [False, True], ids=["texts", "vectors"])
def test_text_rows_take_no_more_memory_than_declared(make: Callable[..., Path], name: str, is_vector: bool) -> None:
    """With the line of one of them beside."""
    texts = TEXTS[name]
    rows, codec = ([texts] * 2, vector("TextSpan")) if is_vector else (texts, None)
    path = make(lambda view: view.add("t", rows, *filter(None, (codec,))))
    content = only(open_path(path), "columns/t")
    for number in range(content.blocks):
        cost = content.cost(number)
        peak = peak_memory(lambda number=number: [line(value) and None for value in content.block(number)])
        assert peak <= cost + (1 << 20)  # what is read of a block at once


def test_short_texts_are_decoded_once(make: Callable[..., Path]) -> None:
    cache = BlockCache(4 * MIB)
    path = make(lambda view: view.add("t", ["short"] * 5000))
    container = open_container(Opening(CountingSource(path), cache))
    assert records(container, "columns/t") == ["short"] * 5000
    assert cache.misses == 2  # the block, and its string in UTF-16


def test_few_opened_blocks_stay_in_memory(make: Callable[..., Path]) -> None:
    path = make(lambda view: view.add("t", ["text"] * 100), rows_per_block=1)
    source = CountingSource(path)
    opened = IdvFile(source, BlockCache(MIB), Allowance(MIB), read_header(source))
    blocks = opened.blocks(next(opened.columns()))
    runs = [blocks.run(number, blocks.codec.item) for number in range(32)]
    assert all(blocks.run(number, blocks.codec.item) is run for number, run in enumerate(runs))
    blocks.run(32, blocks.codec.item)
    assert blocks.run(0, blocks.codec.item) is not runs[0]


def test_a_table_of_contents_longer_than_any_is_refused(make: Callable[..., Path]) -> None:
    path = make(lambda view: view.add(b"n" * (33 * MIB), np.zeros(1)))
    with pytest.raises(Refused, match="the table of contents: needs"):
        open_path(path)


def test_a_number_of_too_many_bits_names_its_place(make: Callable[..., Path]) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("F", np.zeros(1))
        view.toc[0] = b"\xff\xff\xff\xff\x08" + view.toc[0]

    with pytest.raises(Refused, match=r"made.idv: the table of contents: has a number of more than 31 bits"):
        open_path(make(fill))
    block = struct.pack("<ii", 1, 0) + b"\xff\xff\xff\xff\x08"
    container = open_path(make(lambda view: raw_column(view, block, Codec("TextSpan"), rows=1)))
    with pytest.raises(Damaged, match=r"made.idv: column 'v': has a number of more than 31 bits"):
        only(container, "columns/v").block(0)
