"""``glassfs arrays``: the arrays in containers and folders, the largest first.

The rows are those of ``arrays.jsonl`` at the root of a mounted folder, and come from the catalogue as these do.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import click

from glassfs.cli.common import complain, name_of, opened_sources, reason_of
from glassfs.cli.completion import connection_option, json_option, sources_argument
from glassfs.content import Stored
from glassfs.content.arrays import ARRAY_ROWS, STORED, Measure, statistics, stored_hash
from glassfs.content.episodes import POSITION, TEXT
from glassfs.content.pieces import values_of
from glassfs.content.summary import CONTAINER, NUMBER
from glassfs.datasets.joined import Joins
from glassfs.datasets.rows import RowReader
from glassfs.datasets.timed_calls import TimedCalls
from glassfs.errors import GlassfsError, LeftOut
from glassfs.sizes import human_size
from glassfs.source import Connection
from glassfs.terminal import printable
from glassfs.tree import Sources
from glassfs.view.json import line

HASH = ("hash", TEXT)
STATISTICS = (("min", NUMBER), ("max", NUMBER), ("mean", NUMBER), ("nan", NUMBER))


@click.command()
@sources_argument
@json_option("array")
@click.option("--hash", "has_hash", is_flag=True, help="Add the XXH3-64 of the stored bytes, all of which are read.")
@click.option(
    "--stats", "has_statistics", is_flag=True,
    help="Add least and largest value, mean, and number of NaN of numeric arrays, all of which are decoded.",
)
@connection_option
def command(
    sources: tuple[str, ...], as_json: bool, has_hash: bool, has_statistics: bool, connection: Connection,
) -> int:
    """Each SOURCE is a container of arrays, or a folder: NPZ, safetensors, HDF5, kastore. Prints name, type, shape and
    stored bytes of each array: a table on a terminal, else a JSON object per line.

    What cannot be read is reported on standard error; exit status 1 if there is any.
    """
    measure = Measure((HASH,) * has_hash + STATISTICS * has_statistics, partial(_measured, has_hash, has_statistics))
    rows: list[dict[str, Any]] = []
    failures = 0
    with opened_sources(sources, connection) as opened:
        for found in _found(opened, measure):
            if isinstance(found, dict):
                rows.append(found)
            else:
                complain(f"{found[0]}: {reason_of(found[1], found[0])}")
                failures += not isinstance(found[1], LeftOut)
    # The order of paths and positions remains among arrays of one size.
    rows.sort(key=lambda row: -1 if row[STORED] is None else row[STORED], reverse=True)
    if not rows and not failures:
        complain(f"{', '.join(map(name_of, sources))}: no arrays")
    if as_json or not sys.stdout.isatty():
        # Statistics may have numbers that JSON lacks; without them, Python's own encoder takes a tenth of the time.
        sys.stdout.writelines(f"{line(row).decode() if has_statistics else json.dumps(row)}\n" for row in rows)
    else:
        _print_table(rows)
    return 1 if failures else 0


def _measured(has_hash: bool, has_statistics: bool, content: Stored) -> Sequence[Any]:
    found: list[Any] = []
    if has_hash:
        found.append(None)
        with suppress(LeftOut):  # not stored as bytes of its own
            found[0] = stored_hash(content)
    return [*found, *(statistics(content).values() if has_statistics else ())]


def _found(opened: Sources, measure: Measure) -> Iterator[dict[str, Any] | tuple[str, GlassfsError]]:
    """Yield the row of each array, and names and errors of what cannot be read."""
    assert isinstance(opened.overview, Joins)
    files = opened.overview.files()
    for gap in files.gaps:
        yield gap.path, gap.error
    columns = [CONTAINER, POSITION, *(name for name, _ in ARRAY_ROWS + measure.columns)]
    shape = lru_cache(_shape)
    # There is no other reader to whom an array that takes long to read would matter.
    reader = RowReader(opened.containers, TimedCalls(threading.TIMEOUT_MAX), True, measure if measure.columns else None)
    for file, pieces in reader.of_all(files.files):
        name = file.location.store.shown(file.location.path)
        path, first = file.path or file.location.path[-1], 0
        try:
            for one in pieces:
                yield from ((name, error) for error in one.errors)
                for position, values in enumerate(zip(*values_of(one.piece), strict=True), first):
                    row = dict(zip(columns, (path, position, *values), strict=True))
                    row["shape"] = shape(row["shape"])
                    yield row
                first += one.piece.rows
        except GlassfsError as error:
            yield name, error


def _shape(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # a format of another package may describe it in words
        return text


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows in columns as wide as their values, sizes first and paths last."""
    names = [name for name in (rows[0] if rows else ()) if name not in (CONTAINER, POSITION, "name", STORED)]
    lines = [[STORED, *names, "array"]]
    for row in rows:
        size = "-" if row[STORED] is None else human_size(row[STORED])
        lines.append([size, *(_cell(row[name]) for name in names), printable(f"{row[CONTAINER]}/{row['name']}")])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for size, *cells, path in lines:
        padded = map(str.ljust, cells, widths[1:])
        click.echo("  ".join([size.rjust(widths[0]), *padded, path]))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
