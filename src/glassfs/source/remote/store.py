"""Stores on servers: folders of objects, and single objects with their siblings.

Entries come from the listing of their folder, without a request for each object. A listing older than the connection's
``poll`` is refreshed in the background, so lookups never wait for a silent server. For an object named by its own URL
no folder is listed: one request returns its facts and first bytes. Any thread.

ETags distinguish versions; without them, size and time do. An object that is replaced while it is read fails with
Changed, and never returns a mix.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from glassfs import work
from glassfs.errors import DeviceFailed, GlassfsError, NotADirectory, NotFound, TooLarge, Unavailable
from glassfs.lru import LRU
from glassfs.settings import settings
from glassfs.source.contract import Entry, Kind, Path, Source, Store, Version
from glassfs.source.remote.blocks import BLOCK, RemoteBlocks, RemoteSource, version_of
from glassfs.source.remote.server import MOST_NAMES, NO_NAME, Facts, Server, is_name
from glassfs.source.remote.url import Connection
from glassfs.threads import DaemonPool

REMEMBERED_NAMES = 250_000
"""Names in all folders that are remembered."""
MOST_REFRESHING = 4
"""Values of one store that are refreshed at once; more are not begun before one of these ends."""
NEVER = float("-inf")
_loads = DaemonPool("loads")

Value = TypeVar("Value")


class CachedValue(Generic[Value]):
    """What ``load``, called with the previous value or None, returns; valid for ``ttl_seconds``.

    That the value is NotFound is remembered as well. After any other error the previous value stays. Loading ends after
    the server's timeout.
    """

    def __init__(
        self, load: Callable[[Value | None], Value], ttl_seconds: float, refreshing: threading.Semaphore,
    ) -> None:
        self._load = load
        self._ttl_seconds = ttl_seconds
        self._refreshing = refreshing
        self._lock = threading.Lock()
        self._outcome: Value | NotFound | None = None
        self._loading: Future[None] | None = None
        self._asked_at = NEVER
        """When loading was last begun."""
        self._known_at = NEVER
        """When the loading that gave the present value was begun."""

    @property
    def last(self) -> Value | None:
        """The value that was loaded last, or None."""
        return None if isinstance(self._outcome, NotFound) else self._outcome

    def peek(self) -> Value:
        """Return the value at once if it is known, and refresh it in the background if it is too old.

        If it is twice too old, wait settings.listing_news for the refreshed one. Raises what ``load`` raises.
        """
        now = time.monotonic()
        if self._known_at == NEVER:
            return self.newer_than(0.0)
        # Old facts at once are better than new ones late: the value is refreshed for the next caller. Only one that is
        # much too old is worth a short wait.
        is_due = self._loading is None and now - self._asked_at >= self._ttl_seconds
        if is_due and self._refreshing.acquire(blocking=False):
            try:
                loading, _ = self._started()
            except Unavailable:  # no thread: a later call tries again
                self._refreshing.release()
                return self._known()
            loading.add_done_callback(lambda _: self._refreshing.release())
            if now - self._known_at >= 2 * self._ttl_seconds:
                with suppress(FutureTimeout, GlassfsError):
                    loading.result(settings.listing_news)
        return self._known()

    def newer_than(self, since: float) -> Value:
        """Return the value as of that moment of ``time.monotonic`` or later. Raises what ``load`` raises."""
        # A loading that was begun before that moment may report what was true before it; then another follows.
        while self._known_at < since:
            loading, asked_at = self._started()
            try:
                work.is_done(loading)
                loading.result()
            except GlassfsError as error:
                if asked_at >= since:
                    raise error.at() from None
        return self._known()

    def fresh(self) -> Value:
        """Return the value, not older than its TTL. Raises what ``load`` raises."""
        return self.newer_than(max(0.0, time.monotonic() - self._ttl_seconds))

    def _known(self) -> Value:
        outcome = self._outcome
        if isinstance(outcome, NotFound):
            raise outcome.at()
        return outcome  # type: ignore[return-value]  # it is known

    def _started(self) -> tuple[Future[None], float]:
        """Return the loading under way, or begin one; and when it was begun. Raises Unavailable without threads."""
        with self._lock:
            if self._loading is None:
                self._asked_at = time.monotonic()
                self._loading = _loads.submit(partial(self._run, self._asked_at))
            return self._loading, self._asked_at

    def _run(self, asked_at: float) -> None:
        try:
            outcome: Value | NotFound = self._load(self.last)
        except NotFound as error:
            outcome = error
        except BaseException:
            with self._lock:
                self._loading = None
            raise
        with self._lock:
            self._outcome, self._known_at, self._loading = outcome, asked_at, None


class _Listing(NamedTuple):
    """The contents of a folder, those that cannot be shown with the reason; ``changed_ns`` is when they last differed.
    """

    names: Mapping[str, Facts | None]
    omitted: Mapping[str, str]
    changed_ns: int


class RemoteStore(Store):
    """The objects below ``root`` on a server. Unless it ``has_folders``, objects are requested one by one.

    ``blocks`` has their bytes.
    """

    is_remote = True

    def __init__(
        self, server: Server, root: Path, connection: Connection, blocks: RemoteBlocks, has_folders: bool,
    ) -> None:
        self.has_lasting_versions = server.has_lasting_versions
        self._server = server
        self._blocks = blocks
        self._root = root
        self._has_folders = has_folders
        self._poll = connection.poll
        self._owner = os.geteuid(), os.getegid()
        self._permissions = connection.permissions & 0o444
        self._began_ns = time.time_ns()
        self._lock = threading.Lock()
        self._listings: LRU[Path, CachedValue[_Listing]] = LRU(REMEMBERED_NAMES)
        self._objects: LRU[Path, CachedValue[Facts]] = LRU(REMEMBERED_NAMES)
        self._doubts: LRU[Path, float] = LRU(10_000)
        """When reads found other versions of objects."""
        self._refreshing = threading.Semaphore(MOST_REFRESHING)

    def shown(self, path: Path) -> str:
        return self._server.shown((*self._root, *path))

    def entry(self, path: Path) -> Entry:
        if not self._has_folders:
            if not path:
                return self._folder_entry(path, self._began_ns)
            return self._entry(path, self._undoubted(path, self._cached(self._objects, path, self._load_object)))
        if not path:
            return self._folder_entry(path, self._listing(path).peek().changed_ns)
        listing = self._undoubted(path, self._listing(path[:-1]))
        if path[-1] in listing.names:
            return self._entry_of(path, listing.names[path[-1]])
        if path[-1] in listing.omitted:
            raise DeviceFailed(listing.omitted[path[-1]], self.shown(path))
        # Object stores list what does not exist as an empty folder. So a missing name may be below a file.
        if len(path) > 1 and not listing.names:
            with suppress(NotFound):
                if self.entry(path[:-1]).kind is not Kind.FOLDER:
                    raise NotADirectory("is not a folder", self.shown(path[:-1]))
        raise NotFound("there is no such object", self.shown(path))

    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        if not self._has_folders:
            raise NotADirectory("is not a folder", self.shown(path))
        names, omitted, changed_ns = self._listing(path).fresh()
        if not names and not omitted and path and self.entry(path).kind is not Kind.FOLDER:
            raise NotADirectory("is not a folder", self.shown(path))
        shown = ((name, self._entry_of((*path, name), names[name])) for name in sorted(names, key=os.fsencode))
        return chain(shown, (
            (name, self._folder_entry((*path, name), changed_ns)._replace(kind=Kind.OTHER, omitted=reason))
            for name, reason in omitted.items()
        ))

    def open(self, path: Path) -> Source:
        entry = self.entry(path)
        if entry.kind is not Kind.FILE:
            raise NotFound("is a folder", self.shown(path))
        return self.source(path, entry)

    def source(self, path: Path, entry: Entry) -> Source:
        return RemoteSource(self._blocks, self._server, (*self._root, *path), entry, partial(self.doubt, path))

    def doubt(self, path: Path) -> None:
        """Make the next lookup of an object wait for a refresh, as a read found another version."""
        self._doubts.put(path, time.monotonic())

    def finish(self) -> None:
        self._blocks.finish()

    def close(self) -> None:
        self._listings.clear()
        self._objects.clear()
        self._server.close()

    def _undoubted(self, path: Path, cached: CachedValue[Value]) -> Value:
        # Only the lookups of this object wait: a silent server delays none of its neighbors.
        doubted_at = self._doubts.peek(path)
        if doubted_at is None:
            return cached.peek()
        value = cached.newer_than(doubted_at)
        self._doubts.pop(path)
        return value

    def _cached(
        self, values: LRU[Path, CachedValue[Value]], path: Path, load: Callable[[Path, Value | None], Value],
    ) -> CachedValue[Value]:
        with self._lock:
            found = values.get(path)
            if found is None:
                found = CachedValue(partial(load, path), self._poll, self._refreshing)
                values.put(path, found)
            return found

    def _listing(self, path: Path) -> CachedValue[_Listing]:
        return self._cached(self._listings, path, self._load_listing)

    def _load_listing(self, path: Path, previous: _Listing | None) -> _Listing:
        listed = self._server.list((*self._root, *path))
        omitted = {one.name: one.omitted or NO_NAME for one in listed if one.omitted or not is_name(one.name)}
        names: dict[str, Facts | None] = {
            one.name: one.facts for one in listed if one.facts is not None and one.name not in omitted
        }
        for name in [one.name for one in listed if one.facts is None and one.name not in omitted]:
            # If an object and a folder have one name, the folder is shown: its contents have no other path.
            hidden, names[name] = names.get(name), None
            if hidden is not None and hidden.size > 0:  # an empty one marks a folder
                omitted[name] = "object name: a folder of this name hides the object"
        if len(names) + len(omitted) > MOST_NAMES:
            raise TooLarge(f"has more than {MOST_NAMES} objects", self.shown(path))
        self._listings.reweigh(path, 1 + len(names) + len(omitted))
        # The time of a folder is when its listing last differed: callers compare it to see whether to list it again.
        if previous is not None and (previous.names, previous.omitted) == (names, omitted):
            return previous
        return _Listing(names, omitted, self._began_ns if previous is None else time.time_ns())

    def _load_object(self, path: Path, previous: Facts | None) -> Facts:
        full_path = (*self._root, *path)
        answer = self._server.begin(full_path, BLOCK, previous)
        if answer is None:
            assert previous is not None
            return previous
        facts, head = answer
        self._blocks.put_head(self._server, full_path, facts, head)
        return facts

    def _entry_of(self, path: Path, facts: Facts | None) -> Entry:
        if facts is not None:
            return self._entry(path, facts)
        # A folder whose listing is not known has the time at which the store was opened: no request is made for it.
        known = self._listings.peek(path)
        listing = None if known is None else known.last
        return self._folder_entry(path, self._began_ns if listing is None else listing.changed_ns)

    def _entry(self, path: Path, facts: Facts) -> Entry:
        # Objects never change in place: another version is another object.
        version = version_of(self._server, (*self._root, *path), facts)
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
