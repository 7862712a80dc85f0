"""Tables as Parquet files: plain, uncompressed, without statistics, so that their size is a formula.

Pages are about 1 MiB. Groups have 262,144 rows; more where there would be thousands of them, fewer where vectors or the
rows of joined tables are long. Data pages are the container's own bytes wherever Parquet has the dtype:

| in the container | in the file | bytes |
|---|---|---|
| ``b1`` | BOOLEAN | bits |
| ``i1`` ``i2`` ``u1`` ``u2`` | INT32, an integer of 8 or 16 bits | widened |
| ``i4`` ``i8`` ``f4`` ``f8`` | INT32, INT64, FLOAT, DOUBLE | unchanged |
| ``u4`` ``u8`` | INT32, INT64, an unsigned integer | unchanged |
| ``f2`` | FIXED_LEN_BYTE_ARRAY(2), a FLOAT16 | unchanged |
| ``M8[ns]`` ``M8[us]`` ``M8[ms]`` | TIMESTAMP of that unit, of UTC if the column has a time zone | unchanged |
| ``M8[100ns]`` | TIMESTAMP(MICROS), rounded down: 64 bits of nanoseconds do not hold the years 1 to 9999 | divided |
| ``M8[s]`` ``[m]`` ``[h]`` ``[D]`` ``[W]`` | TIMESTAMP(MILLIS) | multiplied |
| ``M8``, ``m8`` not a time | null; in lists the least INT64 | its space stays |
| ``m8[…]`` | INT64, a duration for readers of Arrow's schema; ``[100ns]`` in microseconds | as above |
| ``M8[Y]`` ``[M]``, units below ns | INT64 | unchanged |
| ``S5`` ``V16`` ``U3`` ``c8`` … | FIXED_LEN_BYTE_ARRAY | unchanged |
| text by row, text in records | BYTE_ARRAY, a string; a byte that is not UTF-8 is a question mark | lengths between |
| runs of bytes by row | BYTE_ARRAY | lengths between |
| vectors of up to 64 elements | a column an element: ``NAME.0``, ``NAME.1`` … | transposed |
| longer vectors, runs of numbers | LIST | levels between |
| records with None, with lists | OPTIONAL, LIST | computed |

Columns of text, of runs and of vectors have sizes by formula. Records take a pass when the size is first needed. The
first read of a range computes the positions of all columns, which reads one offset for each group of rows and each
column whose rows differ in length. What is known of the columns is cached by total size. Any thread.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise

from glassfs.cache import BlockCache
from glassfs.content import Data, Parted, Table
from glassfs.content.allowance import OBJECT
from glassfs.content.table import demand_columns, is_sized
from glassfs.errors import LASTING, Damaged, TooLarge
from glassfs.once import once
from glassfs.view.contract import Key, Shown, View
from glassfs.view.known import Known
from glassfs.view.parquet.columns import leaves_of, plans_of, rows_a_group
from glassfs.view.parquet.pages import LARGEST_I32
from glassfs.view.parquet.schema import ColumnChunk, Metadata, footer, group, length

MAGIC = b"PAR1"
LARGEST_FILE = 1 << 61
"""What the digits of positions in the footer hold."""


class Parquet(Data):
    """The file: the magic, a part for each column of each group of rows, the footer and its length.

    ``metadata`` are further keys and values in the footer, for other programs.
    """

    def __init__(self, table: Table, cache: BlockCache, key: Key, metadata: Metadata = ()) -> None:
        self._table = table
        self._size: int | None = None
        # A listing has thousands of these files. What is known of the columns of all of them has a limit together, and
        # is found again when a file is read after it was dropped.
        self._known = Known(cache, lambda: _Contents(table, cache, key, metadata), lambda columns: columns.cost)

    @property
    def is_sized(self) -> bool:
        return self._size is not None or self._has_sizes

    @once
    def _has_sizes(self) -> bool:
        try:
            return all(map(is_sized, self._table.columns()))
        except LASTING:  # raised again to callers that need the size
            return False

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = self._known.get().size
        return self._size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._known.get().read_into(buffer, offset)


class _Contents(Parted):
    """What is known of the columns of a table, and so of the file."""

    def __init__(self, table: Table, cache: BlockCache, key: Key, metadata: Metadata) -> None:
        self._metadata = metadata
        plans = plans_of(table)
        rows = rows_a_group(table, plans)
        self._leaves = list(leaves_of(table, plans, rows, cache, key))
        self._fields = [leaf.field for leaf in self._leaves]
        self._groups = list(pairwise([*range(0, table.rows, rows), table.rows]))
        """The first row of each group, and the row after it."""
        self._rows = table.rows

    @property
    def cost(self) -> int:
        """The memory in bytes that it takes, roughly."""
        groups = len(self._groups)
        names = sum(len(field.name) for field in self._fields)
        return OBJECT * len(self._fields) * (16 + 2 * groups) + names * (2 + groups)

    @once
    def size(self) -> int:
        footer_size = length(self._fields, len(self._groups), self._metadata)
        size = 2 * len(MAGIC) + 4 + footer_size + sum(leaf.pages.size for leaf in self._leaves)
        if size > LARGEST_FILE or footer_size > LARGEST_I32:
            raise TooLarge("is larger than a Parquet file can be")
        return size

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        if 0 < number < len(self.bounds) - 2:
            group_number, column = divmod(number - 1, len(self._leaves))
            pages = self._leaves[column].pages
            pages.read_into(buffer, pages.start(self._groups[group_number][0]) + offset)
        else:
            buffer[:] = (self._tail if number else MAGIC)[offset : offset + len(buffer)]

    @once
    def bounds(self) -> Sequence[int]:
        bounds = array("Q", [0, len(MAGIC)])
        for first, end in self._groups:
            for field, pages in self._leaves:
                # Offsets of rows come from the container and may lie.
                size = pages.start(end) - pages.start(first)
                if size < 0:
                    raise Damaged("the offsets of its rows do not rise", part=field.name.decode())
                bounds.append(bounds[-1] + size)
        bounds.append(self.size)
        return bounds

    @once
    def _tail(self) -> bytes:
        groups, chunks = [], pairwise(self.bounds[1:])
        for first, end in self._groups:
            positions = [
                ColumnChunk(start, after - start, leaf.pages.entries(first, end))
                for leaf, (start, after) in zip(self._leaves, chunks, strict=False)
            ]
            groups.append(group(self._fields, end - first, positions))
        made = footer(self._fields, self._rows, groups, self._metadata)
        return made + struct.pack("<I", len(made)) + MAGIC


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    demand_columns(table)
    yield Shown(Parquet(table, cache, key), ".parquet")


VIEW = View("parquet", "tables, for pandas, polars, DuckDB and others", (Table,), show)
