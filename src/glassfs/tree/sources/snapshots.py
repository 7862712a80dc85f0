"""The rows of all containers below a root at one moment.

Containers are read only when a caller needs the size of the table; their rows are cached as blocks of a few thousand. A
snapshot never changes: rows of a container that has changed since raise Changed. Any thread.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
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


class _Contents(NamedTuple):
    """The rows of a snapshot and what they are made of. Never changed, so that no thread sees half of a change.

    ``blocks`` are the key of each block in the cache, and its parts; ``files`` those with rows or faults, by number.
    ``rights`` are those to what a shared table shows.
    """

    rows: JoinedRows
    blocks: Sequence[tuple[str, tuple[_Part, ...]]]
    files: Mapping[int, File]
    faults: Sequence[tuple[str, GlassfsError]]
    rights: Rights | None

    def lost(self) -> set[int]:
        return self.rights.lost() & self.files.keys() if self.rights is not None else set()


class Snapshot:
    """The containers below a root at one moment. ``identity`` tells it from all other snapshots.

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
        self._directories: dict[str, str] = {}
        self._shown: dict[int, ContentDirectory] = {}
        self._lease = Lease(())
        self.is_whole = not any(isinstance(fault.error, Passing) for fault in walked.faults)
        """Whether nothing is left out for a passing reason."""
        self.mtime_ns = walked.mtime_ns
        self.is_public = walked.is_public
        files = (f"{file.path}\0{file.stamp}\0{file.is_public}" for file in walked.files)
        self.state = _hashed(itertools.chain(files, (f"{fault.path}\0{fault.error}" for fault in walked.faults)))
        self.identity = f"joined:{next(_numbers)}"
        self.table = Joined(self.found, self._directories.get, title)

    def found(self) -> JoinedRows:
        """Return its rows. The first caller reads the containers."""
        return self._read().rows

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
        faults = [(fault.path, fault.error) for fault in self._folders if fault.is_public or not self._is_shared]
        omitted = len(self._folders) - len(faults)
        block = _Block()
        blocks: list[tuple[str, tuple[_Part, ...]]] = []
        sizes = array("Q")
        faulted: set[int] = set()
        further: dict[int, Sequence[tuple[Path, str]]] = {}

        def close() -> None:
            files = [self._walked[part.file] for part in block.parts]
            key = _key(files, block.parts)
            data = self._kept(key, partial(joined_block, block.placed), block.size)
            sizes.extend(sizes_of(data))
            blocks.append((key, tuple(block.parts)))
            block.clear()

        rows, is_whole = 0, self.is_whole
        for number, pieces in Rows(self._containers, self._calls).of_all(self._walked):
            file, first = self._walked[number], 0
            is_shown = file.is_public or not self._is_shared
            if self._clock() > until:
                reason = f"it and others are left out: reading containers took longer than {PASS_SECONDS:g} seconds"
                faults.insert(0, (file.path if is_shown else "", Unavailable(reason)))
                is_whole = False
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
                is_whole = is_whole and not isinstance(error, Passing)
            rows += first if is_shown else 0
        if block.parts:
            close()
        used = {part.file for _, parts in blocks for part in parts} | faulted
        files = {number: self._walked[number] for number in used}
        rights = Rights(self._containers.watcher, self._calls, files, further) if self._is_shared else None
        found = JoinedRows(rows, len(blocks), self._block, sizes, omitted, _sentence(faults))
        self.is_whole = is_whole
        return _Contents(found, blocks, files, faults, rights)

    def current(self) -> Snapshot:
        """Return a snapshot without the containers that not every user may read any more; itself if there is none."""
        contents = self._contents
        lost = contents.lost() if contents is not None else set()
        if contents is None or not lost:
            return self
        left = copy(self)
        left._lock, left._shown, left._lease = threading.Lock(), {}, Lease(())
        left.identity = f"joined:{next(_numbers)}"
        left.state = _hashed([self.state, *map(str, sorted(lost))])
        left.table = Joined(left.found, left._directories.get, self.table.title)
        left._contents = left._without(lost, contents)
        return left

    def _without(self, lost: set[int], contents: _Contents) -> _Contents:
        """Return the contents of all other containers. Only blocks that have rows of these change."""
        found, before_blocks, files, before_faults, rights = contents
        names = {files[number].path for number in lost}
        faults = [(path, error) for path, error in before_faults if path not in names]
        shown = {part.file for _, parts in before_blocks for part in parts}
        blocks: list[tuple[str, tuple[_Part, ...]]] = []
        sizes = array("Q")
        for number, (key, parts) in enumerate(before_blocks):
            left = tuple(part for part in parts if part.file not in lost)
            before = _sizes_at(found.sizes, number)
            if left == parts:
                sizes.extend(before)
            elif left:
                # Not ``_block``, which may wait for the caller of this.
                whole = self._kept(key, partial(self._made_again, files, parts), sum(before))
                key = _key([files[part.file] for part in left], left)
                try:
                    sizes.extend(sizes_of(self._kept(key, partial(block_without, whole, names), sum(before))))
                except GlassfsError as error:  # changed since: the next snapshot has these rows
                    faults.append((files[left[0].file].path, error))
                    continue
            if left:
                blocks.append((key, left))
        count = sum(part.rows for _, parts in blocks for part in parts)
        omitted = found.omitted + len(lost & shown)
        rows = JoinedRows(count, len(blocks), self._block, sizes, omitted, _sentence(faults))
        return _Contents(rows, blocks, {at: file for at, file in files.items() if at not in lost}, faults, rights)

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
        contents = self._read()
        key, parts = contents.blocks[number]
        make = partial(self._made_again, contents.files, parts)
        return self._kept(key, make, sum(_sizes_at(contents.rows.sizes, number)))

    def _kept(self, key: str, make: Callable[[], bytes], size: int) -> Data:
        """Return the data of a block, made of pieces of so many bytes."""
        return Rendered(self._containers.services.cache, (key, NAME), make, cost=PIECE + FROM_JSON * size)

    def _made_again(self, files: Mapping[int, File], parts: Sequence[_Part]) -> bytes:
        wanted = [(files[part.file], part.number, part.block) for part in parts]
        placed = []
        for part, piece in zip(parts, Rows(self._containers).again(wanted), strict=True):
            file = files[part.file]
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
    digest = xxhash.xxh128()
    for word in words:
        digest.update(raw(word) + b"\0\0")
    return digest.hexdigest()


def _sentence(faults: Sequence[tuple[str, GlassfsError]]) -> str:
    """Return what is left out, and why; of very many faults the first ones."""
    texts = [f"{path or '.'}: {error.without_source}"[:FAULT_CHARACTERS] for path, error in faults[:MOST_FAULTS]]
    if len(faults) > MOST_FAULTS:
        texts.append(f"and {len(faults) - MOST_FAULTS:,} more")
    return "; ".join(texts)
