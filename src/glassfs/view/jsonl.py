"""Tables of things as JSON lines: an object a row. The size takes one pass, when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator

from glassfs.cache import BlockCache
from glassfs.content import Table
from glassfs.view import lines
from glassfs.view.contract import Key, Shown, View


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    if table.records is not None:
        suffix, data = lines.records(table.records, cache, key)
        yield Shown(data, suffix)


VIEW = View("jsonl", "tables of episodes, for jq and others: an object a line", (Table,), show)
