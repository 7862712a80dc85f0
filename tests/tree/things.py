"""A format of the tests' own, as another package may add it: containers give rows to any joined tables."""

from __future__ import annotations

import json
from typing import Any

from glassfs.content import Container, Group, Records, Summary, summary_of
from glassfs.formats.registry import Format, Opening

MAGIC = b"THINGS\n"
INTEGER, NUMBER, BOOLEAN, TEXT, TEXTS = "<i8", "<f8", "|b1", "", "list"


def things(**tables: tuple[dict[str, str], list[dict[str, Any]]]) -> bytes:
    """A container that gives rows to tables, each given by its columns and their rows."""
    return MAGIC + json.dumps(tables).encode()


def table(rows: int = 1, **columns: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Rows without values."""
    return columns, [{} for _ in range(rows)]


def _open(opening: Opening) -> Container:
    source = opening.source
    tables = json.loads(source.read(len(MAGIC), source.size - len(MAGIC)))

    def summary(name: str) -> Summary:
        columns, rows = tables[name]
        records = Records(name.encode(), len(rows), lambda number: rows[number : number + 1])
        return summary_of(name, tuple(columns.items()), len(rows), records)

    summaries = {name: lambda name=name: summary(name) for name in tables}
    return Container("things", "1", Group(b"", lambda: ()), [source], summaries=summaries)


FORMAT = Format("things", lambda head: head.startswith(MAGIC), _open, suffixes=(".thing",), joined=("things",))
