"""libfuse 3's low-level API: it mounts, agrees with the kernel on the protocol, and unmounts. Linux.

Requests are read from the session's descriptor by threads of our own, and answered in the kernel's own messages
(``answers``), not through ``fuse_session_process_buf`` and its callbacks. Both take as long; but the callbacks need
structs that differ between libraries and architectures (struct stat, fuse_file_info, fuse_entry_param), where messages
are the same everywhere and can be tested without a kernel. Of libfuse's structs ctypes has to know ``fuse_args``,
``fuse_buf`` and the first fields of ``fuse_conn_info``, which are the same in 3.0 to 3.18.
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
from glassfs.mount.engines.answers import OPCODES, Answers, Payload
from glassfs.mount.engines.contract import LONGEST_READ, SIGNALS, Engine, MountPoint
from glassfs.mount.engines.crew import Crew, Task, Worker
from glassfs.mount.engines.wire import Opcode
from glassfs.mount.errors import Failures, MountError
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import Operations, Stale
from glassfs.names import raw

log = logging.getLogger(__name__)

CAP_READDIRPLUS, CAP_READDIRPLUS_AUTO = 1 << 13, 1 << 14
CAP_NO_OPEN, CAP_NO_OPENDIR = 1 << 17, 1 << 24
MAX_BACKGROUND = 4096
"""Requests that nobody waits for, such as reading ahead: more than can hang, as the kernel holds back what is above."""
OPERATIONS = 42
"""Pointers in the oldest ``struct fuse_lowlevel_ops``; the first one is ``init``."""
INTERRUPT_SECONDS = 2.0
"""Seconds after which a request that was interrupted is answered, if it hangs. Sooner would break what only sleeps."""
ENDS = (errno.ENODEV, errno.ECONNABORTED, errno.EBADF, errno.EPERM)
AGAIN = (errno.EINTR, errno.EAGAIN, errno.ENOENT)
NOBODY_WAITS = (errno.ENOENT, *ENDS)
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


class _Buffer(ctypes.Structure):
    """``struct fuse_buf``, with room for what newer libraries have added to it."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("flags", ctypes.c_int), ("mem", ctypes.c_void_p), ("fd", ctypes.c_int),
        ("pos", ctypes.c_int64), ("rest", ctypes.c_uint64 * 4),
    )


class _Version(ctypes.Structure):
    """``struct libfuse_version``, of 3.17 and later."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in ("major", "minor", "hotfix", "padding"))


_Init = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_ConnectionInfo))


class _ThreadState:
    """What one thread works with."""

    def __init__(self) -> None:
        # Mapped: the kernel wants room for the longest write, of which nothing but the first page is ever used.
        self.request = memoryview(mmap.mmap(-1, LONGEST_READ + wire.LEAST_READ))
        self.payload = Payload()


class Libfuse3(Engine):
    """One mount through libfuse 3."""

    def __init__(self, library: ctypes.CDLL, failures: Failures, is_debugging: bool = False) -> None:
        self.version = divmod(int(library.fuse_version()), 100)
        self._library = _declared(library)
        self._failures = failures
        self._is_debugging = is_debugging
        self._init = _Init(self._agree)
        self._is_agreed = False
        self._session: int | None = None
        self._using_session = threading.Lock()
        self._descriptor = -1
        self._counts: list[list[int]] = [[0] * OPCODES]
        """How often each request came, by thread; the first is the sum of those that ended."""
        self._counting = threading.RLock()  # what a thread worked with may go at any moment
        self._interrupted: deque[tuple[float, int]] = deque()
        """Requests that somebody gave up, and when they are answered at the latest, in that order."""

    def serve(self, operations: Operations, place: MountPoint, started: Callable[[], None]) -> None:
        self._started = started
        self._answers = Answers(operations, self._failures, self._send)
        self._named_in_root = partial(operations.inodes.named, ROOT)
        self._crew = Crew(self._take, self._answer, self._thread_state, operations.inodes.volume, self._end)
        over, self._over = os.pipe()
        os.set_blocking(self._over, False)
        self._nobody = os.open(os.devnull, os.O_RDWR)  # at the end there may be no descriptor left
        before = {number: signal.signal(number, self._told_to_end) for number in SIGNALS}
        # A handler of Python's alone would not wake whoever is just about to wait.
        waker = signal.set_wakeup_fd(self._over, warn_on_full_buffer=False)
        try:
            self._mount(place)
            is_agreed = self._is_agreed  # newer libraries agree with the kernel while they mount
            self._crew.start()
            if is_agreed:
                started()
            os.read(over, 1)
        finally:
            try:
                self._unmount(place)
            finally:
                signal.set_wakeup_fd(waker)
                for number, handler in before.items():
                    signal.signal(number, handler)

    def invalidate(self, stale: Stale) -> None:
        for parent, name in stale.entries:
            self._send((wire.inval_entry(parent, raw(name)),))
        for ident in stale.nodes:
            self._send((wire.inval_inode(ident),))

    def tick(self) -> None:
        while self._interrupted and self._interrupted[0][0] <= time.monotonic():
            _, unique = self._interrupted.popleft()
            if self._crew.has(unique):
                self._crew.withdraw(unique)
                self._answers.fail(unique, errno.EINTR)

    def requests(self) -> dict[str, int]:
        with self._counting:
            sums = {opcode.name: sum(counts[opcode] for counts in self._counts) for opcode in Opcode}
        return {name: count for name, count in sums.items() if count}

    def _mount(self, place: MountPoint) -> None:
        """Raises MountError; libfuse says on stderr why."""
        library = self._library
        words = [b"glassfs", *place.words()]
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
            raise MountError("libfuse does not take its options")
        self._session = session
        if library.fuse_session_mount(session, os.fsencode(place.path)) != 0:
            raise MountError("libfuse cannot mount")
        # A number of our own: libfuse closes its own at the end, and another file may get it while threads still read.
        self._descriptor = os.dup(library.fuse_session_fd(session))
        self._device = place.device()

    def _agree(self, _user: int, connection: Any) -> None:
        """What we want of what the kernel can do."""
        self._is_agreed = True
        info = connection.contents
        info.max_write = LONGEST_READ
        info.max_background = MAX_BACKGROUND
        info.congestion_threshold = MAX_BACKGROUND * 3 // 4
        # Attributes with every listing: left to itself, the kernel stops asking for them midway.
        info.want = (info.want | info.capable & CAP_READDIRPLUS) & ~CAP_READDIRPLUS_AUTO
        self._answers.opens = not info.capable & CAP_NO_OPEN
        self._answers.opens_directories = not info.capable & CAP_NO_OPENDIR

    def _told_to_end(self, _number: int, _frame: object) -> None:
        self._end()

    def _end(self) -> None:
        with suppress(OSError):
            os.write(self._over, b".")

    def _unmount(self, place: MountPoint) -> None:
        """Unmounts what is still there of our mount, and lets go of the kernel."""
        with self._using_session:
            session, self._session = self._session, None
        if session is None:
            return
        if self._descriptor >= 0:
            self._library.fuse_session_unmount(session)
            place.unmount_left(self._device)
        self._library.fuse_session_destroy(session)
        if self._descriptor >= 0:
            # So that the kernel fails whatever is not answered. It would when the process has ended; but a thread of
            # this process that waits for one of the answers could never end. Other threads may still use the number.
            os.dup2(self._nobody, self._descriptor)

    def _thread_state(self) -> _ThreadState:
        state = _ThreadState()
        with self._counting:
            self._counts.append(state.payload.counts)
        # With its thread its pages go: there may have been hundreds of them.
        weakref.finalize(state, self._counted, state.payload.counts).atexit = False
        return state

    def _counted(self, counts: list[int]) -> None:
        """A thread has ended."""
        with self._counting:
            self._counts = [other for other in self._counts if other is not counts]
            self._counts[0] = [sum(both) for both in zip(self._counts[0], counts, strict=True)]

    def _take(self, worker: Worker[_ThreadState]) -> Task | None:
        request = worker.state.request
        while True:
            try:
                size = os.readv(self._descriptor, (request,))
            except OSError as error:
                if error.errno in AGAIN:
                    continue
                if error.errno not in ENDS:
                    log.error("the kernel cannot be heard any more: %s", error.strerror)
                return None
            if not size:  # hung up
                return None
            try:
                message = bytes(request[:size])
            except MemoryError:
                self._answers.fail(wire.IN_HEADER.unpack_from(request)[2], errno.ENOMEM)
                continue
            _, opcode, unique, ident, _, _, _, _ = wire.IN_HEADER.unpack_from(message)
            if opcode == Opcode.INTERRUPT:
                (given_up,) = wire.INTERRUPT_IN.unpack_from(message, _REQUEST)
                self._interrupted.append((time.monotonic() + INTERRUPT_SECONDS, given_up))
                continue
            if opcode == Opcode.IOCTL:  # isatty, by each open() of Python: at once, as the kernel asks again each time
                worker.state.payload.counts[opcode] += 1
                self._answers.fail(unique, errno.ENOSYS)
                continue
            task = Task(opcode, unique, ident, message)
            if opcode == Opcode.READ:
                task.size = wire.READ_IN.unpack_from(message, _REQUEST)[2]
            elif opcode == Opcode.LOOKUP and ident == ROOT:
                # Several sources side by side: those that look for one that hangs must not hold up the others.
                task.within = self._named_in_root(wire.name_at(message)) or 0
            return task

    def _answer(self, worker: Worker[_ThreadState], task: Task) -> None:
        if self._is_debugging:
            self._show(task)
        if task.opcode == Opcode.INIT:
            self._process(task.message)
        else:
            self._answers.answer(task.opcode, task.unique, task.ident, task.message, worker.state.payload)

    def _process(self, message: bytes) -> None:
        """Has libfuse agree with the kernel, which asks nothing else before it has done so."""
        held = ctypes.create_string_buffer(message, len(message))
        buffer = _Buffer(size=len(message), mem=ctypes.addressof(held), fd=-1)
        with self._using_session:
            if self._session is None:  # it is over already
                return
            self._library.fuse_session_process_buf(self._session, ctypes.byref(buffer))
        self._started()

    def _send(self, parts: Sequence[bytes | bytearray | memoryview]) -> bool:
        try:
            os.writev(self._descriptor, parts)
        except OSError as error:
            if error.errno not in NOBODY_WAITS:
                log.error("an answer was not taken: %s", error.strerror)
            return False
        return True

    def _show(self, task: Task) -> None:
        name = Opcode(task.opcode).name if task.opcode in set(Opcode) else str(task.opcode)
        asked = task.message[_REQUEST : _REQUEST + 64]
        print(f"{name} unique {task.unique} node {task.ident} {asked!r}", file=sys.stderr, flush=True)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of what is called here."""
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    functions: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "fuse_session_new": (pointer, (pointer, pointer, size, pointer)),
        "fuse_session_new_versioned": (pointer, (pointer, pointer, size, pointer, pointer)),
        "fuse_session_mount": (ctypes.c_int, (pointer, text)),
        "fuse_session_fd": (ctypes.c_int, (pointer,)),
        "fuse_session_process_buf": (None, (pointer, pointer)),
        "fuse_session_unmount": (None, (pointer,)),
        "fuse_session_destroy": (None, (pointer,)),
    }
    for name, (result, arguments) in functions.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library
