"""The rows of all containers below a root at one moment.

Containers are read only when a caller needs the size of the table; their rows are cached as blocks of a few thousand. A
snapshot never changes: rows of a container that has changed since raise Changed. Any thread.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from functools import partial
from typing import NamedTuple

import xxhash

from glassfs import work
from glassfs.content import Group, Member, Rendered
from glassfs.content.data import PIECE, Data
from glassfs.content.join import (
    BLOCK_BYTES,
    FROM_JSON,
    Joined,
    JoinedColumn,
    JoinedRows,
    Layout,
    block_without,
    joined_block,
    sizes_of,
)
from glassfs.content.pieces import PIECE_ROWS, ContainerPiece
from glassfs.content.summary import EPISODE_ROWS, EPISODES, FEATURES
from glassfs.datasets.files import CHECK_SECONDS, CHECK_SHARE, File, FileSnapshot
from glassfs.datasets.formats import Formats, in_order
from glassfs.datasets.recordings import Recordings
from glassfs.datasets.rights import Rights
from glassfs.datasets.rows import Rows, Wanted
from glassfs.datasets.timed_calls import TimedCalls
from glassfs.errors import Changed, Damaged, GlassfsError, Passing, Unavailable
from glassfs.formats.registry import joined_by
from glassfs.names import raw
from glassfs.source import Path
from glassfs.tree.build import ContentDirectory
from glassfs.tree.containers.containers import Containers
from glassfs.tree.draft import Draft
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, Origin, inode
from glassfs.view import ViewSet

AGE = 10
"""A snapshot is valid for this many times as long as it took."""
LONGEST_AGE_SECONDS = 3600.0
"""The longest that an incomplete snapshot is valid."""
PASS_SECONDS = 600.0
"""Time after which the remaining containers are left out."""
MOST_FAULTS = 16
FAULT_CHARACTERS = 160
"""Faults in the error of a table, and characters of each."""
_numbers = itertools.count(1)


class _Part(NamedTuple):
    """A piece of a file's rows in a block: its number, first row, row count, and first block in the container's table.

    The bits of ``columns`` are the numbers of its columns in the joined table.
    """

    file: int
    number: int
    first: int
    rows: int
    block: int
    columns: int


class _Block(NamedTuple):
    """A block of a joined table: its key in the cache, its parts, and the columns at its beginning."""

    key: str
    parts: tuple[_Part, ...]
    head: bytes


class _Made(NamedTuple):
    """The rows of one joined table and what they are made of."""

    rows: JoinedRows
    blocks: Sequence[_Block]
    layout: Layout


class _Contents(NamedTuple):
    """The rows of a snapshot and what they are made of. Never changed, so that no thread sees half of a change.

    ``tables`` are the joined tables by name; ``files`` those with rows or faults, by number. ``rights`` are those to
    what a shared table shows.
    """

    tables: Mapping[str, _Made]
    files: Mapping[int, File]
    faults: Sequence[_Fault]
    rights: Rights | None

    def lost(self) -> set[int]:
        return self.rights.lost() & self.files.keys() if self.rights is not None else set()


class _Fault(NamedTuple):
    """What is missing in the tables called ``tables``, or in all if there are none, and why."""

    path: str
    error: GlassfsError
    tables: Sequence[str] = ()


class Snapshot:
    """The containers below a root at one moment. ``identity`` distinguishes it from all other snapshots.

    If ``is_shared``, the table has only rows that every user can reach and read. ``state`` is equal for snapshots of
    the same files. ``title`` is the table's.
    """

    def __init__(
        self, containers: Containers, walked: FileSnapshot, is_shared: bool, calls: TimedCalls,
        clock: Callable[[], float], title: str = "",
    ) -> None:
        self._containers = containers
        self._calls = calls
        self._walked: Sequence[File] = walked.files
        """All files, until they were read."""
        self._folders = walked.faults
        self._clock = clock
        self.until = 0.0
        """Valid until then, whatever its age."""
        self.as_of = 0.0
        """Before this time, no rights were looked at."""
        self._is_shared = is_shared
        self._lock = threading.Lock()
        self._contents: _Contents | None = None
        self._expected: Sequence[str] | None = None
        self._directories: dict[tuple[str, str], str] = {}
        """Those of what the rows describe, by table and container."""
        self._shown: dict[tuple[int, str, bool], ContentDirectory] = {}
        self._lease = Lease(())
        self._by_path: dict[str, int] | None = None
        self._closed: AbstractSet[str] = frozenset()
        """Containers that not every user may read any more, as of ``_compared``."""
        self._compared = float("-inf")
        self.is_whole = not any(isinstance(fault.error, Passing) for fault in walked.faults)
        """Whether nothing is left out for a passing reason."""
        self.mtime_ns = walked.mtime_ns
        self.is_public = walked.is_public
        files = (f"{file.path}\0{file.stamp}\0{file.is_public}" for file in walked.files)
        self.state = _hashed(itertools.chain(files, (f"{fault.path}\0{fault.error}" for fault in walked.faults)))
        self.identity = f"joined:{next(_numbers)}"
        self.title = title

    def table(self, name: str, is_first: bool = True) -> Joined:
        """Return a joined table, which may have no rows."""

        def directory_of(container: str) -> str | None:
            return self._directories.get((name, container))

        opened = Recordings(self._containers, self._file_of, self._demand_public) if name == EPISODES else None
        return Joined(name, partial(self.found, name), directory_of, self.title, is_first, self.with_rows, opened)

    def _file_of(self, container: str) -> File:
        """Return the file of a container that has rows."""
        contents = self._read()
        if self._by_path is None:
            self._by_path = {file.path: number for number, file in contents.files.items()}
        number = self._by_path.get(container)
        if number is None:
            raise Changed("is not what it was when the table was made", container)
        return contents.files[number]

    def _demand_public(self, container: str) -> None:
        """Raise Changed if not every user may read a container of a shared table any more."""
        contents = self._read()
        if contents.rights is None:
            return
        now = self._clock()
        if now > self._compared + CHECK_SECONDS:
            self._compared = now
            lost = contents.lost()
            self._closed = {contents.files[number].path for number in lost}
            self._compared = self._clock() + (CHECK_SHARE - 1) * (self._clock() - now)
        if container in self._closed:
            raise Changed("is no longer readable for every user", container)

    def found(self, name: str) -> JoinedRows:
        """Return the rows of a table. The first caller reads the containers."""
        contents = self._read()
        made = contents.tables.get(name)
        if made is None:
            error = _sentence(contents.faults, name)
            return JoinedRows(0, 0, partial(self._block, name), (), *_shown(name, _layout(name), -1), 0, error)
        return made.rows

    def tables(self, formats: Formats) -> Sequence[str]:
        """Return the names of the tables that have rows: before these were read, of those that should have some.

        No container is opened for that: the suffixes of files decide, or for the first files with others
        their first bytes.
        """
        return self.expected(formats) if self._contents is None else self.with_rows()

    def expected(self, formats: Formats) -> Sequence[str]:
        """Return the names of the tables that should have rows, as far as that was known before they were read."""
        if self._expected is None:
            if self._contents is not None:
                return self.with_rows()
            files = [file for file in self._walked if file.is_public or not self._is_shared]
            self._expected = in_order(formats.tables_of(files))
        return self._expected

    def with_rows(self) -> Sequence[str]:
        """Return the names of the tables that have rows. Reads the containers."""
        return in_order(name for name, made in self._read().tables.items() if made.rows.rows)

    def _read(self) -> _Contents:
        if self._contents is None:
            with work.holding(self._lock):
                if self._contents is None:
                    begun, self.until = self._clock(), float("inf")
                    try:
                        found = self._find(begun + PASS_SECONDS)
                        # The walk may be long ago, and reading takes time.
                        lost = found.lost() if self._clock() > self.as_of + CHECK_SECONDS else set()
                        self._contents = self._without(lost, found) if lost else found
                        self._walked = ()
                    finally:
                        self._calls.close()
                        took = self._clock() - begun
                        self.until = 0.0 if self.is_whole else self._clock() + min(LONGEST_AGE_SECONDS, AGE * took)
        return self._contents

    def _find(self, until: float) -> _Contents:
        faults = [_Fault(fault.path, fault.error) for fault in self._folders if fault.is_public or not self._is_shared]
        unlisted = len(self._folders) - len(faults)
        tables: dict[str, _Growing] = {}
        faulted: set[int] = set()
        further: dict[int, Sequence[tuple[Path, str]]] = {}
        is_whole = self.is_whole
        for number, pieces in Rows(self._containers, self._calls).of_all(self._walked):
            file = self._walked[number]
            is_shown = file.is_public or not self._is_shared
            if self._clock() > until:
                reason = f"it and others are left out: reading containers took longer than {PASS_SECONDS:g} seconds"
                faults.insert(0, _Fault(file.path if is_shown else "", Unavailable(reason)))
                is_whole = False
                break
            firsts: dict[str, int] = {}
            try:
                for found in pieces:
                    table, piece, count = found.table, found.piece, found.piece.rows
                    first = firsts.get(table, 0)
                    is_shown = is_shown and (found.is_public or not self._is_shared)
                    growing = tables.get(table)
                    if growing is None:
                        growing = tables[table] = _Growing(table, self._walked, self._kept)
                    if count and not is_shown:
                        growing.omitted += not first
                    elif count:
                        growing.add(number, found.number, ContainerPiece(file.path, first, piece))
                        further[number] = found.parts
                        if found.directory:
                            self._directories[table, file.path] = found.directory
                    firsts[table] = first + count
                    if self._clock() > until:
                        raise Unavailable("is left out from here on: there was no more time")
            except GlassfsError as error:
                if is_shown:
                    faults.append(_Fault(file.path, error, tuple(firsts) or joined_by(file.path) or ()))
                    faulted.add(number)
                is_whole = is_whole and not isinstance(error, Passing)
        for growing in tables.values():
            growing.close()
        used = {part.file for one in tables.values() for block in one.blocks for part in block.parts} | faulted
        files = {number: self._walked[number] for number in used}
        rights = Rights(self._containers.watcher, self._calls, files, further) if self._is_shared else None
        made = {name: self._made(name, one, unlisted + one.omitted, faults) for name, one in tables.items()}
        self.is_whole = is_whole
        return _Contents(made, files, faults, rights)

    def _made(self, name: str, found: _Growing, omitted: int, faults: Sequence[_Fault]) -> _Made:
        """Return a table of blocks."""
        columns = rows = 0
        for block in found.blocks:
            for part in block.parts:
                columns |= part.columns
                rows += part.rows
        error = _sentence(faults, name)
        if found.layout.is_cut:
            error = "; ".join(filter(None, [error, "columns are left out: there are too many"]))
        shown, features = _shown(name, found.layout, columns)
        block_of = partial(self._block, name)
        made = JoinedRows(rows, len(found.blocks), block_of, found.sizes, shown, features, omitted, error)
        return _Made(made, found.blocks, found.layout)

    def current(self) -> Snapshot:
        """Return a snapshot without the containers that not every user may read any more; itself if there is none."""
        contents = self._contents
        lost = contents.lost() if contents is not None else set()
        if contents is None or not lost:
            return self
        left = copy(self)
        left._lock, left._shown, left._lease, left._by_path = threading.Lock(), {}, Lease(()), None
        left.identity = f"joined:{next(_numbers)}"
        left.state = _hashed([self.state, *map(str, sorted(lost))])
        left._expected = None
        left._contents = left._without(lost, contents)
        return left

    def _without(self, lost: set[int], contents: _Contents) -> _Contents:
        """Return the contents of all other containers. Only blocks that have rows of these change."""
        files, rights = contents.files, contents.rights
        names = {files[number].path for number in lost}
        faults = [fault for fault in contents.faults if fault.path not in names]
        found: dict[str, tuple[_Growing, int]] = {}
        for name, (rows, blocks, layout) in contents.tables.items():
            left = _Growing(name, files, self._kept, layout)
            shown = {part.file for block in blocks for part in block.parts}
            for block, sizes in zip(blocks, rows.sizes, strict=True):
                try:
                    self._take(left, files, block, sizes, lost)
                except GlassfsError as error:  # changed since: the next snapshot has these rows
                    at = next(part.file for part in block.parts if part.file not in lost)
                    faults.append(_Fault(files[at].path, error, (name,)))
            found[name] = left, rows.omitted + len(lost & shown)
        tables = {name: self._made(name, left, omitted, faults) for name, (left, omitted) in found.items()}
        return _Contents(tables, {at: file for at, file in files.items() if at not in lost}, faults, rights)

    def _take(
        self, left: _Growing, files: Mapping[int, File], block: _Block, sizes: Sequence[int], lost: set[int],
    ) -> None:
        """Add a block without the rows of some files."""
        parts = tuple(part for part in block.parts if part.file not in lost)
        if parts == block.parts:
            left.blocks.append(block)
            left.sizes.append(sizes)
        elif parts:
            # Not ``_block``, which may wait for the caller of this.
            make = partial(self._made_again, left.name, files, block)
            whole = self._kept(left.name, block.key, make, sum(sizes))
            names = {files[number].path for number in lost}
            made = block._replace(parts=parts, key=_key(files, parts, block.head))
            data = self._kept(left.name, made.key, partial(block_without, whole, names), sum(sizes))
            left.sizes.append(array("Q", sizes_of(data)))
            left.blocks.append(made)

    def directory(
        self, name: str, is_first: bool, views: ViewSet, access: Access, ino: int, volume: str,
    ) -> ContentDirectory:
        """Return the directory of what these views make of a table."""
        found = self._shown.get((ino, name, is_first))
        if found is None:
            services = self._containers.services._replace(views=views)
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
        self._containers.services.listings.forget(self._lease)

    def _block(self, name: str, number: int) -> Data:
        contents = self._read()
        made = contents.tables[name]
        block = made.blocks[number]
        make = partial(self._made_again, name, contents.files, block)
        return self._kept(name, block.key, make, sum(made.rows.sizes[number]))

    def _kept(self, name: str, key: str, make: Callable[[], bytes], size: int) -> Data:
        """Return the data of a block, made of pieces of so many bytes."""
        return Rendered(self._containers.services.cache, (key, name), make, cost=PIECE + FROM_JSON * size)

    def _made_again(self, name: str, files: Mapping[int, File], block: _Block) -> bytes:
        wanted = [Wanted(files[part.file], name, part.number, part.block) for part in block.parts]
        placed = []
        for part, piece in zip(block.parts, Rows(self._containers).again(wanted), strict=True):
            file = files[part.file]
            if piece is None or piece.rows != part.rows:
                raise Damaged("has other rows than before", file.path)
            placed.append(ContainerPiece(file.path, part.first, piece))
        return joined_block(placed, block.head)


class _Growing:
    """A joined table under construction. ``keep`` returns the data of a block, given its table, key, maker and size."""

    def __init__(
        self, name: str, files: Sequence[File] | Mapping[int, File],
        keep: Callable[[str, str, Callable[[], bytes], int], Data], layout: Layout | None = None,
    ) -> None:
        self.name = name
        self.files = files
        self.layout = layout or _layout(name)
        self.blocks: list[_Block] = []
        self.sizes: list[Sequence[int]] = []
        self.omitted = 0
        self._keep = keep
        self._clear()

    def add(self, file: int, number: int, placed: ContainerPiece) -> None:
        """Add a piece to the last block, or to a new one if there is no space."""
        piece = placed.piece
        fits = self._rows + piece.rows <= PIECE_ROWS and self._size + len(piece.data) <= BLOCK_BYTES
        if self._parts and not fits:
            self.close()
        self._parts.append(_Part(file, number, placed.first, piece.rows, piece.block, self.layout.add(piece.columns)))
        self._placed.append(placed)
        self._rows += piece.rows
        self._size += len(piece.data)

    def close(self) -> None:
        """Complete the last block."""
        if not self._parts:
            return
        head = self.layout.head
        key = _key(self.files, self._parts, head)
        data = self._keep(self.name, key, partial(joined_block, self._placed, head), self._size)
        self.sizes.append(array("Q", sizes_of(data)))
        self.blocks.append(_Block(key, tuple(self._parts), head))
        self._clear()

    def _clear(self) -> None:
        self._parts: list[_Part] = []
        self._placed: list[ContainerPiece] = []
        self._rows = self._size = 0


def _layout(name: str) -> Layout:
    """Return the columns that a table has before any container brings some."""
    return Layout(EPISODE_ROWS if name == EPISODES else ())


def _shown(name: str, layout: Layout, columns: int) -> tuple[dict[str, JoinedColumn], JoinedColumn | None]:
    """Return the columns that a table shows, of those with some numbers, and the column of features."""
    if name != EPISODES:
        return layout.shown(columns), None
    shown = layout.shown(-1)
    features = shown.pop(FEATURES)
    return shown, features


def _key(files: Sequence[File] | Mapping[int, File], parts: Sequence[_Part], head: bytes) -> str:
    """Return the key of a block of these parts."""
    described = (f"{files[part.file].path}\0{files[part.file].stamp}\0{part[1:]}" for part in parts)
    return _hashed(itertools.chain([head.decode()], described))


def _hashed(words: Iterable[str]) -> str:
    digest = xxhash.xxh128()
    for word in words:
        digest.update(raw(word) + b"\0\0")
    return digest.hexdigest()


def _sentence(all_faults: Sequence[_Fault], table: str) -> str:
    """Return what a table lacks, and why; of very many faults the first ones."""
    faults = [fault for fault in all_faults if not fault.tables or table in fault.tables]
    texts = [f"{path or '.'}: {error.without_source}"[:FAULT_CHARACTERS] for path, error, _ in faults[:MOST_FAULTS]]
    if len(faults) > MOST_FAULTS:
        texts.append(f"and {len(faults) - MOST_FAULTS:,} more")
    return "; ".join(texts)
