"""Tables of things as JSON lines, an object for each row, and columns of documents, each on its line."""

from __future__ import annotations

from collections.abc import Iterator

from glassfs.cache import BlockCache
from glassfs.content import Documents, Table
from glassfs.view import lines
from glassfs.view.contract import Key, Shown, View


def show(content: Table | Documents, cache: BlockCache, key: Key) -> Iterator[Shown]:
    if isinstance(content, Documents):
        rows = content.rows()
        if rows is not None:
            suffix, data = lines.documents(rows, cache, key, empty=b"{}")
            yield Shown(data, suffix)
    elif content.records is not None:
        suffix, data = lines.records(content.records, cache, key)
        yield Shown(data, suffix)


VIEW = View(
    "jsonl", "tables of episodes, and columns of JSON documents, a row a line, for jq", (Table, Documents), show,
)
