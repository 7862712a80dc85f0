"""The columns of a Parquet file: for each its name, its type and its pages.

A column of vectors becomes a column for each element if they are few, otherwise a column of lists. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Array, Data, Ragged, RaggedText, Table
from glassfs.content.rows import EvenOffsets, offsets_of
from glassfs.view.contract import Key
from glassfs.view.parquet.columns import Layout, Names, layouts_of
from glassfs.view.parquet.footer import Field
from glassfs.view.parquet.kinds import BYTES, TEXT
from glassfs.view.parquet.nested import NestedPages
from glassfs.view.parquet.pages import FlatPages, Pages
from glassfs.view.parquet.ragged import ListPages, TextPages
from glassfs.view.parquet.records import RecordColumns, Shape
from glassfs.view.parquet.times import TimePages
from glassfs.view.parquet.vectors import Element, Tiles

GROUP_ROWS = 1 << 18
GROUP_BYTES = 64 << 20
SHARED_BYTES = 8 << 20
"""The same for blocks from which all columns of records are made: a small cache keeps those of a group."""
FEWEST_ROWS = 8
"""Of a group and so of a page, which then has whole bytes of bits."""
MOST_CHUNKS = 4096


class Leaf(NamedTuple):
    """A column of the file."""

    field: Field
    pages: Pages


def leaves_of(table: Table, cache: BlockCache, key: Key) -> tuple[Sequence[Leaf], int]:
    """Return all columns of a file, and the number of rows in a group.

    Finds sizes that need a pass. Raises Damaged if a column has not the rows of the table.
    """
    layouts = layouts_of(table)
    rows_a_group = _rows_a_group(table, layouts)
    leaves: list[Leaf] = []
    names = Names()
    records = RecordColumns(table.rows, rows_a_group, cache)
    for number, layout in enumerate(layouts):
        leaves += _made(layout, layout.names(names), table.rows, rows_a_group, records, cache, (*key, number))
    return leaves, rows_a_group


def _rows_a_group(table: Table, layouts: Sequence[Layout]) -> int:
    """Return a power of two: few bytes of vectors or shared blocks in a group, so that they are made once, and few
    groups.
    """
    rows = table.rows
    widest = max((layout.width for layout in layouts), default=0)
    leaves = sum(layout.slots or 1 for layout in layouts)
    most = min(GROUP_BYTES / max(widest, 1), SHARED_BYTES / max(table.shared_width, 1))
    wanted = max(FEWEST_ROWS, min(GROUP_ROWS, int(most)))
    group = 1 << wanted.bit_length() - 1
    while -(-rows // group) * leaves > MOST_CHUNKS and group < rows:
        group *= 2
    return group


def _made(
    layout: Layout, names: Sequence[bytes], rows: int, rows_a_group: int, records: RecordColumns, cache: BlockCache,
    key: Key,
) -> Iterator[Leaf]:
    content, kind = layout.column.content, layout.kind
    if isinstance(content, RaggedText) or (isinstance(content, Ragged) and kind is BYTES):
        data = content.text if isinstance(content, RaggedText) else content.values
        pages: Pages = TextPages(data, offsets_of(content), rows_a_group, kind is TEXT)
        yield Leaf(Field.single(names[0], kind), pages)
    elif isinstance(content, Ragged):
        lists = ListPages(kind.shown(content.values), kind, offsets_of(content, kind.stored), rows_a_group)
        yield Leaf(Field.list_of(names[0], kind), lists)
    elif not isinstance(content, Array):
        pages = records.new(content, Shape(kind, layout.column.is_list), key)
        field = Field.list_of if layout.column.is_list else Field.single
        yield Leaf(field(names[0], kind, is_nullable=True), pages)
    else:
        yield from _array(content, layout, names, rows, rows_a_group, cache, key)


def _array(
    array: Array, layout: Layout, names: Sequence[bytes], rows: int, rows_a_group: int, cache: BlockCache, key: Key,
) -> Iterator[Leaf]:
    kind, length = layout.kind, layout.length
    values = kind.shown(array.data)

    def single(name: bytes, values: Data, key: Key) -> Leaf:
        if kind.is_time:
            times = TimePages(values, rows, rows_a_group, cache, key)
            return Leaf(Field.single(name, kind, is_nullable=True), times)
        return Leaf(Field.single(name, kind), FlatPages(values, kind, rows, rows_a_group))

    if length is None:
        yield single(names[0], values, key)
    elif layout.slots:
        tiles = Tiles(values, kind.width, length, rows, cache, key)
        for number, name in enumerate(names):
            yield single(name, Element(tiles, number), (*key, number))
    elif layout.column.is_list and len(array.resolved_shape) > 2:
        nested = NestedPages(values, kind, array.resolved_shape[1:], rows, rows_a_group)
        yield Leaf(Field.list_of(names[0], kind, depth=len(array.resolved_shape) - 1), nested)
    else:
        lists = ListPages(values, kind, EvenOffsets(length, rows), rows_a_group)
        yield Leaf(Field.list_of(names[0], kind), lists)
