"""Stores of what is elsewhere: folders of objects, and single objects with what lies beside them.

A folder is listed, and what is in it is known from that: no object is asked what it is. A listing is kept and renewed
when it is older than the connection's ``poll``, beside whoever asks; so what changes is seen that much later, and those
who only look never wait for a server that has become silent. An object that was named by itself is asked for its first
bytes, which tell what it is; no folder is listed for it. Any thread.

Objects have an ETag that tells their versions apart; of those that have none, size and time do. An object that is
replaced while it is read is noticed by the answer that does not fit: then it is Changed, and never a mix.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import xxhash

from glassfs.errors import Changed, NotADirectory, NotFound, TooLarge
from glassfs.names import raw
from glassfs.source.contract import Entry, Kind, Path, Source, Store, Version
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.disk import DiskCache
from glassfs.source.remote.kept import Kept, Refreshers, Value
from glassfs.source.remote.paging import Paged, Pages
from glassfs.source.remote.server import Facts, Server
from glassfs.source.scattered import total

FIRST = 256 << 10
"""Bytes of the first request for an object that was named by itself."""
MOST_NAMES = 1_000_000
"""Names that one folder may have. A name takes some 400 bytes."""
REMEMBERED_NAMES = 250_000
"""Names in several folders that are remembered."""
DOUBTED = 10_000
"""Objects that are known to be others than what was listed."""


class _Listing(NamedTuple):
    """What is in a folder. ``changed_ns`` is when that was seen to be another one than before."""

    names: Mapping[str, Facts | None]
    changed_ns: int


class RemoteStore(Store):
    """What is below ``root`` on a server, if it ``has_folders``; else only objects, asked one by one.

    ``pages`` keeps their blocks, and ``disk`` what was found out of objects, if there is one.
    """

    is_remote = True

    def __init__(
        self, server: Server, root: Path, connection: Connection, pages: Pages, has_folders: bool,
        disk: DiskCache | None = None,
    ) -> None:
        self.has_lasting_versions = server.has_lasting_versions
        self._server = server
        self._pages = pages
        self._disk = disk
        self._root = root
        self._has_folders = has_folders
        self._poll = connection.poll
        self._owner = connection.owner or (os.geteuid(), os.getegid())
        self._permissions = connection.permissions & 0o444
        self._began_ns = time.time_ns()
        self._lock = threading.Lock()
        self._listings: OrderedDict[Path, Kept[_Listing]] = OrderedDict()
        self._sizes: dict[Path, int] = {}
        self._names = 0
        """How many names are in all these."""
        self._objects: dict[Path, Kept[Facts]] = {}
        self._doubts: dict[Path, float] = {}
        """When an object was found to be another one than what is known."""
        self._refreshers = Refreshers()

    def shown(self, path: Path) -> str:
        return self._server.shown((*self._root, *path))

    def entry(self, path: Path) -> Entry:
        if not self._has_folders:
            if not path:
                return self._folder_entry(path, self._began_ns)
            return self._entry(path, self._undoubted(path, self._object(path)))
        if not path:
            return self._folder_entry(path, self._listing(path).glance().changed_ns)
        listing = self._undoubted(path, self._listing(path[:-1]))
        if path[-1] in listing.names:
            return self._of(path, listing.names[path[-1]])
        if len(path) > 1 and not listing.names:
            with suppress(NotFound):
                if self.entry(path[:-1]).kind is not Kind.FOLDER:
                    raise NotADirectory("is not a folder", self.shown(path[:-1]))
        raise NotFound("there is no such object", self.shown(path))

    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        if not self._has_folders:
            raise NotADirectory("is not a folder", self.shown(path))
        names = self._listing(path).recent().names
        if not names and path and self.entry(path).kind is not Kind.FOLDER:
            raise NotADirectory("is not a folder", self.shown(path))
        return ((name, self._of((*path, name), names[name])) for name in sorted(names, key=os.fsencode))

    def open(self, path: Path) -> Source:
        entry = self.entry(path)
        if entry.kind is not Kind.FILE:
            raise NotFound("is a folder", self.shown(path))
        return self.source(path, entry)

    def source(self, path: Path, entry: Entry) -> Source:
        return RemoteSource(self, path, entry)

    def paged(self, path: Path, entry: Entry) -> Paged:
        """The bytes of an object in a version."""
        return self._pages.object(self._server, (*self._root, *path), _facts(entry))

    def doubt(self, path: Path) -> None:
        """An object is known to be another one than what was said of it: whoever asks for it next waits for news."""
        if len(self._doubts) >= DOUBTED:
            self._doubts.clear()
        self._doubts[path] = time.monotonic()

    def close(self) -> None:
        with self._lock:
            self._listings.clear()
            self._sizes.clear()
            self._names = 0
            self._objects.clear()
        self._pages.clear()
        self._server.close()

    def _undoubted(self, path: Path, kept: Kept[Value]) -> Value:
        """What is kept of an object, asked for after it was doubted if it was."""
        doubt = self._doubts.get(path)
        if doubt is None:
            return kept.glance()
        value = kept.get(doubt)
        self._doubts.pop(path, None)
        return value

    def _listing(self, path: Path) -> Kept[_Listing]:
        with self._lock:
            found = self._listings.get(path)
            if found is None:
                found = self._listings[path] = Kept(
                    lambda before: self._listed(path, before), self._poll, self._refreshers,
                )
            self._listings.move_to_end(path)
            return found

    def _listed(self, path: Path, before: _Listing | None) -> _Listing:
        names: dict[str, Facts | None] = {}
        for name, facts in self._server.list((*self._root, *path)):
            # An object and a folder may have one name: what is in the folder could not be reached otherwise.
            if facts is None or names.get(name, facts) is not None:
                names[name] = facts
        if len(names) > MOST_NAMES:
            raise TooLarge(f"has more than {MOST_NAMES} objects", self.shown(path))
        with self._lock:
            size = 1 + len(names)
            self._names += size - self._sizes.get(path, 0)
            self._sizes[path] = size
            while self._names > REMEMBERED_NAMES and len(self._listings) > 1:
                oldest, _ = self._listings.popitem(last=False)
                self._names -= self._sizes.pop(oldest, 0)
        if before is not None and before.names == names:
            return before
        return _Listing(names, self._began_ns if before is None else time.time_ns())

    def _object(self, path: Path) -> Kept[Facts]:
        with self._lock:
            found = self._objects.get(path)
            if found is None:
                found = self._objects[path] = Kept(
                    lambda before: self._begun(path, before), self._poll, self._refreshers,
                )
            return found

    def _begun(self, path: Path, before: Facts | None) -> Facts:
        place = (*self._root, *path)
        key = f"{self._server.identity}/{'/'.join(place)}"
        known = before if before or self._disk is None else self._disk.facts(key)
        answer = self._server.begin(place, FIRST, known)
        if answer is None:
            assert known is not None
            return known
        facts, head = answer
        if self._disk is not None:
            self._disk.note_facts(key, facts)
        self._pages.object(self._server, place, _told_apart(facts)).put_head(head)
        return facts

    def _of(self, path: Path, facts: Facts | None) -> Entry:
        if facts is not None:
            return self._entry(path, facts)
        known = self._listings.get(path)
        listing = None if known is None else known.last
        return self._folder_entry(path, self._began_ns if listing is None else listing.changed_ns)

    def _entry(self, path: Path, facts: Facts) -> Entry:
        words = "\0".join((self._server.identity, *self._root, *path))
        key = xxhash.xxh128_hexdigest(raw(words))
        # An object is never changed in its place: another version is another object.
        told = _told_apart(facts)
        version = Version(f"{key}|{told.size}|{told.mtime_ns}|{told.etag}")
        return Entry(
            Kind.FILE, version, version, version, facts.size, self._permissions, *self._owner, facts.mtime_ns,
            volume=self._server.name,
        )

    def _folder_entry(self, path: Path, changed_ns: int) -> Entry:
        place = self.shown(path) + "/"
        permissions = self._permissions | self._permissions >> 2
        return Entry(
            Kind.FOLDER, Version(place), place, place, 0, permissions, *self._owner, changed_ns,
            volume=self._server.name,
        )


class RemoteSource(Source):
    """An object in the version of ``entry``. What it holds is the memory of its store."""

    is_remote = True

    def __init__(self, store: RemoteStore, path: Path, entry: Entry) -> None:
        self.name = store.shown(path)
        self.entry = entry
        self._store = store
        self._path = path
        self._lock = threading.Lock()
        self._paged: Paged | None = None
        self._is_closed = False

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.scatter((buffer,), offset)

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        size = total(buffers)
        if offset < 0 or offset + size > self.size:
            raise self.outside(offset, size)
        with self._lock:
            if self._is_closed:
                raise Changed("was closed", self.name)
            if self._paged is None:
                self._paged = self._store.paged(self._path, self.entry)
            paged = self._paged
        try:
            paged.scatter(buffers, offset)
        except (Changed, NotFound) as error:
            self._store.doubt(self._path)
            raise Changed(error.reason, self.name) from None

    def keep(self) -> None:
        """There is nothing to hold on to: an object that was deleted is gone."""

    def park(self) -> None:
        """Nobody reads on from where somebody was."""
        with self._lock:
            paged, self._paged = self._paged, None
        if paged is not None:
            paged.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self.park()


def _told_apart(facts: Facts) -> Facts:
    """What tells one version from others: not the time, where the ETag does, as not all say that to the same digit."""
    return facts._replace(mtime_ns=0) if facts.has_strong_etag else facts


def _facts(entry: Entry) -> Facts:
    _, size, mtime_ns, etag = entry.version.split("|", 3)
    return Facts(int(size), etag, int(mtime_ns))
