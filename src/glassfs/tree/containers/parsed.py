"""The cache of parsed containers, within a memory budget. Any thread.

Unless a container knows its weight, it is measured when the container is added and again after use, as some containers
allocate late.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from glassfs.content import Container
from glassfs.content.allowance import OBJECT
from glassfs.lru import LRU
from glassfs.settings import settings
from glassfs.sizes import PIECE
from glassfs.tree.containers.lease import ContainerLease, OpenContainer
from glassfs.tree.containers.weight import weight_of
from glassfs.tree.nodes import Services

CONTAINER_COST = 32 * OBJECT
"""Bytes counted for each container beside its measured weight: its sources, table entries and nodes."""
RECENT = 8
"""Containers that may be in use now; they are weighed again when others take their place."""


class ParsedContainers:
    """Parsed containers by their leases, up to ``budget`` bytes and ``limit`` containers.

    ``on_evict`` is called, under no lock, with the lease of each container evicted for others. A container heavier
    than the whole budget stays until another one comes.
    """

    def __init__(
        self, services: Services, budget: int, limit: int, on_evict: Callable[[ContainerLease], None],
    ) -> None:
        self._services = services
        self._budget = budget
        self._on_evict = on_evict
        self._lock = threading.Lock()
        self._cached: LRU[ContainerLease, OpenContainer] = LRU(budget, max(1, limit))
        self._recent: OrderedDict[ContainerLease, None] = OrderedDict()
        self._to_weigh: list[ContainerLease] = []
        self._next_round = 0.0

    def all(self) -> list[OpenContainer]:
        return [opened for _, opened in self._cached.items()]

    def peek(self, lease: ContainerLease) -> OpenContainer | None:
        return self._cached.peek(lease)

    def find(self, lease: ContainerLease) -> OpenContainer | None:
        opened = self._cached.get(lease)
        if opened is not None and lease not in self._recent:
            with self._lock:
                # It may have been evicted or added meanwhile.
                is_first = lease not in self._recent and self._cached.peek(lease) is opened
                to_weigh = self._add_recent(lease) if is_first else None
                opened.uses += is_first
            if to_weigh is not None:
                self.weigh(to_weigh)
        return opened

    def weigh_some(self) -> None:
        """Weigh some containers again, all in turn: owners of nodes may use a container without asking for it.

        Only one thread may call this, periodically.
        """
        # In proportion to its own cost: weighing many containers must not take a noticeable part of a processor.
        begun = time.monotonic()
        if not self._to_weigh:
            if begun < self._next_round:
                return
            self._to_weigh = [lease for lease, opened in self._cached.items() if opened.container.held is None]
            self._next_round = begun + settings.weighing_pause
        weighed = 0
        while self._to_weigh and weighed < PIECE:
            weighed += self.weigh(self._to_weigh.pop())
        self._next_round += settings.weighing_pause * (time.monotonic() - begun)

    def weigh(self, lease: ContainerLease) -> int:
        """Weigh a container again, evict others if it has grown, and return its weight."""
        opened = self._cached.peek(lease)
        if opened is None:
            return 0
        weight = self._weight(opened.container)
        with self._lock:
            evicted = self._cached.reweigh(lease, weight) if self._cached.peek(lease) is opened else []
        self._release(evicted)
        return weight

    def put(self, container: Container, lease: ContainerLease) -> OpenContainer:
        """Cache a container that was just parsed, and return it with its root directory.

        It is not cached if another version has replaced it meanwhile. The lease must not be cached already.
        """
        weight = self._weight(container)
        evicted = []
        lease.keep()  # under no lock, as it may have to wait for a disk
        with self._lock:
            opened = OpenContainer(container, lease, self._services)
            # The sources of a deleted container are up to its readers: no event would say when to close them.
            opened.is_keeping = not lease.is_retired
            if not lease.is_replaced:
                evicted = self._cached.put(lease, opened, weight)
        if not opened.is_keeping:
            lease.unkeep()
        if evicted:
            self._release(evicted)
        return opened

    def _weight(self, container: Container) -> int:
        held = container.held
        return CONTAINER_COST + (weight_of(container, self._budget) if held is None else held)

    def exchange(self, lease: ContainerLease) -> None:
        """Make the open container of a lease anew, if it is cached, after the lease's entries changed."""
        with self._lock:
            before = self._cached.peek(lease)
            if before is not None:
                opened = OpenContainer(before.container, lease, self._services)
                opened.is_keeping, opened.uses = before.is_keeping, before.uses
                self._cached.exchange(lease, opened)

    def drop(self, lease: ContainerLease) -> None:
        """Remove what is cached for a lease. ``on_evict`` is not called."""
        with self._lock:
            opened = self._cached.pop(lease)
            self._recent.pop(lease, None)
        if opened is not None and opened.is_keeping:
            lease.unkeep()

    def _add_recent(self, lease: ContainerLease) -> ContainerLease | None:
        """Note a use; return the lease that is no longer recent, if it is due to be weighed. Under the lock."""
        self._recent[lease] = None
        if len(self._recent) <= RECENT:
            return None
        before, _ = self._recent.popitem(last=False)
        opened = self._cached.peek(before)
        # After 1, 2, 4, 8 … uses: what is allocated late is mostly allocated at the first use.
        is_due = opened is not None and opened.container.held is None and opened.uses & (opened.uses - 1) == 0
        return before if is_due else None

    def _release(self, evicted: list[tuple[ContainerLease, OpenContainer]]) -> None:
        for lease, opened in evicted:
            with self._lock:
                self._recent.pop(lease, None)
            if opened.is_keeping:
                lease.unkeep()
            self._on_evict(lease)
