"""Pages of objects that are elsewhere: which are there or on the way, what memory they take, and which go first.

A page that somebody uses stays. Of the others, those that were read go first, and those that were fetched ahead for
somebody who has not come yet go last, as long as he may still come. Not for several threads at once: whoever has a
``Shelf`` has a lock, with which he calls it. It asks nobody, copies nothing and never waits.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from weakref import WeakValueDictionary

from glassfs.errors import GlassfsError
from glassfs.source.contract import Path
from glassfs.source.remote.server import Facts, Server
from glassfs.source.remote.streams import Streams

PAGE = 256 << 10
LOOKED_AT = 32 << 10
"""Bytes that are read of a page before somebody reads it, and does not only look for something in it."""
UNREAD = 30.0
"""Seconds for which a page that was fetched ahead is kept for whoever reads on."""

Key = tuple[Server, Path, Facts]


class Object:
    """One version of an object, and the pages of it that are there or on the way."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.server, self.path, self.facts = key
        self.name = self.server.shown(self.path)
        self.identity = "/".join((self.server.identity, *self.path))
        self.count = -(-self.facts.size // PAGE)
        self.pages: dict[int, Page] = {}
        self.streams = Streams()
        self.readers = 0
        self.silence: GlassfsError | None = None
        """What a read that waited long was told, which others are told at once until ``silent_until``."""
        self.silent_until = 0.0

    def size_of(self, number: int) -> int:
        return min(PAGE, self.facts.size - number * PAGE)


class Page:
    """A page on the way until it is settled, with ``data`` or with an ``error``."""

    __slots__ = (
        "data", "error", "is_ahead", "left", "number", "of", "offset", "request", "settled", "since", "size", "users",
    )

    def __init__(self, of: Object, number: int) -> None:
        self.of = of
        self.number = number
        self.offset = number * PAGE
        self.size = of.size_of(number)
        self.data: bytes | None = None
        self.error: GlassfsError | None = None
        self.settled = threading.Event()
        self.request: Request | None = None
        """What it comes with, when that is underway."""
        self.users = 0
        """Those who wait for it, copy from it or write it to disk."""
        self.left = min(LOOKED_AT, self.size)
        """Bytes that are still to be read before it counts as read."""
        self.is_ahead = False
        """Whether it was fetched for somebody who has not come yet."""
        self.since = 0.0

    @property
    def is_settled(self) -> bool:
        return self.data is not None or self.error is not None


class Request:
    """Neighbouring pages that are fetched at once."""

    __slots__ = ("future", "pages", "size")

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = pages
        self.size = sum(page.size for page in pages)
        self.future: Future[bytes] | None = None

    @property
    def offset(self) -> int:
        return self.pages[0].offset


class Shelf:
    """Pages of any number of objects. Of those that nobody uses there are no more than ``budget`` leaves room for."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        """Bytes of pages that are there or on the way."""
        self._objects: WeakValueDictionary[Key, Object] = WeakValueDictionary()
        # Each page that is there and that nobody uses is in one of these, the one used last at the end.
        self._read: OrderedDict[Page, None] = OrderedDict()
        self._unread: OrderedDict[Page, None] = OrderedDict()
        self._idle = 0
        """Bytes of the pages that were read."""

    def object(self, key: Key) -> Object:
        held = self._objects.get(key)
        if held is None:
            held = self._objects[key] = Object(key)
        return held

    def clear(self) -> None:
        for held in list(self._objects.values()):
            self.drop(held)

    def drop(self, held: Object) -> None:
        """Nobody gets any page of it from now on who has not asked yet."""
        for page in list(held.pages.values()):
            if page.data is not None and not page.users:
                self._give_up(page)
            else:
                _remove(page)
        held.streams.forget()

    def add(self, held: Object, number: int, is_ahead: bool = False) -> Page:
        """A page that is on its way from now on."""
        page = held.pages[number] = Page(held, number)
        page.is_ahead = is_ahead
        self.used += page.size
        return page

    def come(self, page: Page, data: bytes) -> None:
        page.data = data
        page.settled.set()
        if not page.users:
            self._lay(page)

    def fail(self, page: Page, error: GlassfsError) -> None:
        """It does not come. Who asks for it next gets another one."""
        page.error = error
        self.used -= page.size
        _remove(page)
        page.settled.set()

    def touch(self, page: Page) -> None:
        """It was used again."""
        if page in self._read:
            self._read.move_to_end(page)

    def use(self, page: Page) -> None:
        """One more uses it: it is not given up until he leaves it."""
        if page.data is not None and not page.users:
            self._lift(page)
        page.users += 1

    def leave(self, page: Page) -> None:
        page.users -= 1
        if page.data is not None and not page.users:
            self._lay(page)

    def pass_by(self, held: Object, numbers: Iterable[int]) -> None:
        """For these pages nobody is sure to come any more."""
        for number in numbers:
            page = held.pages.get(number)
            if page is not None and page.is_ahead:
                self._pass_by(page)

    def has_room(self, size: int) -> bool:
        """Makes room for what nobody waits for yet, if enough pages were read."""
        late = time.monotonic() - UNREAD
        while self._unread and (oldest := next(iter(self._unread))).since < late:
            self._pass_by(oldest)
        if self.used - self._idle + size > self.budget:
            return False
        self.trim(size)
        return True

    def trim(self, size: int = 0) -> None:
        """Gives up what was used longest ago until there is room, or nothing that nobody uses."""
        for laid in (self._read, self._unread):
            while laid and self.used + size > self.budget:
                self._give_up(next(iter(laid)))

    def _lay(self, page: Page) -> None:
        """Nobody uses it: it may be given up some day, or goes at once if it was dropped meanwhile."""
        if page.of.pages.get(page.number) is not page:
            self.used -= page.size
        elif page.is_ahead:
            page.since = time.monotonic()
            self._unread[page] = None
        else:
            self._read[page] = None
            self._idle += page.size

    def _lift(self, page: Page) -> None:
        if page in self._read:
            del self._read[page]
            self._idle -= page.size
        else:
            del self._unread[page]

    def _give_up(self, page: Page) -> None:
        self._lift(page)
        _remove(page)
        self.used -= page.size

    def _pass_by(self, page: Page) -> None:
        is_laid = page in self._unread
        if is_laid:
            self._lift(page)
        page.is_ahead = False
        if is_laid:
            self._lay(page)


def _remove(page: Page) -> None:
    if page.of.pages.get(page.number) is page:
        del page.of.pages[page.number]
