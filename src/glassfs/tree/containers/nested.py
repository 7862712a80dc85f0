"""The cache of containers inside containers, within a memory budget. Any thread.

They have the lease of the outermost container: what changes or ends that ends them as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from glassfs.cache import BlockCache
from glassfs.content import Container, Group, Member, Nested, NestedSource, Omitted, Part
from glassfs.errors import Damaged, Refused
from glassfs.formats.registry import Opening
from glassfs.keyed_lock import KeyedLock
from glassfs.tree.build import directory
from glassfs.tree.containers.lease import OpenContainers
from glassfs.tree.containers.opener import parse
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import OpenNested, Origin

log = logging.getLogger(__name__)


class NestedContainers:
    """Open nested containers by lease and inode number, up to ``budget`` bytes.

    Eviction is of all in one outermost container, as ``on_evict``, called with its lease, releases the nodes of all.
    """

    def __init__(self, cache: BlockCache, on_evict: Callable[[Lease], None], budget: int, layout: str = "") -> None:
        self._cache, self._layout = cache, layout
        self._on_evict = on_evict
        self._opening = KeyedLock()
        self._cached: OpenContainers[tuple[Lease, int], OpenNested] = OpenContainers(budget, self._release)

    def opened(self, name: str, ino: int, origin: Origin, content: Nested) -> OpenNested:
        """Return the container in a directory, opening it if needed.

        One that cannot be opened has nothing in it but its own file. Raises Passing.
        """
        key = origin.lease, ino

        def opened() -> OpenNested:
            container = self._open(content)
            inside = replace(origin, format=container.format)
            nested = OpenNested(container, directory(name, ino, inside, container.root))
            self._cached.was_put(key, self._cached.put(key, nested))
            return nested

        return self._cached.get(key) or self._opening.once(key, lambda: self._cached.get(key), opened)

    def forget(self, lease: Lease, used: tuple[Lease, int] | None = None) -> None:
        """Drop what is inside one version of a container, but for what is ``used``. ``on_evict`` is not called."""
        self._cached.pop_where(lambda key: key[0] is lease and key != used)

    def clear(self) -> None:
        self._cached.clear()

    def _open(self, content: Nested) -> Container:
        source = NestedSource(content)
        try:
            return parse(Opening(source, self._cache, layout=self._layout))
        except (Refused, Damaged) as error:
            log.warning("%s", error.at(source.name))
            file = Member((content.key.rpartition(b"/")[2],), Part(content.key, content.data))
            members = [file, Member((b"",), Omitted(b"", error.without_source, is_damage=True))]
            return Container("unknown", "", Group(content.key, lambda: members), [source])

    def _release(self, evicted: list[tuple[tuple[Lease, int], OpenNested]], used: tuple[Lease, int]) -> None:
        """Evict the others in the same outermost containers, except for the one that is used now."""
        for lease in {lease for (lease, _), _ in evicted}:
            self.forget(lease, used)
            self._on_evict(lease)
