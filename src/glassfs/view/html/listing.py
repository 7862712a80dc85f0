"""The page of a table whose rows describe things: the episodes of a container or of a folder, or the containers there.

Rows link to the pages of episodes, or to the directories of other things. There is a row for each, up to MOST_ROWS and
MOST_BYTES. It is made when its size is first needed, with one block of records in memory at a time. All
containers have the same page, with the rows in ``data.js``. The page of a folder has the rows in itself, since a folder
contains other files and its ``data.js`` could be any of them. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache as cached
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import EPISODES, Data, Memory, Records, Stream, Table
from glassfs.content.join import Joined
from glassfs.view.contract import Key, Shown
from glassfs.view.html import escape, page

BODY, SCRIPT = "list.html", "list.js"
PLACE = "place"
MOST_ROWS = 100_000
MOST_BYTES = 32 << 20


def shown(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the page, or nothing for a table whose rows have no directories."""
    if table.records is None:
        return
    if isinstance(table, Joined):
        words = _words(table.name)
        before, after = page.frame(words["{Things}"], _body(words), SCRIPT, has_data=False)
        rows = _ListedRows(table, table.records, cache, before + b'{"rows": [\n', after)
        yield Shown(rows.data(key), page.SUFFIX, page.NAME if table.is_first else table.name.encode())
    elif table.directory:
        rows = _ListedRows(table, table.records, cache, b'"use strict";\nglassfs.rows({"rows": [\n', b");\n")
        yield Shown(Memory(_page()), page.SUFFIX, page.NAME)
        yield Shown(rows.data(key), page.DATA_SUFFIX, page.DATA_NAME)


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

    def __init__(self, table: Table, records: Records, cache: BlockCache, before: bytes, after: bytes) -> None:
        self._table = table
        self._records = records
        self._cache = cache
        self._before, self._after = before, after
        self._path_of = table.path_of if isinstance(table, Joined) else None
        self._names: list[str] | None = None
        """The names of the first record; a row with the same names is a list of its values."""

    def data(self, key: Key) -> Data:
        return Stream(self._cache, key, self._pieces)

    def _pieces(self) -> Iterator[bytes]:
        rows, left, is_cut = 0, MOST_BYTES, False
        yield self._before
        for number in range(self._records.blocks):
            lines: list[bytes] = []
            with self._cache.measuring(self._records.cost(number)):
                for record in self._records.block(number):
                    lines.append(self._row(record))
                    left -= len(lines[-1])
                    is_cut = left < 0 or rows + len(lines) > MOST_ROWS
                    if is_cut:
                        lines.pop()
                        break
            rows += len(lines)
            yield b"".join(lines)
            if is_cut:
                break
        yield self._facts(rows) + self._after

    def _row(self, record: dict[str, Any]) -> bytes:
        short = {name: escape.brief(value, page.LONGEST_TEXT) for name, value in record.items()}
        if self._path_of is not None:
            short[PLACE] = escape.brief(self._path_of(record), 2 * page.LONGEST_TEXT)
        # Most rows have the names of the first one. They are lists, which takes fewer bytes.
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
        if isinstance(self._table, Joined):
            facts["table"] = escape.brief(self._table.name, page.LONGEST_TITLE)
            facts["tables"] = [escape.brief(name, page.LONGEST_TITLE) for name in self._table.tables()]
            facts["title"] = escape.brief(self._table.title, page.LONGEST_TITLE)
        return b'null], "facts": %b}' % escape.script(facts)
