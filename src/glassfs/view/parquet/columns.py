"""The columns that a table has as a file: their names and types. A column of short vectors becomes several.

Any thread.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from math import prod
from typing import NamedTuple

from glassfs.content import Array, Cells, Column, Ragged, RaggedText, Table
from glassfs.content.table import slot_names
from glassfs.errors import Damaged
from glassfs.names import free_name
from glassfs.view.parquet.kinds import BYTES, TEXT, Kind, kind_of
from glassfs.view.parquet.pages import LARGEST_PAGE

MOST_SLOTS = 64
MOST_LEAVES = 4096
"""With more columns than this, vectors are lists."""
_BYTES = "|V1"
_SURROGATE = re.compile("[\ud800-\udfff]")


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


class Layout(NamedTuple):
    """What becomes of a column. ``length`` is that of its vectors; ``slots`` is how many columns they become, 0 if they
    become a list or are none. ``width`` is the average size of a row in bytes, 0 if unknown.
    """

    column: Column
    kind: Kind
    length: int | None = None
    slots: int = 0
    width: float = 0

    def names(self, taken: Names) -> list[bytes]:
        """Return the names of the columns that the column becomes."""
        if not self.slots:
            return [taken.new(self.column.name)]
        return [taken.new(self.column.name, slot) for slot in slot_names(self.column, self.slots)]


def layouts_of(table: Table) -> list[Layout]:
    """Return the columns that a file can show. Raises Damaged if one has not the rows of the table."""
    found = [layout for column in table.columns() if (layout := _layout(column, table.rows)) is not None]
    if sum(layout.slots or 1 for layout in found) > MOST_LEAVES:
        found = [layout._replace(slots=0) for layout in found]
    for layout in found:
        _demand_rows(layout, table.rows)
    return found


def _demand_rows(layout: Layout, rows: int) -> None:
    content = layout.column.content
    reason = ""
    if isinstance(content, (RaggedText, Ragged)) and content.rows != rows:
        reason = f"has {content.rows} rows, but its table has {rows}"
    elif isinstance(content, Array) and content.data.size != rows * layout.kind.stored * (
        1 if layout.length is None else layout.length
    ):
        reason = f"has {content.data.size} bytes, but its table has {rows} rows"
    if reason:
        raise Damaged(reason, part=layout.column.name.decode("utf-8", "replace"))


def _layout(column: Column, rows: int) -> Layout | None:
    """Return what becomes of a column; None if Parquet has no type for it."""
    content = column.content
    if isinstance(content, RaggedText):
        return Layout(column, TEXT, width=content.text.size / max(1, rows))
    if isinstance(content, Ragged):
        kind = BYTES if content.dtype == _BYTES else kind_of(content.dtype)
        return None if kind is None else Layout(column, kind, width=content.values.size / max(1, rows))
    if not isinstance(content, Array):
        kind = kind_of(content.dtype) if isinstance(content, Cells) and content.dtype else TEXT
        return None if kind is None else Layout(column, kind)
    kind = kind_of(content.dtype)
    shape = content.resolved_shape
    if kind is None or not shape:
        return None
    length = prod(shape[1:])
    if len(shape) == 1:
        return Layout(column, kind, width=kind.width)
    if length * kind.width > LARGEST_PAGE // 2:
        return None
    slots = length if 0 < length <= MOST_SLOTS and not column.is_list else 0
    return Layout(column, kind, length, slots, length * kind.width)
