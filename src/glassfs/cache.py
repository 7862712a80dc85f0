"""Decoded blocks, kept up to a budget of bytes.

One decode however many readers wait for it. A block that is too large to keep is decoded as a stream into an
unlinked spool file, a stretch ahead of its readers, and served from there while it grows; the kernel frees the
file however the process ends. No more threads make blocks at a time than there are cores: more would make nothing
faster, and would keep those from a core who have a question of a few microseconds. Every function may be called
from any thread. What a recipe raises reaches every reader of that block, and nobody else.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from glassfs.errors import Damaged, NoSpool

DEFAULT_BUDGET = 256 << 20
LARGEST_KEPT = 64 << 20
READ_AHEAD = 32 << 20
SPOOLS = 16
WORKERS = max(2, os.cpu_count() or 1)
PATIENCE = 0.05
"""Seconds without a reader after which nothing more is made ahead for it."""
LONGEST_DELAY = 0.05
"""Seconds that a thread waits at most for its turn to make a block."""


class Recipe(Protocol):
    """How a block is made. ``key`` is the same for the same bytes and for no others."""

    @property
    def key(self) -> Hashable: ...

    @property
    def size(self) -> int: ...

    def whole(self) -> bytes:
        """All ``size`` bytes. Raises Damaged or Changed."""

    def pieces(self) -> Iterator[bytes]:
        """The same bytes in pieces of a few MiB at most; an error is raised before the last byte is given."""


class BlockCache:
    """At most ``budget`` bytes of decoded blocks in memory; larger ones in files under ``spool_directory``."""

    def __init__(self, budget: int = DEFAULT_BUDGET, spool_directory: str | None = None) -> None:
        self.budget = budget
        self.spool_directory = spool_directory
        self.hits = self.misses = 0
        self._used = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Hashable, bytes] = OrderedDict()
        self._pending: dict[Hashable, _Pending] = {}
        self._spools: OrderedDict[Hashable, _Spool] = OrderedDict()

    @property
    def used(self) -> int:
        """Bytes of decoded blocks in memory."""
        return self._used

    @property
    def largest_kept(self) -> int:
        """Blocks up to this size are held in memory."""
        return min(LARGEST_KEPT, self.budget // 2)

    def read_into(self, recipe: Recipe, buffer: memoryview, offset: int) -> None:
        """Fills ``buffer`` with the block's bytes from ``offset`` on."""
        if recipe.size > self.largest_kept:
            self._spool(recipe).read_into(buffer, offset)
        else:
            buffer[:] = memoryview(self.block(recipe))[offset : offset + len(buffer)]

    def block(self, recipe: Recipe) -> bytes:
        """The whole block. For blocks that are small enough to be kept."""
        key = recipe.key
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
                self.hits += 1
                return found
            pending = self._pending.get(key)
            if pending is None:
                self.misses += 1
                pending = self._pending[key] = _Pending(recipe)
            is_mine = pending.claim()
        if is_mine:
            self._make(pending)
            return pending.future.result()
        with _workers.turns.given_up():
            return pending.future.result()

    def clear(self) -> None:
        """Drops everything that is kept."""
        with self._lock:
            self._blocks.clear()
            self._spools.clear()
            self._used = 0

    def waiting(self) -> AbstractContextManager[None]:
        """For recipes, around what does not need a core, such as reading from a disk."""
        return _workers.turns.given_up()

    def prefetch(self, recipe: Recipe) -> None:
        """Starts making a block that somebody will soon ask for, unless the workers are busy."""
        with self._lock:
            if recipe.size > self.largest_kept or recipe.key in self._blocks or recipe.key in self._pending:
                return
            if len(self._pending) > WORKERS:
                return
            pending = self._pending[recipe.key] = _Pending(recipe)
        self.run(lambda: self._make_unclaimed(pending))

    def run(self, task: Callable[[], object]) -> None:
        """Runs ``task``, which must not wait for another task, on one of the few threads that decode ahead."""
        _workers.run(task)

    def _make_unclaimed(self, pending: _Pending) -> None:
        with self._lock:
            is_mine = pending.claim()
            if is_mine and pending.is_late:
                # Whoever was to read it has gone, or it would be claimed by now.
                del self._pending[pending.recipe.key]
                is_mine = False
        if is_mine:
            self._make(pending)

    def _make(self, pending: _Pending) -> None:
        key = pending.recipe.key
        try:
            with _workers.turns.taken():
                raw = pending.recipe.whole()
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            pending.future.set_exception(error)
            return
        with self._lock:
            del self._pending[key]
            self._keep(key, raw)
        pending.future.set_result(raw)

    def _keep(self, key: Hashable, raw: bytes) -> None:
        self._blocks[key] = raw
        self._used += len(raw)
        while self._used > self.budget:
            _, dropped = self._blocks.popitem(last=False)
            self._used -= len(dropped)

    def _spool(self, recipe: Recipe) -> _Spool:
        with self._lock:
            spool = self._spools.get(recipe.key)
            if spool is None:
                self.misses += 1
                spool = self._spools[recipe.key] = _Spool(recipe, self)
                if len(self._spools) > SPOOLS:
                    self._spools.popitem(last=False)
            else:
                self.hits += 1
                self._spools.move_to_end(recipe.key)
            return spool

    def drop(self, spool: _Spool) -> None:
        """The next reader of this block tries it again. The file goes with the last one who still reads it."""
        with self._lock:
            if self._spools.get(spool.key) is spool:
                del self._spools[spool.key]


class _Turns:
    """A turn for each thread that may work at the same time; one that has a turn already takes no second.

    Nobody waits for long: a large block that is made ahead must not hold up those who want other blocks.
    """

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._thread = _Thread()

    @contextmanager
    def taken(self) -> Iterator[None]:
        if self._thread.has_turn:
            yield
            return
        self._take()
        try:
            yield
        finally:
            self._give_up()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """The other way round: others may work while this thread waits for something."""
        if not self._thread.has_turn:
            yield
            return
        self._give_up()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._thread.has_turn = self._free.acquire(timeout=LONGEST_DELAY)

    def _give_up(self) -> None:
        if self._thread.has_turn:
            self._thread.has_turn = False
            self._free.release()


class _Thread(threading.local):
    has_turn = False


class _Workers:
    """The threads that work ahead, for all caches of this process together, and the turns of all who make blocks."""

    def __init__(self) -> None:
        self.turns = _Turns(WORKERS)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, task: Callable[[], object]) -> None:
        with self._lock:
            # Made on first use: a thread must not be there when the daemon forks.
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WORKERS, "glassfs-ahead")
        self._pool.submit(task)


_workers = _Workers()


def _renew_workers() -> None:
    """In a process that was forked off there is none of the threads."""
    global _workers
    _workers = _Workers()


os.register_at_fork(after_in_child=_renew_workers)


class _Pending:
    """A block to be made by whoever claims it first, so that one that is queued never holds up a reader."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.future: Future[bytes] = Future()
        self._is_claimed = False
        self._begun = time.monotonic()

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self._begun > PATIENCE

    def claim(self) -> bool:
        """True for the first caller. Called under the cache's lock."""
        was_claimed, self._is_claimed = self._is_claimed, True
        return not was_claimed


class _Spool:
    """A large block in an unlinked file. It is decoded as far as its readers need it, and ahead on another thread."""

    def __init__(self, recipe: Recipe, cache: BlockCache) -> None:
        self._recipe = recipe
        self._cache = cache
        try:
            self._file = tempfile.TemporaryFile(dir=cache.spool_directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._no_spool(error) from error
        self._pieces = recipe.pieces()
        self._written = 0
        self._is_busy = False
        self._last_read = 0.0
        self._error: BaseException | None = None
        self._progress = threading.Condition()

    @property
    def key(self) -> Hashable:
        return self._recipe.key

    def read_into(self, buffer: memoryview, offset: int) -> None:
        end = offset + len(buffer)
        self._decode(end)
        self._last_read = time.monotonic()
        ahead = min(end + READ_AHEAD, self._recipe.size)
        if self._written < min(end + READ_AHEAD // 2, self._recipe.size) and not self._is_busy:
            self._cache.run(lambda: self._decode_ahead(ahead))
        got = 0
        while got < len(buffer):
            more = os.preadv(self._file.fileno(), (buffer[got:],), offset + got)
            if more == 0:
                raise Damaged("the spool file was cut")
            got += more

    def _decode_ahead(self, end: int) -> None:
        """As far as ``end``, but not for long when nobody reads any more, and not beside another thread."""
        while not self._is_busy and self._written < end and time.monotonic() - self._last_read < PATIENCE:
            try:
                self._decode(self._written + 1)
            except Exception:  # kept in _error for the readers
                return

    def _decode(self, end: int) -> None:
        """Returns when the block is there up to ``end``, decoded here if no other thread is at it."""
        while True:
            with self._progress:
                self._progress.wait_for(lambda: self._written >= end or self._error is not None or not self._is_busy)
                if self._error is not None:
                    raise type(self._error)(*self._error.args)
                if self._written >= end:
                    return
                self._is_busy = True
            error = None
            try:
                with _workers.turns.taken():
                    self._write_next_piece()
            except BaseException as caught:
                error = caught.with_traceback(None)  # tracebacks would keep this spool, and its file
                error.__cause__ = error.__context__ = None
                if not isinstance(caught, Damaged):
                    # A full disk, or the like: that passes. Damage stays, as finding it costs.
                    self._cache.drop(self)
            with self._progress:
                self._error = error
                self._is_busy = False
                self._progress.notify_all()

    def _write_next_piece(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            raise Damaged(f"gives {self._written} bytes, declared are {self._recipe.size}")
        view, position = memoryview(piece), self._written
        while view:
            try:
                written = os.pwrite(self._file.fileno(), view, position)
            except OSError as error:
                raise self._no_spool(error) from error
            position += written
            view = view[written:]
        self._written = position

    def _no_spool(self, error: OSError) -> NoSpool:
        folder = self._cache.spool_directory or tempfile.gettempdir()
        return NoSpool(f"{folder}: a block of {self._recipe.size} bytes cannot be written there: {error.strerror}")
