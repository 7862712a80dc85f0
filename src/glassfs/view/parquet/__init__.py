"""Tables as Parquet files: plain, uncompressed, without statistics, so that their size is a formula.

Pages are about 1 MiB. Groups have 262,144 rows; more where there would be thousands of them, fewer where vectors or the
rows of joined tables are long. Data pages are the container's own bytes wherever Parquet has the dtype:

| in the container | in the file | bytes |
|---|---|---|
| ``b1`` | BOOLEAN | bits |
| ``i1`` ``i2`` ``u1`` ``u2`` | INT32, an integer of 8 or 16 bits | widened |
| ``i4`` ``i8`` ``f4`` ``f8`` | INT32, INT64, FLOAT, DOUBLE | unchanged |
| ``u4`` ``u8`` | INT32, INT64, an unsigned integer | unchanged |
| ``f2`` | FIXED_LEN_BYTE_ARRAY(2), a FLOAT16 | unchanged |
| ``M8[ns]`` ``M8[us]`` ``M8[ms]`` | TIMESTAMP of that unit, of UTC if the column has a time zone | unchanged |
| ``M8[100ns]`` | TIMESTAMP(MICROS), rounded down: 64 bits of nanoseconds do not hold the years 1 to 9999 | divided |
| ``M8[s]`` ``[m]`` ``[h]`` ``[D]`` ``[W]`` | TIMESTAMP(MILLIS) | multiplied |
| ``M8``, ``m8`` not a time | null; in lists the least INT64 | its space stays |
| ``m8[…]`` | INT64, a duration for readers of Arrow's schema; ``[100ns]`` in microseconds | as above |
| ``M8[Y]`` ``[M]``, units below ns | INT64 | unchanged |
| ``S5`` ``V16`` ``U3`` ``c8`` … | FIXED_LEN_BYTE_ARRAY | unchanged |
| text by row, text in records | BYTE_ARRAY, a string; a byte that is not UTF-8 is a question mark | lengths between |
| runs of bytes by row | BYTE_ARRAY | lengths between |
| vectors of up to 64 elements | a column an element: ``NAME.0``, ``NAME.1`` … | transposed |
| longer vectors, runs of numbers | LIST | levels between |
| records with None, with lists | OPTIONAL, LIST | computed |

Columns of text, of runs and of vectors have sizes by formula. Records take a pass when the size is first needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from glassfs.cache import BlockCache
from glassfs.content import Table
from glassfs.content.table import demand_columns
from glassfs.view.contract import Key, Shown, View
from glassfs.view.parquet.file import Parquet


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    demand_columns(table)
    yield Shown(Parquet(table, cache, key), ".parquet")


VIEW = View("parquet", "tables, for pandas, polars, DuckDB and others", (Table,), show)
