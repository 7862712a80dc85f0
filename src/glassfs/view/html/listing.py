"""The page of many episodes, those of a container or of a folder: rows that lead to their pages.

The page is the same for all; ``data.js`` has a row an episode, up to MOST_ROWS of them and MOST_BYTES. Its size takes
one pass over the records, when it is first asked for, a block in memory at a time. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache as cached
from functools import partial
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Blocked, Memory, Records, Rendered, Table
from glassfs.view.contract import Key, Shown
from glassfs.view.html import escape, page
from glassfs.view.lines import COUNTED

BODY, SCRIPT = "list.html", "list.js"
CONTAINER = b"container"
EPISODES = b"episodes"
MOST_ROWS = 100_000
MOST_BYTES = 32 << 20
LONGEST_TEXT = 1000
_HEAD = b'"use strict";\nglassfs.rows([\n'


def shown(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Nothing for a table whose rows have no directories."""
    if table.records is None or not (table.directory or _has_containers(table)):
        return
    yield Shown(Memory(_page()), page.SUFFIX, page.NAME)
    yield Shown(_Rows(table, table.records, cache, key).data, page.DATA_SUFFIX, page.DATA_NAME)


def _has_containers(table: Table) -> bool:
    """Whether it is one of a folder: its rows tell in which container they are."""
    return any(column.name == CONTAINER for column in table.columns())


@cached
def _page() -> bytes:
    return page.document("Episodes", page.part(BODY), SCRIPT)


class _Rows:
    """The data of a page: a line a row, and behind them what they are."""

    def __init__(self, table: Table, records: Records, cache: BlockCache, key: Key) -> None:
        self._table = table
        self._records = records
        self._cache = cache
        self._key = key
        self._names: list[str] | None = None
        """What the first record has; a row of the same is a list of their values."""
        self._counts: list[int] = []
        """Rows of each block that are shown."""
        self._tail = b""
        self.data = Blocked(cache, self._bounds, self._block)

    def _bounds(self) -> Sequence[int]:
        bounds, rows = [0, len(_HEAD)], 0
        self._counts.clear()
        for number in range(self._records.blocks):
            cost = self._records.cost(number)
            with self._cache.taken(cost) if cost > COUNTED else nullcontext():
                records = self._records.block(number)
                count = size = 0
                for record in records[: MOST_ROWS - rows]:
                    length = len(self._row(record))
                    if bounds[-1] + size + length > MOST_BYTES:
                        break
                    size += length
                    count += 1
                is_cut = count < len(records)
                del records
            self._counts.append(count)
            bounds.append(bounds[-1] + size)
            rows += count
            if is_cut:
                break
        self._tail = self._told(rows)
        return [*bounds, bounds[-1] + len(self._tail)]

    def _block(self, number: int) -> Rendered:
        bounds = self.data.bounds
        size = bounds[number + 1] - bounds[number]
        key = (*self._key, number)
        if number == 0:
            return Rendered(self._cache, key, lambda: _HEAD, size)
        if number > len(self._counts):
            return Rendered(self._cache, key, lambda: self._tail, size)
        cost = self._records.cost(number - 1) + 2 * size
        return Rendered(self._cache, key, partial(self._made, number - 1), size, cost)

    def _made(self, number: int) -> bytes:
        records = self._records.block(number)
        return b"".join(self._row(record) for record in records[: self._counts[number]])

    def _row(self, record: dict[str, Any]) -> bytes:
        short = {name: escape.brief(value, LONGEST_TEXT) for name, value in record.items()}
        if self._names is None:
            self._names = list(short)
        return escape.script(list(short.values()) if list(short) == self._names else short) + b",\n"

    def _told(self, rows: int) -> bytes:
        """What stands behind the rows."""
        facts = {
            "names": self._names or [], "total": max(rows, self._table.rows),
            "directory": escape.address((self._table.directory or EPISODES,)),
        }
        return b"], %b);\n" % escape.script(facts)
