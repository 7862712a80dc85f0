"""The columns of a Parquet file: for each its name, its type and its pages.

A column of vectors becomes a column for each element if they are few, otherwise a column of lists. Any thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from math import prod
from typing import NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Data, Ragged, RaggedText, Records, Table
from glassfs.content.columns import ColumnBlocks
from glassfs.content.rows import EvenOffsets, Offsets, offsets_of
from glassfs.content.table import slot_names
from glassfs.errors import Damaged
from glassfs.lazy import np
from glassfs.names import free_name
from glassfs.view.contract import Key
from glassfs.view.json import as_text
from glassfs.view.parquet.footer import SchemaColumn
from glassfs.view.parquet.kinds import BYTES, TEXT, ParquetType, kind_of
from glassfs.view.parquet.pages import LARGEST_I32, FlatPages, ListPages, Pages, TextPages, TimePages
from glassfs.view.parquet.records import RecordPages

GROUP_ROWS = 1 << 18
GROUP_BYTES = 64 << 20
SHARED_BYTES = 8 << 20
"""The same for blocks from which all columns of records are made: a small cache keeps those of a group."""
MOST_CHUNKS = 4096
"""Limit of columns of groups, which all are in the footer; vectors become lists if there are more columns than this."""
MOST_SLOTS = 64


class Names:
    """Distinct names of columns as text: repeated ones get a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))

    def new(self, name: bytes, slot: str | None = None) -> bytes:
        text = name.decode("utf-8", "backslashreplace") or "%"
        if slot is not None:
            text += f".{as_text(slot)}"
        text = text.replace("\0", "\\x00")
        shown = free_name(text, self._taken.__contains__, text.__add__, self._numbers[text])
        self._taken.add(shown)
        return shown.encode()


class ColumnPlan(NamedTuple):
    """What becomes of a column: its records, or the ``values`` of all rows one after another.

    With ``offsets`` a row has the values between two of them: a text, bytes, a list, or a vector that becomes ``slots``
    columns. ``width`` is the average size of a row in bytes, 0 if unknown.
    """

    column: Column
    kind: ParquetType
    values: Data | Records
    offsets: Offsets | None = None
    slots: int = 0
    width: float = 0

    def names(self, taken: Names) -> list[bytes]:
        """Return the names of the columns that the column becomes."""
        if not self.slots:
            return [taken.new(self.column.name)]
        return [taken.new(self.column.name, slot) for slot in slot_names(self.column, self.slots)]


def plans_of(table: Table) -> list[ColumnPlan]:
    """Return the columns that a file can show. Raises Damaged if one has not the rows of the table."""
    plans = [plan for column in table.columns() if (plan := _plan(column, table.rows)) is not None]
    # All vectors or none become lists, so that columns of one table look alike.
    if sum(plan.slots or 1 for plan in plans) > MOST_CHUNKS:
        plans = [plan._replace(slots=0) for plan in plans]
    return plans


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
    rows, taken = table.rows, Names()

    def single(name: bytes, kind: ParquetType, values: Data, key: Key) -> Leaf:
        if kind.is_time:
            return Leaf(SchemaColumn(name, kind, is_nullable=True), TimePages(values, rows, rows_a_group, cache, key))
        return Leaf(SchemaColumn(name, kind), FlatPages(values, kind, rows, rows_a_group))

    for number, plan in enumerate(plans):
        column, kind, values, offsets, slots, _ = plan
        names, own = plan.names(taken), (*key, number)
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
            pages: Pages = TextPages(values, offsets, rows_a_group, kind is TEXT, cache, own)
            yield Leaf(SchemaColumn(names[0], kind), pages)
        else:
            # Matrices are lists of all their values, as other views show them, unless lists of lists are asked for.
            content = column.content
            inner = content.resolved_shape[2:] if column.is_list and isinstance(content, Array) else ()
            pages = ListPages(kind.shown(values), kind, offsets, rows_a_group, inner)
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
