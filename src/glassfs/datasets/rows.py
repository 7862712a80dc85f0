"""The rows of containers for joined tables, from the catalogue on disk or from the containers. Any thread.

The catalogue has only containers of one file whose version never recurs. Its key covers what else the rows depend
on: the version of glassfs and the formats that other packages add.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import xxhash

from glassfs import __version__, work
from glassfs.content import Container
from glassfs.content.arrays import NOTHING, Measure, array_pieces
from glassfs.content.selected import ALL, Picks, row_of, total_reward
from glassfs.content.summary import (
    ARRAYS,
    EPISODE_ROWS,
    EPISODES,
    FEATURES,
    LAYOUT,
    Piece,
    as_json,
    piece_of,
    pieces_of,
    values_of,
)
from glassfs.datasets.files import PUBLIC_FILE, SnapshotFile, TimedCalls
from glassfs.errors import Changed, GlassfsError, Unrecognised
from glassfs.formats.registry import GROUP
from glassfs.layouts.known import chosen
from glassfs.names import component
from glassfs.once import once
from glassfs.sizes import PIECE
from glassfs.source import Entry, Path, Version
from glassfs.threads import DaemonPool
from glassfs.tree.containers.containers import Containers
from glassfs.tree.containers.lease import Location
from glassfs.tree.containers.selected import SelectedStore, as_stored
from glassfs.work import Work

TOTALS = "total rewards 1"
"""What sums of rewards are kept as: another number if the same steps give other sums."""


class TablePiece(NamedTuple):
    """Piece ``number`` of a container's rows for the joined table ``table``, and whether every user may read it.

    ``directory`` is that of what the rows describe, ``parts`` are the paths of its further files. ``errors`` name what
    is left out. ``first`` is the number of the first row, if rows before it are left out.
    """

    table: str
    number: int
    piece: Piece
    directory: str
    is_public: bool
    parts: Sequence[Path] = ()
    errors: Sequence[GlassfsError] = ()
    first: int | None = None


class RowReader:
    """One pass over the rows of many files: of the table of arrays if it ``is_of_arrays``, else of all other tables.

    With timed ``calls`` a file that hangs raises DeviceFailed. What a ``measure`` finds is not kept in the catalogue.
    """

    at_once = 500
    """Files looked up in the catalogue together, and stored together."""
    alongside = 16
    """Remote files read at a time."""
    most_kept, most_noted = 16 * PIECE, 4 * PIECE
    """Bytes of one container's rows that the catalogue accepts, and of all rows that are stored together."""

    def __init__(
        self, containers: Containers, calls: TimedCalls | None, is_of_arrays: bool = False, measure: Measure = NOTHING,
    ) -> None:
        self._containers = containers
        self._calls = calls
        self._is_of_arrays, self._measure = is_of_arrays, measure
        self._catalogue = None if measure.columns else containers.catalogue
        # No layout changes arrays.
        self._dependencies = f"{_program()}\0{ARRAYS}" if is_of_arrays else dependencies(containers.layout)
        self._cache = containers.services.cache
        self._prefetches = DaemonPool("rows")
        self._ahead: set[Work] = set()
        """The work of files that are read ahead."""
        self._lock = threading.Lock()
        self._noted: dict[bytes, bytes] = {}
        self._size = 0
        self._files: Sequence[SnapshotFile] = ()

    def of_all(self, files: Sequence[SnapshotFile]) -> Iterator[tuple[SnapshotFile, Iterator[TablePiece]]]:
        """Yield each file and its pieces, which must be consumed before the next file.

        Iterating over the pieces raises why a container cannot be read. Files that are not containers have none.
        """
        self._files = files
        try:
            start = 0
            while start < len(files):
                some = files[start : start + self.at_once]
                # One question for many files: most containers are in the catalogue, and each question costs a
                # transaction. It may answer fewer than were asked, as rows are many bytes: the loop goes on there.
                stored = list(map(self._stored, some))
                pairs = list(zip(stored, self._known([(file, 0) for file in stored]), strict=False))
                begun: dict[int, Iterator[TablePiece]] = {}
                for number, (file, kept) in enumerate(pairs):
                    # Each remote file costs a round trip. The next ones are begun while the caller works on this one.
                    for place, (other, other_kept) in enumerate(pairs[number : number + self.alongside], number):
                        if other_kept is None and other.location.store.is_remote and place not in begun:
                            begun[place] = self._prefetched(other)
                    pieces = self._of(file, kept, begun.pop(number, None))
                    shown = some[number]
                    yield shown, pieces if file is shown else selected_pieces(self._containers, shown, file, pieces)
                    start += 1
        finally:
            for ahead in list(self._ahead):
                ahead.cancel()
            self.flush()

    def kept_tables(self, files: Sequence[SnapshotFile]) -> set[str]:
        """Return the tables of the first rows that the catalogue has of files; of many files, of the first ones."""
        kept = self._known([(self._stored(file), 0) for file in files[: self.at_once]])
        return {_unpacked(one, file, 0)[0].table for file, one in zip(files, kept, strict=False) if one}

    def flush(self) -> None:
        """Store the rows read so far in the catalogue."""
        with self._lock:
            noted, self._noted, self._size = self._noted, {}, 0
        if noted and self._catalogue is not None:
            self._catalogue.put(noted)

    def _stored(self, file: SnapshotFile) -> SnapshotFile:
        """Return a file as its store has it: rows of a selection are chosen from those of all episodes."""
        store, path = file.location
        if self._is_of_arrays or not isinstance(store, SelectedStore):
            return file
        version, stamp = Version(as_stored(file.version)), as_stored(file.stamp)
        return file._replace(location=Location(store.inner, path), version=version, stamp=stamp)

    def _known(self, pieces: Sequence[tuple[SnapshotFile, int]]) -> Sequence[bytes | None]:
        """Return what the catalogue has of pieces, given by their numbers; if it is much, only of the first ones."""
        if self._catalogue is None:
            return [None] * len(pieces)
        return self._catalogue.find([
            self._key(file, number) if file.location.store.has_lasting_versions else b"" for file, number in pieces
        ])

    def _key(self, file: SnapshotFile, number: int) -> bytes:
        """Return the key of a piece of a file's rows."""
        return xxhash.xxh128_digest(f"{self._dependencies}\0{file.stamp}\0{number}".encode())

    @once
    def _listed(self) -> set[Location]:
        """The locations of all files of the pass."""
        return {file.location for file in self._files}

    def _of(self, file: SnapshotFile, kept: bytes | None, begun: Iterator[TablePiece] | None) -> Iterator[TablePiece]:
        number, is_last = 0, False
        while kept and not is_last:  # without rows it is empty
            found, is_last = _unpacked(kept, file, number)
            yield found
            number += 1
            if not is_last:
                (kept,) = self._known([(file, number)])
        # The catalogue may have evicted a later piece and not the first one. The container has it still.
        if kept is None:
            yield from (one for one in self._timed(file, begun or self._read(file)) if one.number >= number)

    def _timed(self, file: SnapshotFile, pieces: Iterator[TablePiece]) -> Iterator[TablePiece]:
        """Yield the pieces of a file, each read with a timeout."""
        if self._calls is None:
            yield from pieces
            return
        probe = file.location.entry
        while True:
            with self._cache.memory.waiting():  # or the other thread would wait for memory that this one reserves
                found = self._calls.call(file.location, file.volume, partial(self._next, pieces), probe)
            if found is None:
                return
            yield found

    def _prefetched(self, file: SnapshotFile) -> Iterator[TablePiece]:
        """Return the pieces of a remote file. The first is read ahead on another thread; most files have only one."""
        pieces = self._read(file)
        ahead = work.derived()
        self._ahead.add(ahead)
        first = self._prefetches.submit(partial(work.done_for, ahead, partial(self._next, pieces)))
        first.add_done_callback(lambda _: self._ahead.discard(ahead))

        def begun() -> Iterator[TablePiece]:
            try:
                work.is_done(first)
            except BaseException:  # the only reader has gone
                ahead.cancel()
                raise
            found = first.result()
            if found is not None:
                yield found
                yield from pieces

        return begun()

    def _next(self, pieces: Iterator[TablePiece]) -> TablePiece | None:
        with self._cache.memory.nested():
            return next(pieces, None)

    def _read(self, file: SnapshotFile) -> Iterator[TablePiece]:
        """Read the pieces of all tables; they are also noted for the catalogue."""
        # A version that lasts never recurs: any further change gives the file another mtime.
        is_lasting = file.location.store.has_lasting_versions and abs(time.time_ns() - file.mtime_ns) > 2 * 10**9
        is_kept = self._catalogue is not None and is_lasting
        noted: list[TablePiece] = []
        size = 0
        with suppress(Unrecognised), self._containers.glimpsed(file.location, file.version) as (container, files):
            # The stamp is that of the container's own file. It does not cover further files, nor a file that was
            # replaced between the walk and now: such rows would be found again under a stamp that they do not have.
            is_kept = is_kept and len(container.sources) == len(files) == 1 and files[0][1].stamp == file.stamp
            is_public = file.is_public and all(entry.permissions & PUBLIC_FILE == PUBLIC_FILE for _, entry in files)
            parts = [path for path, _ in files[1:]]
            for number, (name, directory, piece, errors) in enumerate(self._pieces(file, container, files)):
                found = TablePiece(name, number, piece, directory, is_public, parts, errors)
                size += len(piece.data)
                # What is left out may be in another file, so it may be there the next time.
                is_kept = is_kept and not errors and size <= self.most_kept
                if is_kept:
                    noted.append(found)
                else:
                    noted.clear()
                yield found
        if is_kept:
            # A file that gives no rows, or is no container, is noted as well: it need not be opened again.
            values = {self._key(file, one.number): _packed(one, one is noted[-1]) for one in noted}
            values = values or {self._key(file, 0): b""}
            with self._lock:
                self._noted |= values
                self._size += size
                is_much = self._size > self.most_noted or len(self._noted) >= self.at_once
            if is_much:
                self.flush()

    def _pieces(
        self, file: SnapshotFile, container: Container, files: Sequence[tuple[Path, Entry]],
    ) -> Iterator[tuple[str, str, Piece, Sequence[GlassfsError]]]:
        """Yield the pieces of a container for all tables of this pass, with table, directory and errors."""
        if not self._is_of_arrays:
            for name in container.tables:
                summary = container.summary(name)
                if summary is not None:
                    directory = component(summary.table.directory) if summary.table.directory else ""
                    yield from ((name, directory, piece, ()) for piece in pieces_of(summary, self._cache))
        elif container.arrays is not None:
            # An array in a further file that is listed, too, is a row of that one: shards of which this is the index.
            store = file.location.store
            listed = {entry.version for path, entry in files[1:] if Location(store, path) in self._listed}
            others = [one for one in container.sources[1:] if one.version in listed]
            for piece, errors in array_pieces(container.arrays(), others, self._measure):
                yield ARRAYS, "", piece, errors


def selected_pieces(
    containers: Containers, file: SnapshotFile, stored: SnapshotFile, pieces: Iterator[TablePiece],
) -> Iterator[TablePiece]:
    """Yield the pieces of a selected ``file``, given those of the same file as it is ``stored``.

    Each episode that is selected has a piece of its own.
    """
    store, path = file.location
    assert isinstance(store, SelectedStore)
    picks, number, last = store.picks(path, file.version), 0, ""
    if not picks.episodes:
        raise Changed("has changed since its episodes were selected", file.path)
    for one in pieces:
        if one.table != EPISODES:
            yield one
            continue
        names = [name for name, _ in one.piece.columns]
        chosen: dict[int, dict[str, Any]] = {}
        for values in zip(*values_of(one.piece), strict=True):
            row = dict(zip(names, values, strict=True))
            last = last if row[FEATURES] is None else row[FEATURES]
            if number in picks.episodes:
                chosen[number] = {**row, FEATURES: last}
            number += 1
        totals = _total_rewards(containers, stored, picks, chosen) if picks.steps != ALL else {}
        for first, row in chosen.items():
            shown = row_of(row, first, picks, totals.get(first))
            piece = piece_of([[shown[name]] for name in names], one.piece.columns)
            yield one._replace(piece=piece, first=first)


def _total_rewards(
    containers: Containers, file: SnapshotFile, picks: Picks, rows: Mapping[int, Mapping[str, Any]],
) -> Mapping[int, float | None]:
    """Return the sum of rewards at the selected steps of episodes that have some, by their numbers."""
    numbers = [number for number, row in rows.items() if row["total_reward"] is not None]
    if not numbers:
        return {}
    is_lasting, name = file.location.store.has_lasting_versions, repr((TOTALS, picks.steps, numbers)).encode()
    kept = containers.kept.find(file.stamp, name) if is_lasting else None
    if kept is None:
        found: list[float | None] = []
        with containers.glimpsed(file.location, file.version) as (container, _):
            table = container.episodes()
            recording = table.recording if table is not None else None
            found += [None if recording is None else total_reward(recording(one), picks.steps) for one in numbers]
        if is_lasting:
            containers.kept.keep(file.stamp, file.mtime_ns, name, as_json(found))
    else:
        found = json.loads(kept)
    return dict(zip(numbers, found, strict=True))


def _packed(found: TablePiece, is_last: bool) -> bytes:
    """Return what the catalogue has of a piece: a line of JSON, and the rows."""
    piece = found.piece
    brief = None if piece.columns == EPISODE_ROWS else piece.columns  # those of most containers
    return as_json([is_last, found.table, found.directory, piece.rows, brief]) + b"\n" + piece.data


def _unpacked(kept: bytes, file: SnapshotFile, number: int) -> tuple[TablePiece, bool]:
    """Return a piece that the catalogue has, and whether it is the last one of its file."""
    head, _, data = kept.partition(b"\n")
    is_last, table, directory, rows, columns = json.loads(head)
    columns = EPISODE_ROWS if columns is None else tuple((name, dtype) for name, dtype in columns)
    return TablePiece(table, number, Piece(rows, data, columns), directory, file.is_public), is_last


def dependencies(layout: str) -> str:
    """Return what rows depend on beside their container: the program, and the layouts that are used."""
    texts = "\0".join(known.text for known in chosen(layout))
    return f"{_program()}\0{xxhash.xxh128_hexdigest(texts.encode())}"


@cache
def _program() -> str:
    """Return what all rows depend on: glassfs, the form of rows, and the formats of other packages."""
    from importlib.metadata import entry_points

    added = [f"{one.name}={one.value}@{one.dist.version if one.dist else ''}" for one in entry_points(group=GROUP)]
    return "\0".join([__version__, f"{LAYOUT}", *sorted(added)])
