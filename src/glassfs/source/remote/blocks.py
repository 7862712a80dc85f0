"""Read remote objects in blocks that the block cache keeps, and decide which blocks to request when.

A block is requested once however many readers wait for it. If one is missing, its neighbor is requested with it, as a
request takes about as long for both; if more are missing, exactly these are, neighbors in one request. Ahead of a
sequential reader further blocks are requested, if few enough are under way.

Any thread. The locks are held for bookkeeping only. A failed request fails all reads that wait for it, each with its
own exception; errors are not remembered, except for a moment after a timeout. If an object has changed, all its blocks
are dropped. No reader waits much longer than the server's ``timeout`` for its next bytes.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import xxhash

from glassfs import work
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotFound, Refused, Unavailable
from glassfs.names import raw
from glassfs.settings import settings
from glassfs.sizes import human_size
from glassfs.source.contract import ByteCache, Entry, Path, Source, Version
from glassfs.source.remote.server import Facts, Server

BLOCK = 256 << 10
AT_ONCE = 8
"""Blocks in one request."""
WINDOW = 64
"""Blocks requested ahead of a reader at most."""
SHORT = 3
"""Blocks read in sequence before more are requested: the reader may want something small, such as an image."""
NEAR, READERS = 4, 16
FILE = "blocks.sqlite"


def version_of(server: Server, path: Path, facts: Facts) -> Version:
    """Return the version of an object: without the time if the ETag is strong, as servers round it."""
    key = xxhash.xxh128_hexdigest(raw("\0".join((server.identity, *path))))
    return Version(f"{key}|{facts.size}|{0 if facts.has_strong_etag else facts.mtime_ns}|{facts.etag}")


def key_of(server: Server, path: Path) -> str:
    """Return what names an object in the disk cache."""
    return "/".join((server.identity, *path))


class RemoteBlocks:
    """The blocks of any number of objects, in ``cache`` and on ``disk``."""

    def __init__(self, cache: ByteCache, disk: DiskCache | None = None) -> None:
        self._cache = cache
        self._disk = disk
        self._lock = threading.Lock()
        self._requests: dict[tuple[Version, int], _Request] = {}
        """The requests under way, by the blocks that they bring."""
        # Bytes under way and those that wait for the disk are in no budget, so few are allowed, however large that is.
        self.window = min(cache.budget // 4, 64 << 20) // BLOCK
        """How many blocks may be under way that no reader waits for yet."""
        self._writes = threading.Semaphore(max(1, self.window))
        # These threads begin on first use. The process waits at its end until the writer has written everything.
        self._lookups = ThreadPoolExecutor(2, "glassfs-lookups")
        self._writer = ThreadPoolExecutor(1, "glassfs-writer")

    def put_head(self, server: Server, path: Path, facts: Facts, data: bytes) -> None:
        """Cache an object's first bytes, which came with its facts, if they fill a block."""
        version, size = version_of(server, path, facts), min(BLOCK, facts.size)
        if 0 < size <= len(data) and self._cache.known((version, 0)) is None:
            self._cache.add((version, 0), data[:size])
            self._write(key_of(server, path), facts, 0, data[:size])

    def finish(self) -> None:
        """Wait until the disk cache has what was read so far, but not for long."""
        with suppress(FutureTimeout, RuntimeError):
            self._writer.submit(int).result(settings.disk_finish)

    def begin(self, of: RemoteSource, wanted: range, ahead: range) -> list[bytes | _Request]:
        """Return the ``wanted`` blocks, or the requests that bring them; also begin to request those ``ahead``."""
        with self._lock:
            # The cache and the requests under way are searched in one step, so that an answer that arrives meanwhile
            # is not missed, and a block is requested once.
            parts = [self._part(of, number) for number in wanted]
            missing = [number for number, part in zip(wanted, parts, strict=True) if part is None]
            if len(missing) == 1:
                # The head of the file, block 0, comes with the object's facts, so pairs begin at odd numbers.
                other = missing[0] + 1 if missing[0] % 2 else missing[0] - 1
                if missing[0] and other < of.count and self._part(of, other) is None:
                    missing.append(other)
            begun = self._added(of, missing)
            # A reader that waits gets its blocks in any case. What is only expected is bounded for all readers
            # together, as bytes under way are in no budget.
            further = [number for number in ahead if self._part(of, number) is None]
            if further:
                further = further[: max(0, self.window - sum(one.is_ahead for one in self._requests.values()))]
            later = self._added(of, further, is_ahead=True)
            found = [part or self._requests[of.version, number] for number, part in zip(wanted, parts, strict=True)]
        for request in begun:
            self._fetch(request)
        for request in later:
            # No reader waits for a disk on behalf of blocks that it may never read.
            if self._disk is None or _submitted(self._lookups, partial(self._fetch, request)) is None:
                self._fetch(request)
        return found

    def wait(self, request: _Request, number: int, deadline: float) -> bytes:
        """Return a block once its request is done. Raises what that raised, and DeviceFailed after the deadline."""
        if not work.is_done(request.future, max(0.0, deadline - time.monotonic())):
            # All readers of the request have waited as long. A late answer finds the request settled and is dropped.
            self._settle(request, DeviceFailed(f"no answer within {request.object.server.timeout:g} seconds"))
            if request.answer is not None:
                request.answer.cancel()
        outcome = request.future.result()
        if isinstance(outcome, GlassfsError):
            raise outcome.at(request.object.name)
        return outcome[number - request.numbers[0]]

    def _part(self, of: RemoteSource, number: int) -> bytes | _Request | None:
        key = of.version, number
        return self._cache.known(key) or self._requests.get(key)

    def _added(self, of: RemoteSource, numbers: Iterable[int], is_ahead: bool = False) -> list[_Request]:
        """Return new requests for blocks, which every reader finds from now on. The caller holds the lock."""
        requests: list[_Request] = []
        for number in sorted(numbers):
            last = requests[-1].numbers if requests else range(0)
            if last and number == last.stop and len(last) < AT_ONCE:
                requests[-1].numbers = range(last.start, number + 1)
            else:
                requests.append(_Request(of, range(number, number + 1), is_ahead))
            self._requests[of.version, number] = requests[-1]
        return requests

    def _fetch(self, request: _Request) -> None:
        """Ask for blocks. Errors reach the readers that wait for them."""
        of = request.object
        try:
            # One block that is missing on disk costs its neighbors as well: requests are written and evicted together,
            # and a request for the hole alone would take as long.
            if self._disk is not None:
                sizes = {number: of.size_of(number) for number in request.numbers}
                parts = self._disk.get(of.key, of.facts.etag, sizes)
                if parts is not None:
                    self._settle(request, parts)
                    return
            offset = request.numbers[0] * BLOCK
            request.answer = of.server.fetch(of.path, offset, request.size, of.facts)
            request.answer.add_done_callback(partial(self._answered, request))
        except BaseException as error:
            self._settle(request, _reported(error))
            if not isinstance(error, Exception):
                raise

    def _answered(self, request: _Request, answer: Future[bytes]) -> None:
        """Settle a request with the server's answer or error. Mostly runs on a thread of the server."""
        try:
            data = answer.result()
            if len(data) != request.size:
                raise DeviceFailed(f"the server sends {len(data)} bytes instead of {request.size}")
            # Copies, so that no block keeps the others in memory; a single one needs none.
            view = memoryview(data)
            starts = range(0, len(data), BLOCK)
            parts = [bytes(view[start : start + BLOCK]) for start in starts] if len(starts) > 1 else [bytes(data)]
        except BaseException as error:
            self._settle(request, _reported(error))
        else:
            self._settle(request, parts)
            for number, part in zip(request.numbers, parts, strict=True):
                self._write(request.object.key, request.object.facts, number, part)

    def _settle(self, request: _Request, outcome: list[bytes] | GlassfsError) -> None:
        """Give blocks or an error to the readers of a request; drop all blocks of an object that has changed."""
        version, first = request.object.version, request.numbers[0]
        with self._lock:
            # What a reader found to be late, or was dropped meanwhile, is not cached any more.
            for number in request.numbers:
                if self._requests.get((version, number)) is request:
                    del self._requests[version, number]
                    if isinstance(outcome, list):
                        self._cache.add((version, number), outcome[number - first])
            if isinstance(outcome, (Changed, NotFound)):
                for key in [key for key in self._requests if key[0] == version]:
                    del self._requests[key]
                self._cache.forget(version)
            if not request.future.done():
                request.future.set_result(outcome)

    def _write(self, key: str, facts: Facts, number: int, data: bytes) -> None:
        """Have a block written to disk, unless too much waits for that."""
        if self._disk is not None and self._writes.acquire(blocking=False):
            writing = _submitted(self._writer, partial(self._disk.put, key, facts.etag, number, data))
            if writing is not None:
                writing.add_done_callback(lambda done: self._writes.release())


@dataclass(eq=False)
class _Request:
    """Neighboring blocks that are fetched together: the result of ``future`` are these, or an error.

    ``answer`` is that of the server, unless the blocks come from the disk.
    """

    object: RemoteSource
    numbers: range
    is_ahead: bool
    future: Future[list[bytes] | GlassfsError] = field(default_factory=Future)
    answer: Future[bytes] | None = None

    @property
    def size(self) -> int:
        return sum(map(self.object.size_of, self.numbers))


class RemoteSource(Source):
    """An object at ``path`` of a server, in the version of ``entry``; ``doubt`` is called if it is in another one.

    There is nothing to keep or to park: it has no connection of its own, and a deleted object is gone even while it is
    open.
    """

    is_remote = True

    def __init__(
        self, blocks: RemoteBlocks, server: Server, path: Path, entry: Entry, doubt: Callable[[], None],
    ) -> None:
        _, size, mtime_ns, etag = entry.version.split("|", 3)
        self.facts = Facts(int(size), etag, int(mtime_ns))
        self.server, self.path, self.entry = server, path, entry
        self.name = server.shown(path)
        self.key = key_of(server, path)
        self.count = -(-self.size // BLOCK)
        self.window = min(WINDOW, blocks.window)
        self._blocks = blocks
        self._doubt = doubt
        self._streams: dict[int, tuple[int, int]] = {}
        """By the last block of a reader: how many it has read in sequence, and up to where blocks were requested ahead.
        The one that read last is at the end."""
        self._lock = threading.Lock()
        self._timed_out: GlassfsError | None = None
        """The error of a read that timed out, which other reads get at once until ``_timed_out_until``."""
        self._timed_out_until = 0.0

    def size_of(self, number: int) -> int:
        return min(BLOCK, self.size - number * BLOCK)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer``. Raises what fetching raised. Each 2 MiB take no longer than the server's timeout."""
        size = len(buffer)
        if not 0 <= offset <= offset + size <= self.size:
            raise self.outside(offset, size)
        at = 0
        try:
            for piece in self._pieces(offset, offset + size):
                buffer[at : at + len(piece)] = piece
                at += len(piece)
        except (Changed, NotFound) as error:
            self._doubt()
            raise Changed(error.reason, self.name) from None

    def _pieces(self, offset: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes ``[offset, end)`` in order."""
        last = -(-end // BLOCK)
        ahead = self._expected(offset // BLOCK, last - 1)
        for start in range(offset // BLOCK, last, AT_ONCE):
            wanted = range(start, min(start + AT_ONCE, last))
            # The rest of a large read is as good as read; what may follow it is requested with its last part.
            rest = range(wanted.stop, min(last, wanted.stop + WINDOW))
            began = time.monotonic()
            if self._timed_out is not None and began < self._timed_out_until:
                raise self._timed_out.at(self.name)
            try:
                parts = self._blocks.begin(self, wanted, rest or ahead)
                for number, part in zip(wanted, parts, strict=True):
                    if not isinstance(part, bytes):
                        deadline = began + self.server.timeout + settings.server_grace
                        part = self._blocks.wait(part, number, deadline)
                    yield memoryview(part)[max(0, offset - number * BLOCK) : end - number * BLOCK]
            except DeviceFailed as error:
                now = time.monotonic()
                if now - began >= self.server.timeout / 2:
                    # The kernel repeats a failed read immediately.
                    self._timed_out, self._timed_out_until = error.at(), now + settings.server_fail_fast
                raise

    def _expected(self, first: int, last: int) -> range:
        """Note that the blocks from ``first`` to ``last`` are read; return which ones to request ahead.

        Finds out which of the last readers are sequential, whatever the sizes of their reads. Threads of one reader may
        read out of order: blocks a little before its last one, and behind small gaps, are its own. Blocks that are read
        again are no progress, nor are those that were skipped.
        """
        with self._lock:
            near = (
                block for block, (read, _) in reversed(self._streams.items())
                if -NEAR <= first - block <= min(NEAR, read + 1)
            )
            known = next(near, None)
            if known is None:
                if len(self._streams) >= READERS:  # those that are not sequential go first
                    idle = (block for block, (read, _) in self._streams.items() if not read)
                    del self._streams[next(idle, next(iter(self._streams)))]
                self._streams[last] = 0, 0
                return range(0)
            read, asked = self._streams.pop(known)
            read += max(0, min(last - first + 1, last - known))
            last = max(last, known)
            count = min(self.window, 2 * max(0, read - SHORT))
            until = min(last + 1 + count, self.count)
            # Requests of many blocks are better; until then the reader has blocks that are under way.
            if until < self.count:
                until -= until % min(AT_ONCE, max(2, count // 2))
            self._streams.pop(last, None)  # another reader was here
            self._streams[last] = read, max(asked, until)
            return range(max(asked, last + 1), until)


class DiskCache:
    """Blocks on disk for the next process, in ``folder`` (made with mode 0700 if missing), up to ``budget`` bytes.

    A block is identified by the object's key (an opaque text without secrets), its validator (the ETag), its number and
    its size. A validator that is empty or weak (``W/…``) identifies no bytes: nothing is cached under it.

    Raises Refused if the folder cannot be made or trusted (see ``glassfs.persistent.private``), and if the budget is
    smaller than one block.
    """

    def __init__(self, folder: str, budget: int) -> None:
        if budget < 512 << 10:
            raise Refused(f"a disk cache of {human_size(budget)} is smaller than one block of 512K", folder)
        from glassfs.persistent.cache import PersistentCache

        self._cache = PersistentCache(folder, budget, FILE)

    def get(self, object_key: str, validator: str, sizes: Mapping[int, int]) -> list[bytes] | None:
        """Return the blocks with these numbers, which have these sizes; None unless all are cached."""
        if not Facts(0, validator, 0).has_strong_etag:
            return None
        found = self._cache.find([_key(object_key, validator, number) for number in sizes])
        parts = [part for part in found if part is not None]
        return parts if [len(part) for part in parts] == [*sizes.values()] else None

    def put(self, object_key: str, validator: str, number: int, data: bytes | bytearray | memoryview) -> None:
        """Cache a block if possible."""
        if data and Facts(0, validator, 0).has_strong_etag:
            self._cache.store({_key(object_key, validator, number): data})


def _key(*words: str | int) -> bytes:
    """Return a cryptographic hash, so that no block of another object has the same key."""
    return hashlib.blake2b(json.dumps(words).encode(), digest_size=32).digest()


def _submitted(threads: ThreadPoolExecutor, task: Callable[[], None]) -> Future[None] | None:
    """Return the future of a task; None if the process ends, and no thread takes tasks any more."""
    try:
        return threads.submit(task)
    except RuntimeError:
        return None


def _reported(error: BaseException) -> GlassfsError:
    """Return the error for readers: without a traceback, and without a message that may contain secrets."""
    if isinstance(error, GlassfsError):
        return error.at()
    if isinstance(error, MemoryError):
        return Unavailable("not enough memory to read it")
    return DeviceFailed(f"could not be read from the server ({type(error).__name__})")
