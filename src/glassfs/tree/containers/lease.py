"""One version of a container: where it is, the lease on it, and what is parsed of it. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import xxhash

from glassfs.cache import BlockCache
from glassfs.cache.findings import Findings
from glassfs.content import Container
from glassfs.formats.registry import Opening, may_be_container
from glassfs.source import Entry, Path, Source, Store, Version
from glassfs.tree.build import container_root
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, Origin, Services, Settled
from glassfs.view import ViewSet


class Location(NamedTuple):
    """A path in a store."""

    store: Store
    path: Path

    @property
    def may_be_container(self) -> bool:
        """Whether a file here is worth opening: in a remote store only if its suffix says so."""
        return not self.store.is_remote or may_be_container(self.path[-1])

    def below(self, *names: str) -> Location:
        return tuple.__new__(Location, (self.store, (*self.path, *names)))  # faster than ``Location``


class ContainerLease(Lease):
    """The lease on one version of the container at ``location``, whose path in the tree is ``at``.

    ``files`` are the paths and sources of all its files, its own first. ``entries`` are those of the same files when
    they were compared last. Its contents can be parsed again from the sources, also after the files were deleted while
    a reader has acquired the lease.

    If it ``is_presumed``, only its name or its first bytes say that it is a container. Format and further files are
    unknown until ``settle`` records them.
    """

    __slots__ = ("_paths", "_rounds", "at", "entries", "format", "identity", "is_presumed", "location")

    entries: tuple[Entry, ...]
    identity: str
    _paths: tuple[Path, ...]

    def __init__(
        self, location: Location, at: str, format_name: str, files: Sequence[tuple[Path, Source]],
        is_presumed: bool = False,
    ) -> None:
        if len(files) == 1:  # mostly
            path, source = files[0]
            super().__init__((source,))
            self._paths, self.entries, self.identity = (path,), (source.entry,), source.entry.version
        else:
            super().__init__(tuple([source for _, source in files]))
            self._paths = tuple([path for path, _ in files])
            self.entries = tuple([source.entry for source in self.sources])
            self.identity = identity_of(self.entries)
        self.location = location
        self.at = at
        self.format = format_name
        self.is_presumed = is_presumed
        self._rounds = 0

    @property
    def files(self) -> Sequence[tuple[Path, Entry]]:
        """The paths and entries of its files, its own first."""
        return tuple(zip(self._paths, self.entries, strict=True))

    @property
    def version(self) -> Version:
        """The version of its own file."""
        return self.entries[0].version

    def origin(self, services: Services) -> Origin:
        entries = self.entries
        first = entries[0]
        return Origin(
            self.identity, Access.of(entries), first.mtime_ns, services, self, self.format, first.volume,
        )

    def opening(self, cache: BlockCache, findings: Findings) -> Opening:
        """Return what a format needs to parse it again."""
        known = dict(zip(self._paths[1:], self.sources[1:], strict=True))
        return Opening(self.sources[0], cache, *self.location, known=known, findings=findings)

    def settle(self, format_name: str, parts: Sequence[tuple[Path, Source]]) -> None:
        """Record its format and further files, which ``extend`` has added to its sources."""
        self._paths = (*self._paths, *(path for path, _ in parts))
        self.entries = (*self.entries, *(source.entry for _, source in parts))
        self.identity = identity_of(self.entries)
        self.format = format_name
        self.is_presumed = False

    def entries_now(self, before: Sequence[Entry], parts: int) -> tuple[Entry, ...]:
        """Return ``before`` with current entries of its own file and of up to ``parts`` further files, in turn."""
        now = list(before)
        now[0] = self.location.store.entry(self.location.path)
        others = len(now) - 1
        if others:
            self._rounds += 1
            for step in range(min(others, parts)):
                number = 1 + (self._rounds * parts + step) % others
                now[number] = self.location.store.entry(self._paths[number])
        return tuple(now)


class OpenContainer:
    """A parsed container and its root directory.

    When only attributes of its files change, another object with the same container takes its place.
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
        """Return a second root directory that shows ``views``, with inode numbers of its own; always the same one."""
        if self._viewed is None:
            services = self.origin.services._replace(views=views)
            self._viewed = container_root(self.container.root, replace(self.origin, services=services), number=1)
        return self._viewed


def identity_of(entries: Sequence[Entry]) -> str:
    """Return a short string that differs between versions of these files."""
    if len(entries) == 1:
        return entries[0].version
    return xxhash.xxh128_hexdigest("\n".join(entry.version for entry in entries).encode())
