"""The engine of one mount: it takes the kernel's requests, has them answered, and ends those that no thread waits for.

Threads read requests from the descriptor of the connection and answer them in the kernel's messages (``answers``).

The kernel does not notify a daemon that a process which read ahead has died, and reports of other requests only that a
signal came, which may be ignored. So the system is asked which threads still wait (Linux).
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from functools import partial

from glassfs.mount.engines import wire
from glassfs.mount.engines.answers import LONGEST_READ, UNANSWERED, Answers, Buffers
from glassfs.mount.engines.crew import LONG_READ_BYTES, Crew, Task, Worker
from glassfs.mount.engines.mounting import MountPoint, guarded
from glassfs.mount.engines.notices import Notices
from glassfs.mount.engines.wire import INIT, INTERRUPT, IOCTL, LOOKUP, READ, Opcode
from glassfs.mount.errors import Failures
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import Operations
from glassfs.names import RESERVED
from glassfs.settings import settings

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a mount."""
MAX_BACKGROUND = 4096
"""Background requests, such as read-ahead: more than can hang, as the kernel delays those above."""
CROWD = 2
"""When more requests compute than these, threads take short turns at the interpreter."""
ENDS = (errno.ENODEV, errno.ECONNABORTED, errno.EBADF, errno.EPERM)
AGAIN = (errno.EINTR, errno.EAGAIN, errno.ENOENT)
CANCELED = (errno.ENOENT, *ENDS)
_REQUEST = wire.IN_HEADER.size
_KILLED = 1 << 8
"""SIGKILL in a mask of pending signals; fatal signals of other numbers become one, too."""
_ENDED = (b"Z", b"X")


class Engine:
    """Answers the kernel from ``operations`` for one mount.

    ``serve`` blocks its thread; all else may be called from any thread.
    """

    def __init__(self, operations: Operations, failures: Failures, is_debugging: bool = False) -> None:
        self._is_debugging = is_debugging
        self._descriptor = -1
        self._is_aborted = False
        self._interrupted: deque[tuple[float, int]] = deque()
        """Deadlines and numbers of requests that were interrupted, in the order of deadlines."""
        self._requesters = Requesters()
        self._switch_seconds = sys.getswitchinterval()
        self._answers = Answers(operations, failures, self._send)
        self._named_in_root = partial(operations.inodes.named, ROOT)
        self._crew = Crew(
            self._take, self._answer, Buffers, operations.inodes.volume,
            lambda task: self._refuse(task.message), self._end,
        )
        self.busy = self._crew.busy
        """Set when requests come. The caller of ``tick`` clears it before."""
        self._notices = Notices(self._notify, operations.inodes, self._unanswered)
        self.invalidate = self._notices.send
        """Called a few times a second while requests come, never under a lock or while answering a request."""

    def serve(self, mountpoint: MountPoint, started: Callable[[], None]) -> None:
        """Mount and serve until the file system is unmounted or a signal ends the process.

        ``started`` is called when the first request has come, and must not wait for an answer of the mount. Raises
        MountError if mounting fails.
        """
        self._started = started
        over, self._over = os.pipe()
        os.set_blocking(self._over, False)
        null = os.open(os.devnull, os.O_RDWR)  # at the end no descriptor may be free
        # The main thread only waits: a signal, the end of the connection or an error of a thread writes into the pipe.
        before = {number: signal.signal(number, lambda *_: self._end()) for number in SIGNALS}
        # A handler in Python alone would not wake a thread that is about to block.
        waker = signal.set_wakeup_fd(self._over, warn_on_full_buffer=False)
        try:
            self._descriptor = mountpoint.mount()
            try:
                with guarded(mountpoint.device):
                    try:
                        self._crew.start()
                        os.read(over, 1)
                    finally:
                        mountpoint.unmount(self._descriptor, self._is_aborted)
            finally:
                # Closing the connection fails all pending requests. Without that, a thread of this process that waits
                # for one of them could never end. Not close(2), as other threads may still use the number.
                os.dup2(null, self._descriptor)
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _unanswered(self) -> list[Task]:
        return [task for task in self._crew.tasks() if task.answered_at is None]

    def tick(self) -> None:
        """Do periodic work. Call this a few times a second while ``busy``, which it sets again if it has more to do."""
        self._stop()
        self._crew.tick()
        seconds = settings.crowded_switch if self._crew.computing > CROWD else self._switch_seconds
        if sys.getswitchinterval() != seconds:
            sys.setswitchinterval(seconds)

    def _stop(self) -> None:
        """Answer requests of threads that were interrupted or have ended, and cancel what is no longer wanted.

        A thread that was interrupted may ask again, and then wants what was done for it until then.
        """
        tasks, now = sorted(self._crew.tasks(), key=lambda task: task.unique), time.monotonic()
        interrupted = set()
        # Interruptions come in order and all have the same patience, so the due ones are at the front.
        while self._interrupted and self._interrupted[0][0] <= now:
            interrupted.add(self._interrupted.popleft()[1])
        gone = self._requesters.gone(tasks)
        for task in [*gone, *(task for task in tasks if task.unique in interrupted)]:
            if task.answered_at is None:
                task.answered_at = now
                self._answers.fail(task.unique, errno.EINTR)
        canceled = {*gone, *left(tasks, now)}
        if canceled:
            self._crew.cancel(canceled)

    def requests(self) -> dict[str, int]:
        """Return the number of answered requests by kind."""
        return {opcode.name: count for opcode in Opcode if (count := self._answers.counts[opcode])}

    def _end(self) -> None:
        with suppress(OSError):
            os.write(self._over, b".")

    def _take(self, worker: Worker) -> Task | None:
        request = worker.state.request
        while True:
            try:
                size = os.readv(self._descriptor, (request,))
            except OSError as error:
                if error.errno in AGAIN:
                    continue
                self._is_aborted = error.errno == errno.ECONNABORTED
                if error.errno not in ENDS:
                    log.error("cannot read requests of the kernel: %s", error.strerror)
                return None
            if not size:  # hung up
                return None
            try:
                task = self._task(request, size)
            except MemoryError:
                self._refuse(request)
                continue
            if task is not None:
                return task

    def _task(self, request: memoryview, size: int) -> Task | None:
        """Return the request of ``size`` bytes that was read; None if it needs no answer, or has one already."""
        _, opcode, unique, ident, uid, _, thread, _ = wire.IN_HEADER.unpack_from(request)
        if opcode == IOCTL:  # isatty, by each open() in Python: answered here, as it is frequent
            self._answers.counts[opcode] += 1
            self._answers.fail(unique, errno.ENOSYS)
            return None
        if opcode == INTERRUPT:
            (interrupted,) = wire.INTERRUPT_IN.unpack_from(request, _REQUEST)
            self._interrupted.append((time.monotonic() + settings.interruption, interrupted))
            return None
        message = bytes(request[:size])
        task = Task(opcode, unique, ident, message, 0, thread, uid)
        if opcode == READ:
            task.size = wire.READ_IN.unpack_from(message, _REQUEST)[2]
        elif opcode == LOOKUP and ident == ROOT:
            # Several sources side by side: look-ups of one that hangs must not delay the others.
            name = wire.name_at(message)
            task.within = self._named_in_root(name) or 0
            task.is_own = name == RESERVED
        return task

    def _refuse(self, message: bytes | memoryview) -> None:
        """Answer a request with ENOMEM, as soon as there is enough memory for that."""
        while True:
            try:
                _, opcode, unique, *_ = wire.IN_HEADER.unpack_from(message)
                if opcode not in UNANSWERED:
                    self._answers.fail(unique, errno.ENOMEM)
                return
            except MemoryError:  # other requests release some
                time.sleep(settings.resumption)

    def _answer(self, worker: Worker, task: Task) -> None:
        if self._is_debugging:
            self._show(task)
        if task.opcode == INIT:
            self._initialize(task)
        else:
            self._answers.answer(task.opcode, task.unique, task.ident, task.message, worker.state)
            if task.size >= LONG_READ_BYTES and self._crew.is_crowded:
                worker.state.free()  # many threads wait for decoders, each with a mebibyte that it used before

    def _initialize(self, task: Task) -> None:
        """Agree with the kernel, which sends no other request before."""
        offer = wire.offer_of(task.message)
        self._notices.agree(offer)
        self._send((wire.packed(0, task.unique, wire.init_out(offer, LONGEST_READ, MAX_BACKGROUND)),))
        self._started()

    def _send(self, parts: Sequence[bytes | bytearray | memoryview]) -> bool:
        try:
            if len(parts) == 1:
                os.write(self._descriptor, parts[0])
            else:
                os.writev(self._descriptor, parts)
        except OSError as error:
            if error.errno not in CANCELED:
                log.error("the kernel refused an answer: %s", error.strerror)
            return False
        return True

    def _notify(self, message: bytes) -> None:
        with suppress(OSError):
            os.write(self._descriptor, message)

    def _show(self, task: Task) -> None:
        name = Opcode(task.opcode).name if task.opcode in set(Opcode) else str(task.opcode)
        asked = task.message[_REQUEST : _REQUEST + 64]
        print(f"{name} unique {task.unique} node {task.ident} {asked!r}", file=sys.stderr, flush=True)


class Requesters:
    """Looks up which threads still wait. To be used by one thread."""

    def __init__(self) -> None:
        # The kernel gives numbers of our own namespace, 0 for a thread outside; /proc may show another one.
        self._is_known = False
        with suppress(OSError):
            self._is_known = os.readlink("/proc/self") == str(os.getpid())
        self._seen: Set[Task] = frozenset()
        """The work that was in progress at the previous look."""

    def gone(self, asked: Sequence[Task]) -> list[Task]:
        """Return the work in progress whose thread has ended or been killed, of that which was at the last call, too.

        Most work does not take so long, and needs no look at its thread.
        """
        before, self._seen = self._seen, set(asked)
        # A thread that has ended between two looks is not mistaken for another one with its number: numbers are given
        # out again only after all others.
        waiting = [one for one in asked if one.thread and one in before and not one.is_canceled]
        if not (waiting and self._is_known):
            return []
        states = {thread: _is_waiting(thread) for thread in {one.thread for one in waiting}}
        return [one for one in waiting if not states[one.thread]]


def left(asked: Sequence[Task], now: float) -> list[Task]:
    """Return the work of interrupted threads whose results are no longer wanted, of all in the order of its beginning.

    A thread that asks for the same again finds what was done for it until then: locks, blocks, parsed containers. So
    its first request goes on as long as it is repeated; the repetitions, which only wait for the first one, do not.
    ``now`` is on the same clock as ``answered_at``, in seconds.
    """
    repeated = {(one.thread, one.about) for one in asked if one.answered_at is None}
    kept: set[tuple[int, object]] = set()
    left = []
    for one in asked:
        if one.answered_at is None or one.is_canceled:
            continue
        kind = one.thread, one.about
        if kind in repeated:
            one.answered_at = now
        if kind in kept or now >= one.answered_at + settings.repetition:
            left.append(one)
        kept.add(kind)
    return left


def _is_waiting(thread: int) -> bool:
    """Return whether a thread is alive and not about to die."""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except (FileNotFoundError, ProcessLookupError):
        try:  # /proc may hide threads of other users (``hidepid``)
            os.kill(thread, 0)
        except OSError as error:
            return not isinstance(error, ProcessLookupError)
        return True
    except OSError:  # no descriptor left: nothing is known
        return True
    pending = int(lines.get(b"SigPnd", b"0"), 16) | int(lines.get(b"ShdPnd", b"0"), 16)
    return lines.get(b"State", b"").strip()[:1] not in _ENDED and not pending & _KILLED
