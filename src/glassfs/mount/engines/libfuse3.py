"""The engine for libfuse 3's low-level API, which mounts and unmounts. Linux.

Threads of our own read requests from the session's descriptor and answer them in the kernel's messages (``answers``),
INIT included, so that what is agreed with the kernel does not depend on the library's version,
without ``fuse_session_process_buf`` and its callbacks. Both take as long, but the callbacks need structs that differ
between libraries and architectures (stat, fuse_file_info, fuse_entry_param); messages are the same everywhere and can
be tested without a kernel. Of libfuse's structs only ``fuse_args`` and the first fields of ``fuse_conn_info`` are used,
which are the same in 3.0 to 3.18. The latter are for libraries that negotiate while they mount.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from glassfs.mount.engines import wire
from glassfs.mount.engines.answers import OPCODES, UNANSWERED, Answers, Payload
from glassfs.mount.engines.contract import LONGEST_READ, SIGNALS, Engine, MountPoint
from glassfs.mount.engines.crew import LONG_READ_BYTES, Crew, Task, Worker
from glassfs.mount.engines.notices import Notices
from glassfs.mount.engines.requesters import Requesters, left
from glassfs.mount.engines.wire import INIT, INTERRUPT, IOCTL, LOOKUP, READ, Feature, Offer, Opcode
from glassfs.mount.errors import Failures, MountError
from glassfs.mount.guard import guarded
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import Operations, Stale
from glassfs.names import RESERVED
from glassfs.settings import settings

log = logging.getLogger(__name__)

CAP_READDIRPLUS_AUTO, CAP_EXPIRE_ONLY = 1 << 14, 1 << 30
"""Capabilities of libfuse that have other numbers than the kernel's, or are never accepted."""
MAX_BACKGROUND = 4096
"""Background requests, such as read-ahead: more than can hang, as the kernel delays those above."""
OPERATIONS = 42
"""Pointers in the oldest ``struct fuse_lowlevel_ops``; the first one is ``init``."""
CROWD = 2
"""When more requests compute than these, threads take short turns at the interpreter."""
ENDS = (errno.ENODEV, errno.ECONNABORTED, errno.EBADF, errno.EPERM)
AGAIN = (errno.EINTR, errno.EAGAIN, errno.ENOENT)
CANCELED = (errno.ENOENT, *ENDS)
_REQUEST = wire.IN_HEADER.size


class _ConnectionInfo(ctypes.Structure):
    """The first fields of ``struct fuse_conn_info``."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in (
        "proto_major", "proto_minor", "max_write", "max_read", "max_readahead", "capable", "want", "max_background",
        "congestion_threshold", "time_gran",
    ))


class _Arguments(ctypes.Structure):
    """``struct fuse_args``"""

    _fields_ = (("argc", ctypes.c_int), ("argv", ctypes.POINTER(ctypes.c_char_p)), ("allocated", ctypes.c_int))


class _Version(ctypes.Structure):
    """``struct libfuse_version``, of 3.17 and later."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in ("major", "minor", "hotfix", "padding"))


_Init = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_ConnectionInfo))


class _ThreadState:
    """The buffers of one thread."""

    def __init__(self) -> None:
        # Mapped: the kernel demands space for the longest write, of which only the first page is ever used.
        self.request = memoryview(mmap.mmap(-1, LONGEST_READ + wire.LEAST_READ))
        self.buffers = (self.request,)
        self.payload = Payload()


class Libfuse3(Engine):
    """One mount through libfuse 3."""

    def __init__(self, library: ctypes.CDLL, failures: Failures, is_debugging: bool = False) -> None:
        self.version = divmod(int(library.fuse_version()), 100)
        self._library = _declared(library)
        self._failures = failures
        self._is_debugging = is_debugging
        self.busy = threading.Event()
        self._init = _Init(self._negotiate)
        self._is_negotiated = False
        self._session: int | None = None
        self._descriptor, self._device = -1, ""
        self._counts: list[list[int]] = [[0] * OPCODES]
        """Number of requests by opcode, for each thread; the first is the sum of ended threads."""
        self._counting = threading.RLock()  # reentrant: a thread state may be finalized at any moment
        self._interrupted: deque[tuple[float, int]] = deque()
        """Deadlines and numbers of requests that were interrupted, in the order of deadlines."""
        self._requesters = Requesters()
        self._switch_seconds = sys.getswitchinterval()

    def serve(self, operations: Operations, mountpoint: MountPoint, started: Callable[[], None]) -> None:
        self._started = started
        self._answers = Answers(operations, self._failures, self._send)
        self._named_in_root = partial(operations.inodes.named, ROOT)
        self._crew = Crew(
            self._take, self._answer, self._thread_state, operations.inodes.volume,
            lambda task: self._refuse(task.message), self._end,
        )
        self.busy = self._crew.busy
        self._notices = Notices(self._notify, operations.inodes, self._unanswered)
        over, self._over = os.pipe()
        os.set_blocking(self._over, False)
        self._null = os.open(os.devnull, os.O_RDWR)  # at the end no descriptor may be free
        # The main thread only waits: a signal, the end of the connection or an error of a thread writes into the pipe.
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        # A handler in Python alone would not wake a thread that is about to block.
        waker = signal.set_wakeup_fd(self._over, warn_on_full_buffer=False)
        try:
            self._mount(mountpoint)
            is_negotiated = self._is_negotiated  # newer libraries negotiate while they mount
            with guarded(self._device):
                try:
                    self._crew.start()
                    if is_negotiated:
                        started()
                    os.read(over, 1)
                finally:
                    self._unmount(mountpoint)
        finally:
            try:
                self._unmount(mountpoint)
            finally:
                signal.set_wakeup_fd(waker)
                for number, handler in before.items():
                    signal.signal(number, handler)

    def invalidate(self, stale: Stale) -> bool:
        return self._notices.send(stale)

    def _unanswered(self) -> list[Task]:
        return [task for task in self._crew.tasks() if task.answered_at is None]

    def tick(self) -> None:
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
        with self._counting:
            sums = {opcode.name: sum(counts[opcode] for counts in self._counts) for opcode in Opcode}
        return {name: count for name, count in sums.items() if count}

    def _mount(self, mountpoint: MountPoint) -> None:
        """Mount. Raises MountError; libfuse writes the reason to stderr."""
        library = self._library
        words = [b"glassfs", *mountpoint.words()]
        arguments = _Arguments(len(words), (ctypes.c_char_p * (len(words) + 1))(*words), 0)
        callbacks = (ctypes.c_void_p * OPERATIONS)(ctypes.cast(self._init, ctypes.c_void_p))
        size = ctypes.sizeof(callbacks)
        if hasattr(library, "fuse_session_new_versioned"):
            version = _Version(*self.version)
            session = library.fuse_session_new_versioned(
                ctypes.byref(arguments), callbacks, size, ctypes.byref(version), None,
            )
        else:
            session = library.fuse_session_new(ctypes.byref(arguments), callbacks, size, None)
        if not session:
            raise MountError("libfuse refuses its options")
        self._session = session
        if library.fuse_session_mount(session, os.fsencode(mountpoint.path)) != 0:
            raise MountError("libfuse cannot mount")
        # A duplicate: libfuse closes its own at the end, and another file may get that number while threads still read.
        try:
            self._descriptor = os.dup(library.fuse_session_fd(session))
        except OSError:
            library.fuse_session_unmount(session)
            raise
        self._device = mountpoint.device()

    def _negotiate(self, _user: int, connection: Any) -> None:
        """Choose among the capabilities of the kernel, in a library that negotiates while it mounts."""
        # Such a library has answered INIT when it returns from mounting, so no thread of ours will see that request.
        self._is_negotiated = True
        info = connection.contents
        info.max_write = LONGEST_READ
        info.max_background = MAX_BACKGROUND
        info.congestion_threshold = MAX_BACKGROUND * 3 // 4
        info.want = (info.want | info.capable & wire.ACCEPTED & ~Feature.INIT_EXT) & ~CAP_READDIRPLUS_AUTO
        expires = Feature.EXPIRE_ONLY if info.capable & CAP_EXPIRE_ONLY else 0
        self._agree(Offer(info.proto_minor, info.max_readahead, info.capable & ~Feature.INIT_EXT | expires))

    def _agree(self, offer: Offer) -> None:
        """Prepare for what the kernel offers."""
        self._answers.opens = not offer.features & Feature.NO_OPEN
        self._answers.opens_directories = not offer.features & Feature.NO_OPENDIR
        self._notices.agree(offer)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._end()

    def _end(self) -> None:
        with suppress(OSError):
            os.write(self._over, b".")

    def _unmount(self, mountpoint: MountPoint) -> None:
        """Unmount if still mounted, and close the connection to the kernel."""
        # Called twice: the second time after an error, which may have come at any point of mounting.
        session, self._session = self._session, None
        if session is None:
            return
        if self._descriptor >= 0:
            self._library.fuse_session_unmount(session)
            mountpoint.unmount_leftover(self._device)
        self._library.fuse_session_destroy(session)
        if self._descriptor >= 0:
            # Closing the connection fails all pending requests. Without that, a thread of this process that waits for
            # one of them could never end. Not close(2), as other threads may still use the number.
            os.dup2(self._null, self._descriptor)

    def _thread_state(self) -> _ThreadState:
        state = _ThreadState()
        with self._counting:
            self._counts.append(state.payload.counts)
        # Freed with its thread: there may have been hundreds of them.
        weakref.finalize(state, self._keep_counts, state.payload.counts).atexit = False
        return state

    def _keep_counts(self, counts: list[int]) -> None:
        """Add the counts of a thread that has ended to the first entry."""
        with self._counting:
            self._counts = [other for other in self._counts if other is not counts]
            self._counts[0] = [sum(both) for both in zip(self._counts[0], counts, strict=True)]

    def _take(self, worker: Worker[_ThreadState]) -> Task | None:
        state = worker.state
        while True:
            try:
                size = os.readv(self._descriptor, state.buffers)
            except OSError as error:
                if error.errno in AGAIN:
                    continue
                if error.errno not in ENDS:
                    log.error("cannot read requests of the kernel: %s", error.strerror)
                return None
            if not size:  # hung up
                return None
            try:
                task = self._task(state, size)
            except MemoryError:
                self._refuse(state.request)
                continue
            if task is not None:
                return task

    def _task(self, state: _ThreadState, size: int) -> Task | None:
        """Return the request of ``size`` bytes that was read; None if it needs no answer, or has one already."""
        request = state.request
        _, opcode, unique, ident, uid, _, thread, _ = wire.IN_HEADER.unpack_from(request)
        if opcode == IOCTL:  # isatty, by each open() in Python: answered here, as it is frequent
            state.payload.counts[opcode] += 1
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

    def _answer(self, worker: Worker[_ThreadState], task: Task) -> None:
        if self._is_debugging:
            self._show(task)
        if task.opcode == INIT:
            self._initialize(task)
        else:
            self._answers.answer(task.opcode, task.unique, task.ident, task.message, worker.state.payload)
            if task.size >= LONG_READ_BYTES and self._crew.is_crowded:
                worker.state.payload.free()  # many threads wait for decoders, each with a mebibyte that it used before

    def _initialize(self, task: Task) -> None:
        """Agree with the kernel, which sends no other request before."""
        offer = wire.offer_of(task.message)
        self._agree(offer)
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

    def _notify(self, message: bytes) -> int:
        """Send a notification; return the errno with which the kernel refuses it, or 0."""
        try:
            os.write(self._descriptor, message)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _show(self, task: Task) -> None:
        name = Opcode(task.opcode).name if task.opcode in set(Opcode) else str(task.opcode)
        asked = task.message[_REQUEST : _REQUEST + 64]
        print(f"{name} unique {task.unique} node {task.ident} {asked!r}", file=sys.stderr, flush=True)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the functions that are called here."""
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    functions: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "fuse_session_new": (pointer, (pointer, pointer, size, pointer)),
        "fuse_session_new_versioned": (pointer, (pointer, pointer, size, pointer, pointer)),
        "fuse_session_mount": (ctypes.c_int, (pointer, text)),
        "fuse_session_fd": (ctypes.c_int, (pointer,)),
        "fuse_session_unmount": (None, (pointer,)),
        "fuse_session_destroy": (None, (pointer,)),
    }
    for name, (result, arguments) in functions.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library
