"""The cache of containers inside containers, within a memory budget. Any thread.

They have the lease of the outermost container: what changes or ends that ends them as well.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from glassfs.cache import BlockCache
from glassfs.content import Container, Group, Member, Nested, NestedSource, Omitted, Part
from glassfs.errors import Damaged, Refused
from glassfs.formats.registry import Opening
from glassfs.keyed_lock import KeyedLock
from glassfs.tree.build import directory
from glassfs.tree.containers.opener import parse
from glassfs.tree.containers.parsed import LEAST_WEIGHT
from glassfs.tree.containers.weight import weight_of
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import OpenNested, Origin

log = logging.getLogger(__name__)


class _Cached:
    """An open container, its weight in bytes, and how often it was used."""

    __slots__ = ("opened", "uses", "weight")

    def __init__(self, opened: OpenNested) -> None:
        self.opened = opened
        self.weight = 0
        self.uses = 0


class NestedContainers:
    """Open nested containers by lease and inode number, up to ``budget`` bytes.

    Those in the outermost container that was used least recently are evicted together, as ``on_evict``, called with its
    lease and under no lock, releases the nodes of all that is in it. A container heavier than the whole budget stays
    until another one comes.
    """

    def __init__(self, cache: BlockCache, on_evict: Callable[[Lease], None], budget: int) -> None:
        self._cache = cache
        self._on_evict = on_evict
        self._budget = budget
        self._weight = 0
        self._lock = threading.Lock()
        self._opening = KeyedLock()
        self._cached: OrderedDict[Lease, dict[int, _Cached]] = OrderedDict()

    def opened(self, name: str, ino: int, origin: Origin, content: Nested) -> OpenNested:
        """Return the container in a directory, opening it if needed.

        One that cannot be opened has nothing in it but its own file. Raises Passing.
        """
        lease = origin.lease
        found = self._find(lease, ino)
        if found is None:
            with self._opening.hold((lease, ino)):
                found = self._find(lease, ino)
                if found is None:
                    container = self._open(content)
                    inside = replace(origin, format=container.format)
                    found = _Cached(OpenNested(container, directory(name, ino, inside, container.root)))
                    with self._lock:
                        self._cached.setdefault(lease, {})[ino] = found
                    self._weigh(found, lease, ino)
                    return found.opened
        found.uses += 1
        if found.uses & (found.uses - 1) == 0:  # what is allocated late is mostly allocated at the first use
            self._weigh(found, lease, ino)
        return found.opened

    def forget(self, lease: Lease) -> None:
        """Drop what is inside one version of a container. ``on_evict`` is not called."""
        with self._lock:
            self._drop(lease)

    def clear(self) -> None:
        with self._lock:
            self._cached.clear()
            self._weight = 0

    def _find(self, lease: Lease, ino: int) -> _Cached | None:
        with self._lock:
            within = self._cached.get(lease)
            if within is None:
                return None
            self._cached.move_to_end(lease)
            return within.get(ino)

    def _open(self, content: Nested) -> Container:
        source = NestedSource(content)
        try:
            return parse(Opening(source, self._cache))
        except (Refused, Damaged) as error:
            log.warning("%s", error.at(source.name))
            file = Member((content.key.rpartition(b"/")[2],), Part(content.key, content.data))
            members = [file, Member((b"",), Omitted(b"", error.without_source, is_damage=True))]
            return Container("unknown", "", Group(content.key, lambda: members), [source])

    def _weigh(self, cached: _Cached, lease: Lease, ino: int) -> None:
        """Weigh a container again, and evict others if there are too many bytes."""
        held = cached.opened.container.held
        weight = LEAST_WEIGHT + (weight_of(cached.opened.container, self._budget) if held is None else held)
        evicted = []
        with self._lock:
            if self._cached.get(lease, {}).get(ino) is not cached:
                return
            self._weight += weight - cached.weight
            cached.weight = weight
            while self._weight > self._budget:
                oldest = next(iter(self._cached))
                if oldest is lease and len(self._cached[lease]) == 1:
                    break
                evicted.append(oldest)
                self._drop(oldest)
                if oldest is lease:
                    self._cached[lease] = {ino: cached}
                    self._weight += weight
        for oldest in evicted:
            self._on_evict(oldest)

    def _drop(self, lease: Lease) -> None:
        """Drop what is inside a container. The caller holds the lock."""
        for cached in self._cached.pop(lease, {}).values():
            self._weight -= cached.weight
