"""Map node ids, by which the kernel refers to nodes, to nodes of the tree.

Ids come from a counter and are never reused, so two versions of a container never share pages. The children of a
directory in a container have a run of consecutive ids in the order of its listing, so the table needs one entry per
directory in which the kernel knows a node. A mirrored folder changes, so there each name has a run of its own.

A run (``runs.py``) counts the references that the kernel holds to its ids and releases by FORGET. Until then it holds
the lease on the container. Nodes are made from their number when they are needed, and some are cached. Any thread.

Ids are *abandoned* when no name leads to them any more: those of a version that was replaced, and those of a name that
has new ids. The kernel may keep them all the same, until it is asked to forget them.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from contextlib import suppress

from glassfs.errors import Changed, NotADirectory
from glassfs.mount.runs import STRETCH, HeldLease, KnownIds, Run, by_version, is_folder
from glassfs.names import RESERVED
from glassfs.tree import Directory, File, Node, Origin, Settled
from glassfs.tree.lease import Lease

ROOT = 1
CACHED_NODES = 14_336
"""Nodes in containers that are cached, about 1 KiB each, as look-ups and reads mostly follow one another."""
MOST_RUNS = 20_000
"""Runs in the table from which on the kernel is asked to forget the oldest quarter of so many: about 2 KiB each."""


class Inodes:
    """The ids below ``root``, which has the id 1 and is called anew each time. ``own`` is one more child of it."""

    def __init__(self, root: Callable[[], Directory], own: Callable[[], Directory]) -> None:
        self._root = root
        self.own = own
        self.remembers_names = False
        """Whether to remember names that are looked up in containers: a version that was replaced cannot be listed."""
        self._next = ROOT + 1
        self._lock = threading.Lock()
        self._table: tuple[list[int], list[Run | None]] = ([0], [None])
        """First ids, ascending, and their runs, after an empty place; replaced as a pair when it is rebuilt."""
        self._gone = 1
        """Empty places."""
        self._enough = MOST_RUNS
        """Runs above which the kernel is asked to forget some."""
        self._hand = ROOT
        """The last id that the kernel was asked to forget for their number."""
        self._settled: dict[int, Run] = {}
        """The run of the children of a directory in a container, by the directory's id."""
        self._named: dict[tuple[int, str], Run] = {}
        self._holdings: dict[Lease, HeldLease] = {}
        self._retired: set[HeldLease] = set()
        """Leases of versions that were replaced."""
        self._detached: dict[int, Run] = {}
        """Runs whose name has another run, or will have, by their first ids."""
        self._cached = 0
        """The number of cached nodes in containers, ``HeldLease.nodes``."""
        self._caching: dict[HeldLease, None] = {}
        """Leases with cached nodes, in the order in which the first was cached."""

    def __len__(self) -> int:
        """Return the number of runs."""
        firsts, _ = self._table
        return len(firsts) - self._gone

    @property
    def held(self) -> int:
        """The number of references that the kernel holds."""
        return sum(run.held for run in list(self._table[1]) if run is not None)

    def node(self, ident: int) -> Node:
        """Return the node with that id. Raises Changed if it no longer exists."""
        if ident == ROOT:
            return self._root()
        run = self._run(ident)
        return run.node or run.holding.nodes.get(ident) or self._made(run, ident)

    def _made(self, run: Run, ident: int) -> Node:
        directory, above = run.directory, run.above
        if above is not None:
            directory = above.holding.nodes.get(run.parent) or self._made(above, run.parent)
        if not isinstance(directory, Settled):
            raise Changed("is no longer the same directory")
        node = directory.at(ident - run.first)
        if node.origin.identity != run.identity:
            raise Changed("was replaced while it was open", part=node.name)
        # The kernel may have forgotten the run while the node was made; nothing would drop the node then.
        with self._lock:
            if run.holding.runs:
                self._cache(run.holding, ident, node)
        return node

    def directory(self, ident: int) -> Directory:
        node = self.node(ident)
        if not isinstance(node, Directory):
            raise NotADirectory("is not a directory", part=node.name)
        return node

    def is_in_container(self, ident: int) -> bool:
        """Return whether that id is of a node in a container, not in a folder. Does no I/O."""
        return ident != ROOT and self._run(ident).node is None

    def volume(self, ident: int) -> str:
        """Return the volume that a node is on. Does no I/O."""
        run = self._known(ident)
        return "" if run is None else run.volume

    def look_up(self, parent: int, directory: Directory, name: str) -> tuple[int, Node]:
        """Look up a name in the directory with the id ``parent``; return its id, newly referenced, and its node."""
        if parent == ROOT and name == RESERVED:
            own = self.own()
            return self.hold_named(ROOT, own), own
        if not isinstance(directory, Settled):
            named = directory.child(name)
            return self.hold_named(parent, named), named
        number, node = directory.found(name)
        run = self.hold_settled(parent, directory, node.origin, 1, (number, node))
        if self.remembers_names and name not in run.used and len(run.used) < 64:  # that many of each directory
            run.used = {*run.used, name}
        return run.first + number, node

    def hold_settled(
        self, parent: int, directory: Settled, origin: Origin, references: int, child: tuple[int, Node] | None = None,
    ) -> Run:
        """Return the run of a directory's children, which have this origin, with so many more references.

        They are to ``child``, a number and a node, which is kept; without one, the caller calls ``keep``.
        """
        identity = origin.identity
        # Counting the children may read, which must not happen under the lock. So the loop looks without the lock, asks
        # the directory, and looks again under it: another thread may have added the run, or released it, meanwhile.
        run, count, above = self._settled.get(parent), 0, None
        while True:
            if run is None or run.identity != identity:
                # Not under the lock: this may read.
                count, above = directory.count, None if parent == ROOT else self._run(parent)
            with self._lock:
                run = self._settled.get(parent)
                if count and (run is None or run.identity != identity):
                    run = self._settled[parent] = self._added(parent, origin, count)
                    if above is None or above.node is not None:
                        run.directory = directory  # a container's root, which is kept itself, as that costs little
                    else:
                        run.above = above
                if run is not None and run.identity == identity:
                    run.held += references
                    if child is not None:
                        run.note(child[0], 1, references)
                        self._cache(run.holding, run.first + child[0], child[1])
                    return run

    def hold_named(self, parent: int, node: Node) -> int:
        """Return the id of a child of a folder, with one more reference."""
        key = parent, node.name
        with self._lock:
            run = self._named.get(key)
            # The same bytes keep their id, so that the kernel keeps their pages. Other bytes get another one: their
            # pages are never mixed, and readers of the old id go on in the old version.
            if run is None or not _is_same(run.node, node):
                if run is not None:
                    self._detached[run.first] = run
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

    def keep(self, run: Run, references: int, kept: Iterable[tuple[int, int]]) -> None:
        """Of so many references that ``hold_settled`` returned, keep one to each id of some stretches of the run.

        A stretch is its first id and the number of its ids. The others are released.
        """
        with self._lock:
            for ident, count in kept:
                run.note(ident - run.first, count, 1)
                references -= count
        if references:
            self.forget(run.first, references, 0)

    def forget(self, ident: int, references: int, count: int = 1) -> None:
        """Release references of the kernel: so many to each of ``count`` consecutive ids of a run.

        If ``count`` is 0, the references are to ids that the kernel did not get to know.
        """
        with self._lock:
            run = self._known(ident)
            if run is None:
                return
            if count:
                run.note(ident - run.first, count, -references)
            run.held -= references * max(1, count)
            if run.held > 0:
                return
            # Readers search the table without the lock, so no entry may move: the place stays, empty, until so many
            # are empty that a new pair of lists is worth its cost.
            firsts, runs = self._table
            runs[bisect_left(firsts, run.first)] = None
            self._gone += 1
            self._detached.pop(run.first, None)
            if self._settled.get(run.parent) is run:
                del self._settled[run.parent]
            key = run.parent, run.name
            if run.node is not None and self._named.get(key) is run:
                del self._named[key]
            left = self._left(run.holding)
            if 2 * self._gone > len(runs) + STRETCH:
                still = self._runs()
                self._table, self._gone = ([0, *[run.first for run in still]], [None, *still]), 1
        if left is not None:  # not under the lock: closing files may wait for readers
            left.release()

    def named(self, parent: int, name: str) -> int | None:
        """Return the id by which the kernel knows a name in a folder, or None."""
        run = self._named.get((parent, name))
        return run.first if run is not None else None

    def renew(self, ident: int) -> None:
        """Renew the attributes of a node in a folder. Raises what the folder's ``child`` raises."""
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

    def parent(self, ident: int) -> int:
        """Return the id of the directory of a node. Raises Changed if the kernel does not know it any more."""
        return self._run(ident).parent

    def detach(self, parent: int, name: str) -> None:
        """Have the next look-up of a name give new ids, as the kernel may have pages of other bytes under these.

        Only for a file or container in a folder; a container that is the root gives its children new ids. Processes
        that use the present ids go on.
        """
        with self._lock:
            run = self._named.get((parent, name))
            if run is not None and is_folder(run.node):
                return
            if run is not None:
                del self._named[parent, name]
            elif not name:
                run = self._settled.pop(parent, None)
            if run is not None:
                self._detached[run.first] = run

    def same_version(self, names: Set[tuple[int, str]]) -> dict[Hashable, KnownIds]:
        """Return the known ids of all nodes of files and containers with these names, by version.

        A name is the id of a folder and what is in it; with an empty name, the container that is the root. Takes one
        pass over the table.
        """
        root = self._root() if (ROOT, "") in names else None
        with self._lock:
            tops = [run for name in names if (run := self._named.get(name)) is not None]
            tops += [run for run in self._detached.values() if (run.parent, run.name) in names]
            wanted = {top.holding for top in tops if not is_folder(top.node)}
            if root is not None and not is_folder(root) and (held := self._holdings.get(root.origin.lease)) is not None:
                wanted.add(held)
        return by_version((run for run in self._runs() if run.holding in wanted), self._lock) if wanted else {}

    def surplus(self) -> KnownIds | None:
        """Return the known ids of some of the oldest runs if there are too many runs, else None. Call this repeatedly.

        If the kernel kept nearly all, the next call returns some when there are more runs than now.
        """
        # The ids are passed like the hand of a clock: the kernel says nothing of what it uses, and refuses to forget
        # that. So the oldest go first, and what it kept is asked for again when the hand comes back.
        step = MOST_RUNS // 16 + 1
        self._enough = max(MOST_RUNS, min(self._enough, len(self) + step))
        if len(self) <= self._enough:
            return None
        self._enough = len(self) + step
        runs = self._runs()
        start = bisect_right(runs, self._hand, key=lambda run: run.first)
        some = runs[start : start + MOST_RUNS // 4 + 1] or runs[: MOST_RUNS // 4 + 1]
        self._hand = some[-1].first
        return KnownIds(some[::-1], self._lock)  # what is in a directory before the directory

    def abandoned(self) -> dict[Hashable, KnownIds]:
        """Return the known ids that are abandoned, by version, those in a directory before its own."""
        return by_version(self._abandoned_runs(), self._lock)

    def is_abandoned(self, ident: int) -> bool:
        """Return whether no name leads to that id any more, though the kernel knows it."""
        run = self._known(ident)
        return run is not None and (run.holding in self._retired or run.first in self._detached)

    def abandoned_entries(self) -> Iterator[tuple[int, str]]:
        """Yield abandoned names, as far as they are remembered: the id of the directory, and the name."""
        for run in self._abandoned_runs():
            if run.node is not None:
                if self._named.get((run.parent, run.name)) in (None, run):
                    yield run.parent, run.name
            elif run.parent != ROOT:  # in the root the same names belong to the new version
                for name in list(run.used):
                    yield run.parent, name

    def _abandoned_runs(self) -> list[Run]:
        """Return the runs of abandoned ids, the newest first: a directory is older than what is in it."""
        with self._lock:
            retired, detached = set(self._retired), set(self._detached)
        if not (retired or detached):
            return []
        found = [run for run in self._runs() if run.holding in retired or run.first in detached]
        return found[::-1]

    def _runs(self) -> list[Run]:
        return [run for run in list(self._table[1]) if run is not None]

    def drop_nodes(self, lease: Lease | None = None) -> None:
        """Drop cached nodes: those of one container, or all."""
        with self._lock:
            for holding in list(self._caching) if lease is None else filter(None, [self._holdings.get(lease)]):
                self._drop(holding)
                if holding.lease.is_retired:
                    self._retired.add(holding)

    def _known(self, ident: int) -> Run | None:
        """Return the run of an id; None for the root, and if the kernel does not know the id any more."""
        with suppress(Changed):
            return self._run(ident)
        return None

    def _run(self, ident: int) -> Run:
        firsts, runs = self._table
        run = runs[bisect_right(firsts, ident) - 1]
        if run is None or ident >= run.end:
            raise Changed("is no longer known")
        return run

    def _cache(self, holding: HeldLease, ident: int, node: Node) -> None:
        """Cache a node; those of the oldest lease go, or all of its own if they are half of all. Under the lock."""
        nodes = holding.nodes
        if len(nodes) >= CACHED_NODES // 2:
            self._drop(holding)
        # Nodes of one lease go together, as an evicted node would be made again with those beside it anyway, and as
        # nodes that stay would keep all that was parsed of their container.
        self._caching.setdefault(holding)
        self._cached += ident not in nodes
        nodes[ident] = node
        if self._cached > CACHED_NODES:
            self._drop(next(iter(self._caching)))

    def _drop(self, holding: HeldLease) -> None:
        """Drop the cached nodes of a lease. Under the lock."""
        self._caching.pop(holding, None)
        self._cached -= len(holding.nodes)
        holding.nodes.clear()

    def _added(self, parent: int, origin: Origin, count: int) -> Run:
        """Return a new run for nodes of this origin. The caller holds the lock."""
        run = Run(self._next, self._next + count, parent, origin.identity, origin.volume, self._joined(origin.lease))
        self._next += count
        firsts, runs = self._table
        # In this order: a concurrent reader finds the previous run, and sees that the id is outside of it.
        runs.append(run)
        firsts.append(run.first)
        return run

    def _joined(self, lease: Lease) -> HeldLease:
        holding = self._holdings.get(lease)
        if holding is None:
            lease.acquire()
            holding = self._holdings[lease] = HeldLease(lease)
            if lease.is_retired:
                self._retired.add(holding)
        holding.runs += 1
        return holding

    def _left(self, holding: HeldLease) -> Lease | None:
        """Count one run less; return the lease if it was the last one. The caller releases it after the lock."""
        holding.runs -= 1
        if holding.runs:
            return None
        del self._holdings[holding.lease]
        self._retired.discard(holding)
        self._drop(holding)
        return holding.lease

    def _renewed(self, run: Run, node: Node) -> Lease | None:
        """Replace the node of a run by a newer one; return the lease if the caller must release it, after the lock.

        A file keeps its node, which may have it open, unless its attributes changed.
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
        # First the new lease, then the old one: they may be of the same file, which would be closed in between.
        before = run.holding
        run.holding = self._joined(origin.lease)
        return self._left(before)


def _is_same(known: Node | None, node: Node) -> bool:
    """Return whether two nodes of one name may share pages."""
    return (
        known is not None and not node.is_volatile and type(known) is type(node)
        and known.origin.identity == node.origin.identity
    )
