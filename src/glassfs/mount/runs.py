"""Consecutive node ids of the children of one directory, and which of them the kernel may know.

A directory may have billions of children, of which the kernel knows those that it looked up or listed. A run counts its
references for each stretch of ``STRETCH`` ids, so it takes memory in proportion to what the kernel knows, and asking
the kernel to forget a version takes time in the same proportion.

All is changed under the lock of the table of ids (``inodes.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from glassfs.tree import Directory, Node, Settled
from glassfs.tree.lease import Lease

STRETCH = 32


@dataclass(eq=False)
class HeldLease:
    """The lease on one version of a container or file, the number of runs that hold it, and cached nodes by id."""

    lease: Lease
    runs: int = 0
    nodes: dict[int, Node] = field(default_factory=dict)


@dataclass(eq=False)
class Run:
    """The ids from ``first`` to before ``end``, to which the kernel holds ``held`` references in total.

    They belong to the children of the directory with the id ``parent``: ``directory``, or one in the run ``above``; or
    the only one belongs to ``node``, which is ``name`` there. ``used`` are names that were looked up.
    """

    first: int
    end: int
    parent: int
    identity: str
    volume: str
    holding: HeldLease
    held: int = 0
    directory: Node | None = None
    above: Run | None = None
    node: Node | None = None
    name: str = ""
    used: Set[str] = frozenset()
    _known: dict[int, int] | None = None
    """References by number of the stretch, in a run of several."""

    def note(self, number: int, count: int, references: int) -> None:
        """Count so many more references to each of ``count`` ids from that number in the run on."""
        if self.end - self.first <= STRETCH:
            return
        known = self._known
        if known is None:
            known = self._known = {}
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
        return [0] if self.end - self.first <= STRETCH else list(self._known or ())


@dataclass(frozen=True)
class KnownIds:
    """The ids that the kernel may know of some runs, descending in each. Each pass finds what it knows by then.

    ``lock`` is that of the table.
    """

    runs: Sequence[Run]
    lock: threading.Lock

    @property
    def held(self) -> int:
        """The number of references that the kernel holds to them."""
        return sum(run.held for run in self.runs)

    def entries(self) -> Iterator[tuple[int, str]]:
        """Yield the names that have runs of their own and lead to files and containers: their folder's id, the name."""
        for run in self.runs:
            if run.node is not None and not is_folder(run.node):
                yield run.parent, run.name

    def __iter__(self) -> Iterator[int]:
        for run in self.runs:
            with self.lock:
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
