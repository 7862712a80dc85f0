"""``glassfs arrays``: the arrays in containers and folders, the largest first.

The rows are those of ``arrays.jsonl`` at the root of a mounted folder, and come from the catalogue as these do.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from tempfile import TemporaryFile
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
LARGEST = (1 << 63) - 1
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
    # Statistics may have numbers that JSON lacks; without them, Python's own encoder takes a tenth of the time.
    encoded = line if has_statistics else lambda row: json.dumps(row).encode()
    failures = 0
    with opened_sources(sources, connection) as opened, SortedLines() as lines:
        for found in _found(opened, measure):
            if isinstance(found, dict):
                lines.add(-1 if found[STORED] is None else found[STORED], encoded(found))
            else:
                name = found[0] or name_of(sources[0])
                complain(f"{name}: {reason_of(found[1], name)}")
                failures += not isinstance(found[1], LeftOut)
        if as_json or not sys.stdout.isatty():
            sys.stdout.buffer.writelines(lines.all())
        else:
            _print_table(lambda: map(json.loads, lines.all()))
        if not lines.sizes and not failures:
            complain(f"{', '.join(map(name_of, sources))}: no arrays")
    return 1 if failures else 0


class SortedLines:
    """Lines that are sorted by ``sizes``, the largest first; equal ones stay in their order. They are in a file."""

    def __init__(self) -> None:
        self.sizes = array("q")
        self._ends = array("Q", [0])

    def __enter__(self) -> SortedLines:
        self._file = TemporaryFile()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, size: int, text: bytes | bytearray) -> None:
        self.sizes.append(min(size, LARGEST))
        self._ends.append(self._ends[-1] + self._file.write(text + b"\n"))

    def all(self) -> Iterator[bytes]:
        self._file.flush()
        for number in sorted(range(len(self.sizes)), key=self.sizes.__getitem__, reverse=True):
            start = self._ends[number]
            yield os.pread(self._file.fileno(), self._ends[number + 1] - start, start)


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
    yield from ((gap.path, gap.error) for gap in files.gaps)
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


def _print_table(rows: Callable[[], Iterable[dict[str, Any]]]) -> None:
    """Print rows in columns as wide as their values, sizes first and paths last."""

    def lines() -> Iterator[list[str]]:
        for number, row in enumerate(rows()):
            size, path = row.pop(STORED), f"{row.pop(CONTAINER)}/{row.pop('name')}"
            del row[POSITION]
            if not number:
                yield [STORED, *row, "array"]
            yield ["-" if size is None else human_size(size), *map(_cell, row.values()), printable(path)]

    widths = list[int]()
    for cells in lines():
        widths = [max(len(cell), width) for cell, width in zip(cells, widths or [0] * len(cells), strict=True)]
    for size, *cells, path in lines():
        click.echo("  ".join([size.rjust(widths[0]), *map(str.ljust, cells, widths[1:]), path]))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
