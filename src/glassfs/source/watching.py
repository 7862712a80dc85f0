"""Watch local folders with inotify(7). Changes are reported within some hundredths of a second.

One instance of inotify and one thread serve all stores of the process, as long as anything is watched. Each folder on
the way to a watched one is watched too, and so is the mount table, to detect replacements. Requests for changes that
inotify cannot see are refused: file systems that other machines change, and folders that may not be read.

Users with write access to a folder can cause any number of events and folders: watches are limited, and events are read
some at a time; if the kernel drops some, nothing is watched for a while. Any thread; notifications are sent by this
module's own, without a lock.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock

from inotify_simple import INotify, flags, parse_events

from glassfs import threads
from glassfs.errors import GlassfsError, Unavailable
from glassfs.settings import settings
from glassfs.source import descriptors, mountinfo, system

log = logging.getLogger(__name__)

LOCAL = mountinfo.LOCAL - {"zfs"}
"""File systems that only this kernel changes, through calls that inotify reports. Not ZFS, as a dataset can be received
or rolled back under its mount, and no file system whose names are not case-sensitive."""
LIMIT_FILE = "/proc/sys/fs/inotify/max_user_watches"
BUFFER = 1 << 16
_SEARCH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_USED_UP = (errno.ENOSPC, *descriptors.EXHAUSTED)
_LASTING = (errno.EACCES, errno.EPERM, errno.EOPNOTSUPP)
_MODES = flags.ONLYDIR | flags.EXCL_UNLINK | flags.MASK_ADD
# inotify reports the deletion of an open folder only when it is closed; its parent reports it at once.
ON_THE_WAY = flags.DELETE | flags.DELETE_SELF | flags.MOVE_SELF | _MODES
ALL = ON_THE_WAY | flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.MODIFY | flags.ATTRIB | flags.CLOSE_WRITE
_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED
_TAKEN = flags.DELETE | flags.MOVED_FROM

Notify = Callable[[str, bool], None]
"""Called with the name of what changed in a folder (empty: the folder itself) and whether the watch is over."""


@dataclass(eq=False)
class Watch:
    """A request to be notified about the folder at ``path``, until ``is_over``; ``wds`` lead to it and are its own.

    ``root`` is the (device, inode) of one folder on the way. It ``is_silent`` until the whole way is watched.
    """

    path: tuple[str, ...]
    notify: Notify
    on_release: Callable[[Watch], None]
    root: tuple[int, int] = (0, 0)
    wds: list[int] = field(default_factory=list)
    is_over: bool = False
    is_silent: bool = True

    def release(self) -> None:
        """End the watch without notification. May be called at any point, also by the garbage collector."""
        self.is_over = self.is_silent = True
        self.on_release(self)


class Watches:
    """All watches of a process: at most ``most`` folders, and at most its share of the user's limit."""

    def __init__(self, most: int = 8192) -> None:
        self._most = most
        self._lock = Lock()
        self._released: deque[Watch] = deque()
        self._refused: dict[tuple[str, ...], float] = {}
        self._inotify: _Inotify | None = None

    def watch(self, path: Sequence[str], depth: int, notify: Notify) -> Watch | None:
        """Watch the folder to which these names lead from ``/`` without following links; None if that is impossible.

        The folder after ``depth`` names becomes the watch's ``root``. A caller that reads the folder from now on,
        starting at that root, is notified of every change to what it sees.
        """
        now = time.monotonic()
        if any(self._refused.get(tuple(path[:length]), now) > now for length in range(len(path) + 1)):
            return None
        watch = Watch(tuple(path), notify, self._release)
        try:
            with self._held():
                inotify = self._inotify = self._inotify or self._made()
                inotify.watches[watch] = None
            self._walk(inotify, watch, depth)
            with self._held():
                if watch.is_over:
                    raise _replaced()
                inotify.start(self._run)
                watch.is_silent = False
            return watch
        except OSError as error:
            if error.errno in _USED_UP:
                self._refuse(())
            elif error.errno in _LASTING:
                self._refuse(watch.path[: len(watch.wds)])
        except Unavailable:
            self._refuse(())
        except (GlassfsError, ValueError):
            pass
        watch.release()
        return None

    def _made(self) -> _Inotify:
        try:
            with open(LIMIT_FILE, "rb") as file:
                share = int(file.read()) // 8  # other programs of the user watch files, too
        except (OSError, ValueError):
            share = 0
        try:
            return _Inotify(min(self._most, share), self._refuse)
        except OSError:
            self._refuse(())
            raise

    def _walk(self, inotify: _Inotify, watch: Watch, depth: int) -> None:
        """Watch the folders of a path. Raises OSError, GlassfsError, and ValueError for an invalid name."""
        # Each folder is opened from the descriptor of the one above it, and watched by its descriptor: a name that is
        # swapped meanwhile is noticed by the comparison below, or reported as an event.
        outer = -1
        fd = descriptors.opened(lambda: os.open("/", _SEARCH))
        try:
            above, device = None, system.device_of(fd)
            for step in range(len(watch.path) + 1):
                if step:
                    name = watch.path[step - 1]
                    device = system.device_of(fd, name)
                    if device != above and system.is_on_glassfs(device):
                        raise _refused()
                    if outer != -1:
                        os.close(outer)
                    outer, fd = fd, -1
                    fd = descriptors.opened(partial(os.open, name, _SEARCH, dir_fd=outer))
                if device is None or (device != above and self._file_system(inotify, fd) not in LOCAL):
                    raise _refused()
                with self._held():
                    inotify.enter(watch, fd)
                # It may have been replaced before it was watched. From here on, an event would report that.
                if step and _identity(outer, name) != _identity(fd):
                    raise _replaced()
                if step == depth:
                    watch.root = _identity(fd)
                above = device
        finally:
            for one in (outer, fd):
                if one != -1:
                    os.close(one)

    def _file_system(self, inotify: _Inotify, fd: int) -> str:
        """Return the type of the file system of an open folder without a request to that file system."""
        with descriptors.opened(lambda: open(f"/proc/self/fdinfo/{fd}", "rb")) as file:
            words = file.read().decode().split()
        with self._held():
            return inotify.check_mounts().get(words[words.index("mnt_id:") + 1], "")

    def _run(self, inotify: _Inotify) -> None:
        """Read events and send notifications until nothing is watched any more (the thread)."""
        is_over = False
        while not is_over:
            ready = inotify.wait()
            with self._held():
                try:
                    may_have_more = inotify.take(ready)
                except Exception:
                    log.exception("cannot read inotify events")
                    may_have_more = False
                    inotify.lose()
                pending, inotify.pending = inotify.pending, {}
                is_over = not inotify.watches
                if is_over:
                    self._close(inotify)
            for (watch, name), is_last in pending.items():
                try:
                    if not watch.is_silent:
                        watch.notify(name, is_last)
                except Exception:
                    log.exception("a notification failed")
            if pending and not may_have_more:
                # One file may be written thousands of times a second: these become one notification.
                time.sleep(settings.watching_pause)

    def _release(self, watch: Watch) -> None:
        self._released.append(watch)
        self._drain()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock. Watches released meanwhile are removed by the thread that holds it."""
        try:
            with self._lock:
                yield
        finally:
            self._drain()

    def _drain(self) -> None:
        # The garbage collector may release a watch in a thread that holds the lock, so nothing waits for it here.
        while self._released and self._lock.acquire(blocking=False):
            try:
                while self._released:
                    watch = self._released.popleft()
                    if self._inotify is not None:
                        self._inotify.remove(watch)
                        if not self._inotify.watches:
                            if self._inotify.has_thread:  # which closes it
                                self._inotify.wake()
                            else:
                                self._close(self._inotify)
            finally:
                self._lock.release()

    def _close(self, inotify: _Inotify) -> None:
        if self._inotify is inotify:
            self._inotify = None
        inotify.close()

    def _refuse(self, path: tuple[str, ...]) -> None:
        """Refuse watches of a path and of what is below it for some time."""
        if len(self._refused) >= 1024:
            self._refused.clear()
        self._refused[path] = time.monotonic() + settings.watching_refused


class _Inotify:
    """One instance of inotify: which watches need which folder. Callers hold the lock, except for ``wait``.

    ``pending`` has the notifications to send, and whether each is the last of its watch. Raises OSError if the system
    grants no instance.
    """

    def __init__(self, most: int, refuse: Callable[[tuple[str, ...]], None]) -> None:
        self.pending: dict[tuple[Watch, str], bool] = {}
        self.watches: dict[Watch, None] = {}
        """Those that are wanted, also while their way is not yet watched."""
        self.has_thread = False
        self._most = most
        self._refuse = refuse
        self._needed: dict[int, dict[Watch, int]] = {}
        """For each watch descriptor the watches that need it, and how many names lead to its folder."""
        with ExitStack() as stack:
            self._inotify = stack.enter_context(INotify(nonblocking=True))
            self._table = stack.enter_context(open(mountinfo.MOUNTS, "rb", buffering=0))
            self._mounts = self._read_mounts()
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            stack.callback(os.close, self._wake)
            self._poll = select.poll()
            self._poll.register(self._inotify, select.POLLIN)
            self._poll.register(self._wake, select.POLLIN)
            self._poll.register(self._table, select.POLLPRI)
            self._descriptors = stack.pop_all()

    def start(self, run: Callable[[_Inotify], None]) -> None:
        if not self.has_thread:
            threads.start("watching", run, self)
            self.has_thread = True

    def wake(self) -> None:
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        self._descriptors.close()

    def enter(self, watch: Watch, fd: int) -> None:
        """Watch the next folder on the way of a watch, which is open. Raises OSError."""
        if watch.is_over:
            raise _replaced()
        depth = len(watch.wds)
        wd = self._inotify.add_watch(f"/proc/self/fd/{fd}", ALL if depth == len(watch.path) else ON_THE_WAY)
        watch.wds.append(wd)
        self._needed.setdefault(wd, {})[watch] = depth
        if len(self._needed) > self._most:
            raise OSError(errno.ENOSPC, "too many folders are watched")

    def remove(self, watch: Watch) -> None:
        """Give up a watch and the folders that no other watch needs."""
        self.watches.pop(watch, None)
        for wd in watch.wds:
            needed = self._needed.get(wd, {})
            needed.pop(watch, None)
            if not needed and self._needed.pop(wd, None) is not None:
                with suppress(OSError):  # the kernel has removed it already
                    self._inotify.rm_watch(wd)

    def _over(self, watch: Watch) -> None:
        """End a watch, with a notification."""
        watch.is_over = True
        self.pending[watch, ""] = True
        self.remove(watch)
        self.wake()

    def wait(self) -> set[int]:
        return {number for number, _ in self._poll.poll()}

    def take(self, ready: set[int]) -> bool:
        """Read events and queue notifications; return whether there may be more events."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if self._table.fileno() in ready:
            self.check_mounts()
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._inotify.fileno(), BUFFER)
        for event in parse_events(data):
            self.happened(event.wd, event.mask, event.name)
        return len(data) > BUFFER - 512  # two of the longest events

    def happened(self, wd: int, mask: int, name: str) -> None:
        """Handle one event of inotify."""
        if mask & flags.Q_OVERFLOW:
            self.lose()
        for watch, depth in tuple(self._needed.get(wd, {}).items()):
            # A folder on the way to one watch may be that of another, so each watch decides what an event means to it.
            following = watch.path[depth : depth + 1]
            if mask & _GONE or (mask & _TAKEN and following == (name,)):
                self._over(watch)
            elif not following:
                self.pending.setdefault((watch, name), False)

    def lose(self) -> None:
        """Handle lost events, which may concern any folder on the way to another: stop watching everything."""
        self._refuse(())
        for watch in tuple(self.watches):
            self._over(watch)

    def check_mounts(self) -> dict[str, str]:
        """Return the file system of each mount by mount id; folders under new or removed mounts count as replaced."""
        before, self._mounts = self._mounts, self._read_mounts()
        for mount in before ^ self._mounts:
            place = tuple(filter(None, mount.path.split("/")))
            for watch in tuple(self.watches):
                if watch.path[: len(place)] == place:
                    self._over(watch)
                elif watch.path == place[:-1]:
                    self.pending.setdefault((watch, place[-1]), False)
        return {mount.mount_id: mount.file_system for mount in self._mounts}

    def _read_mounts(self) -> frozenset[mountinfo.Mount]:
        self._table.seek(0)
        return _parsed(self._table.readall())


@lru_cache(1)
def _parsed(table: bytes) -> frozenset[mountinfo.Mount]:
    """Return the mounts of the table, which is mostly the same for each folder of a tree that is watched."""
    return frozenset(mountinfo.parsed(table))


def _identity(fd: int, name: str = "") -> tuple[int, int]:
    """Return device and inode of an open folder, or of ``name`` in it. Raises OSError."""
    status = os.stat(name, dir_fd=fd, follow_symlinks=False) if name else os.fstat(fd)
    return status.st_dev, status.st_ino


def _refused() -> OSError:
    return OSError(errno.EOPNOTSUPP, "changes cannot be observed here")


def _replaced() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


pool = Watches()
