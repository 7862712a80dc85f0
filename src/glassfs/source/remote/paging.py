"""Read remote objects through cached pages, and decide which pages to request when.

A page is fetched once however many readers wait for it. If one page is missing, its block of two pages is fetched, as
a request takes about as long for both; if more are missing, exactly these are, neighbors in one request. For
sequential readers pages are fetched ahead (``readahead``) if evicting read pages frees enough memory (``pages``).
Pages that a reader waits for are fetched in any case. The disk cache is searched before the server is asked.

Every function may be called from any thread. The one lock is held for bookkeeping only, never while waiting, copying
or asking a server or disk. A failed request fails all reads that wait for it, each with its own exception; errors are
not remembered, except for a moment after a timeout. If an object has changed, all its pages are dropped. No reader
waits much longer than the server's ``timeout`` for its next bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial

from glassfs import work
from glassfs.errors import Changed, Damaged, DeviceFailed, GlassfsError, NotFound, Unavailable
from glassfs.source.contract import Path
from glassfs.source.remote.disk import DiskCache
from glassfs.source.remote.pages import PAGE, ObjectPages, Page, PagePool, Request
from glassfs.source.remote.readahead import WINDOW
from glassfs.source.remote.server import Facts, Server
from glassfs.source.scattered import total

MOST_PAGES = 8
"""Pages in one request."""
BLOCK = 2
"""Pages of a block. The first page of an object is a block by itself: the first request for the object brings it."""
GRACE_SECONDS = 0.5
"""Time that a server gets beyond its timeout, to raise the better error."""
FAIL_FAST_SECONDS = 0.5
"""After a read timed out, other reads of the object fail at once for so long: the kernel retries immediately."""
FINISH_SECONDS = 2.0
"""How long ``finish`` waits for the disk."""


class PageCache:
    """Pages of any number of objects in up to ``budget`` bytes; pages that readers wait for may exceed it."""

    def __init__(self, budget: int, disk: DiskCache | None = None) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._pool = PagePool(budget)
        self._unwritten = 0
        # These threads begin on first use. The process waits at its end until the writer has written everything.
        self._lookups = ThreadPoolExecutor(2, "glassfs-lookups")
        self._writer = ThreadPoolExecutor(1, "glassfs-writer")

    @property
    def used(self) -> int:
        """Bytes of pages that are cached or being fetched."""
        return self._pool.used

    def object(self, server: Server, path: Path, facts: Facts) -> PagedObject:
        """Return an object in that version; the caller closes it. Makes no request."""
        with self._lock:
            pages = self._pool.object((server, path, facts))
            pages.readers += 1
        return PagedObject(self, pages)

    def clear(self) -> None:
        """Drop all pages."""
        with self._lock:
            self._pool.clear()

    def leave(self, of: ObjectPages) -> None:
        """Note that a reader has closed the object."""
        with self._lock:
            of.readers -= 1
            if not of.readers:
                self._pool.abandon(of, of.read_ahead.forget())

    def put_head(self, server: Server, path: Path, facts: Facts, data: bytes) -> None:
        """Cache the first bytes of an object, which came with its facts, if they fill a page."""
        with self._lock:
            of = self._pool.object((server, path, facts))
            size = of.size_of(0)
            if 0 in of.pages or not 0 < size <= len(data):
                return
            page = self._pool.add(of, 0)
        self._settle([(page, data[:size])], is_new=True)

    def finish(self) -> None:
        """Wait until the disk cache has what was read so far, but not for long."""
        with suppress(FutureTimeout, RuntimeError):
            self._writer.submit(int).result(FINISH_SECONDS)

    def hit(self, of: ObjectPages, number: int, size: int) -> bytes | None:
        """Return a cached page of which ``size`` bytes will be read; None if it may have to fetch ahead."""
        with self._lock:
            page = of.pages.get(number)
            if page is None or page.is_ahead or page.data is None:
                return None
            if page.unread:
                if page.unread <= size:
                    return None
                page.unread -= size
            self._pool.touch(page)
            return page.data

    def read(self, of: ObjectPages, reading: Reading, offset: int, end: int) -> None:
        """Read ``[offset, end)``, a few pages, into the buffers of ``reading``."""
        began = time.monotonic()
        deadline = began + of.server.timeout + GRACE_SECONDS
        pages, wanted, ahead = self._acquire(of, reading, offset, end)
        try:
            self._begin(wanted, ahead)
            for page in pages:
                data = memoryview(self._wait(page, deadline))
                reading.fill(data[max(0, offset - page.offset) : end - page.offset])
        except DeviceFailed as error:
            now = time.monotonic()
            if now - began >= of.server.timeout / 2:
                of.timed_out, of.timed_out_until = error.at(), now + FAIL_FAST_SECONDS
            raise
        finally:
            with self._lock:
                for page in pages:
                    self._pool.release(page)
                self._pool.trim()

    def _acquire(
        self, of: ObjectPages, reading: Reading, offset: int, end: int,
    ) -> tuple[list[Page], list[Request], list[Request]]:
        """Return the pages of a range, acquired, and the requests to make: for them, and ahead of them."""
        pages, missing, read = [], [], []
        numbers = range(offset // PAGE, (end - 1) // PAGE + 1)
        with self._lock:
            if of.timed_out is not None:
                if time.monotonic() < of.timed_out_until and not all(number in of.pages for number in numbers):
                    raise of.timed_out.at(of.name)
                of.timed_out = None
            for number in numbers:
                page = of.pages.get(number)
                if page is None:
                    page = self._pool.add(of, number)
                    missing.append(page)
                self._pool.acquire(page)
                page.is_ahead = False
                pages.append(page)
                if page.unread:
                    size = min(end, page.offset + page.size) - max(offset, page.offset)
                    page.unread = max(0, page.unread - size)
                    if not page.unread:
                        read.append(number)
            self._pool.trim()
            if len(missing) == 1:
                missing += self._rest_of_block(missing[0])
            ahead = self._ahead(of, reading, read) if read else []
        return pages, _requests(missing), ahead

    def _rest_of_block(self, page: Page) -> list[Page]:
        """Add the other page of a block, if that is missing too and there is memory for it."""
        of, number = page.object, page.number
        other = number + 1 if number % BLOCK else number - 1
        if not number or other == of.count or other in of.pages or not self._pool.reserve(of.size_of(other)):
            return []
        return [self._pool.add(of, other)]

    def _ahead(self, of: ObjectPages, reading: Reading, read: Sequence[int]) -> list[Request]:
        """Return the requests to make ahead: for the rest of this read, and for what may follow it."""
        first, count, abandoned = of.read_ahead.follow(read)
        self._pool.abandon(of, abandoned)
        if reading.is_sequential is None:
            reading.is_sequential = count > 0
        window = min(WINDOW, self._pool.budget // PAGE // 2)
        count = min(count, window) if reading.is_sequential else 0
        certain = -(-reading.end // PAGE)
        until = min(max(first + count, min(certain, first + window)), of.count)
        wanted = [number for number in range(first, until) if number not in of.pages]
        # Requests of many pages are better; until then the reader has pages that are being fetched.
        is_early = len(wanted) < min(MOST_PAGES, max(BLOCK, count // 2)) and until < of.count
        if not wanted or (is_early and wanted[0] >= certain):
            return []
        requests = []
        for numbers in _runs(wanted):
            if not self._pool.reserve(sum(map(of.size_of, numbers))):
                break
            requests.append(Request([self._pool.add(of, number, is_ahead=True) for number in numbers]))
        return requests

    def _begin(self, wanted: list[Request], ahead: list[Request]) -> None:
        """Begin all requests. Errors reach the readers that wait for the pages."""
        begun = 0
        try:
            for request in wanted:
                self._fetch(request)
                begun += 1
            for request in ahead:
                if self._disk is None:
                    self._fetch(request)
                else:
                    _run(self._lookups, partial(self._fetch, request))
                begun += 1
        finally:
            for request in [*wanted, *ahead][begun:]:  # interrupted: other readers must not wait for these
                self._fail(request.pages, CancelledError())

    def _fetch(self, request: Request) -> None:
        """Get pages from disk, and begin to get the others from the server."""
        try:
            for missing in _requests(self._not_on_disk(request.pages)):
                of = missing.pages[0].object
                for page in missing.pages:
                    page.request = missing
                missing.future = of.server.fetch(of.path, missing.offset, missing.size, of.facts)
                missing.future.add_done_callback(partial(self._answered, missing))
        except Exception as error:
            self._fail(request.pages, error)

    def _not_on_disk(self, pages: Sequence[Page]) -> Sequence[Page]:
        """Settle the pages that are on disk and return the others."""
        of = pages[0].object
        if self._disk is None:
            return pages
        missing = []
        for page in pages:
            data = self._disk.get(of.identity, of.facts.etag, page.number, page.size)
            if data is None:
                missing.append(page)
            else:
                self._settle([(page, data)])
        return missing

    def _answered(self, request: Request, future: Future[bytes]) -> None:
        """Settle pages with the server's answer or error. Mostly runs on a thread of the server."""
        pages = request.pages
        try:
            data = future.result()
            if len(data) != request.size:
                raise DeviceFailed(f"the server sends {len(data)} bytes instead of {request.size}")
            view = memoryview(data)
            # Copies, so that no page keeps the others in memory; a single page needs none.
            parts = [bytes(view[page.offset - request.offset :][: page.size]) for page in pages[1:]]
            parts.insert(0, bytes(view[: pages[0].size]) if parts else bytes(data))
        except BaseException as error:
            self._fail(pages, error)
        else:
            self._settle(list(zip(pages, parts, strict=True)), is_new=True)

    def _settle(self, found: Sequence[tuple[Page, bytes]], is_new: bool = False) -> None:
        """Settle pages with their data; ``is_new`` if it is to be written to disk."""
        to_write = []
        with self._lock:
            for page, data in found:
                if page.is_settled:  # its reader has timed out
                    continue
                # Without a strong ETag the disk cache takes nothing; what would wait too long is not written.
                can_write = self._disk is not None and page.object.facts.has_strong_etag
                if is_new and can_write and self._unwritten + page.size <= self._pool.budget // 2:
                    self._unwritten += page.size
                    self._pool.acquire(page)
                    to_write.append((page, data))
                self._pool.settle(page, data)
            self._pool.trim()
        for page, data in to_write:
            _run(self._writer, partial(self._write, page, data))

    def _write(self, page: Page, data: bytes) -> None:
        try:
            if self._disk is not None:
                self._disk.put(page.object.identity, page.object.facts.etag, page.number, data)
        finally:
            with self._lock:
                self._unwritten -= page.size
                self._pool.release(page)
                self._pool.trim()

    def _fail(self, pages: Iterable[Page], error: BaseException) -> None:
        """Settle pages with an error; drop all pages of an object that has changed or is gone."""
        reported = _reported(error)
        with self._lock:
            for page in pages:
                if not page.is_settled:
                    self._pool.fail(page, reported)
                if isinstance(reported, (Changed, NotFound)):
                    self._pool.drop(page.object)

    def _wait(self, page: Page, deadline: float) -> bytes:
        if page.data is None and not work.patiently(page.settled.wait, max(0.0, deadline - time.monotonic())):
            request = page.request
            timed_out = DeviceFailed(f"no answer within {page.object.server.timeout:g} seconds")
            self._fail(request.pages if request is not None else [page], timed_out)
            if request is not None and request.future is not None:
                request.future.cancel()
        if page.error is not None:
            raise page.error.at(page.object.name)
        assert page.data is not None
        return page.data


class PagedObject:
    """One version of an object, for one reader."""

    def __init__(self, cache: PageCache, pages: ObjectPages) -> None:
        self._cache = cache
        self._pages = pages

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill ``buffers`` (bytes, writable) one after another with the bytes from ``offset`` on.

        Raises what fetching raised. Each 2 MiB take no longer than the server's timeout.
        """
        pages = self._pages
        size = total(buffers)
        end = offset + size
        if not 0 <= offset <= end <= pages.facts.size:
            reason = f"bytes {offset} to {end} lie outside the file of {pages.facts.size} bytes"
            raise Damaged(reason, pages.name)
        if not size:
            return
        reading = Reading(buffers, end)
        number, start = divmod(offset, PAGE)
        if start + size <= PAGE:
            data = self._cache.hit(pages, number, size)
            if data is not None:
                reading.fill(memoryview(data)[start : start + size])
                return
        while offset < end:
            until = min(end, (offset // PAGE + MOST_PAGES) * PAGE)
            self._cache.read(pages, reading, offset, until)
            offset = until

    def close(self) -> None:
        """Stop reading ahead; called once. Pages stay cached."""
        self._cache.leave(self._pages)


class Reading:
    """One read up to ``end``, in parts, into buffers that are filled one after another.

    ``is_sequential`` is whether it continues an earlier read; None until that is known.
    """

    __slots__ = ("_buffers", "_rest", "end", "is_sequential")

    def __init__(self, buffers: Iterable[memoryview], end: int) -> None:
        self.end = end
        self.is_sequential: bool | None = None
        self._buffers = iter(buffers)
        self._rest = memoryview(b"")

    def fill(self, data: memoryview) -> None:
        """Copy the next bytes; the buffers have space for them."""
        while size := len(data):
            rest = self._rest or next(self._buffers)
            if len(rest) > size:
                rest[:size] = data
                self._rest = rest[size:]
                return
            rest[:] = data[: len(rest)]
            data = data[len(rest) :]
            self._rest = memoryview(b"")


def _run(threads: ThreadPoolExecutor, task: Callable[[], None]) -> None:
    """Run a task on a thread; on this one while the process ends."""
    try:
        threads.submit(task)
    except RuntimeError:
        task()


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Group ascending numbers into runs of neighbors, as many as one request may have."""
    run: list[int] = []
    for number in numbers:
        if run and (number != run[-1] + 1 or len(run) == MOST_PAGES):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _requests(pages: Iterable[Page]) -> list[Request]:
    """Return requests for pages of one object."""
    by_number = {page.number: page for page in pages}
    return [Request([by_number[number] for number in run]) for run in _runs(sorted(by_number))]


def _reported(error: BaseException) -> GlassfsError:
    """Return the error for readers: without a traceback, and without a message that may contain secrets."""
    if isinstance(error, GlassfsError):
        return error.at()
    if isinstance(error, MemoryError):
        return Unavailable("not enough memory to read it")
    if isinstance(error, CancelledError):
        return DeviceFailed("the request was canceled")
    return DeviceFailed(f"could not be read from the server ({type(error).__name__})")
