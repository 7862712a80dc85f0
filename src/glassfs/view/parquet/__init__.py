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

Of columns whose rows are Python values, known a block at a time (text, lists of text, numbers, with nulls), only the
values give the sizes of pages: one pass makes all of them and remembers where each begins. The cache keeps the first
pages for a reader that follows, and all that are made again when they are read.
"""

from __future__ import annotations

import struct
import threading
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import count, pairwise
from math import prod
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Data, Parted, Ragged, RaggedText, Records, Rendered, Table
from glassfs.content.allowance import OBJECT
from glassfs.content.rows import EvenOffsets, Offsets, TextRows, offsets_of
from glassfs.content.table import ColumnBlocks, demand_columns, is_sized, slot_names
from glassfs.errors import LASTING, Damaged, TooLarge
from glassfs.lazy import NDArray, np
from glassfs.names import free_name
from glassfs.once import once
from glassfs.view.contract import Key, Known, Shown, View
from glassfs.view.json import as_text
from glassfs.view.parquet.pages import (
    LARGEST_I32,
    FlatPages,
    ListPages,
    Pages,
    TextPages,
    TimePages,
    demand_possible,
    levels,
    page_header,
)
from glassfs.view.parquet.schema import (
    BYTES,
    TEXT,
    ColumnChunk,
    Metadata,
    ParquetType,
    SchemaColumn,
    footer,
    group,
    kind_of,
    length,
)

GROUP_ROWS = 1 << 18
GROUP_BYTES = 64 << 20
SHARED_BYTES = 8 << 20
"""The same for blocks from which all columns of records are made: a small cache keeps those of a group."""
MOST_CHUNKS = 4096
"""Limit of columns of groups, which all are in the footer; vectors become lists if there are more columns than this."""
MOST_SLOTS = 64
PAGE_COST = 2
"""The memory in bytes that making pages of a block takes for each byte of its rows, these included."""


class ColumnPlan(NamedTuple):
    """What becomes of a column: its records, or the ``values`` of all rows one after another.

    With ``offsets`` a row has the values between two of them: a text, bytes, a list, or a vector that becomes ``slots``
    columns. ``width`` is the average size of a row in bytes, 0 if unknown. ``names`` are those of columns in a file.
    """

    column: Column
    kind: ParquetType
    values: Data | Records
    offsets: Offsets | None = None
    slots: int = 0
    width: float = 0
    names: Sequence[bytes] = ()


def plans_of(table: Table) -> list[ColumnPlan]:
    """Return the columns that a file can show. Raises Damaged if one has not the rows of the table."""
    plans = [plan for column in table.columns() if (plan := _plan(column, table.rows)) is not None]
    # All vectors or none become lists, so that columns of one table look alike.
    if sum(plan.slots or 1 for plan in plans) > MOST_CHUNKS:
        plans = [plan._replace(slots=0) for plan in plans]
    taken, numbers = set[str](), defaultdict[str, Iterator[int]](lambda: count(2))

    def new(name: bytes, slot: str = "") -> bytes:
        text = f"{name.decode('utf-8', 'backslashreplace') or '%'}{as_text(slot)}".replace("\0", "\\x00")
        shown = free_name(text, taken.__contains__, text.__add__, numbers[text])
        taken.add(shown)
        return shown.encode()

    def names(plan: ColumnPlan) -> list[bytes]:
        name, slots = plan.column.name, plan.slots
        return [new(name, f".{slot}") for slot in slot_names(plan.column, slots)] if slots else [new(name)]

    return [plan._replace(names=names(plan)) for plan in plans]


def _plan(column: Column, rows: int) -> ColumnPlan | None:
    """Return what becomes of a column; None if Parquet has no type for it. Raises Damaged if it has other rows."""
    content, part = column.content, column.name.decode("utf-8", "replace")
    kind: ParquetType | None = TEXT
    if not isinstance(content, RaggedText) and content.dtype:
        kind = BYTES if isinstance(content, Ragged) and content.dtype == "|V1" else kind_of(content.dtype)
    if kind is None:
        return None
    if isinstance(content, (RaggedText, Ragged)):
        if content.rows != rows:
            raise Damaged(f"has {content.rows} rows, but its table has {rows}", part=part)
        values = content.text if isinstance(content, RaggedText) else content.values
        return ColumnPlan(column, kind, values, offsets_of(content, kind.stored or 1), width=values.size / max(1, rows))
    if not isinstance(content, Array):
        return ColumnPlan(column, kind, content)
    shape = content.resolved_shape
    length = prod(shape[1:])
    # A row cannot be divided between pages, and its levels take space beside its values.
    if not shape or length * kind.width > LARGEST_I32 // 2:
        return None
    kind = kind.in_zone(column.zone) if column.zone else kind
    if content.data.size != rows * kind.stored * length:
        raise Damaged(f"has {content.data.size} bytes, but its table has {rows} rows", part=part)
    if len(shape) == 1:
        return ColumnPlan(column, kind, content.data, width=kind.width)
    slots = length if 0 < length <= MOST_SLOTS and not column.is_list else 0
    return ColumnPlan(column, kind, content.data, EvenOffsets(length, rows), slots, length * kind.width)


class Leaf(NamedTuple):
    """A column of the file."""

    field: SchemaColumn
    pages: Pages | RecordPages


def leaves_of(
    table: Table, plans: Sequence[ColumnPlan], rows_a_group: int, cache: BlockCache, key: Key,
) -> Iterator[Leaf]:
    """Yield the columns of the file, ``rows_a_group`` rows of each in a group."""
    rows = table.rows

    def single(name: bytes, kind: ParquetType, values: Data, key: Key) -> Leaf:
        if kind.unit:
            return Leaf(SchemaColumn(name, kind, is_nullable=True), TimePages(values, rows, rows_a_group, cache, key))
        return Leaf(SchemaColumn(name, kind), FlatPages(values, kind, rows, rows_a_group))

    for number, plan in enumerate(plans):
        column, kind, values, offsets, slots, _, names = plan
        own = *key, number
        if isinstance(values, Records):
            records = RecordPages(values, kind, column.is_list, rows, rows_a_group, cache, own)
            yield Leaf(SchemaColumn(names[0], kind, is_nullable=True, lists=int(column.is_list)), records)
        elif offsets is None:
            yield single(names[0], kind, kind.shown(values), own)
        elif slots:
            transposed = partial(_transposed, kind.shown(values), kind, slots)
            blocks = ColumnBlocks(rows, kind.width * slots, transposed, cache, own)
            for slot, name in enumerate(names):
                yield single(name, kind, blocks.column(slot * kind.width, kind.width), (*own, slot))
        elif kind in (TEXT, BYTES):
            pages: Pages = TextPages(values, offsets, rows_a_group, cache, own, kind is TEXT)
            yield Leaf(SchemaColumn(names[0], kind), pages)
        else:
            # Matrices are lists of all their values, as other views show them, unless lists of lists are asked for.
            content = column.content
            inner = content.resolved_shape[2:] if column.is_list and isinstance(content, Array) else ()
            pages = ListPages(kind.shown(values), offsets, rows_a_group, cache, own, kind, inner)
            yield Leaf(SchemaColumn(names[0], kind, lists=1 + len(inner)), pages)


def _transposed(values: Data, kind: ParquetType, length: int, first: int, rows: int) -> bytes:
    """Return some vectors, one element after another."""
    row = kind.width * length
    vectors = np.frombuffer(values.read(first * row, rows * row), f"V{kind.width}").reshape(rows, length)
    return np.ascontiguousarray(vectors.T).tobytes()


def rows_a_group(table: Table, plans: Sequence[ColumnPlan]) -> int:
    """Return a power of two: few bytes of vectors or shared blocks in a group, so that they are made once, and few
    groups.
    """
    rows = table.rows
    widest = max((plan.width for plan in plans), default=0)
    leaves = sum(plan.slots or 1 for plan in plans)
    most = min(GROUP_BYTES / max(widest, 1), SHARED_BYTES / max(table.shared_width, 1))
    # At least eight rows, also in a page, which then has whole bytes of bits.
    wanted = max(8, min(GROUP_ROWS, int(most)))
    group = 1 << wanted.bit_length() - 1
    # The footer has an entry for each column of each group, and readers take it into memory as a whole.
    while -(-rows // group) * leaves > MOST_CHUNKS and group < rows:
        group *= 2
    return group


class PageOfRecords(NamedTuple):
    """A page: the bytes, the values and the rows before it, its block, and the rows of the block before it."""

    start: int
    entries: int
    row: int
    block: int
    skipped: int


class RecordPages(Parted):
    """Pages of rows of records that are values, or lists of them: one for each block of records in a group."""

    def __init__(
        self, records: Records, kind: ParquetType, is_list: bool, rows: int, rows_a_group: int, cache: BlockCache,
        key: tuple[Hashable, ...],
    ) -> None:
        self._records, self._kind, self._is_list = records, kind, is_list
        self._rows, self._rows_a_group = rows, rows_a_group
        self._cache, self._key = cache, key
        self._lock = threading.Lock()
        self._found: list[PageOfRecords] = []

    @once
    def bounds(self) -> Sequence[int]:
        return [page.start for page in self._pages]

    def start(self, row: int) -> int:
        """Return the position of the first page of a group, or for the number of rows the end."""
        return self._at(row).start

    def entries(self, first: int, end: int) -> int:
        """Return how many values the groups of the rows ``[first, end)`` have, nulls and empty lists counted."""
        return self._at(end).entries - self._at(first).entries

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        page, after = self._pages[number : number + 2]

        def made() -> bytes:
            rows = self._records.block(page.block)
            return self._page(rows[page.skipped : page.skipped + after.row - page.row])[1]

        cost = PAGE_COST * self._records.cost(page.block)
        Rendered(self._cache, (*self._key, number), made, after.start - page.start, cost).read_into(buffer, offset)

    def _at(self, row: int) -> PageOfRecords:
        return self._pages[bisect_left(self._pages, row, key=lambda page: page.row)]

    @property
    def _pages(self) -> list[PageOfRecords]:
        """All pages, and the end."""
        if not self._found:
            with work.holding(self._lock):
                self._found = self._found or self._measured()
        return self._found

    def _measured(self) -> list[PageOfRecords]:
        """Take a pass over the records."""
        found, left = list[PageOfRecords](), self._cache.budget // 8
        start = entries = row = 0
        for block in range(self._records.blocks):
            work.check()
            with self._cache.measuring(self._records.cost(block)):
                rows, first = self._records.block(block), 0
                while first < len(rows):
                    # A page ends with its block and with its group: a group can be read without the one before it.
                    end = min(len(rows), first + self._rows_a_group - row % self._rows_a_group)
                    count, page = self._page(rows[first:end])
                    left -= len(page)
                    if left >= 0:  # for a reader that follows
                        self._cache.add((*self._key, len(found)), page)
                    found.append(PageOfRecords(start, entries, row, block, first))
                    start, entries, row, first = start + len(page), entries + count, row + end - first, end
            if row > self._rows:
                raise Damaged(f"has more rows than the {self._rows} of its table")
        if row < self._rows:
            raise Damaged(f"has {row} rows, but its table has {self._rows}")
        return [*found, PageOfRecords(start, entries, row, self._records.blocks, 0)]

    def _page(self, rows: Sequence[Any]) -> tuple[int, bytes]:
        """Return the number of values in the page of some rows, and the page."""
        depths: Sequence[int] | NDArray[Any]
        if self._is_list:
            repeated, depths, values = _list_levels(rows)
            body = levels(repeated, 1) + levels(depths, 2) + self._packed(values)
        elif isinstance(rows, TextRows):
            depths = np.ones(len(rows), np.uint8) if rows.present is None else rows.present
            body = levels(depths, 1) + rows.with_lengths()
        else:
            depths = [int(row is not None) for row in rows]
            body = levels(depths, 1) + self._packed([row for row in rows if row is not None])
        demand_possible(len(body))
        return len(depths), page_header(len(body), len(depths)) + body

    def _packed(self, values: Sequence[Any]) -> bytes:
        """Return values as a page has them. Raises Damaged if they are not of the column's type."""
        kind = self._kind
        try:
            if kind is TEXT:
                texts = [as_text(value).encode() for value in values]  # .NET allows unpaired surrogates
                return b"".join([len(raw).to_bytes(4, "little") + raw for raw in texts])
            # Values come from documents in the container: NumPy raises for what does not fit into the type.
            array = np.array(values, kind.dtype)
            if array.shape != (len(values),):
                raise ValueError("a list")
            if kind.is_bits:
                return np.packbits(array, bitorder="little").tobytes()
            return bytes(array.tobytes() if kind.convert is None else kind.convert(array.tobytes()))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise Damaged(f"has a value that is not one of its column: {error}") from error


def _list_levels(rows: Sequence[Any]) -> tuple[list[int], list[int], list[Any]]:
    """Return for each entry whether it continues a row, and its depth: 0 for no list, 1 for an empty one, 2 for None
    in a list, 3 for a value; and the values.
    """
    repeated, depths, values = [], [], []
    for row in rows:
        for number, value in enumerate(row or [None]):
            repeated.append(int(number > 0))
            depths.append((2 if value is None else 3) if row else int(row is not None))
            if value is not None:
                values.append(value)
    return repeated, depths, values


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
