"""Files of contents for tests: the view's data, read whole and in ranges, and tables."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import numpy as np

import glassfs.view.parquet as column_plans
from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Content, Data, Group, Member, Memory, Ragged, RaggedText, Records, Table
from glassfs.content import table as content_table
from glassfs.content.data import SizedData
from glassfs.tree import Tree
from glassfs.tree.build import container_root
from glassfs.view import ViewSet, file_of
from glassfs.view.parquet import Parquet, pages
from tests.tree.trees import origin

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


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Check that what is done in this context never takes so many bytes of memory at once."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


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


def tree_of(*members: Member, views: ViewSet) -> Tree:
    """Return the tree of a container with these members in these views."""
    at = origin()
    services = at.services._replace(views=views)
    return Tree(lambda: container_root(Group(b"", lambda: members), replace(at, services=services)))


def offsets_of(lengths: Sequence[int], dtype: str = "<u4") -> Memory:
    return Memory(np.array(list(accumulate(lengths, initial=0)), dtype).tobytes())


def array_column(name: bytes, array: np.ndarray[Any, Any]) -> Column:
    return Column(name, Array(name, Memory(array.tobytes()), array.dtype.descr[0][1], array.shape))


def text_column(name: bytes, rows: Sequence[bytes], dtype: str = "<u4") -> Column:
    offsets = offsets_of([len(row) for row in rows], dtype)
    return Column(name, RaggedText(name, Memory(b"".join(rows)), offsets, dtype, len(rows)))


def bytes_column(name: bytes, rows: Sequence[bytes]) -> Column:
    offsets = offsets_of([len(row) for row in rows])
    return Column(name, Ragged(name, Memory(b"".join(rows)), "|V1", offsets, "<u4", len(rows)))


def ragged_column(name: bytes, rows: Sequence[np.ndarray[Any, Any]], dtype: str, offset_dtype: str = "<u8") -> Column:
    values = Memory(b"".join(row.astype(dtype).tobytes() for row in rows))
    offsets = offsets_of([len(row) for row in rows], offset_dtype)
    return Column(name, Ragged(name, values, dtype, offsets, offset_dtype, len(rows)))


def records_column(name: bytes, rows: Sequence[Any], block: int = 7, dtype: str = "", is_list: bool = False) -> Column:
    blocks = -(-len(rows) // block)

    def give(number: int) -> Sequence[Any]:
        return rows[number * block : (number + 1) * block]

    return Column(name, Records(name, blocks, give, dtype=dtype), is_list)


def parquet_data(columns: Sequence[Column], rows: int, cache: BlockCache | None = None) -> Data:
    return Parquet(Table(b"table", rows, lambda: columns), cache or BlockCache(8 << 20), PLACE)


def parquet_bytes(columns: Sequence[Column], rows: int) -> bytes:
    """Return the bytes of the file, after checking that its size and ranges in any order agree with them."""
    return whole(lambda: parquet_data(columns, rows))


@contextmanager
def small_pages(size: int, rows_a_group: int = 1 << 20) -> Iterator[None]:
    """Make files with pages of about ``size`` bytes, and groups of ``rows_a_group`` rows."""
    with ExitStack() as stack:
        for module, name, value in (
            (pages, "PIECE", size), (content_table, "PIECE", size),
            (column_plans, "GROUP_ROWS", rows_a_group), (column_plans, "MOST_CHUNKS", 1 << 20),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
