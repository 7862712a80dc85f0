"""The rows of all containers below a root at one moment: blocks in memory or, if there are many, in a file.

Containers are read only when a caller needs the size of the table. A snapshot never changes: rows of a container that
has changed since raise Changed. Any thread.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NamedTuple

import xxhash

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Container, Group, Member, Recording
from glassfs.content.data import Data, Memory, SizedData
from glassfs.content.selected import ALL
from glassfs.content.summary import (
    ARRAYS,
    BLOCK_BYTES,
    EPISODE_ROWS,
    EPISODES,
    FEATURES,
    FROM_JSON,
    PIECE_ROWS,
    ContainerPiece,
    Joined,
    JoinedBlock,
    JoinedRows,
    Layout,
    joined_block,
)
from glassfs.datasets.files import FileSnapshot, Gap, SnapshotFile, TimedCalls, closed_files, expected_tables, in_order
from glassfs.datasets.rows import RowReader, TablePiece
from glassfs.errors import Changed, GlassfsError, NoSpool, Passing, Private, TooLarge, Unavailable
from glassfs.formats.registry import joined_by, joined_names
from glassfs.names import raw
from glassfs.settings import settings
from glassfs.sizes import PIECE, human_size
from glassfs.source import Path
from glassfs.tree.build import ContentDirectory, Draft
from glassfs.tree.containers.containers import Containers
from glassfs.tree.containers.selected import SelectedStore, as_stored
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, Origin, inode
from glassfs.view import ViewSet

SPOOL_SHARE = 4
"""The rows of a snapshot may take one part of so many of the bytes that all files of blocks may."""

NAMED = 16
"""Gaps that a table names."""


class RowStore:
    """The blocks of some tables: the first MiB in memory, all others in an unnamed file. One thread adds."""

    def __init__(self, cache: BlockCache) -> None:
        self.cache = cache
        self._size = 0
        self._file: IO[bytes] | None = None

    def add(self, block: bytes) -> Data:
        """Raises NoSpool if the file cannot be written, and TooLarge for too many bytes."""
        self._size += len(block)
        if self._size <= PIECE:
            return Memory(block)
        most = self.cache.spool_size // SPOOL_SHARE
        if self._size > most:
            raise TooLarge(f"rows beyond {human_size(most)} in all are left out: a larger spool_size allows more")
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self.cache.spool_directory)  # noqa: SIM115
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(block)
            self._file.flush()
        except OSError as error:
            folder = self.cache.spool_directory or tempfile.gettempdir()
            raise NoSpool(f"rows cannot be kept in the spool folder: {error.strerror}", folder) from error
        return _StoredBlock(self._file, start, len(block))


class _StoredBlock(SizedData):
    """A block in a file, which is open as long as one of its blocks is in use."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        super().__init__(size)
        self._file, self._start = file, start

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if os.preadv(self._file.fileno(), [buffer], self._start + offset) != len(buffer):
            raise NoSpool("the file of rows was cut")


class BlockTable:
    """One joined table: pieces are added, then ``close`` and ``finish`` make its ``rows``. Never changed after that.

    ``omitted`` is the number of containers with rows that not every user may read.
    """

    rows: JoinedRows

    def __init__(self, name: str, store: RowStore) -> None:
        self.name = name
        self.omitted = 0
        # Episodes have their columns before any container brings some.
        self._layout = Layout(EPISODE_ROWS if name == EPISODES else ())
        self._store = store
        self._blocks: list[Data] = []
        self._counts: list[int] = []
        self._sizes: list[Sequence[int]] = []
        self._clear()

    def add(self, placed: ContainerPiece) -> None:
        """Add a piece with rows to the last block, or to a new one if there is no space."""
        piece = placed.piece
        fits = self._count + piece.rows <= PIECE_ROWS and self._size + len(piece.data) <= BLOCK_BYTES
        if not fits:
            self.close()
        # The layout is widened before the block is complete: the block begins with the columns as they are at its end.
        self._layout.add(piece.columns)
        self._placed.append(placed)
        self._count += piece.rows
        self._size += len(piece.data)

    def close(self) -> None:
        """Complete the last block. If it cannot be kept, this raises why, and its rows are left out."""
        placed, count, size = self._placed, self._count, self._size
        self._clear()
        if placed:
            with self._store.cache.measuring(PIECE + FROM_JSON * size):
                data = self._store.add(joined_block(placed, self._layout.columns))
            self._blocks.append(data)
            self._counts.append(count)
            self._sizes.append(array("Q", JoinedBlock(data).sizes))

    def finish(self, gaps: Sequence[Gap] = (), unlisted: int = 0) -> None:
        """Make the rows of all blocks. ``unlisted`` is the number of gaps that not every user may know of."""
        gaps = [gap for gap in gaps if not gap.tables or self.name in gap.tables]
        # Of very many gaps the first ones, so that the text fits an extended attribute.
        lacking = [f"{gap.path or '.'}: {gap.error.without_source}"[:160] for gap in gaps[:NAMED]]
        if len(gaps) > NAMED:
            lacking.append(f"and {len(gaps) - NAMED:,} more")
        if self._layout.is_cut:
            lacking.append("columns are left out: there are too many")
        shown = self._layout.shown()
        features = shown.pop(FEATURES) if self.name == EPISODES else None
        omitted = self.omitted + unlisted
        self.rows = JoinedRows(self._blocks, self._counts, self._sizes, shown, features, omitted, "; ".join(lacking))

    def _clear(self) -> None:
        self._placed: list[ContainerPiece] = []
        self._count = self._size = 0


class JoinedTables(NamedTuple):
    """The joined tables of a snapshot by name. Never changed, so that no thread sees half of a change.

    ``files`` are those with rows or gaps, ``parts`` the further files of containers, both by path.
    """

    tables: Mapping[str, BlockTable]
    files: Mapping[str, SnapshotFile]
    gaps: Sequence[Gap]
    parts: Mapping[str, Sequence[Path]]


_numbers = itertools.count(1)


class Snapshot:
    """The containers below a root at one moment; ``state`` is equal for snapshots of the same files.

    If ``is_shared``, the table has only rows that every user can reach and read. ``title`` is the table's. ``on_read``
    is called once its rows are known.
    """

    def __init__(
        self, containers: Containers, walked: FileSnapshot, is_shared: bool, calls: TimedCalls,
        title: str = "", on_read: Callable[[Snapshot], object] = lambda snapshot: None,
    ) -> None:
        self.containers = containers
        self._calls = calls
        self._walked = walked.files
        self._gaps: Sequence[Gap] = walked.gaps
        self._on_read = on_read
        self.until = 0.0
        """Valid until then, whatever its age."""
        self._is_shared = is_shared
        self._locks = {False: threading.Lock(), True: threading.Lock()}
        """Of each pass: True for the table of arrays, which has one of its own, False for all others."""
        self._reading: set[bool] = set()
        """The passes that are under way."""
        self._read: dict[bool, JoinedTables] = {}
        self._expected: Sequence[str] | None = None
        self._directories: dict[tuple[str, str], str] = {}
        """Those of what the rows describe, by table and container."""
        self._shown: dict[tuple[int, str, bool], ContentDirectory] = {}
        self._lease = Lease(())
        may_have = (joined_by(file.path, True) or () for file in filter(self._may_show, walked.files))
        self.may_have_arrays = [ARRAYS] if any(ARRAYS in names for names in may_have) else []
        """The name of the table of arrays if a file may give it rows, expected or not."""
        self.is_whole = _are_lasting(walked.gaps)
        """Whether nothing is left out for a passing reason."""
        self.mtime_ns = walked.mtime_ns
        self.is_public = walked.is_public
        state = xxhash.xxh128()
        for one in walked.files:
            state.update(raw(f"{one.path}\0{one.stamp}\0{one.is_public}\0\0"))
        for gap in walked.gaps:
            state.update(raw(f"{gap.path}\0{gap.error}\0\0"))
        self.state = state.hexdigest()
        self.identity = f"joined:{next(_numbers)}"
        self.title = title
        stores = (file.location.store for file in walked.files)
        self._selection = next((store.selection for store in stores if isinstance(store, SelectedStore)), None)

    def table(self, name: str, is_first: bool = True) -> Joined:
        """Return a joined table, which may have no rows."""
        kind = partial(EpisodesTable, self) if name == EPISODES else Joined
        return kind(
            name, partial(self.rows, name), lambda container: self._directories.get((name, container)), self.title,
            is_first, self.with_rows, self._selection,
        )

    def rows(self, name: str) -> JoinedRows:
        """Return the rows of a table. The first caller reads the containers."""
        tables = self.read(name)
        table = tables.tables.get(name)
        if table is None:
            table = BlockTable(name, RowStore(self.containers.services.cache))
            table.finish(tables.gaps)
        return table.rows

    def tables(self) -> Sequence[str]:
        """Return the names of the tables that have rows: before these were read, of those that should have some.

        No container is opened for that.
        """
        found: list[str] = []
        for is_of_arrays in (False, True):
            known = self._read.get(is_of_arrays)
            names = self.expected() if known is None else _filled(known)
            found += [name for name in names if (name == ARRAYS) == is_of_arrays]
        return found

    def expected(self) -> Sequence[str]:
        """Return the names of the tables that should have rows, as far as that was known before they were read."""
        if self._expected is None:
            walked, kept = filter(self._may_show, self._walked), RowReader(self.containers, self._calls).kept_tables
            self._expected = expected_tables(self.containers, walked, kept)
        return self._expected

    def with_rows(self) -> Sequence[str]:
        """Return the names of the tables that have rows, of arrays if it may have some. Reads all other rows."""
        return [*_filled(self.read()), *self.may_have_arrays]

    def hidden(self) -> Sequence[str]:
        """Return the names of the tables with rows that are all closed. Reads the containers."""
        # Only those that formats name: other names may be secrets of the containers.
        tables = self.read().tables.values()
        return in_order(one.name for one in tables if one.omitted and not one.rows.rows and one.name in joined_names())

    def has_closed(self) -> bool:
        """Return whether not every user may still read all rows that it shows."""
        return any(closed_files(read.files.values(), read.parts, self._calls) for read in list(self._read.values()))

    def demand_readable(self, container: str) -> None:
        """Raise Changed if not every user may read a container with rows any more, if the table is shared."""
        file = self.file_of(container)
        if self._is_shared and closed_files([file], self.read().parts, self._calls):
            raise Changed("is no longer readable for every user", container)

    def directory(
        self, name: str, is_first: bool, views: ViewSet, access: Access, ino: int, volume: str,
    ) -> ContentDirectory:
        """Return the directory of what these views make of a table."""
        found = self._shown.get((ino, name, is_first))
        if found is None:
            services = self.containers.services._replace(views=views)
            # Two tables of one snapshot, and one that is shown first and not first, differ in what their views make of
            # them. The origin has no container's lease: what a view caches here goes when the snapshot is retired.
            origin = Origin(
                f"{self.identity}:{int(is_first)}:{name}", access, self.mtime_ns, services, self._lease, volume=volume,
                has_other_names=True,
            )
            group = Group(b"", lambda: [Member((raw(name),), self.table(name, is_first))])
            made = ContentDirectory("", inode(f"{name}/{is_first}", ino), origin, Draft(group))
            found = self._shown.setdefault((ino, name, is_first), made)
        return found

    def retire(self) -> None:
        """Stop caching its listings: no new caller will use it, only readers that have it open."""
        self._lease.retire(is_replaced=False)
        self.containers.services.listings.forget(self._lease)

    def file_of(self, container: str) -> SnapshotFile:
        """Return the file of a container that has rows."""
        file = self.read().files.get(container)
        if file is None:
            raise Changed("is not what it was when the table was made", container)
        return file

    def _may_show(self, part: SnapshotFile | Gap | TablePiece) -> bool:
        return part.is_public or not self._is_shared

    def read(self, name: str = EPISODES) -> JoinedTables:
        """Return the tables that are read with this one. The first caller reads the containers."""
        is_of_arrays = name == ARRAYS
        if is_of_arrays not in self._read:
            with work.holding(self._locks[is_of_arrays]):
                if is_of_arrays not in self._read:
                    # While one caller reads, which may take minutes, the snapshot stays valid for all others: they wait
                    # for its rows instead of beginning a walk of their own.
                    begun, self.until = time.monotonic(), float("inf")
                    self._reading.add(is_of_arrays)
                    try:
                        tables = self._find(is_of_arrays, begun + settings.pass_longest)
                        # Files may have been closed since the walk: it may be long ago, and reading takes time.
                        while self._is_shared and (
                            closed := closed_files(tables.files.values(), tables.parts, self._calls)
                        ):
                            self._walked = [
                                one._replace(is_public=False) if one.path in closed else one for one in self._walked
                            ]
                            tables = self._find(is_of_arrays, begun + settings.pass_longest)
                        self._read[is_of_arrays] = tables
                        if self._expected is not None:  # which a listing has shown
                            self._on_read(self)
                    finally:
                        took = time.monotonic() - begun
                        # What is missing for a moment is read again, but not at once: that may take as long.
                        longest = min(settings.table_longest_valid, settings.table_valid_times * took)
                        self._reading.discard(is_of_arrays)
                        if not self._reading:
                            self.until = 0.0 if self.is_whole else time.monotonic() + longest
        return self._read[is_of_arrays]

    def _find(self, is_of_arrays: bool, until: float) -> JoinedTables:
        """Read all containers in one pass, up to a time."""
        gaps = list(filter(self._may_show, self._gaps))
        unlisted = len(self._gaps) - len(gaps)
        tables: dict[str, BlockTable] = {}
        store = RowStore(self.containers.services.cache)
        files: dict[str, SnapshotFile] = {}
        parts: dict[str, Sequence[Path]] = {}
        # Pieces come in the order of the files' paths, and a file's pieces in that of its rows, so the rows of a table
        # are sorted without being kept in memory: each table has one block that is not complete.
        for file, pieces in RowReader(self.containers, self._calls, is_of_arrays).of_all(self._walked):
            if time.monotonic() > until:
                seconds = settings.pass_longest
                reason = f"it and others are left out: reading containers took longer than {seconds:g} seconds"
                # Users see the first gap if an attribute lacks space for all. It must not name a file that is hidden.
                gaps.insert(0, Gap(file.path if self._may_show(file) else "", Unavailable(reason)))
                break
            is_shown = self._may_show(file)
            firsts: dict[str, int] = {}
            try:
                for piece in pieces:
                    # A further file of the container, which only opening it names, may be private.
                    is_shown = is_shown and self._may_show(piece)
                    table = tables.get(piece.table)
                    if table is None:
                        table = tables[piece.table] = BlockTable(piece.table, store)
                    if is_shown and piece.errors:
                        gaps += [Gap(file.path, error, tables=(piece.table,)) for error in piece.errors[:NAMED]]
                        files[file.path] = file
                    first, rows = firsts.get(piece.table, 0), piece.piece.rows
                    first = first if piece.first is None else piece.first
                    if rows and not is_shown:
                        # Counted once for each table, with the first of the rows that are left out.
                        table.omitted += piece.table not in firsts
                    elif rows:
                        table.add(ContainerPiece(file.path, first, piece.piece))
                        parts[file.path] = piece.parts
                        files[file.path] = file
                        if piece.directory:
                            self._directories[piece.table, file.path] = piece.directory
                    firsts[piece.table] = first + rows
                    if time.monotonic() > until:
                        raise Unavailable("is left out from here on: there was no more time")
            # What was read before stays: rows are true one by one, and the gap says that some are missing. If the
            # container gave rows already, only the tables that they are in can lack some; else those for which its
            # suffix stands.
            except GlassfsError as error:
                if is_shown and not (self._is_shared and isinstance(error, Private)):
                    gaps.append(Gap(file.path, error, tables=tuple(firsts) or joined_by(file.path, True) or ()))
                    files[file.path] = file
        for table in tables.values():
            try:
                table.close()
            except GlassfsError as error:
                gaps.append(Gap("", error, tables=(table.name,)))
        for table in tables.values():
            table.finish(gaps, unlisted)
        # A table that lacks rows for a passing reason is read again soon, others only after files change.
        self.is_whole = self.is_whole and _are_lasting(gaps)
        return JoinedTables(tables, files, gaps, parts)


def _are_lasting(gaps: Sequence[Gap]) -> bool:
    return not any(isinstance(gap.error, Passing) for gap in gaps)


def _filled(read: JoinedTables) -> list[str]:
    """Return the names of the tables that have rows."""
    return in_order(name for name, table in read.tables.items() if table.rows.rows)


class EpisodesTable(Joined):
    """The joined table of episodes. Containers are opened in the version that the table has."""

    has_recordings = True

    def __init__(self, snapshot: Snapshot, *words: Any) -> None:
        super().__init__(*words)
        self._snapshot = snapshot

    @contextmanager
    def recordings(self, container: str, is_kept: bool) -> Iterator[Callable[[int], Recording]]:
        """Provide what returns a recording by its number. Raises Changed for a container that is not what it was."""
        self.demand_readable(container)
        file = self._snapshot.file_of(container)
        if is_kept:
            lease = self._snapshot.containers.leased(file.location, file.version, f"/{container}")
            with lease:
                yield _recordings(self._snapshot.containers.opened(lease).container, container)
        else:
            with self._snapshot.containers.glimpsed(file.location, file.version) as (opened, _):
                yield _recordings(opened, container)

    def demand_readable(self, container: str) -> None:
        self._snapshot.demand_readable(container)

    def found(self, container: str, name: bytes) -> bytes | None:
        file, of_steps = self._kept(container)
        is_lasting = file.location.store.has_lasting_versions
        return self._snapshot.containers.kept.find(as_stored(file.stamp), name + of_steps) if is_lasting else None

    def keep(self, container: str, name: bytes, value: bytes) -> None:
        file, of_steps = self._kept(container)
        if file.location.store.has_lasting_versions:
            self._snapshot.containers.kept.keep(as_stored(file.stamp), file.mtime_ns, name + of_steps, value)

    def _kept(self, container: str) -> tuple[SnapshotFile, bytes]:
        """Return a container's file, and what else facts about an episode depend on: which of its steps are shown."""
        file = self._snapshot.file_of(container)
        store, path = file.location
        steps = store.picks(path, file.version).steps if isinstance(store, SelectedStore) else ALL
        return file, b"" if steps == ALL else repr(steps).encode()


def _recordings(opened: Container, path: str) -> Callable[[int], Recording]:
    table = opened.episodes()
    if table is None or table.recording is None:
        raise Changed("has no episodes any more", path)
    return table.recording
