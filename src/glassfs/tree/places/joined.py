"""The episodes of all containers below a root as one table, and the views of it beside what is in that root.

A snapshot of what is below is taken when somebody looks, and is good for a while: at least a second, and ten times as
long as taking it took. It looks into no file. That is done once somebody wants the size of a table: then each container
is asked for its rows, a few thousand at a time, which the cache keeps. A snapshot never changes; what cannot be told
of it any more, as a container has changed, is Changed. Any thread: those who need the same wait for one of them, and
nobody else does.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from copy import copy
from functools import partial
from typing import NamedTuple

import xxhash

from glassfs.content import Group, Member, Rendered, Table
from glassfs.content.data import Data
from glassfs.content.join import NAME, PIECE_ROWS, Found, Joined, Piece, Placed, joined_block, pieces_of
from glassfs.errors import Damaged, GlassfsError, NotFound, Passing, Unrecognised
from glassfs.tree.build import ContentDirectory, Draft
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, Directory, Node, Origin, inode
from glassfs.tree.places.containers import Containers
from glassfs.tree.places.folder import ContainerDirectory, Folder
from glassfs.tree.places.walk import File, Start, Walk
from glassfs.view import ViewSet
from glassfs.view.names import component

LEAST_AGE = 1.0
AGE = 10
"""A snapshot is good for so many times as long as it took."""
MOST_FAULTS = 16
LONGEST_FAULT = 160
"""Letters that the error of a table has for each of these."""
BLOCK_COST, ROWS_COST = 64 << 10, 32
"""The memory that the rows of a block may take: for each, and for each byte that is kept of it."""


class _Part(NamedTuple):
    """Rows of a block: of which file, the first of them, how many, and the block of the file's own table it is in."""

    file: int
    first: int
    rows: int
    block: int


class _Told(NamedTuple):
    """What a container tells of itself with each piece."""

    directory: str
    is_public: bool
    piece: Piece


class Snapshot:
    """What was below a root at one moment. ``identity`` tells it from others.

    If ``is_shared``, the table has only what everybody can come to and read.
    """

    def __init__(self, containers: Containers, walk: Walk, is_shared: bool) -> None:
        self._containers = containers
        self._files: Sequence[File] = walk.files
        self._folders = walk.faults
        self._is_shared = is_shared
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._blocks: list[tuple[_Part, ...]] = []
        self._directories: dict[str, str] = {}
        self._shown: dict[int, ContentDirectory] = {}
        self._is_whole = not any(isinstance(fault.error, Passing) for fault in walk.faults)
        self.mtime_ns = walk.mtime_ns
        self.is_public = walk.is_public
        words = [f"{file.path}\0{file.stamp}\0{file.is_public}" for file in walk.files]
        words += [f"{fault.path}\0{fault.error}" for fault in walk.faults]
        self.identity = _hashed([f"{is_shared}", *words])
        self.table = Joined(self.found, self._directories.get)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing that may be there the next time one looks."""
        return self._is_whole

    def found(self) -> Found:
        """Its rows, counted by the first who asks."""
        if self._found is None:
            with self._lock:
                if self._found is None:
                    self._found = self._find()
        return self._found

    def _find(self) -> Found:
        omitted = 0
        faults = [(fault.path, fault.error) for fault in self._folders if fault.is_public or not self._is_shared]
        omitted += len(self._folders) - len(faults)
        block = _Block()
        costs = array("Q")

        def close() -> None:
            data = self._kept(tuple(block.parts), partial(joined_block, block.placed))
            costs.append(BLOCK_COST + ROWS_COST * data.size)
            self._blocks.append(tuple(block.parts))
            block.clear()

        rows = 0
        self._blocks.clear()
        for number, file in enumerate(self._files):
            first = 0
            is_shown = file.is_public or not self._is_shared
            try:
                for directory, is_public, piece in self._told(file):
                    is_shown = is_shown and (is_public or not self._is_shared)
                    if not is_shown:
                        omitted += piece.rows > 0
                        break
                    if not piece.rows:
                        continue
                    if block.rows and block.rows + piece.rows > PIECE_ROWS:
                        close()
                    block.add(_Part(number, first, piece.rows, piece.block), Placed(file.path, first, piece))
                    first += piece.rows
                    if directory:
                        self._directories[file.path] = directory
            except Unrecognised:
                continue
            except GlassfsError as error:
                if is_shown:
                    faults.append((file.path, error))
                self._is_whole = self._is_whole and not isinstance(error, Passing)
            rows += first
        if block.parts:
            close()
        return Found(rows, len(self._blocks), self._block, costs.__getitem__, omitted, _sentence(faults))

    def _told(self, file: File, block: int = 0) -> Generator[_Told, None, None]:
        """The pieces of a file's table, if it has one, from that block on. Raises what keeps it from being read."""
        with self._containers.glimpsed(file.place, file.version) as (container, entries):
            if container.episodes is not None:
                directory = component(container.episodes.directory) if container.episodes.directory else ""
                is_public = file.is_public and all(entry.permissions & 0o4 for entry in entries)
                for piece in pieces_of(container.episodes, block):
                    yield _Told(directory, is_public, piece)

    def directory(self, views: ViewSet, access: Access, ino: int, volume: str) -> ContentDirectory:
        """A directory of what these views make of the table."""
        found = self._shown.get(ino)
        if found is None:
            services = self._containers.services._replace(views=views)
            origin = Origin(
                self.identity, access, self.mtime_ns, services, Lease(()), volume=volume, has_other_names=True,
            )
            group = Group(b"", lambda: [Member((NAME,), self.table)])
            found = self._shown.setdefault(ino, ContentDirectory("", ino, origin, Draft(group)))
        return found

    def _block(self, number: int) -> Data:
        parts = self._blocks[number]
        return self._kept(parts, partial(self._made_again, parts))

    def _kept(self, parts: Sequence[_Part], make: Callable[[], bytes]) -> Data:
        key = _hashed([f"{self._files[part.file].path}\0{self._files[part.file].stamp}\0{part[1:]}" for part in parts])
        return Rendered(self._containers.services.cache, (key, NAME), make)

    def _made_again(self, parts: Sequence[_Part]) -> bytes:
        placed = []
        for part in parts:
            file = self._files[part.file]
            with closing(self._told(file, part.block)) as told:
                piece = next((piece for _, _, piece in told), None)
            if piece is None or piece.rows != part.rows:
                raise Damaged("has other rows than before", file.path)
            placed.append(Placed(file.path, part.first, piece))
        return joined_block(placed)


class _Block:
    """A block that is being put together."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.parts: list[_Part] = []
        self.placed: list[Placed] = []
        self.rows = 0

    def add(self, part: _Part, placed: Placed) -> None:
        self.parts.append(part)
        self.placed.append(placed)
        self.rows += part.rows


class Audience(NamedTuple):
    """Who may look at a tree: everybody if it ``is_shared``, else ``reader``, a user and a group, if that is known."""

    is_shared: bool = False
    reader: tuple[int, int] | None = None


class Joins:
    """The snapshots of what is below ``starts``."""

    def __init__(
        self, containers: Containers, starts: Sequence[Start], audience: Audience = Audience(),  # noqa: B008
    ) -> None:
        self.containers = containers
        self.is_shared, self.reader = audience
        self._starts = starts
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._until = 0.0
        self._names: set[str] = set()
        self._walking = threading.Lock()

    def snapshot(self) -> Snapshot:
        """What is below now, or was a moment ago."""
        found = self._recent()
        if found is None:
            with self._walking:
                found = self._recent()
                if found is None:
                    found = self._taken()
        return found

    def noted(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The same, whose names are known from now on."""
        self._names.update(node.name for node in nodes)
        return nodes

    def may_have(self, name: str) -> bool:
        """Whether something that views make of the table may be called so. That costs nothing, as it is often asked."""
        return not self._names or any(_may_become(known, name) for known in list(self._names))

    def _recent(self) -> Snapshot | None:
        with self._lock:
            return self._last if time.monotonic() < self._until else None

    def _taken(self) -> Snapshot:
        begun = time.monotonic()
        found = Snapshot(self.containers, Walk(self._starts, self.is_shared), self.is_shared)
        ended = time.monotonic()
        with self._lock:
            if self._last is not None and self._last.identity == found.identity and self._last.is_whole:
                found = self._last
            self._last = found
            self._until = ended + max(LEAST_AGE, AGE * (ended - begun))
        return found


class Joinable(Directory):
    """A root below which there may be containers."""

    __slots__ = ()

    @property
    @abstractmethod
    def joins(self) -> Joins:
        """What is below it."""


class WithJoined(Joinable):
    """A root, and beside what is in it the views of the joined table, which leave their names to what is there."""

    __slots__ = ("_inner", "_joins", "_views")

    def __init__(self, inner: Directory, joins: Joins, views: ViewSet) -> None:
        super().__init__(inner.name, inner.ino, inner.origin)
        self._inner = inner
        self._joins = joins
        self._views = views

    @property
    def mode(self) -> int:
        return self._inner.mode

    @property
    def joins(self) -> Joins:
        return self._joins

    def xattrs(self) -> dict[str, bytes]:
        return self._inner.xattrs()

    def watch(self) -> bool:
        return self._inner.watch()

    def listing(self) -> Sequence[Node]:
        nodes = list(self._inner.listing())
        taken = {node.name for node in nodes}
        return nodes + [_renamed(node, taken.__contains__, self.ino) for node in self._derived()]

    def names(self) -> Iterator[str]:
        names = list(self._inner.names())
        taken = set(names)
        return iter(names + [_renamed(node, taken.__contains__, self.ino).name for node in self._derived()])

    def child(self, name: str) -> Node:
        try:
            return self._inner.child(name)
        except NotFound:
            node = self._joins.may_have(name) and self._joined_child(name)
            if not node:
                raise
            return node

    def _joined_child(self, name: str) -> Node | None:
        for node in self._derived():
            if _may_become(node.name, name):
                node = _renamed(node, self._is_taken, self.ino)
                if node.name == name:
                    return node
        return None

    def _is_taken(self, name: str) -> bool:
        try:
            self._inner.child(name)
        except NotFound:
            return False
        return True

    def _derived(self) -> Sequence[Node]:
        snapshot, origin = self._joins.snapshot(), self.origin
        access = Access(origin.access.permissions & 0o444, origin.uid, origin.gid)
        if not (self._joins.is_shared or snapshot.is_public):
            access = Access(0o400, *(self._joins.reader or (origin.uid, origin.gid)))
        return self._joins.noted(snapshot.directory(self._views, access, self.ino, origin.volume).listing())


def episodes_of(node: Directory) -> Table | None:
    """The table of the episodes in a container, or in all containers below a folder. Raises what opening raises."""
    if isinstance(node, ContainerDirectory):
        return node.opened().container.episodes
    if isinstance(node, Joinable):
        return node.joins.snapshot().table
    if isinstance(node, Folder):
        return Joins(node.containers, [Start("", node.place, node.is_mount_root)]).snapshot().table
    return None


def _hashed(words: Iterable[str]) -> str:
    return xxhash.xxh128_hexdigest("\0\0".join(words).encode("utf-8", "surrogateescape"))


def _sentence(faults: Sequence[tuple[str, GlassfsError]]) -> str:
    """What is left out, and why; of very many the first ones."""
    told = [f"{path or '.'}: {error.without_source}"[:LONGEST_FAULT] for path, error in faults[:MOST_FAULTS]]
    if len(faults) > MOST_FAULTS:
        told.append(f"and {len(faults) - MOST_FAULTS:,} more")
    return "; ".join(told)


def _renamed(node: Node, is_taken: Callable[[str], bool], parent: int) -> Node:
    """The node under a name that is free."""
    stem, point, suffix = node.name.partition(".")
    name, number = node.name, 2
    while is_taken(name):
        name = f"{stem}~{number}{point}{suffix}"
        number += 1
    if name != node.name:
        node = copy(node)
        node.name, node.ino = name, inode(name, parent)
    return node


def _may_become(name: str, wanted: str) -> bool:
    """Whether a node of this name may get that one."""
    stem, point, suffix = name.partition(".")
    return wanted == name or (wanted.startswith(f"{stem}~") and wanted.endswith(f"{point}{suffix}"))
