"""Blocks too large for memory, decoded as a stream into an unlinked file and served from there while it grows.

A block is decoded as far as its readers need it, and a stretch ahead on another thread. The kernel frees the file
however the process ends. The decoder of a block that nobody reads is given up when its memory is needed, and made
again, from the start of the block, for the next reader who wants more than is there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import IO

from glassfs.cache.faults import again, bare
from glassfs.cache.recipe import Recipe
from glassfs.cache.room import Room, Ticket
from glassfs.cache.turns import workers
from glassfs.errors import Damaged, NoSpool

READ_AHEAD = 32 << 20
PATIENCE = 0.05
"""Seconds without a reader after which nothing more is made ahead for it."""


class Spool:
    """One block. Raises NoSpool where there is no room for the file, and whatever the recipe raises."""

    def __init__(self, recipe: Recipe, room: Room, folder: str | None, failed: Callable[[Spool], None]) -> None:
        self.key: Hashable = recipe.key
        self._size = recipe.size
        self._cost = recipe.stream_cost
        self._recipe: Recipe | None = recipe
        """Who knows how to make the block, until all of it is there."""
        self._room = room
        self._folder = folder
        self._failed = failed
        self._file: IO[bytes] | None = None
        self._ticket = Ticket()
        self._pieces: Iterator[bytes | bytearray] | None = None
        self._position = 0
        """Where in the block the next piece begins."""
        self._written = 0
        self._is_busy = self._is_closed = False
        self._last_read = 0.0
        self._error: BaseException | None = None
        self._progress = threading.Condition()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        end = offset + len(buffer)
        self._decode(end)
        self._last_read = time.monotonic()
        ahead = min(end + READ_AHEAD, self._size)
        if self._written < min(end + READ_AHEAD // 2, self._size) and not self._is_busy:
            workers().run(lambda: self._decode_ahead(ahead))
        got = 0
        while got < len(buffer):
            more = os.preadv(self._opened().fileno(), (buffer[got:],), offset + got)
            if more == 0:
                raise Damaged("the spool file was cut")
            got += more

    def suspend(self) -> int:
        """Gives up the decoder unless somebody needs it now. The memory that this frees, still counted as kept."""
        if not self._progress.acquire(blocking=False):
            return 0
        try:
            return self._without_decoder()
        finally:
            self._progress.release()

    def close(self) -> None:
        """Gives back what is not needed by those who still read."""
        with self._progress:
            self._is_closed = True
            freed = self._without_decoder()
        self._room.drop(freed)

    def _without_decoder(self) -> int:
        """Drops an idle decoder; the memory that it had."""
        if self._is_busy or self._pieces is None:
            return 0
        self._pieces = None
        return self._cost

    def _decode_ahead(self, end: int) -> None:
        """As far as ``end``, but not for long when nobody reads any more, and not beside another thread.

        A decoder that was given up for its memory is not made again for this.
        """
        while (
            not self._is_busy and self._pieces is not None and self._written < end
            and time.monotonic() - self._last_read < PATIENCE
        ):
            try:
                self._decode(self._written + 1)
            except Exception:  # kept in _error for the readers
                return

    def _decode(self, end: int) -> None:
        """Returns when the block is there up to ``end``, decoded here if no other thread is at it."""
        while True:
            if not self._may_go_on(end):
                self._wait(end)
            with self._progress:
                if self._error is not None:
                    raise again(self._error)
                if self._written >= end:
                    return
                if self._is_busy:
                    continue
                self._is_busy = True
                has_decoder = self._pieces is not None
            error: BaseException | None = None
            taken: int | None = None
            try:
                self._take(has_decoder)
                taken = self._cost
                error = self._worked()
            finally:
                self._finish(taken, error)

    def _may_go_on(self, end: int) -> bool:
        return self._written >= end or self._error is not None or not self._is_busy

    def _wait(self, end: int) -> None:
        """Waits for the thread that decodes."""
        if self._room.is_inside:
            self._room.hurry(self._ticket)
        with workers().turns.given_up(), self._room.idle(), self._progress:
            self._progress.wait_for(lambda: self._may_go_on(end))

    def _take(self, has_decoder: bool) -> None:
        """Room for the decoder, which has some if it is there."""
        if has_decoder:
            self._room.retake(self._cost)
        elif not self._room.take_now(self._cost):
            with workers().turns.given_up():
                self._room.take(self._cost, self._ticket)

    def _finish(self, taken: int | None, error: BaseException | None) -> None:
        """What is left for the readers, and for whoever decodes next. Without ``taken`` nothing was done."""
        with self._progress:
            self._is_busy = False
            if taken is not None:
                self._error = error
                is_whole = self._written >= self._size
                is_over = is_whole or error is not None or self._is_closed
                if is_over:
                    self._pieces = None
                if is_whole:
                    self._recipe = None
                self._room.settle(taken, 0 if is_over else taken)
            self._progress.notify_all()

    def _worked(self) -> BaseException | None:
        """Writes some more of the block; what came in between."""
        try:
            with workers().turns.taken(), self._room.inside():
                goal = self._position
                if self._pieces is None and self._recipe is not None:
                    # One that was suspended gets on by as much as it has to repeat, or many readers would only repeat.
                    goal = min(2 * self._written, self._size - 1)
                    self._pieces, self._position = self._recipe.pieces(), 0
                while self._pieces is not None and self._position <= goal:
                    self._write_next_piece(self._pieces)
        except BaseException as caught:
            error = bare(caught).with_traceback(None)  # tracebacks would keep this spool, and its file
            error.__cause__ = error.__context__ = None
            if not isinstance(caught, Damaged):
                # A full disk, or the like: that passes. Damage stays, as finding it costs.
                self._failed(self)
            return error
        return None

    def _write_next_piece(self, pieces: Iterator[bytes | bytearray]) -> None:
        piece = next(pieces, None)
        if piece is None:
            raise Damaged(f"gives {self._position} bytes, but {self._size} are declared")
        view = memoryview(piece)[max(0, self._written - self._position) :]
        self._position += len(piece)
        position = self._position - len(view)
        while view:
            try:
                written = os.pwrite(self._opened().fileno(), view, position)
            except OSError as error:
                raise self._no_spool(error) from error
            position += written
            view = view[written:]
        with self._progress:
            self._written = max(self._written, self._position)
            self._progress.notify_all()

    def _opened(self) -> IO[bytes]:
        """The file, made by whoever writes first."""
        if self._file is None:
            try:
                import tempfile

                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            except OSError as error:
                raise self._no_spool(error) from error
        return self._file

    def _no_spool(self, error: OSError) -> NoSpool:
        folder = self._folder or os.environ.get("TMPDIR", "/tmp")  # as tempfile may not know any
        return NoSpool(f"a block of {self._size} bytes cannot be written there: {error.strerror}", folder)
