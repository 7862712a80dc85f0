"""The tables over all containers below a root, and their views beside what is in that root.

A root lists the tables that have rows; before these are read, those that should have some by the formats of the files
or by the catalogue. A table is found by the names of its views if it has rows, or if the root may have listed it.

A snapshot of the files is taken on demand, and valid for at least a second, and for ten times as long as taking it
took. Any thread: callers that need the same snapshot wait for one of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from glassfs import work
from glassfs.content import ARRAYS, Table
from glassfs.content.allowance import LEAST, Allowance
from glassfs.content.summary import Joined
from glassfs.datasets.files import FileSnapshot, TimedCalls, in_order
from glassfs.errors import NotAllowed, NotFound
from glassfs.formats.registry import joined_names
from glassfs.names import free_name
from glassfs.settings import settings
from glassfs.tree.build import NestedDirectory
from glassfs.tree.containers.containers import Containers
from glassfs.tree.nodes import Access, Directory, Node, inode
from glassfs.tree.omissions import Omission
from glassfs.tree.sources.folder import ContainerDirectory, Folder
from glassfs.tree.sources.sources import Overview, SideBySide, Start
from glassfs.view import ViewSet

if TYPE_CHECKING:
    from glassfs.datasets.snapshots import Snapshot

CHECK_SHARE = 4
"""What is public in a shared tree is valid for this many times as long as checking it takes."""


class Audience(NamedTuple):
    """The users of a tree: every user if ``is_shared``, else the user and group ``reader`` if known."""

    is_shared: bool = False
    reader: tuple[int, int] | None = None


class Joins(Overview):
    """The snapshots of what is below ``starts``, which are called ``title`` together. The last one is kept."""

    def __init__(
        self, containers: Containers, starts: Sequence[Start], title: str = "", audience: Audience = Audience(),  # noqa: B008
    ) -> None:
        self.containers = containers
        self.is_shared, self.reader = audience
        self._starts = starts
        self._title = title
        self.calls = TimedCalls(settings.call_longest)
        self._last: Snapshot | None = None
        self._until = 0.0
        self.names: dict[tuple[Hashable, frozenset[str]], set[str]] = {}
        """Names that views of tables may have, by these views and tables."""
        self.known: frozenset[str] = frozenset()
        """All tables that were listed."""
        self._listed: Sequence[str] | None = None
        """The tables that were listed last."""
        self.changes = 0
        """How often the tables that are listed have changed."""
        self._walking = threading.Lock()
        self._public_until = 0.0
        """Until then, what the last snapshot of a shared tree shows counts as public."""

    def snapshot(self) -> Snapshot:
        """Return the last snapshot if it is still valid, or a new one. What it shows is public as of a moment ago."""
        found = self._valid()
        # Threads that need a walk, or a check of rights, wait for the one that makes it. Callers of a private tree
        # never wait while the last snapshot is valid.
        if found is None or (self.is_shared and time.monotonic() >= self._public_until):
            with work.holding(self._walking):
                found = self._valid() or self._taken()
                begun = time.monotonic()
                if self.is_shared and begun >= self._public_until:
                    has_closed, ended = found.has_closed(), time.monotonic()
                    # What is public is valid for a multiple of the time that checking it takes.
                    self._public_until = ended + max(settings.rights_valid, CHECK_SHARE * (ended - begun))
                    found = self._taken() if has_closed else found
        return found

    def over(self, root: Directory, views: ViewSet) -> Directory:
        return WithJoined(root, self, views) if any(issubclass(Joined, view.kinds) for view in views.views) else root

    def close(self) -> None:
        """Release the snapshots."""
        self._last = None

    def tables(self, snapshot: Snapshot) -> Sequence[str]:
        """Return the names of its tables that are to be listed. No container is opened for that."""
        tables = snapshot.tables()
        if tables != self._listed:
            self.changes += self._listed is not None
            self._listed = tables
            self.known |= set(tables)
        return tables

    def _valid(self) -> Snapshot | None:
        last = self._last
        return last if last is not None and time.monotonic() < max(self._until, last.until) else None

    def files(self) -> FileSnapshot:
        """Return all files below the starts now."""
        # The same part of the memory that a container may take for what is parsed of it.
        allowance = Allowance(max(LEAST, self.containers.services.cache.budget // 4))
        return FileSnapshot(self._starts, self.calls, allowance, self.is_shared)

    def _taken(self) -> Snapshot:
        from glassfs.datasets.snapshots import Snapshot  # programs that only look files up need no tables

        # The age counts from the end of a walk, and the walk's duration sets it, so that walking takes a tenth of the
        # time at most, however many files there are and however many callers ask.
        begun = time.monotonic()
        found = Snapshot(self.containers, self.files(), self.is_shared, self.calls, self._title, self.tables)
        ended = time.monotonic()
        last = self._last
        # The files are those of the last snapshot: its rows, which may have taken long to read, are used on.
        is_same = last is not None and last.state == found.state and last.is_whole
        if last is not None and is_same and not (self.is_shared and last.has_closed()):
            found = last
        self._last = found
        self._until = ended + max(settings.table_valid, settings.table_valid_times * (ended - begun))
        if last is not None and last is not found:
            last.retire()
        return found


class WithJoined(Directory):
    """A root with the views of the joined tables added. These get other names where theirs are taken."""

    def __init__(self, inner: Directory, joins: Joins, views: ViewSet) -> None:
        origin = inner.origin
        if joins.changes:  # by another mtime the kernel sees that its listing of the root is out of date
            origin = replace(origin, mtime_ns=origin.mtime_ns + joins.changes)
        super().__init__(inner.name, inner.ino, origin)
        self._inner = inner
        self.joins = joins
        self._views = views

    @property
    def mode(self) -> int:
        return self._inner.mode

    def xattrs(self) -> dict[str, bytes]:
        return self._inner.xattrs()

    def omitted(self) -> Sequence[Omission]:
        return self._inner.omitted()

    def watch(self) -> bool:
        self._inner.watch()
        return False  # nothing reports that a table gets its first rows, or loses the last ones

    def listing(self) -> Sequence[Node]:
        nodes = list(self._inner.listing())
        taken = {node.name for node in nodes}
        snapshot = self.joins.snapshot()
        for node in self._derived(snapshot, self.joins.tables(snapshot)):
            nodes.append(_renamed(node, taken.__contains__, self.ino))
            taken.add(nodes[-1].name)
        self._names()  # later look-ups of other names need no snapshot
        return nodes

    def child(self, name: str) -> Node:
        try:
            return self._inner.child(name)
        except NotFound:
            if any(_may_become(known, name) for known in self._names()):
                node = self._joined_child(name)
                if node is not None:
                    return node
            raise

    def _joined_child(self, name: str) -> Node | None:
        """Return the node of this name. If no listed table has it, containers are read to find others with rows."""
        snapshot = self.joins.snapshot()
        # From cheap to dear: the tables that are listed now, those that were listed before rows were read, which a
        # program may have seen, and last those that have rows, for which the containers are read, but not for arrays.
        listed = partial(self.joins.tables, snapshot)
        for tables_of in (listed, snapshot.expected, lambda: snapshot.may_have_arrays, snapshot.with_rows):
            for node in self._derived(snapshot, tables_of()):
                if _may_become(node.name, name):
                    node = _renamed(node, self._is_taken, self.ino)
                    if node.name == name:
                        return node
        if any(node.name == name for node in self._derived(snapshot, snapshot.hidden())):
            raise NotAllowed("has only rows of containers that not every user may read", name)
        return None

    def _is_taken(self, name: str) -> bool:
        try:
            self._inner.child(name)
        except NotFound:
            return False
        return True

    def _names(self) -> set[str]:
        """Return all names that views of tables may have, whether or not a table has rows or is the first one."""
        tables = joined_names() | self.joins.known
        key = tuple(view.name for view in self._views.views), tables
        names = self.joins.names.get(key)
        if names is None:
            snapshot = self.joins.snapshot()
            # The first of all tables may have other views than the rest, such as the start page.
            orders = [order for name in tables for order in ([name], ["", name])]
            names = {node.name for order in orders for node in self._derived(snapshot, order)}
            self.joins.names[key] = names
        return names

    def _derived(self, snapshot: Snapshot, tables: Sequence[str]) -> Sequence[Node]:
        """Return the nodes of the views of some tables."""
        origin, found = self.origin, list[Node]()
        access = origin.access._replace(permissions=origin.access.permissions & 0o444)
        if not (self.joins.is_shared or snapshot.is_public):
            # Rows of a tree of one user may be of files that only this user may read, whatever the folder's mode says.
            access = Access(0o400, *(self.joins.reader or origin.access[1:]))
        for name in filter(None, tables):
            # A folder of arrays may have episodes that are not known yet, and the first page is theirs.
            is_first = name == tables[0] != ARRAYS
            found += snapshot.directory(name, is_first, self._views, access, self.ino, origin.volume).listing()
        return found


def joined_of(node: Directory, name: str) -> Table | None:
    """Return the rows of a container for a joined table, or the table over all below a folder; None if there is none.

    That of a folder may be empty, and so may that of arrays. Raises what opening raises.
    """
    if name != ARRAYS and isinstance(node, (ContainerDirectory, NestedDirectory)):
        summary = node.opened().container.summary(name)
        return summary.table if summary is not None else None
    joins = _joins_of(node)
    return joins.snapshot().table(name) if joins is not None else None


def tables_with_rows(node: Directory) -> Sequence[str]:
    """Return the names of the joined tables to which a container, or those below a folder, give rows, or may (arrays).
    """
    if isinstance(node, (ContainerDirectory, NestedDirectory)):
        container = node.opened().container
        found = ((name, container.summary(name)) for name in container.tables)
        names = in_order(name for name, summary in found if summary is not None and summary.table.rows)
        return [*names, *[ARRAYS][: isinstance(node, ContainerDirectory) and container.arrays is not None]]
    joins = _joins_of(node)
    return joins.snapshot().with_rows() if joins is not None else ()


def _joins_of(node: Directory) -> Joins | None:
    if isinstance(node, WithJoined):
        return node.joins
    if isinstance(node, SideBySide):
        return node.overview if isinstance(node.overview, Joins) else None
    if isinstance(node, ContainerDirectory):
        return Joins(node.containers, [Start(node.name or node.location.path[-1], node.location)])
    return Joins(node.containers, [Start("", node.location, node.is_mount_root)]) if isinstance(node, Folder) else None


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
