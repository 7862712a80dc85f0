"""The engine for libfuse 2's high-level API, for systems without libfuse 3 and for macOS, with the structs of fusepy.

The callbacks run on libfuse's threads, one per request in progress, and make no decisions: ``paths`` maps paths and
handles to node ids. The kernel cannot be notified of changes, so timeouts are short.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import signal
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from glassfs import threads, work
from glassfs.mount.engines.contract import SIGNALS, Engine, MountPoint
from glassfs.mount.engines.paths import Handles, Paths
from glassfs.mount.engines.requesters import Asked, Requesters
from glassfs.mount.errors import Answer, Failures, MountError
from glassfs.mount.guard import guarded
from glassfs.mount.operations import Attributes, Operations, Stale
from glassfs.names import raw, text
from glassfs.settings import settings

log = logging.getLogger(__name__)

LIBRARY_PATH = "FUSE_LIBRARY_PATH"
"""The variable from which fusepy takes the library that it loads at import."""
MAX_BACKGROUND = 512
"""Background requests, such as read-ahead, and so threads. A source that hangs would soon use up the default of 12, and
stop all read-ahead."""
BLOCK_SIZE = 4096

# libfuse answers all others itself. The kernel refuses writes, as the mount is read-only.
REGISTERED = (
    "getattr", "fgetattr", "readlink", "open", "read", "release", "opendir", "readdir", "releasedir", "getxattr",
    "listxattr", "statfs", "init",
)


class Libfuse2(Engine):
    """One mount through libfuse 2."""

    can_invalidate = False

    def __init__(self, library_name: str, failures: Failures, is_debugging: bool = False) -> None:
        self._binding = _binding(library_name)
        self._library = _declared(ctypes.CDLL(library_name))
        self.version = divmod(int(self._library.fuse_version()), 10)
        self._failures = failures
        self._is_debugging = is_debugging
        self.busy = threading.Event()
        self._callbacks: Callbacks | None = None

    def serve(self, operations: Operations, mountpoint: MountPoint, started: Callable[[], None]) -> None:
        device = ""

        def begin() -> None:
            nonlocal device
            device = mountpoint.device()
            threads.start("ready", _start_when_answering, mountpoint.path, started)

        self._callbacks = Callbacks(self._binding, operations, self._failures, begin, self._binding.fuse_get_context)
        self.busy = self._callbacks.busy
        table = self._callbacks.table()
        words = self._words(mountpoint)
        arguments = (ctypes.c_char_p * (len(words) + 1))(*words)
        library, target, is_parallel = self._library, ctypes.c_char_p(), ctypes.c_int()
        # libfuse sets handlers of its own for signals without one. Signals are blocked until then: one that came before
        # would end the process and leave the mount behind.
        before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            session = library.fuse_setup(
                len(words), arguments, ctypes.byref(table), ctypes.sizeof(table), ctypes.byref(target),
                ctypes.byref(is_parallel), None,
            )
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            if not session:
                raise MountError("libfuse cannot mount")
            with guarded(mountpoint.device()):
                ended = library.fuse_loop_mt(session)
                library.fuse_teardown(session, target)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        mountpoint.unmount_leftover(device)
        if ended:
            log.error("libfuse ends with %d", ended)

    def invalidate(self, stale: Stale) -> bool:
        """Do nothing: the high-level API cannot notify the kernel."""
        return False

    def tick(self) -> None:
        if self._callbacks is not None:
            has_directories = self._callbacks.paths.expire()
            if self._callbacks.stop_gone() or has_directories:
                self.busy.set()

    def requests(self) -> dict[str, int]:
        """Return counts by name of the callback; ``getattr`` is both LOOKUP and GETATTR."""
        return self._callbacks.counts() if self._callbacks is not None else {}

    def _words(self, mountpoint: MountPoint) -> list[bytes]:
        """Return the command line that libfuse parses."""
        seconds = str(settings.cached_unwatched)
        options = mountpoint.words(
            use_ino=True, nonempty=True, entry_timeout=seconds, attr_timeout=seconds, negative_timeout=seconds,
            max_background=str(MAX_BACKGROUND), congestion_threshold=str(MAX_BACKGROUND * 3 // 4),
        )
        return [b"glassfs", b"-f", *([b"-d"] if self._is_debugging else []), *options, os.fsencode(mountpoint.path)]


class Callbacks:
    """The callbacks of libfuse. They read and fill C structs; ``_answer`` maps their exceptions to errno values.

    ``asked_by`` returns the ids of user, group and thread that made the request of the calling thread.
    """

    def __init__(
        self, binding: Any, operations: Operations, failures: Failures, started: Callable[[], None],
        asked_by: Callable[[], tuple[int, int, int]],
    ) -> None:
        self.paths = Paths(operations)
        self.handles = Handles(operations, self.paths)
        self._binding = binding
        self._operations = operations
        self._failures = failures
        self._started = started
        self._asked_by = asked_by
        self._requesters = Requesters()
        self.busy = threading.Event()
        """Set when requests come."""
        self._in_progress: set[Asked] = set()
        self._counts = dict.fromkeys(REGISTERED, 0)
        self._lock = threading.Lock()

    def table(self) -> Any:
        """Return a ``struct fuse_operations``, which keeps the callbacks alive."""
        table = self._binding.fuse_operations()
        types = {field[0]: field[1] for field in table._fields_}
        for name in REGISTERED:
            setattr(table, name, types[name](partial(self._answer, name, getattr(self, name))))
        # Requests with a handle need no path, so libfuse need not build one, which may no longer exist.
        table.flag_nullpath_ok = table.flag_nopath = 1
        return table

    def counts(self) -> dict[str, int]:
        return {name: count for name, count in self._counts.items() if count}

    def stop_gone(self) -> bool:
        """Stop requests whose callers have ended; return whether requests are in progress."""
        with self._lock:
            in_progress = list(self._in_progress)
        for asked in self._requesters.gone(in_progress):
            asked.cancel()
        return bool(in_progress)

    def getattr(self, path: bytes, status: Any) -> None:
        _fill(status.contents, self.handles.show(text(path)))

    def fgetattr(self, path: bytes | None, status: Any, info: Any) -> None:
        _fill(status.contents, self._operations.attributes(self.handles.ident(info.contents.fh))[0])

    def readlink(self, path: bytes, buffer: Any, size: int) -> None:
        with self.paths.at(text(path)) as found:
            target = raw(self._operations.readlink(found.ident))[: size - 1]
        ctypes.memmove(buffer, target + b"\0", len(target) + 1)

    def open(self, path: bytes, info: Any) -> None:
        fields = info.contents
        fields.fh, fields.direct_io, fields.keep_cache = self.handles.open(text(path), fields.flags)

    def read(self, path: bytes | None, buffer: Any, size: int, offset: int, info: Any) -> int:
        target = (ctypes.c_char * size).from_address(ctypes.addressof(buffer.contents))
        return self.handles.read_into(info.contents.fh, memoryview(target).cast("B"), offset)

    def release(self, path: bytes | None, info: Any) -> None:
        self.handles.release(info.contents.fh)

    def opendir(self, path: bytes, info: Any) -> None:
        info.contents.fh = self.handles.opendir(text(path))

    def readdir(self, path: bytes | None, buffer: Any, filler: Any, offset: int, info: Any) -> None:
        listing = self.handles.listing(info.contents.fh)
        for number in range(offset, 2):
            if filler(buffer, b".."[: number + 1], None, number + 1):
                return
        status = self._binding.c_stat()
        pointer = ctypes.byref(status)
        first = max(0, offset - 2)
        for number, node in enumerate(listing.nodes_from(first), first):
            status.st_mode, status.st_ino = stat.S_IFMT(node.mode), node.ino
            if filler(buffer, raw(node.name), pointer, number + 3):
                return

    def releasedir(self, path: bytes | None, info: Any) -> None:
        self.handles.releasedir(info.contents.fh)

    def getxattr(self, path: bytes, name: bytes, value: Any, size: int, *position: int) -> int:
        with self.paths.at(text(path)) as found:
            return _copy_value(self._operations.getxattr(found.ident, text(name)), value, size)

    def listxattr(self, path: bytes, names: Any, size: int) -> int:
        with self.paths.at(text(path)) as found:
            listed = self._operations.listxattr(found.ident)
        return _copy_value(b"".join(raw(name) + b"\0" for name in listed), names, size)

    def statfs(self, path: bytes, buffer: Any) -> None:
        fields = buffer.contents
        for name, value in self._operations.statfs().items():
            setattr(fields, name, value)

    def init(self, connection: Any) -> None:
        self._started()

    def _answer(self, name: str, callback: Callable[..., int | None], *arguments: Any) -> int:
        try:
            owner, _, thread = self._asked_by()
            asked = Asked(owner=owner, thread=thread)
            with self._lock:
                self._counts[name] += 1
                self._in_progress.add(asked)
            if not self.busy.is_set():
                self.busy.set()
            try:
                return work.done_for(asked, partial(callback, *arguments)) or 0
            finally:
                with self._lock:
                    self._in_progress.discard(asked)
        except BaseException as error:
            return -self._failures.errno_of(error)


def _start_when_answering(path: str, started: Callable[[], None]) -> None:
    """Call ``started`` after a first answer: only then has the kernel set what was negotiated, such as read-ahead."""
    with suppress(OSError):
        os.stat(path)
    started()


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the functions that are called here."""
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.fuse_setup.restype = pointer
    library.fuse_setup.argtypes = (number, pointer, pointer, ctypes.c_size_t, pointer, pointer, pointer)
    library.fuse_loop_mt.argtypes = (pointer,)
    library.fuse_teardown.restype, library.fuse_teardown.argtypes = None, (pointer, ctypes.c_char_p)
    return library


def _binding(library_name: str) -> Any:
    """Import fusepy over this library. Raises ImportError, OSError or AttributeError."""
    before = os.environ.get(LIBRARY_PATH)
    os.environ[LIBRARY_PATH] = library_name
    try:
        import fuse
    finally:
        if before is None:
            del os.environ[LIBRARY_PATH]
        else:
            os.environ[LIBRARY_PATH] = before
    return fuse


def _fill(status: Any, found: Attributes) -> None:
    """Fill a ``struct stat``."""
    status.st_mode, status.st_nlink, status.st_ino = found.mode, found.nlink, found.ino
    status.st_uid, status.st_gid = found.uid, found.gid
    status.st_size, status.st_blocks, status.st_blksize = found.size, found.blocks, BLOCK_SIZE
    seconds, nanoseconds = divmod(found.mtime_ns, 10**9)
    for time in (status.st_atimespec, status.st_mtimespec, status.st_ctimespec):
        time.tv_sec, time.tv_nsec = seconds, nanoseconds


def _copy_value(value: bytes, buffer: Any, size: int) -> int:
    """Copy a value for getxattr or listxattr into the buffer, if there is one, and return its size."""
    if size:
        if len(value) > size:
            raise Answer(errno.ERANGE)
        ctypes.memmove(buffer, value, len(value))
    return len(value)
