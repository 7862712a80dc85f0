"""A table as the bytes of a Parquet file.

The size is known before anything is decoded, except for columns that need a pass. The first caller that needs the size
has the columns listed; the first read of a range computes their positions, which reads one offset for each group of
rows and each column whose rows differ in length. What is known of the columns is cached by total size. Any thread.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Sequence
from itertools import pairwise

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Parted, Table
from glassfs.content.table import is_sized
from glassfs.errors import LASTING, Damaged, TooLarge
from glassfs.once import once
from glassfs.view.contract import Key
from glassfs.view.known import Known
from glassfs.view.parquet.columns import Leaves
from glassfs.view.parquet.footer import ColumnChunk, Metadata, SchemaColumn, footer, group, length

MAGIC = b"PAR1"
LARGEST_FILE = 1 << 61
LARGEST_FOOTER = (1 << 31) - 1
LEAF_COST, CHUNK_COST = 2 << 10, 256
"""The memory that a column takes, with the content behind it, and its part of each group."""


class Parquet(Parted):
    """The file: the magic, a part for each column of each group of rows, the footer and its length.

    ``metadata`` are further keys and values in the footer, for other programs.
    """

    def __init__(self, table: Table, cache: BlockCache, key: Key, metadata: Metadata = ()) -> None:
        self._table = table
        self._lock = threading.RLock()
        self._size: int | None = None
        self._is_sized: bool | None = None
        self._known = Known(cache, lambda: _Contents(table, cache, key, metadata), lambda columns: columns.cost)

    @property
    def is_sized(self) -> bool:
        if self._size is not None:
            return True
        if self._is_sized is None:
            try:
                self._is_sized = all(map(is_sized, self._table.columns()))
            except LASTING:  # raised again to callers that need the size
                self._is_sized = False
        return self._is_sized

    @property
    def size(self) -> int:
        if self._size is None:
            with work.holding(self._lock):
                self._size = self._columns.size
        return self._size

    @property
    def bounds(self) -> Sequence[int]:
        return self._columns.bounds

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        self._columns.read_part(number, buffer, offset)

    @property
    def _columns(self) -> _Contents:
        return self._known.get()


class _Contents:
    """What is known of the columns of a table, and so of the file."""

    def __init__(self, table: Table, cache: BlockCache, key: Key, metadata: Metadata) -> None:
        self._rows = table.rows
        self._metadata = metadata
        leaves = Leaves(table, cache, key)
        self._leaves, self._rows_a_group = leaves.all, leaves.rows_a_group
        self._lock = threading.RLock()

    @property
    def cost(self) -> int:
        """The memory in bytes that it takes, roughly."""
        names = sum(len(leaf.field.name) for leaf in self._leaves)
        return len(self._leaves) * (LEAF_COST + CHUNK_COST * self._groups) + names * (2 + self._groups)

    @once
    def size(self) -> int:
        footer_size = length(self._fields, self._groups, self._metadata)
        size = 2 * len(MAGIC) + 4 + footer_size + sum(leaf.pages.size for leaf in self._leaves)
        if size > LARGEST_FILE or footer_size > LARGEST_FOOTER:
            raise TooLarge("is larger than a Parquet file can be")
        return size

    @property
    def bounds(self) -> Sequence[int]:
        with work.holding(self._lock):
            return self._bounds

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        if number == 0:
            buffer[:] = MAGIC[offset : offset + len(buffer)]
        elif number == len(self._bounds) - 2:
            with work.holding(self._lock):
                tail = self._tail
            buffer[:] = tail[offset : offset + len(buffer)]
        else:
            group_number, column = divmod(number - 1, len(self._leaves))
            pages = self._leaves[column].pages
            pages.read_into(buffer, pages.start(group_number * self._rows_a_group) + offset)

    @property
    def _groups(self) -> int:
        return -(-self._rows // self._rows_a_group)

    @property
    def _fields(self) -> tuple[SchemaColumn, ...]:
        return tuple([leaf.field for leaf in self._leaves])

    @property
    def _group_rows(self) -> list[int]:
        """The first row of each group, and the end."""
        return [*range(0, self._rows, self._rows_a_group), self._rows]

    @once
    def _bounds(self) -> Sequence[int]:
        bounds = array("Q", [0, len(MAGIC)])
        for first, end in pairwise(self._group_rows):
            for leaf in self._leaves:
                size = leaf.pages.start(end) - leaf.pages.start(first)
                if size < 0:
                    raise Damaged("the offsets of its rows do not rise", part=leaf.field.name.decode())
                bounds.append(bounds[-1] + size)
        bounds.append(self.size)
        return bounds

    @once
    def _tail(self) -> bytes:
        leaves, fields = self._leaves, self._fields
        groups = []
        number = 1
        for first, end in pairwise(self._group_rows):
            chunks = []
            for leaf in leaves:
                start = self._bounds[number]
                chunks.append(ColumnChunk(start, self._bounds[number + 1] - start, leaf.pages.entries(first, end)))
                number += 1
            groups.append(group(fields, end - first, chunks))
        made = footer(fields, self._rows, groups, self._metadata)
        return made + struct.pack("<I", len(made)) + MAGIC
