"""Objects that are elsewhere, read by pages: who asks for which, and when; what readers get is copied from these.

A page is there when all of its bytes are, in the version that was meant, and is fetched once however many wait for it.
Who misses one page gets the block of it, two pages, as a request takes about as long for both; who misses more gets
these and no others, neighbours in one request. Who reads on and on has pages fetched ahead of him (``streams``), if
there is room that pages leave which were read already (``shelf``). What somebody waits for is fetched even if there is
none. Pages are looked for on disk first, if there is a store for them.

Every function may be called from any thread. The one lock is held for looking things up only: not while anybody waits,
copies, or asks a server or a disk. What goes wrong with a request reaches all who wait for it, each with an exception
of his own, and is not remembered, but for a moment where it took long; of an object that has changed all pages are
forgotten. Nobody waits much longer than a server's ``timeout`` for his next bytes, whatever the server does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Protocol

from glassfs.errors import Changed, Damaged, DeviceFailed, GlassfsError, NotFound, Unavailable
from glassfs.source.contract import Path
from glassfs.source.remote.server import Facts, Server
from glassfs.source.remote.shelf import PAGE, Object, Page, Request, Shelf
from glassfs.source.remote.streams import WINDOW
from glassfs.source.scattered import total

LARGEST = 8
"""Pages that are asked for at once at most."""
BLOCK = 2
"""Pages of a block. The first page of an object is one by itself: it is what the first request for it brings."""
GRACE = 0.5
"""Seconds that a server gets beyond its time: it is the one to say what went wrong."""
AGAIN = 0.5
"""Seconds after a read that waited long in vain in which others of the object do not: the kernel asks again at once."""
LAST = 2.0
"""Seconds that whoever ends waits for the disk."""
LOOKERS = 2
"""Threads that look for pages on disk ahead of readers."""


class BlockStore(Protocol):
    """Where pages are kept for the next process. Nothing is raised."""

    def get(self, object_key: str, validator: str, number: int, size: int) -> bytes | None: ...

    def put(self, object_key: str, validator: str, number: int, data: bytes) -> None: ...


class Pages:
    """Pages of any number of objects, in up to ``budget`` bytes; those who wait may need more for a while."""

    def __init__(self, budget: int, disk: BlockStore | None = None) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._shelf = Shelf(budget)
        self._unwritten = 0
        self._lookers = _Crew(LOOKERS)
        self._writer = _Crew(1)

    @property
    def used(self) -> int:
        """Bytes of pages that are there or being fetched."""
        return self._shelf.used

    def object(self, server: Server, path: Path, facts: Facts) -> Paged:
        """The object in that version, for a reader who closes it. Asks nobody."""
        with self._lock:
            held = self._shelf.object((server, path, facts))
            held.readers += 1
        return Paged(self, held)

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._shelf.clear()

    def leave(self, held: Object) -> None:
        """A reader has closed it."""
        with self._lock:
            held.readers -= 1
            if not held.readers:
                self._shelf.pass_by(held, held.streams.forget())

    def put(self, held: Object, number: int, data: bytes) -> None:
        """A page that has come in another way."""
        with self._lock:
            if number in held.pages:
                return
            page = self._shelf.add(held, number)
        self._settle([(page, data)], is_new=True)

    def finish(self) -> None:
        """Waits for what is being written to disk, if it does not take long."""
        self._writer.finish()

    def hit(self, held: Object, number: int, size: int) -> bytes | None:
        """A page for somebody who reads so much of it, if it is there and nothing else is to be done about that."""
        with self._lock:
            page = held.pages.get(number)
            if page is None or page.is_ahead or page.data is None:
                return None
            if page.left:
                if page.left <= size:
                    return None
                page.left -= size
            self._shelf.touch(page)
            return page.data

    def read(self, held: Object, reading: Reading, offset: int, end: int) -> None:
        """The part ``[offset, end)``, few pages, of what somebody reads."""
        begun = time.monotonic()
        deadline = begun + held.server.timeout + GRACE
        pages, wanted, ahead = self._claimed(held, reading, offset, end)
        try:
            self._begin(wanted, ahead)
            for page in pages:
                data = memoryview(self._awaited(page, deadline))
                reading.fill(data[max(0, offset - page.offset) : end - page.offset])
        except DeviceFailed as error:
            now = time.monotonic()
            if now - begun >= held.server.timeout / 2:
                held.silence, held.silent_until = error.at(), now + AGAIN
            raise
        finally:
            with self._lock:
                for page in pages:
                    self._shelf.leave(page)
                self._shelf.trim()

    def _claimed(
        self, held: Object, reading: Reading, offset: int, end: int,
    ) -> tuple[list[Page], list[Request], list[Request]]:
        """The pages of a range, which stay until they are left; and what is to be asked for, for them and ahead."""
        shelf = self._shelf
        claimed, missing, read = [], [], []
        numbers = range(offset // PAGE, (end - 1) // PAGE + 1)
        with self._lock:
            if held.silence is not None:
                if time.monotonic() < held.silent_until and not all(number in held.pages for number in numbers):
                    raise held.silence.at(held.name)
                held.silence = None
            for number in numbers:
                page = held.pages.get(number)
                if page is None:
                    page = shelf.add(held, number)
                    missing.append(page)
                shelf.use(page)
                page.is_ahead = False
                claimed.append(page)
                if page.left:
                    size = min(end, page.offset + page.size) - max(offset, page.offset)
                    page.left = max(0, page.left - size)
                    if not page.left:
                        read.append(number)
            shelf.trim()
            if len(missing) == 1:
                missing += self._rest_of_block(missing[0])
            ahead = self._ahead(held, reading, read) if read else []
        return claimed, _requests(missing), ahead

    def _rest_of_block(self, page: Page) -> list[Page]:
        """The other page of a block, if that is missing too and there is room."""
        held, number = page.of, page.number
        other = number + 1 if number % BLOCK else number - 1
        if not number or other == held.count or other in held.pages or not self._shelf.has_room(held.size_of(other)):
            return []
        return [self._shelf.add(held, other)]

    def _ahead(self, held: Object, reading: Reading, read: Sequence[int]) -> list[Request]:
        """What to fetch ahead of somebody who has read these pages: the rest of what he reads, and what may follow."""
        first, worth, passed = held.streams.follow(read)
        self._shelf.pass_by(held, passed)
        if reading.goes_on is None:
            reading.goes_on = worth > 0
        window = min(WINDOW, self._shelf.budget // PAGE // 2)
        worth = min(worth, window) if reading.goes_on else 0
        sure = -(-reading.end // PAGE)
        until = min(max(first + worth, min(sure, first + window)), held.count)
        wanted = [number for number in range(first, until) if number not in held.pages]
        # Not page by page: what is underway lasts until there are enough for a request.
        is_early = len(wanted) < min(LARGEST, max(BLOCK, worth // 2)) and until < held.count
        if not wanted or (is_early and wanted[0] >= sure):
            return []
        requests = []
        for numbers in _runs(wanted):
            if not self._shelf.has_room(sum(map(held.size_of, numbers))):
                break
            requests.append(Request([self._shelf.add(held, number, is_ahead=True) for number in numbers]))
        return requests

    def _begin(self, wanted: list[Request], ahead: list[Request]) -> None:
        """Begins all of them. What goes wrong is told to those who wait for the pages."""
        begun = 0
        try:
            for request in wanted:
                self._fetch(request)
                begun += 1
            for request in ahead:
                if self._disk is None:
                    self._fetch(request)
                else:
                    self._lookers.run(partial(self._fetch, request))
                begun += 1
        finally:
            for request in [*wanted, *ahead][begun:]:  # interrupted: nobody shall wait for what is never asked for
                self._fail(request.pages, CancelledError())

    def _fetch(self, request: Request) -> None:
        """Begins to get pages: from disk if they are there, or else from the server."""
        try:
            for missing in _requests(self._not_on_disk(request.pages)):
                held = missing.pages[0].of
                for page in missing.pages:
                    page.request = missing
                missing.future = held.server.fetch(held.path, missing.offset, missing.size, held.facts)
                missing.future.add_done_callback(partial(self._answered, missing))
        except Exception as error:
            self._fail(request.pages, error)

    def _not_on_disk(self, pages: Sequence[Page]) -> Sequence[Page]:
        held = pages[0].of
        if self._disk is None or not held.facts.has_strong_etag:
            return pages
        missing = []
        for page in pages:
            data = self._disk.get(held.identity, held.facts.etag, page.number, page.size)
            if data is None or len(data) != page.size:
                missing.append(page)
            else:
                self._settle([(page, data)])
        return missing

    def _answered(self, request: Request, future: Future[bytes]) -> None:
        """The server has answered, or does not. In one of its threads, mostly."""
        pages = request.pages
        try:
            data = future.result()
            if len(data) != request.size:
                raise DeviceFailed(f"the server gave {len(data)} bytes where {request.size} were asked for")
            view = memoryview(data)
            # Copies, as none may hold the others; but for a page that came alone.
            parts = [bytes(view[page.offset - request.offset :][: page.size]) for page in pages[1:]]
            parts.insert(0, bytes(view[: pages[0].size]) if parts else bytes(data))
        except BaseException as error:
            self._fail(pages, error)
        else:
            self._settle(list(zip(pages, parts, strict=True)), is_new=True)

    def _settle(self, found: Sequence[tuple[Page, bytes]], is_new: bool = False) -> None:
        """Pages have come."""
        to_write = []
        with self._lock:
            for page, data in found:
                if page.is_settled:  # somebody could not wait that long
                    continue
                if is_new and self._is_to_be_written(page):
                    self._unwritten += page.size
                    self._shelf.use(page)
                    to_write.append((page, data))
                self._shelf.come(page, data)
            self._shelf.trim()
        for page, data in to_write:
            self._writer.run(partial(self._write, page, data))

    def _is_to_be_written(self, page: Page) -> bool:
        """Whether it goes onto the disk. What is too much for that is left out: some day it costs a request."""
        is_for_disk = self._disk is not None and page.of.facts.has_strong_etag
        return is_for_disk and self._unwritten + page.size <= self._shelf.budget // 2

    def _write(self, page: Page, data: bytes) -> None:
        try:
            if self._disk is not None:
                self._disk.put(page.of.identity, page.of.facts.etag, page.number, data)
        finally:
            with self._lock:
                self._unwritten -= page.size
                self._shelf.leave(page)
                self._shelf.trim()

    def _fail(self, pages: Iterable[Page], error: BaseException) -> None:
        """Pages do not come. Those that there are of an object which is gone go, too."""
        told = _told(error)
        with self._lock:
            for page in pages:
                if not page.is_settled:
                    self._shelf.fail(page, told)
                if isinstance(told, (Changed, NotFound)):
                    self._shelf.drop(page.of)

    def _awaited(self, page: Page, deadline: float) -> bytes:
        if page.data is None and not page.settled.wait(max(0.0, deadline - time.monotonic())):
            request = page.request
            silence = DeviceFailed(f"the server gave no answer within {page.of.server.timeout:g} seconds")
            self._fail(request.pages if request is not None else [page], silence)
            if request is not None and request.future is not None:
                request.future.cancel()
        if page.error is not None:
            raise page.error.at(page.of.name)
        assert page.data is not None
        return page.data


class Paged:
    """One version of an object, for a reader."""

    def __init__(self, pages: Pages, held: Object) -> None:
        self._pages = pages
        self._held = held
        self._is_closed = False

    def put_head(self, data: bytes) -> None:
        """The first bytes, which came with an answer in this version. They are of use if they are a page, or all."""
        size = self._held.size_of(0)
        if 0 < size <= len(data):
            self._pages.put(self._held, 0, data if len(data) == size else data[:size])

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fills ``buffers`` (bytes, writable), one after another, from ``offset`` on.

        Raises what fetching raised. It ends within the server's time; of what is larger than 2 MiB, each part does.
        """
        held = self._held
        size = total(buffers)
        end = offset + size
        if not 0 <= offset <= end <= held.facts.size:
            reason = f"bytes {offset} to {end} lie outside the file of {held.facts.size} bytes"
            raise Damaged(reason, held.name)
        if not size:
            return
        reading = Reading(buffers, end)
        number, start = divmod(offset, PAGE)
        if start + size <= PAGE:
            data = self._pages.hit(held, number, size)
            if data is not None:
                reading.fill(memoryview(data)[start : start + size])
                return
        while offset < end:
            until = min(end, (offset // PAGE + LARGEST) * PAGE)
            self._pages.read(held, reading, offset, until)
            offset = until

    def close(self) -> None:
        """Nobody reads on. Pages stay as long as there is room; another read is possible still."""
        if not self._is_closed:
            self._is_closed = True
            self._pages.leave(self._held)


class Reading:
    """One read, up to ``end``, done by parts: buffers that are filled one after another.

    ``goes_on`` is whether it goes on where another one ended, so that others may follow; None as long as that is open.
    """

    __slots__ = ("_buffers", "_rest", "end", "goes_on")

    def __init__(self, buffers: Iterable[memoryview], end: int) -> None:
        self.end = end
        self.goes_on: bool | None = None
        self._buffers = iter(buffers)
        self._rest = memoryview(b"")

    def fill(self, data: memoryview) -> None:
        """The next bytes; there is room for them."""
        while size := len(data):
            rest = self._rest or next(self._buffers)
            if len(rest) > size:
                rest[:size] = data
                self._rest = rest[size:]
                return
            rest[:] = data[: len(rest)]
            data = data[len(rest) :]
            self._rest = memoryview(b"")


class _Crew:
    """A few threads, made when there is something to do."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._threads: ThreadPoolExecutor | None = None

    def run(self, task: Callable[[], None]) -> None:
        """In one of the threads; at the end of the process, when they begin nothing any more, in this one."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._count, "glassfs-pages")
        try:
            self._threads.submit(task)
        except RuntimeError:
            task()

    def finish(self) -> None:
        """Waits for what the one thread was given so far."""
        if self._threads is not None:
            with suppress(FutureTimeout, RuntimeError):
                self._threads.submit(int).result(LAST)


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Numbers in ascending order, neighbours together, as many as one request may have."""
    run: list[int] = []
    for number in numbers:
        if run and (number != run[-1] + 1 or len(run) == LARGEST):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _requests(pages: Iterable[Page]) -> list[Request]:
    """Requests for pages of one object."""
    by_number = {page.number: page for page in pages}
    return [Request([by_number[number] for number in run]) for run in _runs(sorted(by_number))]


def _told(error: BaseException) -> GlassfsError:
    """What is told to readers: without a traceback, and without a sentence that may have something secret in it."""
    if isinstance(error, GlassfsError):
        return error.at()
    if isinstance(error, MemoryError):
        return Unavailable("there is not enough memory for what was to be read")
    if isinstance(error, CancelledError):
        return DeviceFailed("the request was given up")
    return DeviceFailed(f"could not be read from the server ({type(error).__name__})")
