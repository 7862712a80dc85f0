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
from glassfs.content import Array, Column, Data, Ragged, RaggedText, Table
from glassfs.content.columns import ColumnBlocks
from glassfs.content.rows import EvenOffsets, offsets_of
from glassfs.content.table import slot_names
from glassfs.errors import Damaged
from glassfs.names import free_name
from glassfs.view.contract import Key
from glassfs.view.json import as_text
from glassfs.view.parquet.arrow import TypeNumber
from glassfs.view.parquet.footer import SchemaColumn
from glassfs.view.parquet.kinds import BYTES, TEXT, ParquetType, kind_of
from glassfs.view.parquet.pages import LARGEST_I32, FlatPages, Pages, TimePages
from glassfs.view.parquet.ragged import ListPages, TextPages
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
    """What becomes of a column. ``length`` is that of its vectors; ``slots`` is how many columns they become, 0 if they
    become a list or are none. ``width`` is the average size of a row in bytes, 0 if unknown.
    """

    column: Column
    kind: ParquetType
    length: int | None = None
    slots: int = 0
    width: float = 0

    def names(self, taken: Names) -> list[bytes]:
        """Return the names of the columns that the column becomes."""
        if not self.slots:
            return [taken.new(self.column.name)]
        return [taken.new(self.column.name, slot) for slot in slot_names(self.column, self.slots)]


def layouts_of(table: Table) -> list[ColumnPlan]:
    """Return the columns that a file can show. Raises Damaged if one has not the rows of the table."""
    layouts = [layout for column in table.columns() if (layout := _layout(column, table.rows)) is not None]
    # All vectors or none become lists, so that columns of one table look alike.
    if sum(layout.slots or 1 for layout in layouts) > MOST_CHUNKS:
        layouts = [layout._replace(slots=0) for layout in layouts]
    return layouts


def _layout(column: Column, rows: int) -> ColumnPlan | None:
    """Return what becomes of a column; None if Parquet has no type for it. Raises Damaged if it has other rows."""
    content, part = column.content, column.name.decode("utf-8", "replace")
    if isinstance(content, (RaggedText, Ragged)):
        kind: ParquetType | None = TEXT
        if isinstance(content, Ragged):
            kind = BYTES if content.dtype == "|V1" else kind_of(content.dtype)
        values = content.text if isinstance(content, RaggedText) else content.values
        if kind is not None and content.rows != rows:
            raise Damaged(f"has {content.rows} rows, but its table has {rows}", part=part)
        return None if kind is None else ColumnPlan(column, kind, width=values.size / max(1, rows))
    if not isinstance(content, Array):
        kind = kind_of(content.dtype) if content.dtype else TEXT
        return None if kind is None else ColumnPlan(column, kind)
    kind = kind_of(content.dtype)
    shape = content.resolved_shape
    if kind is None or not shape:
        return None
    if column.zone and kind.arrow.number == TypeNumber.TIMESTAMP:
        kind = kind.in_zone(column.zone)
    length = prod(shape[1:])
    # A row cannot be divided between pages, and its levels take space beside its values.
    if length * kind.width > LARGEST_I32 // 2:
        return None
    if content.data.size != rows * kind.stored * length:
        raise Damaged(f"has {content.data.size} bytes, but its table has {rows} rows", part=part)
    if len(shape) == 1:
        return ColumnPlan(column, kind, width=kind.width)
    slots = length if 0 < length <= MOST_SLOTS and not column.is_list else 0
    return ColumnPlan(column, kind, length, slots, length * kind.width)


class Leaf(NamedTuple):
    """A column of the file."""

    field: SchemaColumn
    pages: Pages | RecordPages


def leaves_of(
    table: Table, layouts: Sequence[ColumnPlan], rows_a_group: int, cache: BlockCache, key: Key,
) -> Iterator[Leaf]:
    """Yield the columns of the file, ``rows_a_group`` rows of each in a group."""
    rows, taken = table.rows, Names()

    def single(name: bytes, kind: ParquetType, values: Data, key: Key) -> Leaf:
        if kind.is_time:
            return Leaf(SchemaColumn(name, kind, is_nullable=True), TimePages(values, rows, rows_a_group, cache, key))
        return Leaf(SchemaColumn(name, kind), FlatPages(values, kind, rows, rows_a_group))

    for number, layout in enumerate(layouts):
        (column, kind, length, slots, _), content = layout, layout.column.content
        names, own = layout.names(taken), (*key, number)
        if isinstance(content, RaggedText) or (isinstance(content, Ragged) and kind is BYTES):
            data = content.text if isinstance(content, RaggedText) else content.values
            pages: Pages = TextPages(data, offsets_of(content), rows_a_group, kind is TEXT, cache, own)
            yield Leaf(SchemaColumn(names[0], kind), pages)
        elif isinstance(content, Ragged):
            pages = ListPages(kind.shown(content.values), kind, offsets_of(content, kind.stored), rows_a_group)
            yield Leaf(SchemaColumn(names[0], kind, lists=1), pages)
        elif not isinstance(content, Array):
            records = RecordPages(content, kind, column.is_list, rows, rows_a_group, cache, own)
            yield Leaf(SchemaColumn(names[0], kind, is_nullable=True, lists=int(column.is_list)), records)
        elif length is None:
            yield single(names[0], kind, kind.shown(content.data), own)
        elif slots:
            transposed = partial(_transposed, kind.shown(content.data), kind, length)
            blocks = ColumnBlocks(rows, kind.width * length, transposed, cache, own)
            for slot, name in enumerate(names):
                yield single(name, kind, blocks.column(slot * kind.width, kind.width), (*own, slot))
        else:
            # Matrices are lists of all their values, as other views show them, unless lists of lists are asked for.
            inner = content.resolved_shape[2:] if column.is_list else ()
            pages = ListPages(kind.shown(content.data), kind, EvenOffsets(length, rows), rows_a_group, inner)
            yield Leaf(SchemaColumn(names[0], kind, lists=1 + len(inner)), pages)


def _transposed(values: Data, kind: ParquetType, length: int, first: int, rows: int) -> bytes:
    """Return some vectors, one element after another."""
    import numpy as np

    row = kind.width * length
    vectors = np.frombuffer(values.read(first * row, rows * row), f"V{kind.width}").reshape(rows, length)
    return np.ascontiguousarray(vectors.T).tobytes()


def rows_a_group(table: Table, layouts: Sequence[ColumnPlan]) -> int:
    """Return a power of two: few bytes of vectors or shared blocks in a group, so that they are made once, and few
    groups.
    """
    rows = table.rows
    widest = max((layout.width for layout in layouts), default=0)
    leaves = sum(layout.slots or 1 for layout in layouts)
    most = min(GROUP_BYTES / max(widest, 1), SHARED_BYTES / max(table.shared_width, 1))
    # At least eight rows, also in a page, which then has whole bytes of bits.
    wanted = max(8, min(GROUP_ROWS, int(most)))
    group = 1 << wanted.bit_length() - 1
    # The footer has an entry for each column of each group, and readers take it into memory as a whole.
    while -(-rows // group) * leaves > MOST_CHUNKS and group < rows:
        group *= 2
    return group
