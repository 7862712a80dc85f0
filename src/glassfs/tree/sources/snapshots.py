"""The rows of all containers below a root at one moment.

Containers are read only when a caller needs the size of the table; their rows are cached as blocks of a few thousand. A
snapshot never changes: rows of a container that has changed since raise Changed. Any thread.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
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
    NAME,
    PIECE_ROWS,
    SIZES,
    ContainerPiece,
    Joined,
    JoinedRows,
    Piece,
    block_without,
    joined_block,
    sizes_of,
)
from glassfs.errors import Damaged, GlassfsError, Passing, Unavailable
from glassfs.names import raw
from glassfs.source import Path
from glassfs.tree.build import ContentDirectory, Draft
from glassfs.tree.containers.containers import Containers
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, Origin
from glassfs.tree.sources.rights import Rights
from glassfs.tree.sources.rows import Rows
from glassfs.tree.sources.timed_calls import TimedCalls
from glassfs.tree.sources.walk import File, FileSnapshot
from glassfs.view import ViewSet

CHECK_SECONDS, CHECK_SHARE = 0.4, 4
"""Rights are checked again after this time, or that many times as long as a check takes if that is more."""
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
    """A piece of a file's table in a block: its number, first row, row count, and first block in that table."""

    file: int
    number: int
    first: int
    rows: int
    block: int


class Snapshot:
    """The containers below a root at one moment. ``identity`` tells it from all other snapshots.

    If ``is_shared``, the table has only rows that every user can reach and read. ``state`` is equal for snapshots of
    the same files.
    """

    def __init__(
        self, containers: Containers, walked: FileSnapshot, is_shared: bool, calls: TimedCalls,
        clock: Callable[[], float],
    ) -> None:
        self._containers = containers
        self._calls = calls
        self._files = dict(enumerate(walked.files))
        self._folders = walked.faults
        self._clock = clock
        self.until = 0.0
        """Valid until then, whatever its age."""
        self.as_of = 0.0
        """Before this time, no rights were looked at."""
        self._is_shared = is_shared
        self._lock = threading.Lock()
        self._found: JoinedRows | None = None
        self._blocks: list[tuple[str, tuple[_Part, ...]]] = []
        """The key of each block in the cache, and its parts."""
        self._directories: dict[str, str] = {}
        self._shown: dict[int, ContentDirectory] = {}
        self._lease = Lease(())
        self._faults: list[tuple[str, GlassfsError]] = []
        self._rights: Rights | None = None
        """The rights to what a shared table shows."""
        self.is_whole = not any(isinstance(fault.error, Passing) for fault in walked.faults)
        """Whether nothing is left out for a passing reason."""
        self.mtime_ns = walked.mtime_ns
        self.is_public = walked.is_public
        words = [f"{file.path}\0{file.stamp}\0{file.is_public}" for file in walked.files]
        words += [f"{fault.path}\0{fault.error}" for fault in walked.faults]
        self.state = _hashed(words)
        self.identity = f"joined:{next(_numbers)}"
        self.table = Joined(self.found, self._directories.get)

    def found(self) -> JoinedRows:
        """Return its rows. The first caller reads the containers."""
        if self._found is None:
            with work.holding(self._lock):
                if self._found is None:
                    begun, self.until = self._clock(), float("inf")
                    try:
                        found = self._find(begun + PASS_SECONDS)
                        # The walk may be long ago, and reading takes time.
                        lost = self._lost() if self._clock() > self.as_of + CHECK_SECONDS else set()
                        self._found = self._without(lost, found) if lost else found
                    finally:
                        self._calls.close()
                        took = self._clock() - begun
                        self.until = 0.0 if self.is_whole else self._clock() + min(LONGEST_AGE_SECONDS, AGE * took)
        return self._found

    def _find(self, until: float) -> JoinedRows:
        faults = [(fault.path, fault.error) for fault in self._folders if fault.is_public or not self._is_shared]
        omitted = len(self._folders) - len(faults)
        block = _Block()
        sizes = array("Q")
        faulted: set[int] = set()
        further: dict[int, Sequence[tuple[Path, str]]] = {}

        def close() -> None:
            files = [self._files[part.file] for part in block.parts]
            key = _key(files, block.parts)
            data = self._kept(key, partial(joined_block, block.placed), block.size)
            sizes.extend(sizes_of(data))
            self._blocks.append((key, tuple(block.parts)))
            block.clear()

        rows = 0
        self._blocks.clear()
        for number, pieces in Rows(self._containers, self._calls).of_all(list(self._files.values())):
            file, first = self._files[number], 0
            is_shown = file.is_public or not self._is_shared
            if self._clock() > until:
                reason = f"it and others are left out: reading containers took longer than {PASS_SECONDS:g} seconds"
                faults.insert(0, (file.path if is_shown else "", Unavailable(reason)))
                self.is_whole = False
                break
            try:
                for episodes in pieces:
                    piece, count = episodes.piece, episodes.piece.rows
                    is_shown = is_shown and (episodes.is_public or not self._is_shared)
                    omitted += not is_shown and count > 0 and not first
                    if is_shown and count:
                        if not block.has_room(piece):
                            close()
                        part = _Part(number, episodes.number, first, count, piece.block)
                        block.add(part, ContainerPiece(file.path, first, piece))
                        further[number] = episodes.parts
                        if episodes.directory:
                            self._directories[file.path] = episodes.directory
                    first += count
                    if self._clock() > until:
                        raise Unavailable("is left out from here on: there was no more time")
            except GlassfsError as error:
                if is_shown:
                    faults.append((file.path, error))
                    faulted.add(number)
                self.is_whole = self.is_whole and not isinstance(error, Passing)
            rows += first if is_shown else 0
        if block.parts:
            close()
        used = {part.file for _, parts in self._blocks for part in parts} | faulted
        self._files = {number: self._files[number] for number in used}
        self._faults = faults
        if self._is_shared:
            self._rights = Rights(self._containers.watcher, self._calls, self._files, further)
        return JoinedRows(rows, len(self._blocks), self._block, sizes, omitted, _sentence(faults))

    def current(self) -> Snapshot:
        """Return a snapshot without the containers that not every user may read any more; itself if there is none."""
        found, lost = self._found, self._lost() if self._found is not None else set()
        if found is None or not lost:
            return self
        left = copy(self)
        left._lock, left._shown, left._lease = threading.Lock(), {}, Lease(())
        left.identity = f"joined:{next(_numbers)}"
        left.state = _hashed([self.state, *map(str, sorted(lost))])
        left.table = Joined(left.found, left._directories.get)
        left._found = left._without(lost, found)
        return left

    def _lost(self) -> set[int]:
        return self._rights.lost() & self._files.keys() if self._rights is not None else set()

    def _without(self, lost: set[int], found: JoinedRows) -> JoinedRows:
        """Return the rows of all other containers. Only blocks that have rows of these change."""
        names = {self._files[number].path for number in lost}
        faults = [(path, error) for path, error in self._faults if path not in names]
        shown = {part.file for _, parts in self._blocks for part in parts}
        blocks: list[tuple[str, tuple[_Part, ...]]] = []
        sizes = array("Q")
        for number, (key, parts) in enumerate(self._blocks):
            left = tuple(part for part in parts if part.file not in lost)
            before = _sizes_at(found.sizes, number)
            if left == parts:
                sizes.extend(before)
            elif left:
                # Not ``_block``, which may wait for the caller of this.
                whole = self._kept(key, partial(self._made_again, parts), sum(before))
                key = _key([self._files[part.file] for part in left], left)
                try:
                    sizes.extend(sizes_of(self._kept(key, partial(block_without, whole, names), sum(before))))
                except GlassfsError as error:  # changed since: the next snapshot has these rows
                    faults.append((self._files[left[0].file].path, error))
                    continue
            if left:
                blocks.append((key, left))
        self._blocks, self._faults = blocks, faults
        self._files = {number: file for number, file in self._files.items() if number not in lost}
        rows = sum(part.rows for _, parts in blocks for part in parts)
        omitted = found.omitted + len(lost & shown)
        return JoinedRows(rows, len(blocks), self._block, sizes, omitted, _sentence(faults))

    def directory(self, views: ViewSet, access: Access, ino: int, volume: str) -> ContentDirectory:
        """Return the directory of what these views make of the table."""
        found = self._shown.get(ino)
        if found is None:
            services = self._containers.services._replace(views=views)
            origin = Origin(
                self.identity, access, self.mtime_ns, services, self._lease, volume=volume, has_other_names=True,
            )
            group = Group(b"", lambda: [Member((NAME,), self.table)])
            found = self._shown.setdefault(ino, ContentDirectory("", ino, origin, Draft(group)))
        return found

    def retire(self) -> None:
        """Stop caching its listings: no new caller will use it, only readers that have it open."""
        self._lease.retire(is_replaced=False)
        self._containers.services.listings.forget(self._lease)

    def _block(self, number: int) -> Data:
        key, parts = self._blocks[number]
        return self._kept(key, partial(self._made_again, parts), sum(_sizes_at(self.found().sizes, number)))

    def _kept(self, key: str, make: Callable[[], bytes], size: int) -> Data:
        """Return the data of a block, made of pieces of so many bytes."""
        return Rendered(self._containers.services.cache, (key, NAME), make, cost=PIECE + FROM_JSON * size)

    def _made_again(self, parts: Sequence[_Part]) -> bytes:
        wanted = [(self._files[part.file], part.number, part.block) for part in parts]
        placed = []
        for part, piece in zip(parts, Rows(self._containers).again(wanted), strict=True):
            file = self._files[part.file]
            if piece is None or piece.rows != part.rows:
                raise Damaged("has other rows than before", file.path)
            placed.append(ContainerPiece(file.path, part.first, piece))
        return joined_block(placed)


class _Block:
    """A block under construction."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.parts: list[_Part] = []
        self.placed: list[ContainerPiece] = []
        self.rows = self.size = 0

    def has_room(self, piece: Piece) -> bool:
        """Whether the piece still fits; an empty block accepts any piece."""
        fits = self.rows + piece.rows <= PIECE_ROWS and self.size + len(piece.data) <= BLOCK_BYTES
        return fits or not self.parts

    def add(self, part: _Part, placed: ContainerPiece) -> None:
        self.parts.append(part)
        self.placed.append(placed)
        self.rows += part.rows
        self.size += len(placed.piece.data)


def _key(files: Sequence[File], parts: Sequence[_Part]) -> str:
    """Return the key of a block of these parts, each of which is of the file with the same index."""
    return _hashed(f"{file.path}\0{file.stamp}\0{part[1:]}" for file, part in zip(files, parts, strict=True))


def _sizes_at(sizes: Sequence[int], number: int) -> Sequence[int]:
    """Return the sizes of one block."""
    return sizes[number * SIZES : (number + 1) * SIZES]


def _hashed(words: Iterable[str]) -> str:
    return xxhash.xxh128_hexdigest(raw("\0\0".join(words)))


def _sentence(faults: Sequence[tuple[str, GlassfsError]]) -> str:
    """Return what is left out, and why; of very many faults the first ones."""
    texts = [f"{path or '.'}: {error.without_source}"[:FAULT_CHARACTERS] for path, error in faults[:MOST_FAULTS]]
    if len(faults) > MOST_FAULTS:
        texts.append(f"and {len(faults) - MOST_FAULTS:,} more")
    return "; ".join(texts)
