"""The page of a table whose rows describe things: the episodes of a container or of a folder, or the containers there.

Rows link to the pages of episodes, or to the directories of other things. There is a row for each, up to MOST_ROWS and
MOST_BYTES. The size takes one pass over the records, when it is first needed, with one block in memory at a time. All
containers have the same page, with the rows in ``data.js``. The page of a folder has the rows in itself, since a folder
contains other files and its ``data.js`` could be any of them. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache as cached
from functools import partial
from typing import Any, Protocol, runtime_checkable

from glassfs.cache import BlockCache
from glassfs.content import EPISODES, Blocked, Memory, Records, Rendered, Table
from glassfs.view.contract import Key, Shown
from glassfs.view.html import escape, page

BODY, SCRIPT = "list.html", "list.js"
PLACE = "place"
MOST_ROWS = 100_000
MOST_BYTES = 32 << 20


@runtime_checkable
class OfManyContainers(Protocol):
    """A table called ``name`` of what is in several containers. ``title`` is the name of the folder, or empty.

    ``tables`` returns the names of all such tables with rows; the first is the one with ``is_first``.
    """

    name: str
    title: str
    is_first: bool
    tables: Callable[[], Sequence[str]]

    def path_of(self, record: dict[str, Any]) -> str:
        """Return the path of a row's episode from the folder: components as trees show them, joined by slashes."""


def shown(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the page, or nothing for a table whose rows have no directories."""
    if table.records is None:
        return
    if isinstance(table, OfManyContainers):
        words = _words(table.name)
        before, after = page.frame(words["{Things}"], _body(words), SCRIPT, has_data=False)
        rows = _ListedRows(table, table.records, cache, key, before + b'{"rows": [\n', after)
        yield Shown(rows.data, page.SUFFIX, page.NAME if table.is_first else table.name.encode())
    elif table.directory:
        rows = _ListedRows(table, table.records, cache, key, b'"use strict";\nglassfs.rows({"rows": [\n', b");\n")
        yield Shown(Memory(_page()), page.SUFFIX, page.NAME)
        yield Shown(rows.data, page.DATA_SUFFIX, page.DATA_NAME)


@cached
def _page() -> bytes:
    words = _words(EPISODES)
    return page.document(words["{Things}"], _body(words), SCRIPT)


def _words(table: str) -> dict[str, str]:
    """Return what the page calls the rows of a table, by placeholder."""
    is_of_episodes = table == EPISODES
    thing = "episode" if is_of_episodes else "row"
    return {
        "{Things}": f"{thing}s".capitalize() if is_of_episodes else escape.brief(table, page.LONGEST_TITLE),
        "{things}": f"{thing}s", "{a thing}": f"{'an' if is_of_episodes else 'a'} {thing}", "{table}": table,
    }


def _body(words: dict[str, str]) -> str:
    body = page.part(BODY)
    for placeholder, word in words.items():
        body = body.replace(placeholder, escape.html(word))
    return body


class _ListedRows:
    """The rows, one on a line, and the facts about them, between ``before`` and ``after``."""

    def __init__(
        self, table: Table, records: Records, cache: BlockCache, key: Key, before: bytes, after: bytes,
    ) -> None:
        self._table = table
        self._records = records
        self._cache = cache
        self._key = key
        self._before, self._after = before, after
        self._path_of = table.path_of if isinstance(table, OfManyContainers) else None
        self._names: list[str] | None = None
        """The names of the first record; a row with the same names is a list of its values."""
        self._counts: list[int] = []
        """Number of rows shown of each block."""
        self._tail = b""
        self.data = Blocked(cache, self._bounds, self._block)

    def _bounds(self) -> Sequence[int]:
        bounds, rows = [0, len(self._before)], 0
        self._counts.clear()
        for number in range(self._records.blocks):
            cost = self._records.cost(number)
            with self._cache.measuring(cost):
                records = self._records.block(number)
                count = size = 0
                for record in records[: MOST_ROWS - rows]:
                    length = len(self._row(record))
                    if bounds[-1] - bounds[1] + size + length > MOST_BYTES:
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
        self._tail = self._facts(rows) + self._after
        return [*bounds, bounds[-1] + len(self._tail)]

    def _block(self, number: int) -> Rendered:
        bounds = self.data.bounds
        size = bounds[number + 1] - bounds[number]
        key = (*self._key, number)
        if number == 0:
            return Rendered(self._cache, key, lambda: self._before, size)
        if number > len(self._counts):
            return Rendered(self._cache, key, lambda: self._tail, size)
        cost = self._records.cost(number - 1) + 2 * size
        return Rendered(self._cache, key, partial(self._made, number - 1), size, cost)

    def _made(self, number: int) -> bytes:
        records = self._records.block(number)
        return b"".join(self._row(record) for record in records[: self._counts[number]])

    def _row(self, record: dict[str, Any]) -> bytes:
        short = {name: escape.brief(value, page.LONGEST_TEXT) for name, value in record.items()}
        if self._path_of is not None:
            short[PLACE] = escape.brief(self._path_of(record), 2 * page.LONGEST_TEXT)
        if self._names is None:
            self._names = list(short)
        return escape.script(list(short.values()) if list(short) == self._names else short) + b",\n"

    def _facts(self, rows: int) -> bytes:
        """Return what follows the rows, starting with a null that ends their list."""
        known = self._table.attributes()
        facts = {
            "names": self._names or [], "total": max(rows, self._table.rows), "omitted": known.get("omitted"),
            "error": escape.brief(known.get("error"), page.LONGEST_TEXT),
            "directory": escape.address((self._table.directory,)) if self._table.directory else None,
        }
        if isinstance(self._table, OfManyContainers):
            facts["table"] = escape.brief(self._table.name, page.LONGEST_TITLE)
            facts["tables"] = [escape.brief(name, page.LONGEST_TITLE) for name in self._table.tables()]
            facts["title"] = escape.brief(self._table.title, page.LONGEST_TITLE)
        return b'null], "facts": %b}' % escape.script(facts)
