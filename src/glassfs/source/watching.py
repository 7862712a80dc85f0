"""Watch local folders with inotify(7). Changes are reported within some hundredths of a second.

One instance of inotify and one thread serve all stores of the process, as long as anything is watched. A folder is
watched at its path: each folder on the way to it is watched too, and so is the mount table, to detect replacements.
Requests for changes that inotify cannot see are refused: file systems that other machines change, and folders that may
not be read. Stores through a mapping and asynchronous writes are reported when the writer closes the file; changes
through a hard link in another folder are never reported.

Users with write access to a folder can cause any number of events and folders: watches are limited, and a folder with
too many events is not watched for a while. Any thread may call; notifications are sent by this module's thread, without
a lock.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from glassfs.errors import GlassfsError, Unavailable
from glassfs.source import descriptors, foreign
from glassfs.source.inotify import ALL, ON_THE_WAY, REFUSED_SECONDS, Folder, Inotify, Notify, Watch, replaced

log = logging.getLogger(__name__)

LOCAL = frozenset([
    "bcachefs", "btrfs", "cramfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "nilfs2", "overlay",
    "ramfs", "reiserfs", "romfs", "rootfs", "squashfs", "tmpfs", "ubifs", "udf", "xfs",
])
"""File systems that only this kernel changes, through calls that inotify reports. Not ZFS, as a dataset can be received
or rolled back under its mount, and no file system whose names are not case-sensitive."""
MOST = 8192
SHARE = 8
"""A process takes at most this fraction of the watches of its user."""
LIMIT_FILE = "/proc/sys/fs/inotify/max_user_watches"
PAUSE_SECONDS = 0.02
"""Pause between two batches of events, as one file may be written thousands of times a second."""
REMEMBERED = 1024
_SEARCH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_USED_UP = (errno.ENOSPC, *descriptors.EXHAUSTED)
_LASTING = (errno.EACCES, errno.EPERM, errno.EOPNOTSUPP)


class Watches:
    """All watches of a process: at most ``most``, and at most its share of the user's limit."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._released: deque[Watch] = deque()
        self._refused: dict[tuple[str, ...], float] = {}
        self._inotify: Inotify | None = None

    def watch(self, path: Sequence[str], depth: int, notify: Notify) -> Watch | None:
        """Watch the folder to which these names lead from ``/`` without following links; None if that is impossible.

        The folder after ``depth`` names becomes the watch's ``root``. A caller that reads the folder from now on,
        starting at that root, is notified of every change to what it sees.
        """
        if self._is_refused(path):
            return None
        reached: list[str] = []
        try:
            with self._held():
                inotify = self._inotify = self._inotify or self._made()
                inotify.walkers += 1
            try:
                return self._walked(inotify, path, depth, notify, reached)
            finally:
                with self._held():
                    inotify.walkers -= 1
                    self._leave(inotify)
        except OSError as error:
            if error.errno in _USED_UP:
                self._refuse((), REFUSED_SECONDS)
            elif error.errno in _LASTING:
                self._refuse(tuple(reached), REFUSED_SECONDS)
        except Unavailable:
            self._refuse((), REFUSED_SECONDS)
        except (GlassfsError, ValueError):
            pass
        return None

    def _made(self) -> Inotify:
        try:
            with open(LIMIT_FILE, "rb") as file:
                share = int(file.read()) // SHARE
        except (OSError, ValueError):
            share = 0
        try:
            return Inotify(min(self._most, share), self._refuse)
        except OSError:
            self._refuse((), REFUSED_SECONDS)
            raise

    def _release(self, watch: Watch) -> None:
        self._released.append(watch)
        self._drain()

    def _walked(
        self, inotify: Inotify, path: Sequence[str], depth: int, notify: Notify, reached: list[str],
    ) -> Watch:
        """Watch the folders of a path. Raises OSError, GlassfsError, and ValueError for an invalid name."""
        above = None
        fd = descriptors.opened(lambda: os.open("/", _SEARCH))
        try:
            above = self._entered(inotify, None, "", fd, fd, foreign.device_of(fd), not path)
            root = _identity(fd)
            for step, name in enumerate(path, 1):
                reached.append(name)
                device = foreign.device_of(fd, name)
                if device != above.device and foreign.is_on_glassfs(device):
                    raise _refused()
                inner = descriptors.opened(partial(os.open, name, _SEARCH, dir_fd=fd))
                try:
                    above = self._entered(inotify, above, name, fd, inner, device, step == len(path))
                finally:
                    os.close(fd)
                    fd = inner
                if step == depth:
                    root = _identity(fd)
            with self._held():
                if above.is_over:
                    raise replaced()
                inotify.start(self._run)
                watch = Watch(above, root, notify, self._release)
                inotify.add(watch)
                return watch
        finally:
            os.close(fd)
            if above is not None:
                with self._held():
                    inotify.unpin(above)

    def _entered(
        self, inotify: Inotify, above: Folder | None, name: str, outer: int, fd: int, device: int | None,
        is_last: bool,
    ) -> Folder:
        """Return the folder open as ``fd``, called ``name`` in the one open as ``outer``, watched and pinned.

        A known folder is not checked again: if it was replaced, an event about that is pending. Unpins ``above`` unless
        it raises.
        """
        with self._held():
            found = None if is_last else inotify.known(above, name)
            if found is not None:
                inotify.move_pin(above, found)
                return found
        if device is None:
            raise _refused()
        if (above is None or device != above.device) and self._file_system(inotify, fd) not in LOCAL:
            raise _refused()
        with self._held():
            found = inotify.entered(above, name, fd, device, ALL if is_last else ON_THE_WAY)
        # It may have been replaced before it was watched. From here on, an event would report that.
        is_there = above is None or _identity(outer, name) == _identity(fd)
        with self._held():
            if not is_there:
                inotify.unpin(found)
                raise replaced()
            inotify.move_pin(above, None)
        return found

    def _file_system(self, inotify: Inotify, fd: int) -> str:
        """Return the type of the file system of an open folder without a request to that file system."""
        with descriptors.opened(lambda: open(f"/proc/self/fdinfo/{fd}", "rb")) as file:
            words = file.read().decode().split()
        with self._held():
            return inotify.check_mounts().get(words[words.index("mnt_id:") + 1], "")

    def _run(self, inotify: Inotify) -> None:
        """Read events and send notifications until nothing is watched any more (the thread)."""
        is_over = False
        while not is_over:
            inotify.wait()
            with self._held():
                try:
                    may_have_more = inotify.take()
                except Exception:
                    log.exception("cannot read inotify events")
                    may_have_more = False
                    inotify.lose()
                pending, inotify.pending = inotify.pending, {}
                is_over = not inotify.is_used
                if is_over:
                    self._end(inotify)
            for (watch, name), is_last in pending.items():
                try:
                    if not watch.is_silent:
                        watch.notify(name, is_last)
                except Exception:
                    log.exception("a notification failed")
            if pending and not may_have_more:
                time.sleep(PAUSE_SECONDS)

    def _end(self, inotify: Inotify) -> None:
        if self._inotify is inotify:
            self._inotify = None
        inotify.close()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock. Watches released meanwhile are removed by the thread that holds it."""
        try:
            with self._lock:
                yield
        finally:
            self._drain()

    def _drain(self) -> None:
        while self._released and self._lock.acquire(blocking=False):
            try:
                while self._released:
                    watch = self._released.popleft()
                    if self._inotify is not None:
                        self._inotify.remove(watch)
                        self._leave(self._inotify)
            finally:
                self._lock.release()

    def _leave(self, inotify: Inotify) -> None:
        """End the instance, which its thread does if there is one, if nothing is watched any more."""
        if inotify.is_used:
            return
        if inotify.has_thread:
            inotify.wake()
        else:
            self._end(inotify)

    def _is_refused(self, path: Sequence[str]) -> bool:
        if not self._refused:
            return False
        now = time.monotonic()
        return any(self._refused.get(tuple(path[:length]), now) > now for length in range(len(path) + 1))

    def _refuse(self, path: tuple[str, ...], seconds: float) -> None:
        """Refuse watches of a path and of what is below it for some time."""
        if len(self._refused) >= REMEMBERED:
            self._refused.clear()
        self._refused[path] = time.monotonic() + seconds


def _identity(fd: int, name: str = "") -> tuple[int, int]:
    """Return device and inode of an open folder, or of ``name`` in it. Raises OSError."""
    status = os.stat(name, dir_fd=fd, follow_symlinks=False) if name else os.fstat(fd)
    return status.st_dev, status.st_ino


def _refused() -> OSError:
    return OSError(errno.EOPNOTSUPP, "changes cannot be observed here")


pool = Watches()
