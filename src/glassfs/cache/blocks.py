"""Decoded blocks, kept up to a budget of bytes.

One decode however many readers wait for it. A block that is too large to keep goes through a spool file
(``glassfs.cache.spool``). Room is taken before a block is made, and a block that somebody is reading is not given up:
so the budget holds however many readers there are. Every function may be called from any thread. What a recipe raises
reaches every reader of that block, and nobody else.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext

from glassfs.cache.faults import again, bare
from glassfs.cache.notes import Notes
from glassfs.cache.recipe import Recipe
from glassfs.cache.room import DEFAULT_BUDGET, Room, Ticket
from glassfs.cache.spool import PATIENCE, Spool
from glassfs.cache.turns import WORKERS, workers

LARGEST_KEPT = 64 << 20
COUNTED = 4 << 20
"""Rows that may take more memory than this are looked at in room that is taken for them."""
SPOOLS = 16
LARGEST_UNCOUNTED = 1 << 20
TINY = 16 << 10
"""Bytes of memory; what takes less is made by each who wants it first, as waiting for another would take longer."""
UNCOUNTED_SHARE = 128
"""What takes less of the budget than this part is made without taking room first: there are not so many threads."""


class BlockCache:
    """At most ``budget`` bytes of decoded blocks in memory; larger ones in files under ``spool_directory``."""

    def __init__(self, budget: int = DEFAULT_BUDGET, spool_directory: str | None = None) -> None:
        self.spool_directory = spool_directory
        self.room = Room(budget, self._free)
        self.notes = Notes()
        self.hits = self.misses = 0
        self._uncounted = min(LARGEST_UNCOUNTED, budget // UNCOUNTED_SHARE)
        self._tiny = min(TINY, self._uncounted)
        self._lent = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Hashable, _Block] = OrderedDict()
        self._pending: dict[Hashable, _Pending] = {}
        self._spools: OrderedDict[Hashable, Spool] = OrderedDict()

    @property
    def budget(self) -> int:
        return self.room.budget

    @property
    def used(self) -> int:
        """Bytes of blocks in memory, and of what is needed to make some."""
        return self.room.used

    @property
    def largest_kept(self) -> int:
        """Blocks up to this size are held in memory."""
        return min(LARGEST_KEPT, self.budget // 2)

    def lend(self) -> int:
        """Bytes of the budget that somebody else has from now on, for what is fetched from elsewhere: once one half."""
        if not self._lent:
            self._lent = self.budget // 2
            self.room.budget -= self._lent
        return self._lent

    def read_into(self, recipe: Recipe, buffer: memoryview, offset: int) -> None:
        """Fills ``buffer`` with the block's bytes from ``offset`` on."""
        if recipe.size > self.largest_kept:
            self._spool(recipe).read_into(buffer, offset)
            return
        block = self._pinned(recipe)
        try:
            buffer[:] = memoryview(block.raw)[offset : offset + len(buffer)]
        finally:
            self._unpin(block)

    def size_of(self, recipe: Recipe) -> int:
        """The length of a block that is small enough to be kept, found by making it."""
        block = self._pinned(recipe)
        self._unpin(block)
        size = len(block.raw)
        if size > self.largest_kept:  # it will be read through a spool
            self._forget(lambda key: key == recipe.key)
        return size

    def clear(self) -> None:
        """Drops everything that is kept."""
        self._forget(lambda key: True)

    def forget(self, version: Hashable) -> None:
        """Drops what was made of this version of a source."""
        self._forget(lambda key: isinstance(key, tuple) and key[:1] == (version,))

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Around work outside of recipes that needs so many bytes for a while."""
        self._take(size, Ticket())
        try:
            with self.room.inside():
                yield
        finally:
            self.room.settle(size, 0)

    def measuring(self, cost: int) -> AbstractContextManager[None]:
        """Around a pass over rows that may need so many bytes for a while: what is little is not counted."""
        return self.taken(cost) if cost > COUNTED else nullcontext()

    def waiting(self) -> AbstractContextManager[None]:
        """For recipes, around what does not need a core, such as reading from a disk."""
        return workers().turns.given_up()

    def prefetch(self, recipe: Recipe) -> bool:
        """Starts making a block that somebody will soon ask for, unless the memory is busy.

        False where so many are being made that it is too early to ask for one more.
        """
        if recipe.size > self.largest_kept:
            return True
        key = recipe.key
        with self._lock:
            if key in self._blocks or key in self._pending:
                return True
            if len(self._pending) > WORKERS:
                return False
            pending = self._pending[key] = _Pending(recipe)
        self.run(lambda: self._make_unclaimed(pending))
        return True

    def run(self, task: Callable[[], object]) -> None:
        """Runs ``task``, which must not wait for another task, on one of the few threads that decode ahead."""
        workers().run(task)

    def _pinned(self, recipe: Recipe) -> _Block:
        """The block, made if need be. It is not given up before ``_unpin``."""
        key = recipe.key
        is_tiny = recipe.cost <= self._tiny
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
                self.hits += 1
                found.pins += 1
                return found
            pending = self._pending.get(key)
            if pending is None:
                self.misses += 1
                if not is_tiny:
                    pending = self._pending[key] = _Pending(recipe)
            if pending is not None:
                pending.readers += 1
                is_mine = pending.claim()
        if pending is None:
            return self._made_tiny(recipe)
        if is_mine:
            self._make(pending)
        elif not pending.future.done():
            self._wait_for(pending)
        error = pending.future.exception()
        if error is not None:
            raise again(error)
        return pending.future.result()

    def _made_tiny(self, recipe: Recipe) -> _Block:
        try:
            raw = recipe.whole()
        except MemoryError as error:
            raise again(bare(error)) from None
        with self._lock:
            block = self._blocks.get(recipe.key)
            is_first = block is None
            if block is None:
                block = self._blocks[recipe.key] = _Block(raw, 0)
            block.pins += 1
        if is_first:
            self.room.settle(0, len(raw))
        return block

    def _wait_for(self, pending: _Pending) -> None:
        """Returns when another thread has made the block, or has failed to."""
        if self.room.is_inside:
            self.room.hurry(pending.ticket)
        try:
            with workers().turns.given_up(), self.room.idle():
                wait((pending.future,))
        except BaseException:  # a reader who is interrupted does not come for the block
            pending.future.add_done_callback(self._unpin_made)
            raise

    def _unpin_made(self, future: Future[_Block]) -> None:
        if future.exception() is None:
            self._unpin(future.result())

    def _unpin(self, block: _Block) -> None:
        with self._lock:
            block.pins -= 1
            is_unused = not block.pins
        if is_unused:
            self.room.look_again()

    def _make_unclaimed(self, pending: _Pending) -> None:
        with self._lock:
            is_mine = pending.claim()
            if is_mine and pending.is_late:
                # Whoever was to read it has gone, or it would be claimed by now.
                del self._pending[pending.recipe.key]
                is_mine = False
        if is_mine:
            self._make(pending, is_ahead=True)

    def _make(self, pending: _Pending, is_ahead: bool = False) -> None:
        """Makes the block, or keeps what went wrong for the readers. Ahead of them only where there is room now."""
        recipe = pending.recipe
        taken = kept = 0
        try:
            cost = recipe.cost
            if cost > self._uncounted:
                if not self.room.take_now(cost):
                    if is_ahead and self._is_unwanted(pending):
                        return
                    self._wait_for_room(cost, pending.ticket)
                taken = cost
            with workers().turns.taken(), self.room.inside():
                raw = recipe.whole()
            with self._lock:
                del self._pending[recipe.key]
                block = self._blocks[recipe.key] = _Block(raw, pending.readers)
            kept = len(raw)
        except BaseException as error:
            with self._lock:
                self._pending.pop(recipe.key, None)
            self.room.settle(taken, 0)
            pending.future.set_exception(bare(error))
        else:
            self.room.settle(taken, kept)
            pending.future.set_result(block)

    def _is_unwanted(self, pending: _Pending) -> bool:
        """Whether nobody waits for the block. Then it is not pending any longer."""
        with self._lock:
            if not pending.readers:
                del self._pending[pending.recipe.key]
            return not pending.readers

    def _take(self, size: int, ticket: Ticket) -> None:
        if not self.room.take_now(size):
            self._wait_for_room(size, ticket)

    def _wait_for_room(self, size: int, ticket: Ticket) -> None:
        with workers().turns.given_up():
            self.room.take(size, ticket)

    def _free(self, wanted: int) -> int:
        """Gives up blocks that nobody reads, those used longest ago first; then what idle spools hold."""
        freed = 0
        with self._lock:
            while freed < wanted:
                key = next((key for key, block in self._blocks.items() if not block.pins), self)
                if key is self:
                    break
                freed += len(self._blocks.pop(key).raw)
            spools = list(self._spools.values())
        for spool in spools:
            if freed >= wanted:
                break
            freed += spool.suspend()
        return freed

    def _forget(self, is_meant: Callable[[Hashable], bool]) -> None:
        freed = 0
        self.notes.forget(is_meant)
        with self._lock:
            for key in [key for key, block in self._blocks.items() if not block.pins and is_meant(key)]:
                freed += len(self._blocks.pop(key).raw)
            spools = [self._spools.pop(key) for key in list(self._spools) if is_meant(key)]
        self.room.drop(freed)
        for spool in spools:
            spool.close()

    def _spool(self, recipe: Recipe) -> Spool:
        dropped = None
        with self._lock:
            spool = self._spools.get(recipe.key)
            if spool is None:
                self.misses += 1
                spool = self._spools[recipe.key] = Spool(recipe, self.room, self.spool_directory, self._drop)
                if len(self._spools) > SPOOLS:
                    _, dropped = self._spools.popitem(last=False)
            else:
                self.hits += 1
                self._spools.move_to_end(recipe.key)
        if dropped is not None:
            dropped.close()
        return spool

    def _drop(self, spool: Spool) -> None:
        """The next reader of this block tries it again. The file goes with the last one who still reads it."""
        with self._lock:
            if self._spools.get(spool.key) is spool:
                del self._spools[spool.key]


class _Block:
    """A decoded block, and how many are reading it right now."""

    __slots__ = ("pins", "raw")

    def __init__(self, raw: bytes | bytearray, pins: int) -> None:
        self.raw = raw
        self.pins = pins


class _Pending:
    """A block to be made by whoever claims it first, so that one that is queued never holds up a reader."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.future: Future[_Block] = Future()
        self.ticket = Ticket()
        self.readers = 0
        """Who will read the block when it is there. Changed under the cache's lock."""
        self._is_claimed = False
        self._begun = time.monotonic()

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self._begun > PATIENCE

    def claim(self) -> bool:
        """True for the first caller. Called under the cache's lock."""
        was_claimed, self._is_claimed = self._is_claimed, True
        return not was_claimed
