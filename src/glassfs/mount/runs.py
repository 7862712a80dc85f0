"""Consecutive node ids of the children of one directory, and which of them the kernel may know.

A directory may have billions of children, of which the kernel knows those that it looked up or listed. A run counts its
references for each stretch of ``STRETCH`` ids, so it takes memory in proportion to what the kernel knows, and asking
the kernel to forget a version takes time in the same proportion.

All is changed under the lock of the table of ids (``inodes.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set

from glassfs.tree import Directory, Node, Settled
from glassfs.tree.lease import Lease

STRETCH = 32
_NO_NAMES: Set[str] = frozenset()
"""One object for all runs: each ``frozenset()`` is a new one of 216 bytes."""


class HeldLease:
    """The lease on one version of a container or file, the number of runs that hold it, and cached nodes by id."""

    __slots__ = ("lease", "nodes", "runs")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.runs = 0
        self.nodes: dict[int, Node] = {}


class Run:
    """``count`` ids from ``first`` to before ``end``, to which the kernel holds ``held`` references in total.

    They belong to the children of the directory with the id ``parent``: ``directory``, or one in the run ``above``; or
    the only one belongs to ``node``, which is ``name`` there.
    """

    __slots__ = (
        "_known", "above", "directory", "end", "first", "held", "holding", "identity", "name", "node", "parent",
        "used", "volume",
    )

    def __init__(self, first: int, count: int, parent: int, identity: str, volume: str, holding: HeldLease) -> None:
        self.first = first
        self.end = first + count
        self.parent = parent
        self.identity = identity
        self.volume = volume
        self.holding = holding
        self.held = 0
        self._known: dict[int, int] | None = {} if count > STRETCH else None
        """References by number of the stretch; None in a run of one stretch."""
        self.directory: Node | None = None
        self.above: Run | None = None
        self.node: Node | None = None
        self.name = ""
        self.used = _NO_NAMES

    def note(self, number: int, count: int, references: int) -> None:
        """Count so many more references to each of ``count`` ids from that number in the run on."""
        known = self._known
        if known is None:
            return
        # The sum of a stretch says whether the kernel knows any id of it. Which ones would take a number for each.
        end = number + count
        while number < end:
            stretch = number // STRETCH
            until = min(end, (stretch + 1) * STRETCH)
            left = known.get(stretch, 0) + references * (until - number)
            if left > 0:
                known[stretch] = left
            else:
                known.pop(stretch, None)
            number = until

    def stretches(self) -> list[int]:
        """Return the numbers of the stretches in which the kernel knows an id."""
        if not self.held:
            return []
        return [0] if self._known is None else list(self._known)


class KnownIds:
    """The ids that the kernel may know of some runs, descending in each. Each pass finds what it knows by then."""

    __slots__ = ("_lock", "_runs")

    def __init__(self, runs: Sequence[Run], lock: threading.Lock) -> None:
        self._runs = runs
        self._lock = lock

    @property
    def held(self) -> int:
        """The number of references that the kernel holds to them."""
        return sum(run.held for run in self._runs)

    def entries(self) -> Iterator[tuple[int, str]]:
        """Yield the names that have runs of their own and lead to files and containers: their folder's id, the name."""
        for run in self._runs:
            if run.node is not None and not is_folder(run.node):
                yield run.parent, run.name

    def __iter__(self) -> Iterator[int]:
        for run in self._runs:
            with self._lock:
                stretches = run.stretches()
            for stretch in sorted(stretches, reverse=True):
                if not run.held:  # all were forgotten meanwhile
                    break
                first = run.first + stretch * STRETCH
                yield from range(min(first + STRETCH, run.end) - 1, first - 1, -1)


def is_folder(node: Node | None) -> bool:
    return isinstance(node, Directory) and not isinstance(node, Settled)


def by_version(runs: Iterable[Run], lock: threading.Lock) -> dict[Hashable, KnownIds]:
    """Return the known ids of runs by their version, in the order of the runs. ``lock`` is that of the table."""
    found: dict[Hashable, list[Run]] = {}
    for run in runs:
        found.setdefault(run.holding, []).append(run)
    return {version: KnownIds(of_version, lock) for version, of_version in found.items()}
