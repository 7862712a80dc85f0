"""Containers: which files are any, which are open, and until when.

A container is opened when somebody looks into it, and closed least recently used first. The verdict whether a
file is a container at all is remembered for as long as the file stays the same. What is shown is compared with its
store by ``refresh``, and by whoever looks the name up. Any thread.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import xxhash

from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.errors import Changed, DeviceFailed, GlassfsError, Refused, Unavailable
from glassfs.formats.registry import HEAD, Opening, open_container, recognise
from glassfs.source import Entry, Path, Source, Store, Version
from glassfs.tree.lease import Lease
from glassfs.tree.listings import Listings
from glassfs.tree.nodes import Access, Origin, Services
from glassfs.tree.turns import Turns

log = logging.getLogger(__name__)

OPEN_CONTAINERS = 64
REMEMBERED_VERDICTS = 100_000
PARTS_AT_A_TIME = 512
"""Further files of all containers that one ``refresh`` compares with their store; of each, a few at least."""
LEAST_PARTS = 8


class Place(NamedTuple):
    """A name in a store."""

    store: Store
    path: Path


class Verdict(NamedTuple):
    """What a file was found to be. ``entries`` are those of all files that it is made of, its own first.

    ``refusal`` says why it is not shown as a container ("": it does not look like one), and is None where it is.
    """

    refusal: str | None
    entries: Sequence[Entry]


class _Remembered(NamedTuple):
    """A verdict on one version of a file, and what else it rests on.

    ``others`` are the further files that a container is made of; ``asked`` are those that one that was refused asked
    for, and their stamps ("": not there, or not to be opened).
    """

    version: Version
    refusal: str | None
    others: Sequence[Source] = ()
    asked: Sequence[tuple[Path, str]] = ()

    @property
    def weight(self) -> int:
        return 1 + len(self.others) + len(self.asked)


class Opened(NamedTuple):
    """An open container: ``entries`` are those of its files, its own first, ``at`` is its path in the tree.

    Where the attributes of a file change, and nothing else, another takes its place with the same container and lease.
    """

    container: Container
    lease: Lease
    origin: Origin
    entries: tuple[Entry, ...]
    at: str


class Containers:
    """The containers of one tree; at most ``limit`` are open.

    ``changed`` is called, by whoever notices, when one is not what it was or was closed: no path leads to it any more.
    """

    def __init__(self, cache: BlockCache, limit: int = OPEN_CONTAINERS) -> None:
        self.services = Services(cache, Listings())
        self.changed: Callable[[], None] = lambda: None
        self._limit = max(1, limit)
        self._lock = threading.Lock()
        self._turns = Turns()
        self._open: OrderedDict[Place, Opened] = OrderedDict()
        self._verdicts: OrderedDict[Place, _Remembered] = OrderedDict()
        self._weight = 0
        self._rounds = 0
        self._noticed: set[str] = set()

    def all_open(self) -> list[Opened]:
        with self._lock:
            return list(self._open.values())

    def opened(self, place: Place, version: Version, at: str) -> Opened:
        """The container at a place in that version, opened if need be. Raises Changed where it is another by now."""
        found = self._find(place, version)
        if found is None:
            with self._turns.of(place):
                found = self._find(place, version)
                if found is None:
                    found = self._made(place, version, at)
                    self._keep(place, found)
        return found

    def verdict(self, place: Place, entry: Entry) -> Verdict:
        """Whether the file at a place, as it is by ``entry``, is a container.

        Raises GlassfsError where that cannot be found out; it is then asked anew the next time.
        """
        known = self._known(place, entry)
        if known is None:
            with self._turns.of(place):
                known = self._known(place, entry)
                if known is None:
                    found = self._examined(place, entry.version)
                    self._remember(place, found)
                    known = Verdict(found.refusal, (entry, *(source.entry for source in found.others)))
        return known

    def look(self, place: Place, entry: Entry | None) -> bool:
        """Compares an open container with what stands at its place now; whether anything changed.

        Where its bytes did it is closed, where only attributes did it goes on under these.
        """
        with self._lock:
            shown = self._open.get(place)
        if shown is None:
            return False
        now = None if entry is None else (entry, *shown.entries[1:])
        return self._compare(place, shown, now)

    def refresh(self) -> list[str]:
        """Compares all open containers with their stores.

        The paths in the tree of those that changed since this was asked before, whoever has noticed it.
        """
        with self._lock:
            shown = list(self._open.items())
        self._rounds += 1
        parts = max(LEAST_PARTS, PARTS_AT_A_TIME // (len(shown) or 1))
        for place, opened in shown:
            self._compare(place, opened, self._entries_now(place, opened, parts))
        with self._lock:
            noticed, self._noticed = self._noticed, set()
        return sorted(noticed)

    def close(self) -> None:
        """Closes all containers, and drops all that was decoded."""
        with self._lock:
            shown, self._open = list(self._open.values()), OrderedDict()
        for opened in shown:
            self._let_go(opened, is_replaced=False)
        self.changed()
        self.services.cache.clear()

    def _find(self, place: Place, version: Version) -> Opened | None:
        with self._lock:
            found = self._open.get(place)
            if found is None or found.entries[0].version != version:
                return None
            self._open.move_to_end(place)
            return found

    def _made(self, place: Place, version: Version, at: str) -> Opened:
        source = self._source(place, version)
        try:
            with _faults_of_formats(source.name):
                container = open_container(Opening(source, self.services.cache, *place))
        except BaseException:
            source.close()
            raise
        self._remember(place, _Remembered(version, None, container.sources[1:]))
        lease = Lease(container.sources)
        lease.acquire()  # for as long as it is open here
        entries = tuple(part.entry for part in container.sources)
        return Opened(container, lease, self._origin(entries, lease, container.format), entries, at)

    def _keep(self, place: Place, opened: Opened) -> None:
        closing = []
        with self._lock:
            before = self._open.pop(place, None)
            if before is not None:
                self._noticed.add(before.at)
            self._open[place] = opened
            while len(self._open) > self._limit:
                closing.append(self._open.popitem(last=False)[1])
        if before is not None:
            self._let_go(before, is_replaced=True)
        for old in closing:
            self._let_go(old, is_replaced=False)
        if closing or before is not None:
            self.changed()

    def _let_go(self, opened: Opened, is_replaced: bool) -> None:
        """What is still held of it stays readable as long as the lease lets it."""
        opened.lease.retire(is_replaced)
        self.services.listings.forget(opened.origin)
        opened.lease.release()

    def _compare(self, place: Place, shown: Opened, now: Sequence[Entry] | None) -> bool:
        before = shown.entries
        is_same = now is not None and all(a.version == b.version for a, b in zip(before, now, strict=True))
        if now is not None and is_same:
            if all(a.stamp == b.stamp for a, b in zip(before, now, strict=True)):
                return False
            # Only attributes, as far as can be told: whoever reads may go on, but nothing that was kept is relied on.
            origin = self._origin(now, shown.lease, shown.origin.format)
            if not self._exchange(place, shown, shown._replace(origin=origin, entries=tuple(now))):
                return False
            self.services.listings.forget(shown.origin)
            for version in {shown.origin.identity, *(entry.version for entry in now)}:
                self.services.cache.forget(version)
        else:
            if not self._exchange(place, shown, None):
                return False
            self._let_go(shown, is_replaced=now is not None)
        self.changed()
        return True

    def _exchange(self, place: Place, shown: Opened, other: Opened | None) -> bool:
        """Puts another in the place of one that is open, or none; False if somebody else was quicker."""
        with self._lock:
            if self._open.get(place) is not shown:
                return False
            if other is None:
                del self._open[place]
            else:
                self._open[place] = other
            self._noticed.add(shown.at)
            return True

    def _entries_now(self, place: Place, shown: Opened, parts: int) -> Sequence[Entry] | None:
        """What stands now where the container's files were; of many, some in each round. None: it is gone."""
        now = list(shown.entries)
        others = len(now) - 1
        try:
            now[0] = place.store.entry(place.path)
            for step in range(min(others, parts)):
                number = 1 + (self._rounds * parts + step) % others
                now[number] = shown.container.sources[number].current()
        except (Unavailable, DeviceFailed):
            return shown.entries
        except GlassfsError:
            return None
        return now

    def _known(self, place: Place, entry: Entry) -> Verdict | None:
        """The verdict that is remembered, if nothing has changed that it rests on."""
        with self._lock:
            found = self._verdicts.get(place)
        if found is None or found.version != entry.version:
            return None
        others = self._others_still(place, found)
        return None if others is None else Verdict(found.refusal, (entry, *others))

    def _examined(self, place: Place, version: Version) -> _Remembered:
        source = self._source(place, version)
        opening = Opening(source, self.services.cache, *place)
        try:
            with _faults_of_formats(source.name):
                if recognise(source.read(0, min(HEAD, source.size))) is None:
                    return _Remembered(version, "")
                container = open_container(opening)
        except Refused as error:
            reason = error.without_source
            before = self._verdicts.get(place)
            if before is None or before.refusal != reason:
                log.warning("%s", error)
            asked = [(path, "" if opened is None else opened.entry.stamp) for path, opened in opening.asked]
            return _Remembered(version, reason, asked=asked)
        finally:
            source.close()
        container.close()
        return _Remembered(version, None, container.sources[1:])

    def _others_still(self, place: Place, found: _Remembered) -> Sequence[Entry] | None:
        """The further files of a container as they are now; None where a verdict rests on what has changed."""
        now = []
        for source in found.others:
            try:
                current = source.current()
            except Unavailable:
                raise
            except GlassfsError:
                return None
            if current.version != source.version:
                return None
            now.append(current)
        is_same = all(_stamp(place.store, path) == stamp for path, stamp in found.asked)
        return now if is_same else None

    def _remember(self, place: Place, found: _Remembered) -> None:
        with self._lock:
            before = self._verdicts.pop(place, None)
            self._verdicts[place] = found
            self._weight += found.weight - (before.weight if before else 0)
            while self._weight > REMEMBERED_VERDICTS and len(self._verdicts) > 1:
                self._weight -= self._verdicts.popitem(last=False)[1].weight

    def _source(self, place: Place, version: Version) -> Source:
        """Opens a file in that version. Raises Changed where it is another."""
        source = place.store.open(place.path)
        if source.version != version:
            source.close()
            raise Changed("has been replaced by another file", source.name)
        return source

    def _origin(self, entries: Sequence[Entry], lease: Lease, format_name: str) -> Origin:
        return Origin(
            _identity(entries), Access.of(entries), entries[0].mtime_ns, self.services, lease, format_name,
        )


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


def _stamp(store: Store, path: Path) -> str:
    """The stamp of a file that may not be there."""
    try:
        return store.entry(path).stamp
    except Unavailable:
        raise
    except GlassfsError:
        return ""


def _identity(entries: Sequence[Entry]) -> str:
    """What tells this version of all these files together from others; short, as many nodes compare it."""
    if len(entries) == 1:
        return entries[0].version
    return xxhash.xxh128_hexdigest("\n".join(entry.version for entry in entries).encode())
