"""Blocks decoded straight into a caller's buffer, uncached: for large reads. Any thread.

Memory is reserved for each block that is being decoded. After an error or an interruption no further block is begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

from glassfs import work
from glassfs.cache.blocks import BlockCache
from glassfs.cache.spool import fresh, stored_error


class Filling:
    """Calls of all ``fills``, several at a time, with up to ``cost`` bytes of memory for each; one thread draws at a
    time.
    """

    def __init__(self, cache: BlockCache, fills: Iterator[Callable[[], None]], cost: int) -> None:
        self._memory, self._fills, self._cost = cache.memory, fills, cost
        self._drawing = threading.Lock()
        self._helpers: list[Future[object]] = []
        self._is_over = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do all of them, here and on the threads that decode ahead of readers. None is running afterwards.

        Raises what drawing or one of them raises.
        """
        for _ in range(work.CORES - 1):
            self._add_helper()
        try:
            self._memory.reserve(self._cost)
            try:
                while self._fill_next():
                    pass
            finally:
                self._memory.release(self._cost)
        finally:
            self._is_over = True
            for helper in self._helpers:  # one that runs may add another before it ends
                if not helper.cancel():
                    wait((helper,))
        if self._error is not None:
            raise fresh(self._error)

    def _help(self) -> None:
        """Do one fill if memory for it is free now, and queue the next one: other readers' tasks wait for this."""
        if self._is_over or not self._memory.reserve_now(self._cost):
            return
        is_more = False
        try:
            is_more = self._fill_next()
        except BaseException as error:
            self._error = stored_error(error)
        finally:
            self._memory.release(self._cost)
        if is_more:
            self._add_helper()

    def _add_helper(self) -> None:
        helper = work.run_ahead(self._help)
        if helper is not None:
            self._helpers.append(helper)

    def _fill_next(self) -> bool:
        """Do one fill; return False if there is none, or after an error."""
        with self._drawing, self._memory.nested():
            work.check()
            fill = None if self._is_over or self._error is not None else next(self._fills, None)
        if fill is None:
            return False
        with self._memory.nested():
            fill()
        return True
