"""Containers: which files are any, what is parsed of them, and until when.

A file is looked at when somebody asks what it is, and what was parsed then is kept while there is room. A lease on a
version lives as long as somebody refers to it, and is found again by its place; as long as it does, its contents can be
parsed again. What is leased is compared with its store by ``refresh``, and by whoever looks the name up. Any thread.

In a store where looking into files costs too much (``is_remote``) the name of a file decides at first. What may be a
container is leased as one that is presumed, and parsed when somebody wants what is inside. What turns out to be none is
remembered as that, and to whoever wanted to look inside it has changed: into a plain file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.errors import (
    Changed,
    DeviceFailed,
    GlassfsError,
    NotADirectory,
    NotFound,
    Refused,
    Unavailable,
    Unrecognised,
)
from glassfs.formats.registry import Opening, open_container
from glassfs.names import component, raw
from glassfs.source import Entry, Path, Source, Version
from glassfs.tree.containers.lease import ContainerLease, Location, OpenContainer
from glassfs.tree.containers.parsed import Contents
from glassfs.tree.containers.verdicts import Finding, Verdict, Verdicts
from glassfs.tree.lease import Lease
from glassfs.tree.listings import Listings
from glassfs.tree.nodes import NO_VIEWS, Children, Services
from glassfs.tree.turns import Turns
from glassfs.view import ViewSet

if TYPE_CHECKING:
    from glassfs.cache.catalogue import Catalogue

log = logging.getLogger(__name__)

OPEN_CONTAINERS = 10_000
KEPT_BYTES = 6 << 20
"""Memory for what is parsed of containers, beside the cache for decoded blocks."""
COMPARED = 256
"""Containers that one ``refresh`` compares with their stores; where there are more, all of them in turn."""
PARTS_AT_A_TIME = 512
"""Further files of all these that one ``refresh`` compares; of each, a few at least."""
LEAST_PARTS = 8


class Containers:
    """The containers of one tree. What is parsed of them stays within ``budget`` bytes, and of ``limit`` of them.

    ``views`` are the derived ones that are shown. If it ``has_catalogue``, what is in containers is noted for good, in
    that of the user.

    ``changed`` is called, by whoever notices, when a container is not what it was: no path leads to it any more.
    ``dropped`` is called with its lease when its contents were dropped or exchanged: who has nodes of it gives them up,
    so that memory is what it should be, and makes them again when they are needed. Whoever is called must not ask for a
    container: another thread may be waiting for this one's turn.
    """

    def __init__(
        self, cache: BlockCache, limit: int = OPEN_CONTAINERS, budget: int = KEPT_BYTES, views: ViewSet = NO_VIEWS,
        has_catalogue: bool = False, listings: Listings[Children] | None = None,
    ) -> None:
        self.services = Services(cache, listings or Listings(), views)
        self.changed: Callable[[], None] = lambda: None
        self.dropped: Callable[[Lease], None] = lambda lease: None
        self._has_catalogue = has_catalogue
        self._lock = threading.Lock()
        self._turns = Turns()
        self._contents = Contents(budget, limit, self._forget)
        self._verdicts = Verdicts()
        self._named: set[Location] = set()
        """What somebody wants to see as a container, whatever its name is."""
        self._held: WeakValueDictionary[Location, ContainerLease] = WeakValueDictionary()
        self._waiting: list[Location] = []
        """Those whose turn to be compared comes before that of all others."""
        self._noticed: set[str] = set()
        self._told: set[tuple[Location, str, str]] = set()
        """What stores have told: the folder, its path in the tree, and a name or "" for all that is in it."""

    @cached_property
    def catalogue(self) -> Catalogue | None:
        """What is known of containers from before."""
        if not self._has_catalogue:
            return None
        from glassfs.cache.catalogue import Catalogue, user_folder  # most never need it, nor SQLite

        return Catalogue(user_folder())

    def all_open(self) -> list[OpenContainer]:
        return self._contents.all()

    def opened(self, lease: ContainerLease) -> OpenContainer:
        """The container that is leased, parsed again if need be. Raises Changed where another has taken its place."""
        found = self._contents.find(lease)
        if found is None:
            with self._turns.of(lease.location):
                found = self._contents.find(lease)
                if found is None:
                    found = self._parsed_again(lease)
        return found

    def opened_at(self, location: Location, version: Version, at: str) -> OpenContainer:
        """The container at a place in that version. Raises Changed where it is another, and why it is none.

        From now on it is looked into whenever another version stands there, also where names decide.
        """
        with self._turns.of(location):
            with self._lock:
                self._named.add(location)
                lease = self._held.get(location)
            if lease is None or lease.version != version:
                return self._parsed(self._opening(location, version), location, at)
        return self.opened(lease)

    @contextmanager
    def glimpsed(self, location: Location, version: Version) -> Iterator[tuple[Container, Sequence[Entry]]]:
        """The container at a place in that version and the entries of its files, for as long as the ``with`` lasts.

        For those who go through very many: what is not kept already is not kept for them, nor does anything go for it.
        Raises Changed where it is another, and why it is none.
        """
        with self._lock:
            lease = self._held.get(location)
        if lease is not None and lease.version == version:
            opened = self._contents.find(lease)
            if opened is not None:
                yield opened.container, lease.entries
                return
        known = self._verdicts.get(location)
        if known is not None and known.version == version and known.refusal == "":
            raise Unrecognised("is not a container of a known format", location.store.shown(location.path))
        opening = self._opening(location, version)
        try:
            with _faults_of_formats(opening.source.name):
                container = open_container(opening)
        except Unrecognised:
            self._verdicts.put(location, Finding(version, ""))
            opening.source.close()
            raise
        except BaseException:
            opening.source.close()
            raise
        try:
            parts = [(path, part.entry) for path, part in _parts(opening, container)]
            if lease is None or not lease.is_presumed:
                self._verdicts.put(location, Finding(version, None, container.format, parts))
            with _faults_of_formats(opening.source.name):
                yield container, [one.entry for one in container.sources]
        finally:
            container.close()

    def verdict(self, location: Location, entry: Entry, at: str) -> Verdict:
        """Whether the file at a place, as it is by ``entry``, is a container. ``at`` is its path in the tree.

        Raises GlassfsError where that cannot be found out; it is then asked anew the next time.
        """
        known = self._known(location, entry, at)
        if known is None:
            with self._turns.of(location):
                known = self._known(location, entry, at)
                if known is None:
                    known = self._examined(location, entry, at)
        return known

    def look(self, location: Location, entry: Entry | None) -> bool:
        """Compares a container that is leased with what stands at its place now; whether anything changed.

        Where its bytes did it is retired, where only attributes did it goes on under these.
        """
        with self._lock:
            lease = self._held.get(location)
        if lease is None:
            return False
        before = lease.entries
        return self._compare(lease, before, None if entry is None else (entry, *before[1:]))

    def is_current(self, lease: Lease) -> bool:
        """Whether what is leased still stands at its place, as far as can be told: its store is asked now."""
        if isinstance(lease, ContainerLease) and not lease.is_retired:
            try:
                self.look(lease.location, lease.location.store.entry(lease.location.path))
            except (NotFound, NotADirectory):
                self.look(lease.location, None)
            except GlassfsError as error:
                log.debug("not looked at: %s", error)
        return not lease.is_retired

    def watch(self, folder: Location, at: str) -> bool:
        """Whether ``refresh`` will tell of changes in a folder of a store; ``at`` is its path in the tree."""

        def told(_: Path, name: str) -> None:
            with self._lock:
                is_news = not self._told
                self._told.add((folder, at, name))
            if is_news:
                self.changed()

        return folder.store.watch(folder.path, told)

    def refresh(self) -> list[str]:
        """Compares the containers that are leased with their stores, or those whose turn it is. Then as ``heard``.

        Waits for each of these stores.
        """
        some = self._next()
        parts = max(LEAST_PARTS, PARTS_AT_A_TIME // (len(some) or 1))
        for lease in some:
            before = lease.entries
            try:
                now = lease.entries_now(before, parts)
            except (Unavailable, DeviceFailed):
                continue
            except GlassfsError:
                now = None
            self._compare(lease, before, now)
        self._contents.weigh_some()
        return self.heard()

    def heard(self) -> list[str]:
        """The paths in the tree of what changed since this was asked before, whoever has noticed it.

        Of containers, and of anything in a folder that is watched. Waits for no store but one that told of a change.
        """
        self._hear()
        with self._lock:
            noticed, self._noticed = self._noticed, set()
        return sorted(noticed)

    def close(self) -> None:
        """Gives up all that was parsed and decoded, and what is held for it."""
        for opened in self._contents.all():
            self._let_go(opened.lease)
        if "catalogue" in self.__dict__ and self.catalogue is not None:
            self.catalogue.close()
        self.services.listings.clear()
        self.changed()
        self.services.cache.clear()

    def _hear(self) -> None:
        """Looks at what stores have told."""
        with self._lock:
            told, self._told = self._told, set()
        for folder, at, name in told:
            shown = _shown_unchanged(name)
            if name:
                location = Location(folder.store, (*folder.path, name))
                try:
                    self.look(location, folder.store.entry(location.path))
                except (NotFound, NotADirectory):
                    self.look(location, None)
                except GlassfsError as error:
                    log.debug("not looked at: %s", error)
            with self._lock:
                self._noticed.add(f"{at}/{shown}" if shown else at)

    def _next(self) -> list[ContainerLease]:
        """Those whose turn it is to be compared with their stores."""
        with self._lock:
            if len(self._held) <= COMPARED:
                return list(self._held.values())
            if not self._waiting:
                self._waiting = list(self._held)
            some = self._waiting[-COMPARED:]
            del self._waiting[-COMPARED:]
            return [lease for location in some if (lease := self._held.get(location)) is not None]

    def _compare(self, lease: ContainerLease, before: Sequence[Entry], now: tuple[Entry, ...] | None) -> bool:
        if now is not None and all(a.version == b.version for a, b in zip(before, now, strict=True)):
            if all(a.stamp == b.stamp for a, b in zip(before, now, strict=True)):
                return False
            # Only attributes, as far as can be told: whoever reads may go on, but nothing that was kept is relied on.
            with self._lock:
                if self._held.get(lease.location) is not lease or lease.entries is not before:
                    return False  # somebody else was quicker
                lease.entries = now
                self._noticed.add(lease.at)
                self._contents.exchange(lease, self._opened)
            self._forget(lease)
            for version in {lease.identity, *(entry.version for entry in now)}:
                self.services.cache.forget(version)
        elif not self._retire(lease, is_replaced=now is not None):
            return False
        self.changed()
        return True

    def _retire(self, lease: ContainerLease, is_replaced: bool) -> bool:
        """Its place shows another version, or nothing. What is held of it stays readable as its sources let it."""
        with self._lock:
            if self._held.get(lease.location) is not lease:
                return False
            del self._held[lease.location]
            lease.retire(is_replaced)
            self._noticed.add(lease.at)
        self._let_go(lease)
        return True

    def _let_go(self, lease: ContainerLease) -> None:
        self._contents.drop(lease)
        self._forget(lease)

    def _forget(self, lease: ContainerLease) -> None:
        """Its nodes are not to be found any more."""
        self.services.listings.forget(lease)
        self.dropped(lease)

    def _known(self, location: Location, entry: Entry, at: str) -> Verdict | None:
        """The verdict that is remembered, if nothing has changed that it rests on; else that of the name."""
        found = self._verdicts.get(location)
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
        with self._lock:
            lease = self._held.get(location)
            if lease is None:
                files = [(location.path, entry), *found.others]
                sources = [(path, location.store.source(path, facts)) for path, facts in files]
                is_presumed = not found.format
                lease = self._held[location] = ContainerLease(location, at, found.format, sources, is_presumed)
        is_same = [known.version for known in lease.entries] == [known.version for known in entries]
        return Verdict(None, entries, lease) if is_same else None

    def _examined(self, location: Location, entry: Entry, at: str) -> Verdict:
        opening = self._opening(location, entry.version)
        try:
            lease = self._parsed(opening, location, at).lease
        except Refused as error:
            return Verdict(self._refused(opening, location, error), [entry])
        return Verdict(None, (entry, *lease.entries[1:]), lease)

    def _refused(self, opening: Opening, location: Location, error: Refused) -> str:
        """Remembers that what was opened is no container; why, or "" if it does not look like one."""
        version = opening.source.version
        if isinstance(error, Unrecognised):
            self._verdicts.put(location, Finding(version, ""))
            return ""
        reason = error.without_source
        before = self._verdicts.get(location)
        if before is None or before.refusal != reason:
            log.warning("%s", error)
        asked = [(path, "" if source is None else source.entry.stamp) for path, source in opening.asked]
        self._verdicts.put(location, Finding(version, reason, asked=asked))
        return reason

    def _opening(self, location: Location, version: Version) -> Opening:
        """For a file in that version. Raises Changed where it is another."""
        source = location.store.open(location.path)
        if source.version != version:
            source.close()
            raise Changed("has been replaced by another file", source.name)
        return Opening(source, self.services.cache, *location)

    def _parsed(self, opening: Opening, location: Location, at: str) -> OpenContainer:
        """What is at a place from now on. Raises Refused where it is not to be shown."""
        source = opening.source
        try:
            with _faults_of_formats(source.name):
                container = open_container(opening)
        except BaseException:
            source.close()
            raise
        parts = _parts(opening, container)
        lease = ContainerLease(location, at, container.format, [(location.path, source), *parts])
        with self._lock:
            before = self._held.get(location)
            self._held[location] = lease
            if before is not None:
                before.retire(is_replaced=True)
                self._noticed.add(before.at)
        self._verdicts.put(location, _finding(source, container.format, parts))
        if before is not None:
            self._let_go(before)
            self.changed()
        return self._contents.put(container, lease, self._opened)

    def _parsed_again(self, lease: ContainerLease) -> OpenContainer:
        if lease.is_replaced:
            raise Changed("has been replaced by another file", lease.sources[0].name)
        opening = lease.opening(self.services.cache)
        lease.keep()  # so that each file is opened once
        try:
            with _faults_of_formats(opening.source.name):
                container = open_container(opening)
            if lease.is_presumed:
                self._settle(lease, container.format, _parts(opening, container))
            elif opening.asked:
                opening.close_asked()
                self._verdicts.drop(lease.location)
                self._retire(lease, is_replaced=True)
                raise Changed("is made of other files than before", opening.source.name)
            return self._contents.put(container, lease, self._opened)
        except Refused as error:
            if not lease.is_presumed:
                raise
            self._refused(opening, lease.location, error)
            self._retire(lease, is_replaced=True)
            self.changed()
            raise Changed(error.reason, error.source, error.part) from None
        finally:
            lease.unkeep()

    def _settle(self, lease: ContainerLease, format_name: str, parts: Sequence[tuple[Path, Source]]) -> None:
        """What was presumed is a container, as was found out just now."""
        lease.extend([part for _, part in parts])  # under no lock, as it may have to wait for a disk
        with self._lock:
            lease.settle(format_name, parts)
            if parts:
                self._noticed.add(lease.at)
        self._verdicts.put(lease.location, _finding(lease.sources[0], format_name, parts))
        if parts:  # whose attributes and versions count, too
            self.changed()

    def _opened(self, container: Container, lease: ContainerLease) -> OpenContainer:
        return OpenContainer(container, lease, lease.origin(self.services))


def _finding(source: Source, format_name: str, parts: Sequence[tuple[Path, Source]]) -> Finding:
    """That it is a container of these files."""
    return Finding(source.version, None, format_name, [(path, part.entry) for path, part in parts])


def _shown_unchanged(name: str) -> str:
    """The name that a folder shows for one in a store, "" if that depends on what else there is."""
    try:
        return name if component(raw(name)) == name else ""
    except UnicodeEncodeError:
        return ""


def _parts(opening: Opening, container: Container) -> list[tuple[Path, Source]]:
    """The further files that a container is made of; those that it asked for and does without are closed."""
    used = {id(source.entry) for source in container.sources[1:]}
    parts = []
    for path, source in opening.asked:
        if source is not None and id(source.entry) in used:
            parts.append((path, source))
        elif source is not None:
            source.close()
    return parts


@contextmanager
def _faults_of_formats(name: str) -> Iterator[None]:
    """What a format raises that it should not costs the container called ``name``, not the folder around it."""
    try:
        yield
    except GlassfsError:
        raise
    except MemoryError:
        raise Unavailable("there is not enough memory to open it", name) from None
    except Exception as error:
        log.exception("%s", GlassfsError("cannot be opened, by a fault of its format", name))
        raise Refused(f"cannot be opened: {type(error).__name__}: {error}", name) from error
