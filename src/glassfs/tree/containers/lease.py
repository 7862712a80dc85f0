"""One version of a container: where it is, opening it, the lease on it, and what is parsed of it. Any thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import xxhash

from glassfs.content import Container
from glassfs.content.allowance import OBJECT
from glassfs.content.selected import selected
from glassfs.errors import DeviceFailed, GlassfsError, Private, Refused, Unavailable, is_lack
from glassfs.formats.registry import Opening, may_be_container, open_container
from glassfs.lru import LRU, Key
from glassfs.source import Entry, Path, Source, Store, Version
from glassfs.tree.build import container_root
from glassfs.tree.containers.selected import SelectedSource
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, OpenNested, Origin, Services, Settled

log = logging.getLogger(__name__)

CONTAINER_COST = 64 * OBJECT
"""Bytes counted for each open container beside ``Container.held``: a few objects, its sources, table entries, nodes."""


class Location(NamedTuple):
    """A path in a store."""

    store: Store
    path: Path

    @property
    def may_be_container(self) -> bool:
        """Whether a file here is worth opening: in a remote store only if its suffix says so."""
        return not self.store.is_remote or may_be_container(self.path[-1])

    def entry(self) -> Entry:
        return self.store.entry(self.path)

    def shown(self) -> str:
        """Return the location for messages."""
        return self.store.shown(self.path)

    def below(self, *names: str) -> Location:
        return Location(self.store, (*self.path, *names))


class Refusal(NamedTuple):
    """Why a version of a file is not shown as a container; "" if it does not look like one.

    ``asked`` are the files that its format asked for, with their stamps, "" for those that cannot be opened.
    """

    version: Version
    reason: str
    asked: Sequence[tuple[Path, str]] = ()

    def holds(self, store: Store, version: Version) -> bool:
        """Return whether it is about this version, and no other file has changed that it rests on."""
        return version == self.version and all(stamp_now(store, path) == stamp for path, stamp in self.asked)


class ContainerLease(Lease):
    """The lease on one version of the container at ``location``, whose path in the tree is ``at``.

    ``source`` is its own file, ``parts`` are the paths and sources of the others, ``entries`` those of all, its own
    first, when they were compared last. While the lease is acquired, its contents can be parsed again even if the files
    were deleted. ``tables`` are the joined tables to which it may give rows. ``absent`` are files that it lacks, with
    their stamps, "" for missing ones: another stamp of one makes it another version.

    Without a ``format`` it is presumed: only its name or its first bytes say that it is a container, and format, tables
    and further files are unknown until ``settle`` records them.
    """

    def __init__(
        self, location: Location, at: str, source: Source, parts: Sequence[tuple[Path, Source]] = (),
        format_name: str = "", tables: Sequence[str] = (), absent: Sequence[tuple[Path, str]] = (),
    ) -> None:
        super().__init__((source, *[part for _, part in parts]))
        self.location, self.at = location, at
        self.format, self.tables = format_name, tables
        self.entries = (source.entry, *[part.entry for _, part in parts])
        self.identity = identity_of(self.entries)
        self._paths = (location.path, *[path for path, _ in parts])
        self.absent = absent

    def update(self, before: Sequence[Entry], now: tuple[Entry, ...]) -> bool:
        """Exchange the entries ``before`` for those of now. Returns False if another thread changed them first."""
        with self._lock:
            if self.is_retired or self.entries is not before:
                return False
            self.entries = now
        return True

    @property
    def is_presumed(self) -> bool:
        return not self.format

    @property
    def has_others(self) -> bool:
        """Whether it rests on further files, which are there or absent."""
        return len(self.entries) > 1 or bool(self.absent)

    @property
    def files(self) -> Sequence[tuple[Path, Entry]]:
        """The paths and entries of its files, its own first."""
        return tuple(zip(self._paths, self.entries, strict=True))

    @property
    def version(self) -> Version:
        """The version of its own file."""
        return self.entries[0].version

    def origin(self, services: Services, has_other_names: bool = False) -> Origin:
        entries = self.entries
        first = entries[0]
        return Origin(
            self.identity, Access.of(entries), first.mtime_ns, services, self, self.format, first.volume,
            has_other_names,
        )

    @property
    def parts(self) -> dict[Path, Source]:
        """The sources of its further files."""
        return dict(zip(self._paths[1:], self.sources[1:], strict=True))

    def settle(
        self, container: Container, parts: Sequence[tuple[Path, Source]], absent: Sequence[tuple[Path, str]],
    ) -> None:
        """Record what parsing it found out, and its further files. May wait for a disk."""
        self.extend([source for _, source in parts])  # not under the lock, as it may have to wait for a disk
        with self._lock:
            self._paths = (*self._paths, *[path for path, _ in parts])
            # Attributes of its own file may have changed since its source was made.
            self.entries = (*self.entries, *[source.entry for _, source in parts])
            self.identity = identity_of(self.entries)
            self.absent = absent
        self.tables = container.tables
        self.format = container.format

    def entries_now(self, before: Sequence[Entry], own: Entry | None = None) -> tuple[Entry, ...] | None:
        """Return the current entries of the files in ``before``; None if one is gone, or one that was absent is there.

        ``own`` is the entry of its own file if the caller asked for it already. Raises Unavailable and DeviceFailed.
        """
        store, path = self.location
        asked = [*self._paths[1 : len(before)], *(other for other, _ in self.absent)]
        try:
            first = store.entry(path) if own is None else own
            found = store.entries(path[:-1], [other[-1] for other in asked])
        except (Unavailable, DeviceFailed):
            raise
        except GlassfsError:
            return None
        parts, absent = found[: len(before) - 1], found[len(before) - 1 :]
        if ["" if entry is None else entry.stamp for entry in absent] != [stamp for _, stamp in self.absent]:
            return None
        now = (first, *(entry for entry in parts if entry is not None))
        return now if len(now) == len(before) else None


class OpenContainer:
    """A parsed container and its root directory.

    When only attributes of its files change, another object with the same container takes its place.
    """

    def __init__(self, container: Container, lease: ContainerLease, services: Services) -> None:
        self.container = container
        self.lease = lease
        self.origin = lease.origin(services)
        name = lease.at.rpartition("/")[2]
        self.root: Settled = container_root(container.root, self.origin, name, is_mount_root=not lease.at)

    @cached_property
    def viewed(self) -> Settled:
        """A second root directory that shows all views, with inode numbers of its own."""
        services = self.origin.services
        services = services._replace(views=services.views.with_all())
        return container_root(self.container.root, replace(self.origin, services=services), number=1)


Kept = TypeVar("Kept", bound=OpenContainer | OpenNested)


class OpenContainers(LRU[Key, Kept]):
    """Open containers, up to ``limit`` bytes and ``most`` containers. Any thread.

    A container is weighed again when the next one was put here, as most take memory at their first use, and by
    ``weigh``. ``on_evict`` is called, under no lock, with those evicted for others, and the key of the one that is used
    now. A container heavier than the whole limit stays until another one comes.
    """

    def __init__(
        self, limit: int, on_evict: Callable[[list[tuple[Key, Kept]], Key], None], most: int | None = None,
    ) -> None:
        super().__init__(limit, most)
        self._on_evict = on_evict
        self._last: list[Key] = []

    def put(self, key: Key, value: Kept, weight: int = 0) -> list[tuple[Key, Kept]]:
        """Add a container; return those that were evicted for it. The caller then calls ``was_put``."""
        return super().put(key, value, CONTAINER_COST + value.container.held())

    def was_put(self, key: Key, evicted: list[tuple[Key, Kept]]) -> None:
        """Release what was evicted for a container, and weigh the previous one. The caller holds no lock."""
        if evicted:
            self._on_evict(evicted, key)
        last, self._last = self._last, [key]
        self.weigh(last)

    def weigh(self, keys: Sequence[Key]) -> None:
        """Weigh containers again, and evict others if they have grown."""
        for key in keys:
            opened = self.peek(key)
            if opened is not None and (evicted := self.reweigh(key, CONTAINER_COST + opened.container.held())):
                self._on_evict(evicted, key)


def stamp_now(store: Store, path: Path) -> str:
    """Return the stamp of a file, "" if it is missing or cannot be opened. Raises Unavailable."""
    try:
        return store.entry(path).stamp
    except Unavailable:
        raise
    except GlassfsError:
        return ""


def identity_of(entries: Sequence[Entry]) -> str:
    """Return a short string that differs between versions of these files."""
    if len(entries) == 1:
        return entries[0].version
    return xxhash.xxh128_hexdigest("\n".join(entry.version for entry in entries).encode())


Parts = Sequence[tuple[Path, Source]]
"""The further files that a container is made of."""


def parse(opening: Opening) -> Container:
    """Return the container. Raises Refused if the file is not one, or if its format fails, and Postponed.

    Refused is Private if further files were opened that grant less than the container's own.
    """
    try:
        container = open_container(opening)
        allowance, beside = opening.allowance, container.held
        container.held = lambda: allowance.size - allowance.left + beside()
        if container.is_generic:
            from glassfs.layouts.episodes import interpreted  # most formats know what their episodes are
            from glassfs.layouts.known import chosen

            container = interpreted(container, [known.layout for known in chosen(opening.layout)], opening)
        source = opening.source
        return selected(container, source.picks) if isinstance(source, SelectedSource) else container
    except Refused as error:
        read = [opening.source.entry, *(found.entry for _, found in opening.asked if isinstance(found, Source))]
        if Access.of(read).permissions != Access.of(read[:1]).permissions:
            raise Private(error.reason, error.source, error.part) from error
        raise
    except GlassfsError:
        raise
    except Exception as error:
        raise failure(error, opening.source.name) from error


def parse_or_close(opening: Opening) -> tuple[Container, Parts]:
    """Return the container and its further files; close the file where ``parse`` raises."""
    try:
        container = parse(opening)
    except BaseException:
        opening.source.close()
        raise
    return container, used_parts(opening, container)


def used_parts(opening: Opening, container: Container) -> Parts:
    """Return the further files that a container uses, in its order, and close those that its format only tried."""
    if not opening.asked:
        return ()
    used = {id(source.entry): number for number, source in enumerate(container.sources)}
    parts = []
    for path, source in opening.asked:
        if isinstance(source, Source) and id(source.entry) in used:
            parts.append((path, source))
        elif isinstance(source, Source):
            source.close()
    return sorted(parts, key=lambda part: used[id(part[1].entry)])


def absent_from(opening: Opening) -> Sequence[tuple[Path, str]]:
    """Return the files that a format asked for and that could not be opened, with their stamps, "" if missing."""
    return [(path, stamp) for path, stamp in opening.asked if isinstance(stamp, str)]


def failure(error: Exception, name: str) -> BaseException:
    """Return what to raise for an unexpected error of a format: Refused, after a record in the log.

    So it costs one container and not its folder. It is Unavailable if memory or descriptors lack.
    """
    if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 and older: it came while a class was made
        interruption, error.__cause__ = error.__cause__, None
        return interruption
    if is_lack(error):
        return Unavailable(f"cannot be opened now: {str(error) or 'there is not enough memory'}", name)
    log.exception("%s", GlassfsError("cannot be opened, due to an error in its format", name))
    return Refused(f"cannot be opened: {type(error).__name__}: {error}", name)
