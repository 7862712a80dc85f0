"""The containers of a tree: which files are containers, and what is parsed of them. Any thread.

A file is parsed when a caller asks what it is. The verdict is remembered; parsed contents are cached within a memory
budget, and parsed again from the lease, which is found while anything refers to it.

In a remote store the file name decides at listing: a possible container gets a presumed lease and is parsed when a
caller needs its contents. If it turns out to be a plain file, the caller gets Changed.

Containers inside containers have the lease of the outermost one: what changes or ends that ends them as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from glassfs import __version__
from glassfs.cache import BlockCache
from glassfs.cache.catalogue import Catalogue, Findings, user_folder
from glassfs.content import Container, Group, Member, Nested, NestedSource, Omitted, Part
from glassfs.errors import Changed, Damaged, GlassfsError, Postponed, Private, Refused, Unrecognised
from glassfs.formats.registry import Opening
from glassfs.keyed_lock import KeyedLock
from glassfs.source import Entry, Path, Source, Version
from glassfs.tree.build import directory
from glassfs.tree.containers.lease import (
    ContainerLease,
    Location,
    OpenContainer,
    OpenContainers,
    Refusal,
    absent_from,
    failure,
    parse,
    parse_or_close,
    used_parts,
)
from glassfs.tree.containers.watcher import Watcher
from glassfs.tree.lease import Lease
from glassfs.tree.listings import LISTING_BYTES, Listings
from glassfs.tree.nodes import NO_VIEWS, Children, OpenNested, Origin, Services
from glassfs.view import ViewSet

log = logging.getLogger(__name__)

OPEN_CONTAINERS = 10_000
PARSED_BYTES = 6 << 20
"""Memory budget for parsed containers, beside the cache of decoded blocks."""
PRIVATE = "cannot be opened, for a reason that lies in files beside it, which fewer users may read"
"""Said to all who may read the file; the log has the reason."""


class ContainerSettings(NamedTuple):
    """How a tree opens its containers: ``limit`` is the number of parsed ones, budgets are in bytes.

    With ``has_catalogue``, rows of containers are also stored in the user's catalogue on disk. ``layout`` chooses the
    layouts of generic containers (``layouts.known.chosen``).
    """

    cache: BlockCache
    limit: int = OPEN_CONTAINERS
    budget: int = PARSED_BYTES
    views: ViewSet = NO_VIEWS
    has_catalogue: bool = False
    listing_budget: int = LISTING_BYTES
    layout: str = ""


class Containers:
    """The containers of one tree.

    ``on_change`` is called, on the thread that noticed, when a container changed and no path leads to its old version;
    ``on_drop`` with a lease after its contents were evicted or exchanged, so that owners of nodes release them. Neither
    may ask for a container, as its lock may be held.
    """

    def __init__(
        self, settings: ContainerSettings, on_change: Callable[[], None] = lambda: None,
        on_drop: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        listings: Listings[Children] = Listings(settings.cache.memory, settings.listing_budget)
        settings.cache.share(listings.evict)
        # What is inside others has a budget of its own: one container full of them must not evict all others.
        self._nested = NestedContainers(settings.cache, self._release_nodes, settings.budget // 3, settings.layout)
        self.services = Services(settings.cache, listings, self._nested.opened, settings.views)
        self._has_catalogue = settings.has_catalogue
        self.layout = settings.layout
        self._on_change = on_change
        self._on_drop = on_drop
        self._parsing = KeyedLock()
        self._parsed: OpenContainers[ContainerLease, OpenContainer] = OpenContainers(
            settings.budget, self._evicted, max(1, settings.limit),
        )
        self._caching = threading.Lock()
        self.kept = Findings(lambda: self.catalogue, __version__)
        """What formats found out about containers, beside their contents."""
        self._named: set[Location] = set()
        """Files that a user named as containers, whatever their suffixes."""
        self.watcher = Watcher(self._update, self._forget_contents, on_change)

    @cached_property
    def catalogue(self) -> Catalogue | None:
        """The user's catalogue of rows on disk, opened on first use."""
        return Catalogue(user_folder) if self._has_catalogue else None

    # From a file to a container

    def verdict(self, location: Location, entry: Entry, at: str) -> ContainerLease | str:
        """Return the lease on the container that the file of that ``entry`` is, or why it is not shown as one.

        The reason is "" if it does not look like one. ``at`` is its path in the tree. Raises GlassfsError, and
        remembers nothing, if it cannot be read now.
        """
        # Mostly it is remembered, and no lock is taken.
        verdict = self._remembered(location, entry)
        if verdict is not None:
            return verdict
        # One thread parses a file, and others wait for it: otherwise one version would have two leases.
        return self._parsing.once(
            location, lambda: self._remembered(location, entry), lambda: self._examined(location, entry, at),
        )

    def _remembered(self, location: Location, entry: Entry) -> ContainerLease | str | None:
        """Return what is known of a file, if it and all others that this rests on are unchanged."""
        known = self.watcher.known(location)
        if isinstance(known, Refusal):
            return known.reason if known.holds(location.store, entry.version) else None
        if known is None:
            return None
        # All of its files count: a part that was replaced makes it another version, and rights are those of all. A
        # change that is noticed here retires or updates the lease at once, as if ``refresh`` had come first.
        self.watcher.check(location, entry)
        if known.has_others:
            before = known.entries
            self.watcher.compare(known, before, known.entries_now(before, before[0]))
        return None if known.is_retired or known.version != entry.version else known

    def _examined(self, location: Location, entry: Entry, at: str) -> ContainerLease | str:
        """Find out whether a file is a container, mostly by parsing it. The caller holds the lock of the location."""
        # Opening a remote file takes a request, so there the name decides, unless a user named the file as a container.
        is_named = location in self._named
        if location.store.is_remote and not is_named:
            return self._presumed(location, entry, at) if location.may_be_container else ""
        opening = self._opening(location, entry.version, may_wait=not is_named)
        try:
            return self._parse(opening, location, at).lease
        except Refused as error:
            return self._refuse(opening, location, error)
        except Postponed:
            return self._presumed(location, entry, at)

    def _opening(
        self, location: Location, version: Version, source: Source | None = None, may_wait: bool = False,
        known: Mapping[Path, Source] | None = None,
    ) -> Opening:
        """Return what a format needs to open that version. Raises Changed if the file has another one now."""
        if source is None:
            source = location.store.open(location.path)
            if source.version != version:
                source.close()
                raise Changed("has been replaced by another file", source.name)
        return Opening(
            source, self.services.cache, location.store, location.path, known=known or {}, findings=self.kept,
            may_wait=may_wait, layout=self.layout,
        )

    def _parse(self, opening: Opening, location: Location, at: str) -> OpenContainer:
        """Parse a new version and lease it. Raises Refused if the file is not shown as a container."""
        container, parts = parse_or_close(opening)
        lease = ContainerLease(
            location, at, opening.source, parts, container.format, container.tables, absent_from(opening),
        )
        return self._cached(container, self._leased(lease))

    def _presumed(self, location: Location, entry: Entry, at: str) -> ContainerLease:
        return self._leased(ContainerLease(location, at, location.store.source(location.path, entry)))

    def _leased(self, lease: ContainerLease) -> ContainerLease:
        """Remember a new lease as that of its location."""
        self.watcher.add(lease.location, lease, len(lease.entries) + len(lease.absent))
        return lease

    def _refuse(self, opening: Opening, location: Location, error: Refused) -> str:
        """Remember why a file is not shown as a container, and return it; "" if it does not look like one."""
        reason, asked = "", []
        if not isinstance(error, Unrecognised):
            reason = PRIVATE if isinstance(error, Private) else error.without_source
            log.warning("%s", error)
            asked = [
                (path, found if isinstance(found, str) else found.entry.stamp) for path, found in opening.asked
            ]
        self.watcher.add(location, Refusal(opening.source.version, reason, asked), 1 + len(asked))
        return reason

    # From a lease to the contents

    def all_open(self) -> list[OpenContainer]:
        return [opened for _, opened in self._parsed.items()]

    def parsed(self, lease: ContainerLease) -> OpenContainer | None:
        """Return the container of a lease if it is parsed now. That is no use of it: look-ups ask for each."""
        return self._parsed.peek(lease)

    def opened(self, lease: ContainerLease) -> OpenContainer:
        """Return the leased container, parsing it again if needed. Raises Changed if it was replaced."""
        return self._parsed.get(lease) or self._parsing.once(
            lease.location, lambda: self._parsed.get(lease), lambda: self._parse_again(lease),
        )

    def _parse_again(self, lease: ContainerLease) -> OpenContainer:
        if lease.is_replaced:
            raise Changed("has been replaced by another file", lease.sources[0].name)
        opening = self._opening(lease.location, lease.version, lease.sources[0], known=lease.parts)
        lease.acquire()  # so that each file is opened once
        try:
            container = parse(opening)
            if lease.is_presumed:
                lease.settle(container, used_parts(opening, container), absent_from(opening))
                if opening.asked:  # their attributes and versions count, too
                    self.watcher.note(lease.at)
                    self._on_change()
            elif len(absent_from(opening)) < len(opening.asked):
                opening.close_asked()
                self.watcher.retire(lease, is_replaced=True)
                raise Changed("is made of other files than before", opening.source.name)
            return self._cached(container, lease)
        except Refused as error:
            if not lease.is_presumed:
                raise
            self.watcher.retire(lease, is_replaced=True)
            self._refuse(opening, lease.location, error)
            raise Changed(error.reason, error.source, error.part) from None
        finally:
            lease.release()

    def _cached(self, container: Container, lease: ContainerLease) -> OpenContainer:
        """Cache a container that was just parsed, and return it with its root directory."""
        evicted = []
        lease.acquire()
        with self._caching:
            opened = OpenContainer(container, lease, self.services)
            # The sources of a deleted container are up to its readers: no event would say when to close them.
            is_cached = not lease.is_retired
            if is_cached:
                evicted = self._parsed.put(lease, opened)
        if not is_cached:
            lease.release()
        self._parsed.was_put(lease, evicted)
        return opened

    # For callers that know the version

    def opened_at(self, location: Location, version: Version, at: str) -> OpenContainer:
        """Return the container of that version at a location. Raises Changed, or why it is not a container.

        From then on later versions there are parsed too, also where file names decide.
        """
        self._named.add(location)

        def known() -> ContainerLease | None:
            lease = self.watcher.find(location)
            return lease if lease is not None and lease.version == version else None

        def parsed() -> ContainerLease:
            return self._parse(self._opening(location, version), location, at).lease

        return self.opened(self._parsing.once(location, known, parsed))

    def leased(self, location: Location, version: Version, at: str) -> ContainerLease:
        """Return the lease on the container of that version at a location. Raises Changed, or why it is none."""
        lease = self.verdict(location, location.entry(), at)
        if isinstance(lease, str) or lease.version != version:
            raise Changed("has been replaced by another file", location.shown())
        return lease

    @contextmanager
    def glimpsed(
        self, location: Location, version: Version,
    ) -> Iterator[tuple[Container, Sequence[tuple[Path, Entry]]]]:
        """Provide the container of that version, and the paths and entries of its files, without caching anything.

        For passes over many containers. Raises Changed, or why it is not a container.
        """
        known = self.watcher.known(location)
        if isinstance(known, ContainerLease) and known.version == version:
            opened = self._parsed.get(known)
            if opened is not None:
                yield opened.container, known.files
                return
        if isinstance(known, Refusal) and known.version == version and not known.reason:
            raise Unrecognised("is not a container of a known format", location.shown())
        opening = self._opening(location, version)
        try:
            container, parts = parse_or_close(opening)
        except Unrecognised as error:
            self._refuse(opening, location, error)
            raise
        try:
            files = [(location.path, opening.source), *parts]
            yield container, [(path, source.entry) for path, source in files]
        except GlassfsError:
            raise
        except Exception as error:
            raise failure(error, opening.source.name) from error
        finally:
            container.close()

    def tables_of(self, location: Location, version: Version) -> Sequence[str] | None:
        """Return the joined tables to which a file may give rows, or None if it was not parsed yet. Cheap."""
        known = self.watcher.known(location)
        if known is None or known.version != version:
            return None
        if isinstance(known, Refusal):
            return ()
        return None if known.is_presumed else known.tables

    # When something changes

    def refresh(self) -> list[str]:
        """Compare leased containers with their stores; return the tree paths of what changed. Waits for stores.

        Large caches that were not used for a while are dropped first.
        """
        self.services.cache.drops += self.services.listings.drop_idle()
        self.services.cache.drop_idle()
        self.watcher.refresh()
        self._parsed.weigh([lease for lease, _ in self._parsed.items()])
        self.kept.flush()
        return self.watcher.changes()

    def close(self) -> None:
        """Release all parsed containers, decoded blocks and descriptors. Later calls open containers again."""
        for lease, _ in self._parsed.items():
            self._forget_contents(lease)
        self.kept.flush()
        if "catalogue" in self.__dict__ and self.catalogue is not None:
            self.catalogue.close()
        self.services.listings.clear()
        self._nested.clear()
        self._on_change()
        self.services.cache.clear()

    def _update(self, lease: ContainerLease) -> None:
        """Use new attributes. Readers go on, but cached bytes are dropped: attributes may hint at new bytes."""
        with self._caching:
            opened = self._parsed.peek(lease)
            if opened is not None:
                self._parsed.exchange(lease, OpenContainer(opened.container, lease, self.services))
        self._forget_nodes(lease)
        for version in {lease.identity, *(entry.version for entry in lease.entries)}:
            self.services.cache.forget(version)

    def _forget_contents(self, lease: ContainerLease) -> None:
        """Forget what is parsed of a version, as it was retired."""
        with self._caching:
            opened = self._parsed.pop(lease)
        if opened is not None:
            lease.release()
        self._forget_nodes(lease)

    def _evicted(self, evicted: list[tuple[ContainerLease, OpenContainer]], used: ContainerLease) -> None:
        for lease, _ in evicted:
            lease.release()
            self._forget_nodes(lease)

    def _forget_nodes(self, lease: ContainerLease) -> None:
        self._nested.forget(lease)
        self._release_nodes(lease)

    def _release_nodes(self, lease: Lease) -> None:
        self.services.listings.forget(lease)
        self._on_drop(lease)


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
