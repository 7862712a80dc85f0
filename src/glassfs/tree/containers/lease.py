"""One version of a container: the lease on it, and what is parsed of it while there is room. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import xxhash

from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.formats.registry import Opening, may_be_container
from glassfs.source import Entry, Path, Source, Store, Version
from glassfs.tree.build import container_root
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, Origin, Services, Settled
from glassfs.view import ViewSet


class Location(NamedTuple):
    """A name in a store."""

    store: Store
    path: Path

    @property
    def may_be_container(self) -> bool:
        """Whether a file there is worth looking into, as far as its name tells where nothing else may be asked."""
        return not self.store.is_remote or may_be_container(self.path[-1])


class ContainerLease(Lease):
    """The lease on one version of the container at ``place``, whose path in the tree is ``at``.

    ``files`` are the paths and sources of all files that it is made of, its own first; ``entries`` are those of the
    same files as they were when they were looked at last. What was parsed is not here: it can be parsed again from the
    sources, also when the files were deleted and somebody holds on to them.

    If it ``is_presumed``, only the name says that there is a container: its format and further files are not known
    before somebody looks inside, and ``settle`` then tells them.
    """

    __slots__ = ("_paths", "at", "entries", "format", "identity", "is_presumed", "location", "looks")

    def __init__(
        self, location: Location, at: str, format_name: str, files: Sequence[tuple[Path, Source]],
        is_presumed: bool = False,
    ) -> None:
        super().__init__(tuple(source for _, source in files))
        self.location = location
        self.at = at
        self.format = format_name
        self.is_presumed = is_presumed
        self.entries = tuple(source.entry for source in self.sources)
        self.identity = identity_of(self.entries)
        self.looks = 0
        """How many times its further files were looked at."""
        self._paths = tuple(path for path, _ in files)

    @property
    def version(self) -> Version:
        """That of its own file."""
        return self.entries[0].version

    def origin(self, services: Services) -> Origin:
        entries = self.entries
        first = entries[0]
        return Origin(
            self.identity, Access.of(entries), first.mtime_ns, services, self, self.format, first.volume,
        )

    def opening(self, cache: BlockCache) -> Opening:
        """For parsing it again."""
        known = dict(zip(self._paths[1:], self.sources[1:], strict=True))
        return Opening(self.sources[0], cache, *self.location, known=known)

    def settle(self, format_name: str, parts: Sequence[tuple[Path, Source]]) -> None:
        """It is a container, of this format and with these further files, by which it was extended."""
        self._paths = (*self._paths, *(path for path, _ in parts))
        self.entries = (*self.entries, *(source.entry for _, source in parts))
        self.identity = identity_of(self.entries)
        self.format = format_name
        self.is_presumed = False

    def entries_now(self, before: Sequence[Entry], parts: int) -> tuple[Entry, ...]:
        """What stands now where its files were ``before``; of further ones, up to ``parts`` each time, in turn."""
        now = list(before)
        now[0] = self.location.store.entry(self.location.path)
        others = len(now) - 1
        if others:
            self.looks += 1
            for step in range(min(others, parts)):
                number = 1 + (self.looks * parts + step) % others
                now[number] = self.location.store.entry(self._paths[number])
        return tuple(now)


class OpenContainer:
    """What was parsed of a container, and its root directory.

    Where the attributes of its files change, and nothing else, another takes its place with the same container.
    """

    __slots__ = ("_viewed", "container", "lease", "origin", "root")

    def __init__(self, container: Container, lease: ContainerLease, origin: Origin) -> None:
        self.container = container
        self.lease = lease
        self.origin = origin
        name = lease.at.rpartition("/")[2]
        self.root: Settled = container_root(container.root, origin, name, is_mount_root=not lease.at)
        self._viewed: Settled | None = None

    def root_with(self, views: ViewSet) -> Settled:
        """A second root directory, the same each time, with inode numbers of its own; ``views`` are shown below it."""
        if self._viewed is None:
            services = self.origin.services._replace(views=views)
            self._viewed = container_root(self.container.root, replace(self.origin, services=services), number=1)
        return self._viewed


def identity_of(entries: Sequence[Entry]) -> str:
    """What tells this version of all these files together from others; short, as many nodes compare it."""
    if len(entries) == 1:
        return entries[0].version
    return xxhash.xxh128_hexdigest("\n".join(entry.version for entry in entries).encode())
