"""What was parsed of containers, up to a budget of bytes and a number: what was used longest ago goes first.

Any thread. What it weighs is measured when it comes in, and again after it was used, as some of it is found out late.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from glassfs.content import Container
from glassfs.tree.containers.lease import ContainerLease, OpenContainer
from glassfs.tree.containers.weight import weight_of

LEAST_WEIGHT = 4 << 10
"""Counted for a container beside what is measured: its sources, its places in tables, and the nodes that go with it."""
RECENT = 8
"""Containers that may be in use right now: those used before are measured again."""
PAUSE = 10.0
"""Seconds at least between two rounds in which all are measured, and for each second that measuring takes."""
AT_ONCE = 2 << 20
"""Bytes that are measured at once in such a round."""

Make = Callable[[Container, ContainerLease], OpenContainer]


class _Kept:
    """What is kept of one container.

    ``uses`` counts how often it was gone back to, ``is_holding`` tells whether it holds the lease.
    """

    __slots__ = ("is_holding", "opened", "uses", "weight")

    def __init__(self, opened: OpenContainer, weight: int, is_holding: bool) -> None:
        self.opened = opened
        self.weight = weight
        self.is_holding = is_holding
        self.uses = 0


class Contents:
    """Parsed containers by their leases, which they hold for as long as they are here.

    ``dropped`` is called, under no lock, with the lease of each that had to go for others. One that weighs more than
    the whole budget goes as soon as another one comes.
    """

    def __init__(self, budget: int, limit: int, dropped: Callable[[ContainerLease], None]) -> None:
        self._budget = budget
        self._limit = max(1, limit)
        self._dropped = dropped
        self._lock = threading.Lock()
        self._kept: OrderedDict[ContainerLease, _Kept] = OrderedDict()
        self._recent: OrderedDict[ContainerLease, None] = OrderedDict()
        self._to_weigh: list[ContainerLease] = []
        self._next_round = 0.0
        self._weight = 0

    @property
    def weight(self) -> int:
        return self._weight

    def all(self) -> list[OpenContainer]:
        with self._lock:
            return [kept.opened for kept in self._kept.values()]

    def find(self, lease: ContainerLease) -> OpenContainer | None:
        due = None
        with self._lock:
            kept = self._kept.get(lease)
            if kept is None:
                return None
            self._kept.move_to_end(lease)
            if lease not in self._recent:
                due = self._next_recent(lease)
                kept.uses += 1
            opened = kept.opened
        if due is not None:
            self.weigh(due)
        return opened

    def weigh_some(self) -> None:
        """Measures some again, all in turn: what is kept elsewhere of nodes may be used without asking here.

        To be called now and then by one thread.
        """
        begun = time.monotonic()
        if not self._to_weigh:
            if begun < self._next_round:
                return
            with self._lock:
                self._to_weigh = list(self._kept)
            self._next_round = begun + PAUSE
        measured = 0
        while self._to_weigh and measured < AT_ONCE:
            measured += self.weigh(self._to_weigh.pop())
        self._next_round += PAUSE * (time.monotonic() - begun)

    def weigh(self, lease: ContainerLease) -> int:
        """Measures again what one weighs, and makes room where it is more than it was."""
        with self._lock:
            kept = self._kept.get(lease)
        if kept is None:
            return 0
        weight = LEAST_WEIGHT + weight_of(kept.opened.container, self._budget)
        with self._lock:
            if self._kept.get(lease) is not kept:
                return weight
            self._weight += weight - kept.weight
            kept.weight = weight
            going = self._reduced()
        self._let_go(going)
        return weight

    def put(self, container: Container, lease: ContainerLease, make: Make) -> OpenContainer:
        """What ``make`` gives for a container that was parsed just now. There must be none of this lease yet.

        It is kept, unless another version has taken its place meanwhile.
        """
        weight = LEAST_WEIGHT + weight_of(container, self._budget)
        going = []
        lease.keep()  # under no lock, as it may have to wait for a disk
        with self._lock:
            opened = make(container, lease)
            is_kept = not lease.is_replaced
            # What was deleted is left to those who have it open: nothing would tell when it may go.
            is_holding = is_kept and not lease.is_retired
            if is_kept:
                self._kept[lease] = _Kept(opened, weight, is_holding)
                self._weight += weight
                going = self._reduced()
        if not is_holding:
            lease.unkeep()
        self._let_go(going)
        return opened

    def exchange(self, lease: ContainerLease, make: Make) -> None:
        """Makes anew what there is of a lease, if anything, after its entries were exchanged."""
        with self._lock:
            kept = self._kept.get(lease)
            if kept is not None:
                kept.opened = make(kept.opened.container, lease)

    def drop(self, lease: ContainerLease) -> None:
        """Gives up what there is of a lease, and the hold on it."""
        with self._lock:
            kept = self._kept.pop(lease, None)
            self._recent.pop(lease, None)
            if kept is not None:
                self._weight -= kept.weight
        if kept is not None and kept.is_holding:
            lease.unkeep()

    def _next_recent(self, lease: ContainerLease) -> ContainerLease | None:
        """Notes that a container is used now; the one that is not any more, if it is to be measured. Under the lock."""
        self._recent[lease] = None
        if len(self._recent) <= RECENT:
            return None
        before, _ = self._recent.popitem(last=False)
        kept = self._kept.get(before)
        # Not each time: what is found out late is mostly found out the first time.
        return before if kept is not None and kept.uses & (kept.uses - 1) == 0 else None

    def _reduced(self) -> list[_Kept]:
        """What has to go, under the lock."""
        going = []
        while (self._weight > self._budget or len(self._kept) > self._limit) and len(self._kept) > 1:
            lease, kept = self._kept.popitem(last=False)
            self._recent.pop(lease, None)
            self._weight -= kept.weight
            going.append(kept)
        return going

    def _let_go(self, going: list[_Kept]) -> None:
        for kept in going:
            if kept.is_holding:
                kept.opened.lease.unkeep()
            self._dropped(kept.opened.lease)
