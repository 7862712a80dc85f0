"""Tables for tests, and their Parquet bytes read whole and in ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import numpy as np

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Data, Memory, Ragged, RaggedText, Records, Table
from glassfs.content import columns as blocks
from glassfs.view.parquet import Parquet, pages
from glassfs.view.parquet import columns as column_plans
from tests.view.views import PLACE, whole


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
            (pages, "PIECE", size), (blocks, "PIECE", size),
            (column_plans, "GROUP_ROWS", rows_a_group), (column_plans, "MOST_CHUNKS", 1 << 20),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
