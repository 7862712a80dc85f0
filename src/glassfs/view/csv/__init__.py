"""Tables as CSV (RFC 4180), for spreadsheets, R and programs that read nothing else. UTF-8, lines end with CR LF.

The first line has the names of the columns, those of the Parquet view. Values are exact: ``glassfs.view.csv.cells``
says how each kind is written. All rows are written in one pass, when the size is first needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from glassfs.cache import BlockCache
from glassfs.content import Table
from glassfs.content.table import demand_columns
from glassfs.view.contract import Key, Shown, View
from glassfs.view.csv.file import csv_data


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    demand_columns(table)
    yield Shown(csv_data(table, cache, key), ".csv")


VIEW = View("csv", "tables, for spreadsheets, R and others that read text", (Table,), show)
