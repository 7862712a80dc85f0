"""The containers of a tree: which files are containers, and what is parsed of them. Any thread.

A file is parsed when a caller asks what it is. The verdict is remembered (``verdicts``), parsed contents are cached
within a memory budget (``parsed``), and a lease on the version is found again while anything refers to it
(``leases``), so that its contents can be parsed again. ``watcher`` compares leased containers with their stores.

In a remote store opening each file costs too much, so the file name decides at listing. A possible container gets a
presumed lease and is parsed when a caller needs its contents. If it turns out to be a plain file, that is its verdict,
and the caller gets Changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from glassfs import __version__
from glassfs.cache import BlockCache
from glassfs.cache.findings import Findings as CatalogueFindings
from glassfs.content import Container
from glassfs.errors import Changed, Postponed, Refused, Unrecognised
from glassfs.formats.registry import AHEAD, HEAD, Opening
from glassfs.keyed_lock import KeyedLock
from glassfs.lru import LRU
from glassfs.source import Entry, Path, Source, Version
from glassfs.tree.containers.lease import ContainerLease, Location, OpenContainer
from glassfs.tree.containers.leases import Leases
from glassfs.tree.containers.nested import NestedContainers
from glassfs.tree.containers.opener import Parts, format_errors, open_version, parse, parse_or_close, used_parts
from glassfs.tree.containers.parsed import ParsedContainers
from glassfs.tree.containers.verdicts import Finding, Verdict
from glassfs.tree.containers.watcher import Watcher
from glassfs.tree.lease import Lease
from glassfs.tree.listings import LISTING_BYTES, Listings
from glassfs.tree.nodes import NO_VIEWS, Children, Services
from glassfs.view import ViewSet

if TYPE_CHECKING:
    from glassfs.cache.catalogue import Catalogue

log = logging.getLogger(__name__)

OPEN_CONTAINERS = 10_000
REMEMBERED_FILES = 100_000
"""Files on which remembered verdicts rest."""
PARSED_BYTES = 6 << 20
"""Memory budget for parsed containers, beside the cache of decoded blocks."""
NESTED_SHARE = 3
"""Such a part of it again is the budget for containers inside containers."""


class ContainerSettings(NamedTuple):
    """How a tree opens its containers. Budgets are in bytes.

    ``limit`` and ``budget`` bound the number and the memory of parsed containers. ``views`` are the derived views that
    are shown. With ``has_catalogue``, rows of containers are also stored in the user's catalogue on disk.
    """

    cache: BlockCache
    limit: int = OPEN_CONTAINERS
    budget: int = PARSED_BYTES
    views: ViewSet = NO_VIEWS
    has_catalogue: bool = False
    listing_budget: int = LISTING_BYTES


class Containers:
    """The containers of one tree.

    ``on_change`` is called, on the thread that noticed, when a container changed and no path leads to its old version.
    ``on_drop`` is called with a lease after its contents were evicted or exchanged: owners of nodes release them then,
    which frees the memory, and make them again when needed. Neither may ask for a container, as its lock may be held.
    """

    def __init__(
        self, settings: ContainerSettings, on_change: Callable[[], None] = lambda: None,
        on_drop: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        listings: Listings[Children] = Listings(settings.listing_budget, settings.cache.memory)
        settings.cache.share(listings.evict)
        self._nested = NestedContainers(settings.cache, self._release_nodes, settings.budget // NESTED_SHARE)
        self.services = Services(settings.cache, listings, self._nested.opened, settings.views)
        self._has_catalogue = settings.has_catalogue
        self._on_change = on_change
        self._on_drop = on_drop
        self._parsing = KeyedLock()
        self._parsed = ParsedContainers(settings.budget, settings.limit, self._forget_nodes)
        self._findings: LRU[Location, Finding] = LRU(REMEMBERED_FILES)
        self.kept = CatalogueFindings(lambda: self.catalogue, __version__)
        """What formats found out about containers, beside their contents."""
        self._named: set[Location] = set()
        """Files that a user named as containers, whatever their suffixes."""
        self._leases = Leases()
        self.watcher = Watcher(self._leases, self._update, self._drop, on_change)

    @cached_property
    def catalogue(self) -> Catalogue | None:
        """The user's catalogue of rows on disk, opened on first use."""
        if not self._has_catalogue:
            return None
        from glassfs.cache.catalogue import Catalogue, user_folder  # rarely needed, and imports SQLite

        return Catalogue(user_folder)

    def all_open(self) -> list[OpenContainer]:
        return self._parsed.all()

    def parsed(self, lease: ContainerLease) -> OpenContainer | None:
        """Return the container of a lease if it is parsed now."""
        return self._parsed.find(lease)

    def opened(self, lease: ContainerLease) -> OpenContainer:
        """Return the leased container, parsing it again if needed. Raises Changed if it was replaced."""
        found = self._parsed.find(lease)
        if found is None:
            with self._parsing.hold(lease.location):
                found = self._parsed.find(lease) or self._parse_again(lease)
        return found

    def opened_at(self, location: Location, version: Version, at: str) -> OpenContainer:
        """Return the container of that version at a location. Raises Changed, or why it is not a container.

        From then on later versions there are parsed too, also where file names decide.
        """
        with self._parsing.hold(location):
            self._named.add(location)
            lease = self._leases.find(location)
            if lease is None or lease.version != version:
                opening = open_version(location, version, self.services.cache, findings=self.kept)
                return self._parse(opening, location, at)
        return self.opened(lease)

    @contextmanager
    def glimpsed(
        self, location: Location, version: Version,
    ) -> Iterator[tuple[Container, Sequence[tuple[Path, Entry]]]]:
        """Give the container of that version and the paths and entries of its files, for the duration of the ``with``.

        For passes over many containers: nothing is cached for them, and nothing is evicted. Raises Changed, or why it
        is not a container.
        """
        lease = self._leases.find(location)
        if lease is not None and lease.version == version:
            opened = self._parsed.find(lease)
            if opened is not None:
                yield opened.container, lease.files
                return
        known = self._findings.get(location)
        if known is not None and known.version == version and known.refusal == "":
            raise Unrecognised("is not a container of a known format", location.store.shown(location.path))
        opening = open_version(location, version, self.services.cache, findings=self.kept)
        try:
            container, parts = parse_or_close(opening)
        except Unrecognised:
            self._remember(location, Finding(version, ""))
            raise
        try:
            if lease is None or not lease.is_presumed:
                self._remember(location, _finding(opening.source, container, parts))
            with format_errors(opening.source.name):
                files = [(location.path, opening.source), *parts]
                yield container, [(path, source.entry) for path, source in files]
        finally:
            container.close()

    def leased(self, location: Location, version: Version, at: str) -> ContainerLease:
        """Return the lease on the container of that version at a location. Raises Changed, or why it is none."""
        lease = self.verdict(location, location.store.entry(location.path), at).lease
        if lease is None or lease.version != version:
            raise Changed("has been replaced by another file", location.store.shown(location.path))
        return lease

    def tables_of(self, location: Location, version: Version) -> Sequence[str] | None:
        """Return the joined tables to which a file may give rows, or None if it was not parsed yet. Cheap."""
        known = self._findings.get(location)
        return None if known is None or known.version != version or known.is_presumed else known.tables

    def looked_up(self, location: Location) -> tuple[Entry, Source | None]:
        """Return what is at a location, for ``verdict``, and its bytes if it is a file that ``verdict`` would open."""
        if self._findings.peek(location) is None and not location.store.is_remote:
            return location.store.found(location.path, HEAD, AHEAD)
        return location.store.entry(location.path), None

    def verdict(self, location: Location, entry: Entry, at: str, source: Source | None = None) -> Verdict:
        """Return whether the file of that ``entry`` is a container. ``at`` is its path in the tree.

        ``source`` has its bytes if it is open already, and becomes part of the container or is closed. Raises
        GlassfsError if that cannot be determined now; nothing is remembered then.
        """
        try:
            known = self._known(location, entry, at) if source is None else None  # else nothing was remembered
            if known is None:
                with self._parsing.hold(location):
                    known = self._known(location, entry, at)
                    if known is None:
                        used, source = source, None
                        known = self._examine(location, entry, at, used)
            return known
        finally:
            if source is not None:
                source.close()

    def refresh(self) -> list[str]:
        """Compare leased containers with their stores; return the tree paths of what changed. Waits for stores.

        Large caches that were not used for a while are dropped first.
        """
        self.services.cache.drops += self.services.listings.drop_idle()
        self.services.cache.drop_idle()
        self.watcher.refresh()
        self._parsed.weigh_some()
        self.kept.flush()
        return self.watcher.changes()

    def close(self) -> None:
        """Release all parsed containers, decoded blocks and descriptors. Later calls open containers again."""
        for opened in self._parsed.all():
            self._drop(opened.lease)
        self.kept.flush()
        if "catalogue" in self.__dict__ and self.catalogue is not None:
            self.catalogue.close()
        self.services.listings.clear()
        self._nested.clear()
        self._on_change()
        self.services.cache.clear()

    def _update(self, lease: ContainerLease) -> None:
        """Use new attributes. Readers go on, but cached bytes are dropped: attributes may hint at new bytes."""
        self._parsed.exchange(lease, self._open_container)
        self._forget_nodes(lease)
        for version in {lease.identity, *(entry.version for entry in lease.entries)}:
            self.services.cache.forget(version)

    def _drop(self, lease: ContainerLease) -> None:
        self._parsed.drop(lease)
        self._forget_nodes(lease)

    def _forget_nodes(self, lease: ContainerLease) -> None:
        self._nested.forget(lease)
        self._release_nodes(lease)

    def _release_nodes(self, lease: Lease) -> None:
        self.services.listings.forget(lease)
        self._on_drop(lease)

    def _known(self, location: Location, entry: Entry, at: str) -> Verdict | None:
        """Return the remembered verdict if its files are unchanged, or in a remote store that of the file name."""
        found = self._findings.get(location)
        others = None
        if found is not None and found.version == entry.version:
            others = found.others_now(location.store)
        if found is None or others is None:
            if not location.store.is_remote or location in self._named:
                return None
            found, others = Finding(entry.version, None if location.may_be_container else ""), ()
        entries = (entry, *others)
        if found.refusal is not None:
            return Verdict(found.refusal, entries)
        format_name, files = found.format, [(location.path, entry), *found.others]

        def make() -> ContainerLease:
            sources = [(path, location.store.source(path, facts)) for path, facts in files]
            return ContainerLease(location, at, format_name, sources, is_presumed=not format_name)

        lease = self._leases.find_or_add(location, make)
        is_same = [known.version for known in lease.entries] == [known.version for known in entries]
        return Verdict(None, entries, lease) if is_same else None

    def _examine(self, location: Location, entry: Entry, at: str, source: Source | None) -> Verdict:
        may_wait = location not in self._named
        opening = open_version(location, entry.version, self.services.cache, source, self.kept, may_wait)
        try:
            opened = self._parse(opening, location, at)
        except Refused as error:
            return Verdict(self._refuse(opening, location, error), [entry])
        except Postponed:
            self._remember(location, Finding(entry.version, None))
            known = self._known(location, entry, at)
            if known is None:
                raise Changed("has been replaced by another file", opening.source.name) from None
            return known
        lease = opened.lease
        if lease.entries == (entry,) and not entry.has_other_names:
            return tuple.__new__(Verdict, (None, lease.entries, lease, opened.origin))
        return Verdict(None, (entry, *lease.entries[1:]), lease)

    def _refuse(self, opening: Opening, location: Location, error: Refused) -> str:
        """Remember why a file is not shown as a container, and return it; "" if it does not look like one."""
        version = opening.source.version
        if isinstance(error, Unrecognised):
            self._remember(location, Finding(version, ""))
            return ""
        reason = error.without_source
        before = self._findings.get(location)
        if before is None or before.refusal != reason:
            log.warning("%s", error)
        asked = [(path, "" if source is None else source.entry.stamp) for path, source in opening.asked]
        self._remember(location, Finding(version, reason, asked=asked))
        return reason

    def _remember(self, location: Location, finding: Finding) -> None:
        self._findings.put(location, finding, 1 + len(finding.others) + len(finding.asked))

    def _parse(self, opening: Opening, location: Location, at: str) -> OpenContainer:
        """Parse a new version and lease it. Raises Refused if the file is not shown as a container."""
        container, parts = parse_or_close(opening)
        lease = ContainerLease(location, at, container.format, [(location.path, opening.source), *parts])
        previous = self._leases.replace(lease)
        self._remember(location, _finding(opening.source, container, parts))
        if previous is not None:
            self.watcher.note(previous.at)
            self._drop(previous)
            self._on_change()
        return self._parsed.put(container, lease, self._open_container)

    def _parse_again(self, lease: ContainerLease) -> OpenContainer:
        if lease.is_replaced:
            raise Changed("has been replaced by another file", lease.sources[0].name)
        opening = lease.opening(self.services.cache, self.kept)
        lease.keep()  # so that each file is opened once
        try:
            container = parse(opening)
            if lease.is_presumed:
                self._settle(lease, container, used_parts(opening, container))
            elif opening.asked:
                opening.close_asked()
                self._findings.pop(lease.location)
                self.watcher.retire(lease, is_replaced=True)
                raise Changed("is made of other files than before", opening.source.name)
            return self._parsed.put(container, lease, self._open_container)
        except Refused as error:
            if not lease.is_presumed:
                raise
            self._refuse(opening, lease.location, error)
            self.watcher.retire(lease, is_replaced=True)
            raise Changed(error.reason, error.source, error.part) from None
        finally:
            lease.unkeep()

    def _settle(self, lease: ContainerLease, container: Container, parts: Parts) -> None:
        """Record that a presumed container is one."""
        self._leases.settle(lease, container.format, parts)
        self._remember(lease.location, _finding(lease.sources[0], container, parts))
        if parts:  # their attributes and versions count, too
            self.watcher.note(lease.at)
            self._on_change()

    def _open_container(self, container: Container, lease: ContainerLease) -> OpenContainer:
        return OpenContainer(container, lease, lease.origin(self.services))


def _finding(source: Source, container: Container, parts: Parts) -> Finding:
    """Return the finding that a file is a container with these further files."""
    others = tuple([(path, part.entry) for path, part in parts]) if parts else ()
    return tuple.__new__(Finding, (source.entry.version, None, container.format, others, (), container.tables))
