"""Node ids: what the kernel calls the nodes that it knows, for as long as it knows them.

Ids come from a counter and are never used again, so that two versions of a container never share pages. The children
of a directory in a container have a run of ids in the order of its listing, whether anybody asks for them or not: the
table costs an entry for each directory that the kernel knows something in, however much that is. What is in a mirrored
folder changes, and has a run of its own for each name.

A run counts the references that the kernel holds to its ids, which FORGET gives back; as long as there are any, the
lease on the container is held. Nodes are made from the number of the id when they are asked for; some are kept. Any
thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator

from glassfs.errors import Changed, NotADirectory
from glassfs.names import RESERVED
from glassfs.tree import Directory, File, Node, Origin, Settled
from glassfs.tree.lease import Lease

ROOT = 1
KEPT_DIRECTORIES = 6_144
"""Nodes of directories, which every look-up below them needs: with what they have found out a KiB each."""
KEPT_FILES = 8_192
"""Nodes of files: each is read soon after it was looked up, and later from the kernel's pages."""
SPARSE = 1024
"""Runs that were given back before the table is made anew."""


class _Holding:
    """What the kernel holds of one version of a container, or of one file: the lease, by so many runs."""

    __slots__ = ("lease", "runs")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.runs = 0


class _Shelf:
    """Up to ``limit`` nodes by their ids, half of them of one holding at most: those of whom came first go first.

    Changed under the lock of the table, asked without.
    """

    __slots__ = ("_count", "_limit", "_of")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._of: dict[_Holding, dict[int, Node]] = {}

    def __len__(self) -> int:
        return self._count

    def find(self, holding: _Holding, ident: int) -> Node | None:
        nodes = self._of.get(holding)
        return None if nodes is None else nodes.get(ident)

    def put(self, holding: _Holding, ident: int, node: Node) -> None:
        nodes = self._of.get(holding)
        if nodes is not None and len(nodes) >= self._limit // 2:
            self.drop(holding)
            nodes = None
        if nodes is None:
            nodes = self._of[holding] = {}
        self._count += ident not in nodes
        nodes[ident] = node
        if self._count > self._limit:
            self.drop(next(iter(self._of)))

    def drop(self, holding: _Holding) -> None:
        self._count -= len(self._of.pop(holding, ()))

    def clear(self) -> None:
        self._of = {}
        self._count = 0


class _Run:
    """The ids from ``first`` on, ``count`` of them, to which the kernel holds ``held`` references together.

    They are those of the children of ``directory``, or of the directory with number ``number`` in the run ``above``; or
    the one of ``node``, which is called ``name`` in the directory with the id ``parent``.
    """

    __slots__ = (
        "above", "count", "directory", "first", "held", "holding", "identity", "name", "node", "number", "parent",
        "volume",
    )

    def __init__(self, first: int, count: int, parent: int, identity: str, volume: str, holding: _Holding) -> None:
        self.first = first
        self.count = count
        self.parent = parent
        self.identity = identity
        self.volume = volume
        self.holding = holding
        self.held = 0
        self.directory: Directory | None = None
        self.above: _Run | None = None
        self.number = 0
        self.node: Node | None = None
        self.name = ""


class Inodes:
    """The ids below ``root``, which is asked anew each time and has the id 1; ``own`` is one more child of it."""

    def __init__(self, root: Callable[[], Directory], own: Callable[[], Directory]) -> None:
        self._root = root
        self.own = own
        self._next = ROOT + 1
        self._lock = threading.Lock()
        self._table: tuple[list[int], list[_Run | None]] = ([], [])
        """First ids, ascending, and their runs; exchanged as one by whoever makes it shorter."""
        self._gone = 0
        self._settled: dict[int, _Run] = {}
        """The run of the children of a directory that does not change, by the directory's id."""
        self._named: dict[tuple[int, str], _Run] = {}
        self._holdings: dict[Lease, _Holding] = {}
        self._directories = _Shelf(KEPT_DIRECTORIES)
        self._files = _Shelf(KEPT_FILES)

    def __len__(self) -> int:
        """How many runs there are."""
        firsts, _ = self._table
        return len(firsts) - self._gone

    @property
    def held(self) -> int:
        """How many references the kernel holds."""
        return sum(run.held for run in list(self._table[1]) if run is not None)

    def node(self, ident: int) -> Node:
        """The node with that id. Raises Changed where there is none any more."""
        if ident == ROOT:
            return self._root()
        run = self._run(ident)
        if run.node is not None:
            return run.node
        found = self._directories.find(run.holding, ident) or self._files.find(run.holding, ident)
        if found is None:
            found = _still(run, self._directory_of(run).at(ident - run.first))
            self._keep(run.holding, ident, found)
        return found

    def directory(self, ident: int) -> Directory:
        node = self.node(ident)
        if not isinstance(node, Directory):
            raise NotADirectory("is not a directory", part=node.name)
        return node

    def is_in_container(self, ident: int) -> bool:
        """Whether what has that id is in a container, and not in a folder. Asks nobody."""
        return ident != ROOT and self._run(ident).node is None

    def volume(self, ident: int) -> str:
        """What may hang together with a node. Asks nobody."""
        try:
            return "" if ident == ROOT else self._run(ident).volume
        except Changed:
            return ""

    def look_up(self, parent: int, directory: Directory, name: str) -> tuple[int, Node]:
        """The id and the node of a name in the directory with the id ``parent``, with one more reference to it."""
        if parent == ROOT and name == RESERVED:
            own = self.own()
            return self.hold_named(ROOT, own), own
        if not isinstance(directory, Settled):
            named = directory.child(name)
            return self.hold_named(parent, named), named
        number, node = directory.found(name)
        run = self.hold_settled(parent, directory, node.origin, 1)
        ident = run.first + number
        if self._shelf(node).find(run.holding, ident) is None:
            self._keep(run.holding, ident, node)
        return ident, node

    def hold_settled(self, parent: int, directory: Settled, origin: Origin, references: int) -> _Run:
        """The run of the children of a directory, which have this origin; so many more references are held to it."""
        identity = origin.identity
        count, above = 0, None
        while True:
            with self._lock:
                run = self._settled.get(parent)
                if count and (run is None or run.identity != identity):
                    run = self._settled[parent] = self._added(parent, origin, count)
                    self._place(run, parent, directory, above)
                if run is not None and run.identity == identity:
                    run.held += references
                    return run
            count = directory.count  # not under the lock: it may take reading
            above = None if parent == ROOT else self._run(parent)

    def hold_named(self, parent: int, node: Node) -> int:
        """The id of a child of a directory that may change, with one more reference to it."""
        key = parent, node.name
        with self._lock:
            run = self._named.get(key)
            if run is None or not _is_same(run.node, node):
                run = self._added(parent, node.origin, 1)
                run.name, run.node = node.name, node
                self._named[key] = run
                left = None
            else:
                left = self._renewed(run, node)
            run.held += 1
        if left is not None:
            left.release()
        return run.first

    def forget(self, ident: int, references: int) -> None:
        """The kernel gives back references."""
        if ident == ROOT:
            return
        left = self._given_back(ident, references)
        if left is not None:  # not under the lock: closing files may have to wait for whoever reads them
            left.release()

    def _given_back(self, ident: int, references: int) -> Lease | None:
        """Takes references from a run; the lease that is to be released."""
        with self._lock:
            firsts, runs = self._table
            place = bisect_right(firsts, ident) - 1
            run = runs[place] if place >= 0 else None
            if run is None or ident >= run.first + run.count:
                return None
            run.held -= references
            if run.held > 0:
                return None
            runs[place] = None
            self._gone += 1
            if self._settled.get(run.parent) is run:
                del self._settled[run.parent]
            key = run.parent, run.name
            if run.node is not None and self._named.get(key) is run:
                del self._named[key]
            left = self._left(run.holding)
            if self._gone > SPARSE and 2 * self._gone > len(runs):
                still: list[_Run | None] = [run for run in runs if run is not None]
                self._table, self._gone = ([run.first for run in still if run is not None], still), 0
            return left

    def named(self, parent: int, name: str) -> int | None:
        """The id that the kernel knows a name in a directory that may change by, if it does."""
        run = self._named.get((parent, name))
        return run.first if run is not None else None

    def renew(self, ident: int) -> None:
        """Takes the attributes of what is in a folder anew. Raises what finding them out raises."""
        run = None if ident == ROOT else self._run(ident)
        if run is None or run.node is None:
            return
        node = self.directory(run.parent).child(run.name)
        left = None
        with self._lock:
            if run.held > 0 and _is_same(run.node, node):
                left = self._renewed(run, node)
        if left is not None:
            left.release()

    def below(self, ident: int) -> Iterator[int]:
        """The ids of all that is in the container that a directory shows now. Some of them the kernel may not know."""
        top = self._settled.get(ident)
        if top is None:
            return
        for run in list(self._table[1]):
            if run is not None and run.identity == top.identity:
                yield from range(run.first, run.first + run.count)

    def drop_nodes(self, lease: Lease | None = None) -> None:
        """Makes nodes anew from now on: those of one container, or all."""
        with self._lock:
            if lease is None:
                self._directories.clear()
                self._files.clear()
            elif lease in self._holdings:
                self._drop(self._holdings[lease])

    def _run(self, ident: int) -> _Run:
        firsts, runs = self._table
        place = bisect_right(firsts, ident) - 1
        run = runs[place] if place >= 0 else None
        if run is None or ident >= run.first + run.count:
            raise Changed("is not known any more")
        return run

    def _directory_of(self, run: _Run) -> Settled:
        """The directory whose children have these ids."""
        found: Node | None = run.directory
        if found is None:
            above = run.above
            assert above is not None
            found = above.node or self._directories.find(above.holding, above.first + run.number)
            if found is None:
                found = _still(above, self._directory_of(above).at(run.number))
                self._keep(above.holding, above.first + run.number, found)
        if not isinstance(found, Settled):
            raise Changed("is not the directory that it was")
        return found

    def _keep(self, holding: _Holding, ident: int, node: Node) -> None:
        with self._lock:
            if not holding.runs:  # given back meanwhile
                return
            self._shelf(node).put(holding, ident, node)

    def _shelf(self, node: Node) -> _Shelf:
        return self._files if isinstance(node, File) else self._directories

    def _drop(self, holding: _Holding) -> None:
        """Under the lock."""
        self._directories.drop(holding)
        self._files.drop(holding)

    def _added(self, parent: int, origin: Origin, count: int) -> _Run:
        """A new run for what has this origin. Under the lock."""
        run = _Run(self._next, count, parent, origin.identity, origin.volume, self._joined(origin.lease))
        self._next += count
        firsts, runs = self._table
        # In this order: who looks meanwhile finds the run before, and sees that the id lies outside it.
        runs.append(run)
        firsts.append(run.first)
        return run

    @staticmethod
    def _place(run: _Run, parent: int, directory: Directory, above: _Run | None) -> None:
        """Notes where the directory of a new run comes from: itself if it is a container's root, which costs little."""
        if above is None or above.node is not None:
            run.directory = directory
        else:
            run.above, run.number = above, parent - above.first

    def _joined(self, lease: Lease) -> _Holding:
        holding = self._holdings.get(lease)
        if holding is None:
            lease.acquire()
            holding = self._holdings[lease] = _Holding(lease)
        holding.runs += 1
        return holding

    def _left(self, holding: _Holding) -> Lease | None:
        """One run less; the lease, if it was the last. Under the lock, and whoever calls releases it without."""
        holding.runs -= 1
        if holding.runs:
            return None
        del self._holdings[holding.lease]
        self._drop(holding)
        return holding.lease

    def _renewed(self, run: _Run, node: Node) -> Lease | None:
        """Takes another node for the same thing; the lease that is to be released. Under the lock.

        A file stays the node that it is, which may have it open, unless its attributes changed: those have a lease of
        their own.
        """
        known, origin = run.node, node.origin
        if (
            isinstance(known, File) and known.xattrs() == node.xattrs()
            and (known.origin.access, known.origin.mtime_ns) == (origin.access, origin.mtime_ns)
        ):
            return None
        run.node = node
        if run.holding.lease is origin.lease:
            return None
        before = run.holding
        run.holding = self._joined(origin.lease)
        return self._left(before)


def _still(run: _Run, node: Node) -> Node:
    """A node that was made anew. Its container may be another by then, if only a further file of it was replaced."""
    if node.origin.identity != run.identity:
        raise Changed("was replaced while it was open", part=node.name)
    return node


def _is_same(known: Node | None, node: Node) -> bool:
    """Whether two nodes of one name may share pages."""
    return (
        known is not None and not node.is_volatile and type(known) is type(node)
        and known.origin.identity == node.origin.identity
    )
