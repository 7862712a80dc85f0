"""The cache of decoded blocks: up to a budget of bytes, and one decode however many readers wait for it. Any thread.

A block too large to cache goes through a spool file (``glassfs.cache.spool``). Memory is reserved before a block is
made, and a block is not evicted while it is read: so the budget holds however many readers there are. What a recipe
raises reaches every reader of that block; only when the reader that makes it is stopped, another one makes it again.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from glassfs import work
from glassfs.cache.budget import DEFAULT_BUDGET, MemoryBudget, Ticket
from glassfs.cache.spool import LongStream, Recipe, Spool, fresh, stored_error
from glassfs.lru import LRU
from glassfs.settings import settings
from glassfs.source import ByteCache, is_version_of

SPOOLS, DEFAULT_SPOOL_SIZE = 16, 8 << 30
"""Spools that no thread reads are dropped beyond so many, as each has a descriptor, and beyond so many bytes in all."""
IDLE_BYTES = 4 << 20
"""Bytes that stay cached while nothing is read."""
KEPT_TIMES = 16
"""A block is kept for its reader for at most so many times as long as making it took, after which a slow reader or one
that never ends costs little time to make it again.
"""

Notes: TypeAlias = LRU[Hashable, tuple[int, ...]]
"""A few integers per key, such as checksums of what is made repeatedly. Keys are like those of blocks."""


class BlockCache(ByteCache):
    """At most ``budget`` bytes of decoded blocks in memory; larger blocks in files under ``spool_directory``.

    Files that no thread reads are dropped beyond ``spool_size`` bytes in all.
    """

    def __init__(
        self, budget: int = DEFAULT_BUDGET, spool_directory: str | None = None, spool_size: int = DEFAULT_SPOOL_SIZE,
    ) -> None:
        self.spool_directory = spool_directory
        self.spool_size = spool_size
        self.memory = MemoryBudget(budget, self._evict)
        self.notes: Notes = LRU(8192)
        self.of_files: LRU[Hashable, Any] = LRU(min(16 << 20, budget // 16))
        """What files of views know of their columns (``view.contract.Known``), by weight in bytes."""
        self.hits = self.misses = 0
        self.drops = 0
        """How often memory was released because it was not used for a while."""
        self._used = 0, time.monotonic()
        """Hits and misses when ``drop_idle`` was called last after a change, and when that was."""
        self._others: list[Callable[[int], int]] = []
        self._unreserved = min(1 << 20, budget // 128)
        """Blocks and rows that cost no more bytes are made without reserving memory."""
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Hashable, _Block] = OrderedDict()
        self._pending: dict[Hashable, _Pending] = {}
        self._spools: LRU[Hashable, Spool] = LRU(sys.maxsize)

    @property
    def budget(self) -> int:
        return self.memory.limit

    @property
    def used(self) -> int:
        """Bytes of blocks in memory, and of memory reserved to make some."""
        return self.memory.used

    @property
    def largest_cached(self) -> int:
        """Blocks up to this many bytes are cached in memory, at most 64 MiB: larger ones come faster as a stream."""
        return min(64 << 20, self.budget // 2)

    def read_into(self, recipe: Recipe, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` with the block's bytes from ``offset`` on."""
        # The spool in which the size of a stream was found has its bytes, even if they would fit into memory.
        if recipe.size > self.largest_cached or self._spools.peek(recipe.key) is not None:
            self._spool(recipe, recipe.size).read_into(buffer, offset)
            return
        block = self._pinned(recipe)
        try:
            buffer[:] = memoryview(block.raw)[offset : offset + len(buffer)]
        finally:
            self._unpin(block, is_end=offset + len(buffer) == recipe.size)

    @contextmanager
    def held(self, recipe: Recipe) -> Iterator[bytes | bytearray]:
        """Yield all bytes of a block that is not too large to cache, which nothing may change; it is not evicted."""
        block = self._pinned(recipe)
        try:
            yield block.raw
        finally:
            self._unpin(block)

    def size_of(self, recipe: Recipe) -> int:
        """Return the length of a block of unknown size, by making it.

        The block is cached then, or, if it is long, in a spool.
        """
        if self.is_tiny(recipe.cost) and recipe.key not in self._blocks:
            return len(self._made_tiny(recipe, 0).raw)
        try:
            # A short stream is made in memory, like any block. Where it turns out to be long, it begins again in a
            # spool; later callers find that spool and continue with it.
            block = self._pinned(recipe) if self._spools.peek(recipe.key) is None else None
        except LongStream:
            block = None
        if block is None:
            return self._spool(recipe, None).measure()
        self._unpin(block)
        size = len(block.raw)
        if size > self.largest_cached:  # it will be read through a spool
            self._forget(lambda key: key == recipe.key)
        return size

    def is_tiny(self, cost: int) -> bool:
        """Return whether a block of that cost is made by every reader that misses it: waiting would take longer."""
        return cost <= min(16 << 10, self._unreserved)

    def known(self, key: Hashable) -> bytes | None:
        with self._lock:
            block = self._blocks.get(key)
            if block is None:
                return None
            self.hits += 1
            self._blocks.move_to_end(key)
        return bytes(block.raw)

    def add(self, key: Hashable, data: bytes) -> None:
        with self._lock:
            if key in self._blocks:
                return
            self.misses += 1
            self._blocks[key] = _Block(data, 0)
        self.memory.release(0, len(data))

    def share(self, evict: Callable[[int], int]) -> None:
        """Let another cache count bytes in ``memory``; ``evict`` is as for ``MemoryBudget``."""
        self._others.append(evict)

    def drop_idle(self) -> None:
        """Evict all but ``IDLE_BYTES`` if no block was read for a while, and spools that were not.

        One thread, periodically.
        """
        now = time.monotonic()
        self._give_up(lambda spool: now - spool.idle_since() > settings.spool_kept)
        count, since = self._used
        if count != self.hits + self.misses:
            self._used = self.hits + self.misses, now
        elif now - since > settings.cache_idle and self.memory.shrink(IDLE_BYTES):
            self.drops += 1

    def clear(self) -> None:
        """Drop everything."""
        self._forget(lambda key: True)

    def forget(self, version: Hashable) -> None:
        """Drop what was made from this version of a source, and from files inside it."""
        self._forget(lambda key: isinstance(key, tuple) and bool(key) and is_version_of(key[0], version))

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Reserve so many bytes for work outside of recipes."""
        self.memory.reserve(size)
        try:
            with self.memory.nested():
                yield
        finally:
            self.memory.release(size)

    def measuring(self, cost: int) -> AbstractContextManager[None]:
        """Reserve so many bytes for some work, unless they are few."""
        return self.reserved(cost) if cost > self._unreserved else nullcontext()

    def prefetch(self, recipe: Recipe) -> bool:
        """Start making a block that will be read soon, unless memory is short.

        Returns False if so many blocks are being made that the caller should try again later.
        """
        if recipe.size > self.largest_cached:
            return True
        key = recipe.key
        with self._lock:
            if key in self._blocks or key in self._pending:
                return True
            # More blocks than cores in the making would only make readers wait for those that they need first.
            if len(self._pending) > work.CORES:
                return False
            pending = self._pending[key] = _Pending(recipe)
        work.run_ahead(lambda: self._make_unclaimed(pending))
        return True

    def _pinned(self, recipe: Recipe) -> _Block:
        """Return the block, made if necessary. It is not evicted before ``_unpin``."""
        while (block := self._try(recipe)) is None:
            pass
        return block

    def _try(self, recipe: Recipe) -> _Block | None:
        """Return the block, pinned; None if the reader that made it was stopped."""
        key = recipe.key
        is_tiny = self.is_tiny(recipe.cost)
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
                self.hits += 1
                found.pins += 1
                return found
            pending = self._pending.get(key)
            if pending is None and not is_tiny:
                self.misses += 1
                pending = self._pending[key] = _Pending(recipe)
            if pending is not None:
                pending.readers += 1
                is_mine = pending.claim()
        if pending is None:
            # Several readers may make a tiny block at the same time: that takes less than waiting for each other.
            return self._made_tiny(recipe, 1)
        if is_mine:
            self._make(pending)
        elif not pending.future.done():
            self._wait_for(pending)
        error = pending.future.exception()
        if error is None:
            return pending.future.result()
        # The reader that made the block was stopped, which says nothing about the block: this one makes it now.
        if not is_mine and not isinstance(error, Exception):
            return None
        raise fresh(error)

    def _made_tiny(self, recipe: Recipe, pins: int) -> _Block:
        """Return a tiny block, made by this thread and pinned so often."""
        work.check(recipe.cost)
        try:
            raw = recipe.whole()
        except MemoryError as error:
            raise fresh(stored_error(error)) from None
        with self._lock:
            self.misses += 1
            block = self._blocks.get(recipe.key)
            is_first = block is None
            if block is None:
                block = self._blocks[recipe.key] = _Block(raw, 0)
            block.pins += pins
        if is_first:
            self.memory.release(0, len(raw))
        return block

    def _wait_for(self, pending: _Pending) -> None:
        """Wait until another thread has made the block or failed."""
        if self.memory.is_nested:
            self.memory.hurry(pending.ticket)
        try:
            with self.memory.waiting():
                work.is_done(pending.future)
        except BaseException:  # an interrupted reader never reads the block
            pending.future.add_done_callback(self._unpin_made)
            raise

    def _unpin_made(self, future: Future[_Block]) -> None:
        if future.exception() is None:
            self._unpin(future.result())

    def _unpin(self, block: _Block, is_end: bool = False) -> None:
        now = time.monotonic()
        with self._lock:
            block.pins -= 1
            block.read_at = now
            if is_end:  # a sequential reader needs it no longer
                block.kept_until = 0.0
            is_unused = not block.is_used(now)
        if is_unused:
            self.memory.recheck()

    def _make_unclaimed(self, pending: _Pending) -> None:
        with self._lock:
            is_mine = pending.claim()
        if is_mine:
            self._make(pending, is_ahead=True)

    def _make(self, pending: _Pending, is_ahead: bool = False) -> None:
        """Make the block, or store the error for its readers. Ahead of readers only if memory is free now."""
        recipe = pending.recipe
        reserved = cached = 0
        try:
            cost = recipe.cost
            work.check(cost)
            if cost > self._unreserved:
                if not self.memory.reserve_now(cost):
                    if is_ahead and self._is_unwanted(pending):
                        return
                    self.memory.reserve(cost, pending.ticket)
                reserved = cost
            with self.memory.nested():
                begun = time.monotonic()
                raw = recipe.whole()
                took = time.monotonic() - begun
            with self._lock:
                del self._pending[recipe.key]
                block = self._blocks[recipe.key] = _Block(raw, pending.readers)
                # Blocks that took memory are kept for their readers, or readers of more than fits would evict each
                # other's blocks for ever.
                if reserved:
                    block.keep(min(settings.kept, KEPT_TIMES * took))
            cached = len(raw)
        except BaseException as error:
            with self._lock:
                self._pending.pop(recipe.key, None)
            self.memory.release(reserved)
            pending.future.set_exception(stored_error(error))
        else:
            self.memory.release(reserved, cached)
            pending.future.set_result(block)

    def _is_unwanted(self, pending: _Pending) -> bool:
        """Return whether no reader waits for the block; it is then no longer pending."""
        with self._lock:
            if not pending.readers:
                del self._pending[pending.recipe.key]
            return not pending.readers

    def _evict(self, wanted: int) -> int:
        """Evict blocks that are not being read, least recently used first, then the decoders of idle spools."""
        freed = 0
        with self._lock:
            now, unused = time.monotonic(), []
            for key, block in self._blocks.items():
                if freed >= wanted:
                    break
                if not block.is_used(now):
                    unused.append(key)
                    freed += len(block.raw)
            for key in unused:
                del self._blocks[key]
        for _, spool in self._spools.items():
            if freed >= wanted:
                break
            freed += spool.suspend()
        for evict in self._others:
            freed += evict(wanted - freed) if freed < wanted else 0
        return freed

    def _forget(self, is_meant: Callable[[Hashable], bool]) -> None:
        freed = 0
        self.notes.pop_where(is_meant)
        with self._lock:
            for key in [key for key, block in self._blocks.items() if not block.pins and is_meant(key)]:
                freed += len(self._blocks.pop(key).raw)
        self.memory.drop_cached(freed)
        for spool in self._spools.pop_where(is_meant):
            spool.close()

    def _spool(self, recipe: Recipe, size: int | None) -> Spool:
        spool = self._spools.get(recipe.key)
        if spool is not None:
            self.hits += 1
            return spool
        made = Spool(recipe, size, self.memory, self.spool_directory, self._drop, self._make_room)
        with self._lock:
            spool = self._spools.get(recipe.key)
            if spool is None:
                self.misses += 1
                spool = made
                self._spools.put(recipe.key, spool)
        self._make_room(spool, False)
        return spool

    def _make_room(self, needy: Spool, is_full: bool) -> bool:
        """Drop idle spools, least recently used first, until the others keep to the limits; all if the disk is full."""
        spools = [spool for _, spool in self._spools.items()]
        idle = [spool for spool in spools if spool.idle_since() < math.inf]
        size = sum(spool.stored for spool in spools)
        meant = set[Spool]()
        for number, spool in enumerate(idle):
            # The least recently read come first. What a thread reads stays, whatever the limits say.
            if spool is not needy and (is_full or len(idle) - number > SPOOLS or size > self.spool_size):
                meant.add(spool)
                size -= spool.stored
        return self._give_up(meant.__contains__) if meant else False

    def _give_up(self, is_meant: Callable[[Spool], bool]) -> bool:
        """Drop spools; their files go with their last readers. Return whether there were some."""
        meant = {key for key, spool in self._spools.items() if is_meant(spool)}
        dropped = self._spools.pop_where(meant.__contains__) if meant else ()
        for spool in dropped:
            spool.close()
        return bool(dropped)

    def _drop(self, spool: Spool) -> None:
        """Have the next reader of this block try again. The file goes with its last reader."""
        with self._lock:
            if self._spools.peek(spool.key) is spool:
                self._spools.pop(spool.key)


@dataclass(slots=True, eq=False)
class _Block:
    """A decoded block, the number of readers that are using it, and until when it is kept for them."""

    raw: bytes | bytearray
    pins: int
    read_at: float = 0.0
    kept_until: float = 0.0

    def keep(self, seconds: float) -> None:
        """Have the block kept for its readers, for at most so long."""
        self.read_at = time.monotonic()
        self.kept_until = self.read_at + seconds

    def is_used(self, now: float) -> bool:
        """Return whether it must not be evicted."""
        return self.pins > 0 or now < min(self.kept_until, self.read_at + settings.kept_gap)


@dataclass(slots=True, eq=False)
class _Pending:
    """A block to be made by the first thread that claims it, so that a queued block never delays a reader."""

    recipe: Recipe
    future: Future[_Block] = field(default_factory=Future)
    ticket: Ticket = field(default_factory=Ticket)
    readers: int = 0
    """Readers that wait for the block. Changed under the cache's lock."""
    is_claimed: bool = False

    def claim(self) -> bool:
        """Return True for the first caller. The caller must hold the cache's lock."""
        was_claimed, self.is_claimed = self.is_claimed, True
        return not was_claimed
