"""The columns of a Parquet file: for each its name, its type and its pages.

A column of vectors becomes a column for each element if they are few, otherwise a column of lists. Any thread.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from math import prod
from typing import NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Array, Cells, Column, Data, Ragged, RaggedText, Table
from glassfs.content.table import slot_names
from glassfs.errors import Damaged
from glassfs.names import free_name
from glassfs.view.contract import Key
from glassfs.view.parquet.footer import Field
from glassfs.view.parquet.kinds import BYTES, TEXT, Kind, kind_of
from glassfs.view.parquet.pages import LARGEST_PAGE, FlatPages, Pages
from glassfs.view.parquet.ragged import EvenOffsets, ListPages, Offsets, TextPages
from glassfs.view.parquet.records import RecordColumns, Shape
from glassfs.view.parquet.times import TimePages
from glassfs.view.parquet.vectors import Element, Tiles

MOST_SLOTS = 64
MOST_LEAVES = 4096
"""With more columns than this, vectors are lists."""
GROUP_ROWS = 1 << 18
GROUP_BYTES = 64 << 20
SHARED_BYTES = 8 << 20
"""The same for blocks from which all columns of records are made: a small cache keeps those of a group."""
FEWEST_ROWS = 8
"""Of a group and so of a page, which then has whole bytes of bits."""
MOST_CHUNKS = 4096
_BYTES = "|V1"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Leaf(NamedTuple):
    """A column of the file."""

    field: Field
    pages: Pages


def leaves_of(table: Table, cache: BlockCache, key: Key) -> tuple[Sequence[Leaf], int]:
    """Return all columns of a file, and the number of rows in a group.

    Finds sizes that need a pass. Raises Damaged if a column has not the rows of the table.
    """
    columns = [(column, found) for column in table.columns() if (found := _described(column, table.rows)) is not None]
    slots = sum(found.slots or 1 for _, found in columns)
    if slots > MOST_LEAVES:
        columns = [(column, found._replace(slots=0)) for column, found in columns]
    rows_a_group = _rows_a_group(table, columns)
    leaves: list[Leaf] = []
    names = Names()
    records = RecordColumns(table.rows, rows_a_group, cache)
    for number, (column, found) in enumerate(columns):
        leaves += _made(column, found, table.rows, rows_a_group, names, records, cache, (*key, number))
    return leaves, rows_a_group


class Names:
    """Distinct names of columns as text: repeated ones get a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))

    def new(self, name: bytes, slot: str | None = None) -> bytes:
        text = name.decode("utf-8", "backslashreplace") or "%"
        if slot is not None:
            text += "." + _SURROGATE.sub("\ufffd", slot)
        text = text.replace("\0", "\\x00")
        shown = free_name(text, self._taken.__contains__, text.__add__, self._numbers[text])
        self._taken.add(shown)
        return shown.encode()


class _Described(NamedTuple):
    """``length`` is that of a column's vectors. ``slots`` is how many columns they become; 0 if they become a list or
    are none.
    """

    kind: Kind
    length: int | None = None
    slots: int = 0
    width: float = 0


def _described(column: Column, rows: int) -> _Described | None:
    """Return what becomes of a column; None if Parquet has no type for it."""
    content = column.content
    if isinstance(content, RaggedText):
        return _Described(TEXT, width=content.text.size / max(1, rows))
    if isinstance(content, Ragged):
        kind = BYTES if content.dtype == _BYTES else kind_of(content.dtype)
        return None if kind is None else _Described(kind, width=content.values.size / max(1, rows))
    if not isinstance(content, Array):
        kind = kind_of(content.dtype) if isinstance(content, Cells) and content.dtype else TEXT
        return None if kind is None else _Described(kind)
    kind = kind_of(content.dtype)
    shape = content.shape if isinstance(content.shape, tuple) else content.shape()
    if kind is None or not shape:
        return None
    length = prod(shape[1:])
    if len(shape) == 1:
        return _Described(kind, width=kind.width)
    if length * kind.width > LARGEST_PAGE // 2:
        return None
    return _Described(kind, length, length if 0 < length <= MOST_SLOTS else 0, length * kind.width)


def _rows_a_group(table: Table, columns: Sequence[tuple[Column, _Described]]) -> int:
    """Return a power of two: few bytes of vectors or shared blocks in a group, so that they are made once, and few
    groups.
    """
    rows = table.rows
    widest = max((found.width for _, found in columns), default=0)
    leaves = sum(found.slots or 1 for _, found in columns)
    most = min(GROUP_BYTES / max(widest, 1), SHARED_BYTES / max(table.shared_width, 1))
    wanted = max(FEWEST_ROWS, min(GROUP_ROWS, int(most)))
    group = 1 << wanted.bit_length() - 1
    while -(-rows // group) * leaves > MOST_CHUNKS and group < rows:
        group *= 2
    return group


def _made(
    column: Column, found: _Described, rows: int, rows_a_group: int, names: Names, records: RecordColumns,
    cache: BlockCache, key: Key,
) -> Iterator[Leaf]:
    content, kind = column.content, found.kind
    name = column.name
    if isinstance(content, RaggedText) or (isinstance(content, Ragged) and kind is BYTES):
        data = content.text if isinstance(content, RaggedText) else content.values
        pages: Pages = TextPages(data, _offsets(content, data.size), rows_a_group, kind is TEXT)
        yield Leaf(Field.single(names.new(name), kind), pages)
    elif isinstance(content, Ragged):
        offsets = _offsets(content, content.values.size // kind.stored)
        lists = ListPages(kind.shown(content.values), kind, offsets, rows_a_group)
        yield Leaf(Field.list_of(names.new(name), kind), lists)
    elif not isinstance(content, Array):
        pages = records.new(content, Shape(kind, column.is_list), key)
        field = Field.list_of if column.is_list else Field.single
        yield Leaf(field(names.new(name), kind, is_nullable=True), pages)
    else:
        yield from _array(content, column, found, rows, rows_a_group, names, cache, key)


def _array(
    array: Array, column: Column, found: _Described, rows: int, rows_a_group: int, names: Names, cache: BlockCache,
    key: Key,
) -> Iterator[Leaf]:
    kind, length, name = found.kind, found.length, column.name
    expected = rows * kind.stored * (1 if length is None else length)
    if array.data.size != expected:
        part = name.decode("utf-8", "replace")
        raise Damaged(f"has {array.data.size} bytes, but its table has {rows} rows", part=part)
    values = kind.shown(array.data)

    def single(shown: bytes, values: Data, key: Key) -> Leaf:
        if kind.is_time:
            times = TimePages(values, rows, rows_a_group, cache, key)
            return Leaf(Field.single(shown, kind, is_nullable=True), times)
        return Leaf(Field.single(shown, kind), FlatPages(values, kind, rows, rows_a_group))

    if length is None:
        yield single(names.new(name), values, key)
    elif found.slots:
        tiles = Tiles(values, kind.width, length, rows, cache, key)
        for number, slot in enumerate(slot_names(column, length)):
            yield single(names.new(name, slot), Element(tiles, number), (*key, number))
    else:
        lists = ListPages(values, kind, EvenOffsets(length, rows), rows_a_group)
        yield Leaf(Field.list_of(names.new(name), kind), lists)


def _offsets(content: RaggedText | Ragged, total: int) -> Offsets:
    rows, size = content.rows, content.offsets.size
    if size != (rows + 1) * int(content.offset_dtype[2:]):
        raise Damaged(f"has {size} bytes of offsets, but {rows} rows", part=content.key.decode("utf-8", "replace"))
    return Offsets(content.offsets, content.offset_dtype, rows, total)
