"""What a container contributes to the tables over a folder: a few rows that say what is in it.

A *joined table* has the rows of all containers below a folder that contribute to it, under a name that formats agree
on: ``episodes``, ``trees``, ``tables``, or any other. Columns may differ between containers: the table has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from glassfs.content.episodes import EPISODE_COLUMNS, EPISODES_KEY, POSITION, TEXT, TEXTS, columns_of
from glassfs.content.model import Records
from glassfs.content.table import Table

INTEGER, UNSIGNED, NUMBER, BOOLEAN = "<i8", "<u8", "<f8", "|b1"
"""The types of columns, beside TEXT and TEXTS."""
Columns: TypeAlias = tuple[tuple[str, str], ...]
"""Names and types of columns."""
CONTAINER = "container"
"""The first column of each joined table, the container's path. The second is POSITION, the row's number there."""
EPISODES = EPISODES_KEY.decode()
ARRAYS = "arrays"
"""The joined table of arrays, which is read by itself: finding all arrays may take much longer than all other rows."""
RECORD_COLUMNS: Columns = tuple((name, dtype) for name, dtype in EPISODE_COLUMNS.items() if name != POSITION)
"""The columns of episodes, from whatever format."""
FEATURES = "features"
EPISODE_ROWS: Columns = (*RECORD_COLUMNS, (FEATURES, TEXT))
"""The columns of episodes in pieces: a joined table does not show the last one. In a block of rows, it is None if it is
the same as in the previous row."""
COLUMNS: Mapping[str, str] = {CONTAINER: TEXT, POSITION: INTEGER, **dict(RECORD_COLUMNS)}
"""All columns of the table of episodes."""
LONGEST = 64 << 10
"""Limit of characters in a text, and in a list of texts in all."""
_RANGES = {INTEGER: (-(1 << 63), (1 << 63) - 1), UNSIGNED: (0, (1 << 64) - 1)}


class Summary(NamedTuple):
    """Rows for a joined table: the ``records`` of a table, reduced to ``columns``.

    Values that are not of a column's type become unknown; so does what a record lacks. If each row has a directory, the
    table names the directory that has them (``Table.directory``).
    """

    columns: Columns
    table: Table

    def block(self, number: int) -> Sequence[Any]:
        """Return the records of a block, those of episodes with their features, if these have a column."""
        records = self.table.records.block(number) if self.table.records else ()
        if self.table.features is None or (FEATURES, TEXT) not in self.columns:
            return records
        found, last = [], None
        for record, text in zip(records, self.table.features(number), strict=True):
            found.append({**record, FEATURES: None if text == last else text})
            last = text
        return found


def summary_of(name: str, columns: Columns, rows: int, records: Records) -> Summary:
    """Return rows for a joined table that are no table yet: ``records`` of ``rows`` objects with these columns."""
    return Summary(columns, Table(name.encode(), rows, partial(columns_of, columns, records, value_of), records))


def value_of(record: Any, name: str, dtype: str) -> Any:
    """Return a value of a record, None if it has none of the column's type."""
    if not isinstance(record, dict):
        return None
    value = record.get(name)
    # Texts as ids would make the column of ids text for all containers.
    if name == "episode_name" and value is None and isinstance(record.get("episode_id"), str):
        value = record["episode_id"]
    if dtype == TEXT:
        return value[:LONGEST] if isinstance(value, str) else None
    if dtype == TEXTS:
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            return None
        characters = accumulate(len(text) + 1 for text in value)
        return [text for text, end in zip(value, characters, strict=True) if end <= LONGEST]  # those that fit
    if dtype == BOOLEAN or isinstance(value, bool):
        return value if dtype == BOOLEAN and isinstance(value, bool) else None
    if dtype in _RANGES:
        least, most = _RANGES[dtype]
        return value if isinstance(value, int) and least <= value <= most else None
    if isinstance(value, int):
        return float(value) if abs(value) < 1 << 1000 else None  # which fits into a float
    return value if isinstance(value, float) else None
