"""The table of the episodes in all containers below a root, and its views beside what is in that root.

A snapshot of the files below is taken on demand. It is valid for at least a second, and for ten times as long as taking
it took. Any thread: callers that need the same snapshot wait for one of them, and no others wait.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

from glassfs import work
from glassfs.content import Table
from glassfs.errors import NotFound
from glassfs.names import free_name
from glassfs.tree.containers.containers import Containers
from glassfs.tree.nodes import Access, Directory, Node, inode
from glassfs.tree.sources import snapshots
from glassfs.tree.sources.folder import ContainerDirectory, Folder
from glassfs.tree.sources.snapshots import CHECK_SECONDS, CHECK_SHARE, Snapshot
from glassfs.tree.sources.timed_calls import TIMEOUT_SECONDS, TimedCalls
from glassfs.tree.sources.walk import FileSnapshot, Start
from glassfs.view import ViewSet

LEAST_AGE_SECONDS = 1.0


class Audience(NamedTuple):
    """The users of a tree: every user if ``is_shared``, else the user and group ``reader`` if known."""

    is_shared: bool = False
    reader: tuple[int, int] | None = None


class Joins:
    """The snapshots of what is below ``starts``, which are called ``title`` together. At most two are kept."""

    def __init__(
        self, containers: Containers, starts: Sequence[Start], audience: Audience = Audience(),  # noqa: B008
        timeout_seconds: float = TIMEOUT_SECONDS, clock: Callable[[], float] = time.monotonic, title: str = "",
    ) -> None:
        self.containers = containers
        self.is_shared, self.reader = audience
        self._starts = starts
        self._title = title
        self._clock = clock
        self.calls = TimedCalls(timeout_seconds)
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._before: Snapshot | None = None
        """The previous snapshot, which a reader may still be using."""
        self._until = 0.0
        self._names: set[str] = set()
        self._walking = threading.Lock()
        self._check_at = 0.0

    def snapshot(self) -> Snapshot:
        """Return the last snapshot if it is still valid, or a new one. What it shows is public as of a moment ago."""
        found = self._recent()
        if found is None or (self.is_shared and self._clock() >= self._check_at):
            with work.holding(self._walking):
                found = self._recent()
                if found is None:
                    found = self._taken()
                elif self.is_shared and self._clock() >= self._check_at:
                    found = self._checked(found)
        return found

    def close(self) -> None:
        """Release the snapshots."""
        with self._lock:
            self._last, self._before, self._until = None, None, 0.0

    def noted(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Remember the names of nodes, for ``may_have``; return the nodes."""
        self._names.update(node.name for node in nodes)
        return nodes

    def may_have(self, name: str) -> bool:
        """Whether a view of the table may have this name. Cheap, as it is called often; takes no snapshot."""
        return not self._names or any(_may_become(known, name) for known in list(self._names))

    def _recent(self) -> Snapshot | None:
        with self._lock:
            last = self._last
            return last if last is not None and self._clock() < max(self._until, last.until) else None

    def _checked(self, last: Snapshot) -> Snapshot:
        """Return the last snapshot without what is no longer public."""
        begun = last.as_of = self._clock()
        found = last.current()
        self.calls.close()
        ended = self._clock()
        self._check_at = max(begun + CHECK_SECONDS, ended + CHECK_SHARE * (ended - begun))
        if found is not last:
            with self._lock:
                retired, self._before, self._last = self._before, last, found
            if retired is not None:
                retired.retire()
        return found

    def _taken(self) -> Snapshot:
        begun = self._clock()
        walked = FileSnapshot(self._starts, self.calls, self.is_shared, clock=self._clock)
        found = Snapshot(self.containers, walked, self.is_shared, self.calls, self._clock, self._title)
        self.calls.close()
        ended = self._clock()
        with self._lock:
            retired, self._before = self._before, self._last
            if self._last is not None and self._last.state == found.state and self._last.is_whole:
                found, retired, self._before = self._last, None, retired
            self._last = found
            found.as_of = begun
            self._check_at = begun + CHECK_SECONDS
            self._until = ended + max(LEAST_AGE_SECONDS, snapshots.AGE * (ended - begun))
        if retired is not None:
            retired.retire()
        return found


class Joinable(Directory):
    """A root below which there may be containers."""

    __slots__ = ()

    @property
    @abstractmethod
    def joins(self) -> Joins:
        """The snapshots of what is below it."""


class WithJoined(Joinable):
    """A root with the views of the joined table added. These get other names where theirs are taken."""

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
    """Return the table of the episodes in a container, or in all below a folder. Raises what opening raises."""
    if isinstance(node, ContainerDirectory):
        return node.opened().container.episodes()
    if isinstance(node, Joinable):
        return node.joins.snapshot().table
    if isinstance(node, Folder):
        return Joins(node.containers, [Start("", node.location, node.is_mount_root)]).snapshot().table
    return None


def _renamed(node: Node, is_taken: Callable[[str], bool], parent: int) -> Node:
    """Return the node under a name that is free."""
    stem, point, suffix = node.name.partition(".")
    name = free_name(node.name, is_taken, lambda number: f"{stem}{number}{point}{suffix}")
    if name != node.name:
        node = copy(node)
        node.name, node.ino = name, inode(name, parent)
    return node


def _may_become(name: str, wanted: str) -> bool:
    """Whether a node called ``name`` may be renamed to ``wanted``."""
    stem, point, suffix = name.partition(".")
    return wanted == name or (wanted.startswith(f"{stem}~") and wanted.endswith(f"{point}{suffix}"))
