"""The rows of containers for joined tables, from the catalogue on disk or from the containers. Any thread.

The catalogue has only containers of one file whose version never recurs. Its key covers what else the rows depend
on: the version of glassfs and the formats that other packages add.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import xxhash

from glassfs import work
from glassfs.content.pieces import LAYOUT, Piece, as_json, pieces_of
from glassfs.content.summary import EPISODE_ROWS
from glassfs.datasets.files import PUBLIC_FILE, SnapshotFile
from glassfs.datasets.timed_calls import TimedCalls
from glassfs.errors import Unrecognised
from glassfs.formats.registry import GROUP
from glassfs.layouts.known import chosen
from glassfs.names import component
from glassfs.sizes import PIECE
from glassfs.source import Path
from glassfs.threads import DaemonPool
from glassfs.tree.containers.containers import Containers
from glassfs.work import Work


class TablePiece(NamedTuple):
    """Piece ``number`` of a container's rows for the joined table ``table``, and whether every user may read it.

    ``directory`` is that of what the rows describe. ``parts`` are the paths of its further files.
    """

    table: str
    number: int
    piece: Piece
    directory: str
    is_public: bool
    parts: Sequence[Path] = ()


class RowReader:
    """One pass over the rows of many files. A file that hangs raises DeviceFailed."""

    at_once = 500
    """Files looked up in the catalogue together, and stored together."""
    alongside = 16
    """Remote files read at a time."""
    most_kept, most_noted = 16 * PIECE, 4 * PIECE
    """Bytes of one container's rows that the catalogue accepts, and of all rows that are stored together."""

    def __init__(self, containers: Containers, calls: TimedCalls) -> None:
        self._containers = containers
        self._calls = calls
        self._catalogue = containers.catalogue
        self._dependencies = dependencies(containers.layout)
        self._cache = containers.services.cache
        self._prefetches = DaemonPool("rows")
        self._ahead: set[Work] = set()
        """The work of files that are read ahead."""
        self._lock = threading.Lock()
        self._noted: dict[bytes, bytes] = {}
        self._size = 0

    def of_all(self, files: Sequence[SnapshotFile]) -> Iterator[tuple[SnapshotFile, Iterator[TablePiece]]]:
        """Yield each file and its pieces, which must be consumed before the next file.

        Iterating over the pieces raises why a container cannot be read. Files that are not containers have none.
        """
        try:
            start = 0
            while start < len(files):
                some = files[start : start + self.at_once]
                # One question for many files: most containers are in the catalogue, and each question costs a
                # transaction. It may answer fewer than were asked, as rows are many bytes: the loop goes on there.
                pairs = list(zip(some, self._known([(file, 0) for file in some]), strict=False))
                begun: dict[int, Iterator[TablePiece]] = {}
                for number, (file, kept) in enumerate(pairs):
                    # Each remote file costs a round trip. The next ones are begun while the caller works on this one.
                    for place, (other, other_kept) in enumerate(pairs[number : number + self.alongside], number):
                        if other_kept is None and other.location.store.is_remote and place not in begun:
                            begun[place] = self._prefetched(other)
                    yield file, self._of(file, kept, begun.pop(number, None))
                    start += 1
        finally:
            for ahead in list(self._ahead):
                ahead.cancel()
            self.flush()

    def kept_tables(self, files: Sequence[SnapshotFile]) -> set[str]:
        """Return the tables of the first rows that the catalogue has of files; of many files, of the first ones."""
        kept = self._known([(file, 0) for file in files[: self.at_once]])
        return {_unpacked(one, file, 0)[0].table for file, one in zip(files, kept, strict=False) if one}

    def flush(self) -> None:
        """Store the rows read so far in the catalogue."""
        with self._lock:
            noted, self._noted, self._size = self._noted, {}, 0
        if noted and self._catalogue is not None:
            self._catalogue.put(noted)

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

    def _of(self, file: SnapshotFile, kept: bytes | None, begun: Iterator[TablePiece] | None) -> Iterator[TablePiece]:
        if kept is None:
            yield from self._timed(file, begun or self._read(file))
            return
        if not kept:  # it has no rows
            return
        number = 0
        while True:
            found, is_last = _unpacked(kept, file, number)
            yield found
            if is_last:
                return
            number += 1
            (kept,) = self._known([(file, number)])
            # The catalogue may have evicted a later piece and not the first one. The container has it still.
            if kept is None:
                yield from (one for one in self._timed(file, self._read(file)) if one.number >= number)
                return

    def _timed(self, file: SnapshotFile, pieces: Iterator[TablePiece]) -> Iterator[TablePiece]:
        """Yield the pieces of a file, each read with a timeout."""
        probe = partial(file.location.store.entry, file.location.path)
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
        try:
            with self._containers.glimpsed(file.location, file.version) as (container, files):
                # The stamp is that of the container's own file. It does not cover further files, nor a file that was
                # replaced between the walk and now: such rows would be found again under a stamp that they do not have.
                is_kept = is_kept and len(container.sources) == len(files) == 1 and files[0][1].stamp == file.stamp
                is_public = file.is_public and all(entry.permissions & PUBLIC_FILE == PUBLIC_FILE for _, entry in files)
                parts = [path for path, _ in files[1:]]
                number = 0
                for name in container.tables:
                    summary = container.summary(name)
                    if summary is None:
                        continue
                    directory = component(summary.table.directory) if summary.table.directory else ""
                    for piece in pieces_of(summary, self._cache):
                        found = TablePiece(name, number, piece, directory, is_public, parts)
                        size += len(piece.data)
                        if is_kept and size <= self.most_kept:
                            noted.append(found)
                        else:
                            # Too many rows, or none are to be kept: the count goes on, so nothing is noted later.
                            noted.clear()
                        yield found
                        number += 1
        except Unrecognised:
            if not is_kept:
                return
        if is_kept and size <= self.most_kept:
            # A file that gives no rows, or is no container, is noted as well: it need not be opened again.
            values = {self._key(file, one.number): _packed(one, one is noted[-1]) for one in noted}
            values = values or {self._key(file, 0): b""}
            with self._lock:
                self._noted |= values
                self._size += size
                is_much = self._size > self.most_noted or len(self._noted) >= self.at_once
            if is_much:
                self.flush()


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
    from importlib.metadata import entry_points, version

    added = [f"{one.name}={one.value}@{one.dist.version if one.dist else ''}" for one in entry_points(group=GROUP)]
    return "\0".join([version("glassfs"), f"{LAYOUT}", *sorted(added)])
