"""Track the pages of remote objects: which are cached or being fetched, and which are evicted first.

Pages in use are never evicted. Of the others, pages that were read go first, and pages fetched ahead that no reader
has reached yet go last. Not thread-safe: the caller holds a lock. Nothing here blocks or copies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from weakref import WeakValueDictionary

from glassfs.errors import GlassfsError
from glassfs.source.contract import Path
from glassfs.source.remote.readahead import ReadAhead
from glassfs.source.remote.server import Facts, Server

PAGE = 256 << 10
READ_BYTES = 32 << 10
"""A page counts as read once so many of its bytes were read; less may be a search for something."""
UNREAD_SECONDS = 30.0
"""How long a page that was fetched ahead is kept for its reader."""

Key = tuple[Server, Path, Facts]


class ObjectPages:
    """One version of an object, with its pages that are cached or being fetched."""

    def __init__(self, key: Key) -> None:
        self.server, self.path, self.facts = key
        self.name = self.server.shown(self.path)
        self.identity = "/".join((self.server.identity, *self.path))
        self.count = -(-self.facts.size // PAGE)
        self.pages: dict[int, Page] = {}
        self.read_ahead = ReadAhead()
        self.readers = 0
        self.timed_out: GlassfsError | None = None
        """The error of a read that timed out, which other reads get at once until ``timed_out_until``."""
        self.timed_out_until = 0.0

    def size_of(self, number: int) -> int:
        return min(PAGE, self.facts.size - number * PAGE)


class Page:
    """A page: being fetched until it is ``settled``, with ``data`` or with an ``error``."""

    __slots__ = (
        "data", "error", "idle_since", "is_ahead", "number", "object", "offset", "request", "settled", "size",
        "unread", "users",
    )

    def __init__(self, of: ObjectPages, number: int) -> None:
        self.object = of
        self.number = number
        self.offset = number * PAGE
        self.size = of.size_of(number)
        self.data: bytes | None = None
        self.error: GlassfsError | None = None
        self.settled = threading.Event()
        self.request: Request | None = None
        self.users = 0
        """Threads that wait for it, copy from it or write it to disk."""
        self.unread = min(READ_BYTES, self.size)
        """Bytes still to be read before it counts as read."""
        self.is_ahead = False
        """Whether it was fetched ahead, and no reader has come yet."""
        self.idle_since = 0.0

    @property
    def is_settled(self) -> bool:
        return self.data is not None or self.error is not None


class Request:
    """Neighboring pages that are fetched together."""

    __slots__ = ("future", "pages", "size")

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = pages
        self.size = sum(page.size for page in pages)
        self.future: Future[bytes] | None = None

    @property
    def offset(self) -> int:
        return self.pages[0].offset


class PagePool:
    """The pages of all objects. Pages without users are evicted to stay within ``budget`` bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        """Bytes of pages that are cached or being fetched."""
        self._objects: WeakValueDictionary[Key, ObjectPages] = WeakValueDictionary()
        # Each cached page without users is in one of these, the one used last at the end.
        self._read: dict[Page, None] = {}
        self._ahead: dict[Page, None] = {}
        self._read_bytes = 0

    def object(self, key: Key) -> ObjectPages:
        found = self._objects.get(key)
        if found is None:
            found = self._objects[key] = ObjectPages(key)
        return found

    def clear(self) -> None:
        for one in list(self._objects.values()):
            self.drop(one)

    def drop(self, of: ObjectPages) -> None:
        """Forget all pages of an object. Pages in use stay with their users only."""
        for page in list(of.pages.values()):
            if page.data is not None and not page.users:
                self._evict(page)
            else:
                _remove(page)
        of.read_ahead.forget()

    def add(self, of: ObjectPages, number: int, is_ahead: bool = False) -> Page:
        """Return a new page that is being fetched from now on."""
        page = of.pages[number] = Page(of, number)
        page.is_ahead = is_ahead
        self.used += page.size
        return page

    def settle(self, page: Page, data: bytes) -> None:
        page.data = data
        page.settled.set()
        if not page.users:
            self._make_idle(page)

    def fail(self, page: Page, error: GlassfsError) -> None:
        """Settle a page with an error and forget it: the next reader fetches it again."""
        page.error = error
        self.used -= page.size
        _remove(page)
        page.settled.set()

    def touch(self, page: Page) -> None:
        """Mark a page as used last."""
        if page in self._read:
            self._read[page] = self._read.pop(page)

    def acquire(self, page: Page) -> None:
        """Add a user; it must release the page."""
        if page.data is not None and not page.users:
            self._take_idle(page)
        page.users += 1

    def release(self, page: Page) -> None:
        page.users -= 1
        if page.data is not None and not page.users:
            self._make_idle(page)

    def abandon(self, of: ObjectPages, numbers: Iterable[int]) -> None:
        """Treat pages fetched ahead as read, because their reader has moved on."""
        for number in numbers:
            page = of.pages.get(number)
            if page is not None and page.is_ahead:
                self._abandon(page)

    def reserve(self, size: int) -> bool:
        """Evict read pages for bytes that no reader waits for yet; return whether there is enough memory."""
        late = time.monotonic() - UNREAD_SECONDS
        while self._ahead and (oldest := next(iter(self._ahead))).idle_since < late:
            self._abandon(oldest)
        if self.used - self._read_bytes + size > self.budget:
            return False
        self.trim(size)
        return True

    def trim(self, size: int = 0) -> None:
        """Evict pages without users, least recently used first, until ``size`` bytes are free or none is left."""
        for idle in (self._read, self._ahead):
            while idle and self.used + size > self.budget:
                self._evict(next(iter(idle)))

    def _make_idle(self, page: Page) -> None:
        if page.object.pages.get(page.number) is not page:  # dropped while it was in use
            self.used -= page.size
        elif page.is_ahead:
            page.idle_since = time.monotonic()
            self._ahead[page] = None
        else:
            self._read[page] = None
            self._read_bytes += page.size

    def _take_idle(self, page: Page) -> None:
        if page in self._read:
            del self._read[page]
            self._read_bytes -= page.size
        else:
            del self._ahead[page]

    def _evict(self, page: Page) -> None:
        self._take_idle(page)
        _remove(page)
        self.used -= page.size

    def _abandon(self, page: Page) -> None:
        page.is_ahead = False
        if page in self._ahead:
            self._take_idle(page)
            self._make_idle(page)


def _remove(page: Page) -> None:
    if page.object.pages.get(page.number) is page:
        del page.object.pages[page.number]
