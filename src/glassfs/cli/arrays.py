"""``glassfs arrays``: the arrays in containers and folders, the largest first.

The rows are those of ``arrays.jsonl`` at the root of a mounted folder, and come from the catalogue as these do.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from glassfs.cli.common import complain, name_of, opened_sources, reason_of
from glassfs.cli.completion import connection_option, json_option, sources_argument
from glassfs.content import Stored
from glassfs.content.arrays import STORED, Measure, statistics, stored_hash
from glassfs.content.episodes import POSITION, TEXT
from glassfs.content.summary import CONTAINER, NUMBER, ContainerPiece, records
from glassfs.datasets.joined import Joins
from glassfs.datasets.rows import RowReader
from glassfs.errors import GlassfsError, LeftOut
from glassfs.sizes import human_size
from glassfs.source import Connection
from glassfs.terminal import printable
from glassfs.tree import Sources
from glassfs.view.json import line

_ENCODER = json.JSONEncoder(allow_nan=False)
HASH = (("hash", TEXT),)
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
    measure = Measure(HASH * has_hash + STATISTICS * has_statistics, partial(_measured, has_hash, has_statistics))
    # Most sizes recur: rows take less memory as the text of those of one size than each for itself.
    by_size: defaultdict[int | None, bytearray] = defaultdict(bytearray)
    failures = 0
    with opened_sources(sources, connection) as opened:
        for found, error in _fill(by_size, opened, measure):
            name = found or name_of(sources[0])
            complain(f"{name}: {reason_of(error, name)}")
            failures += not isinstance(error, LeftOut)
    texts = [by_size[size] for size in sorted(by_size, key=lambda size: -1 if size is None else size, reverse=True)]
    if as_json or not sys.stdout.isatty():
        sys.stdout.buffer.writelines(texts)
    else:
        _print_table(b"".join(texts).splitlines())
    if not texts and not failures:
        complain(f"{', '.join(map(name_of, sources))}: no arrays")
    return 1 if failures else 0


def _measured(has_hash: bool, has_statistics: bool, content: Stored) -> Sequence[Any]:
    found = list(statistics(content)) if has_statistics else []
    if has_hash:
        found.insert(0, None)
        with suppress(LeftOut):  # it has no stored bytes of its own
            found[0] = stored_hash(content)
    return found


def _fill(
    by_size: defaultdict[int | None, bytearray], opened: Sources, measure: Measure,
) -> Iterator[tuple[str, GlassfsError]]:
    """Add the line of each array to those of its size. Yield names and errors of what cannot be read."""
    assert isinstance(opened.overview, Joins)
    files = opened.overview.files()
    yield from ((gap.path, gap.error) for gap in files.gaps)
    # There is no other reader to whom an array that takes long to read would matter.
    reader = RowReader(opened.containers, None, True, measure)
    for file, pieces in reader.of_all(files.files):
        name = file.location.store.shown(file.location.path)
        container, first = file.path or file.location.path[-1], 0
        try:
            for one in pieces:
                yield from ((name, error) for error in one.errors)
                for row in records(ContainerPiece(container, first, one.piece)):
                    by_size[row[STORED]] += f"{_line(row)}\n".encode()
                first += one.piece.rows
        except GlassfsError as error:
            yield name, error


def _line(row: dict[str, Any]) -> str:
    """Return a row as JSON in ASCII, its shape as a list."""
    with suppress(ValueError):  # a format of another package may describe it in words
        row["shape"] = json.loads(row["shape"])
    try:
        return _ENCODER.encode(row)
    except ValueError:  # infinite numbers
        return _ENCODER.encode(json.loads(line(row)))


def _print_table(lines: Sequence[bytes]) -> None:
    """Print rows in columns as wide as their values, sizes first and paths last."""
    rows: list[list[str]] = []
    for text in lines:
        row = json.loads(text)
        size, path = row.pop(STORED), f"{row.pop(CONTAINER)}/{row.pop('name')}"
        del row[POSITION]
        rows = rows or [[STORED, *row, "array"]]
        rows.append(["-" if size is None else human_size(size), *map(_cell, row.values()), printable(path)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for size, *cells, path in rows:
        click.echo("  ".join([size.rjust(widths[0]), *map(str.ljust, cells, widths[1:]), path]))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
