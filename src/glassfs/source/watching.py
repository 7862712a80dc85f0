"""Folders of this system that are watched with inotify(7): a change is told within some hundredths of a second.

One instance of inotify and one thread serve all stores of the process; both are there as long as something is watched.
A folder is watched at its place: each folder on the way to it is, too, so that it is told when another takes the place
of any of them, and so is the table of mounts. What inotify cannot know is refused: file systems that other machines
change, and folders that may not be read. Nothing is told of stores through a mapping and of asynchronous writes until
the writer closes the file, and nothing at all of changes that are made under a name in another folder (hard links).

Whoever may write in a folder can cause events without end, and folders without number: the watches are limited, and a
folder with too many events is given up for a while. Any thread may call; those who are told are called by the thread of
this module, without a lock.
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

from glassfs.errors import GlassfsError
from glassfs.source import descriptors, foreign
from glassfs.source.inotify import ALL, ON_THE_WAY, REFUSED, Folder, Inotify, Told, Watch, moved

log = logging.getLogger(__name__)

LOCAL = frozenset(
    b"bcachefs btrfs cramfs erofs ext2 ext3 ext4 f2fs iso9660 jfs nilfs2 overlay ramfs reiserfs romfs rootfs squashfs "
    b"tmpfs ubifs udf xfs".split()
)
"""File systems that only this kernel changes, and only by calls that it tells of. ZFS is none, as a dataset can be
received or rolled back under its mount; nor are those where names differ in case from what was opened."""
MOST = 8192
SHARE = 8
"""A process takes at most this part of what its user may watch."""
LIMIT_FILE = "/proc/sys/fs/inotify/max_user_watches"
PAUSE = 0.02
"""Seconds from one look at what happened to the next, as one file may be written thousands of times a second."""
REMEMBERED = 1024
_SEARCH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_USED_UP = (errno.ENOSPC, *descriptors.EXHAUSTED)
_LASTING = (errno.EACCES, errno.EPERM, errno.EOPNOTSUPP)


class Watches:
    """All watches of a process: at most ``most``, and not more than its share of what the user may have."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._given_back: deque[Watch] = deque()
        self._refused: dict[tuple[str, ...], float] = {}
        self._inotify: Inotify | None = None

    def watch(self, place: Sequence[str], depth: int, told: Told) -> Watch | None:
        """Watches the folder that these names lead to from ``/``, through no link; None where that cannot be had.

        The folder after ``depth`` names is the watch's ``root``. Who reads what is in the folder from now on, and
        starts at that root, sees nothing of which a change is not told.
        """
        if self._is_refused(place):
            return None
        reached: list[str] = []
        try:
            with self._held():
                inotify = self._inotify = self._inotify or self._made()
                inotify.walkers += 1
            try:
                return self._walked(inotify, place, depth, told, reached)
            finally:
                with self._held():
                    inotify.walkers -= 1
                    self._leave(inotify)
        except OSError as error:
            if error.errno in _USED_UP:
                self._refuse((), REFUSED)
            elif error.errno in _LASTING:
                self._refuse(tuple(reached), REFUSED)
        except (GlassfsError, ValueError):
            pass
        return None

    def _made(self) -> Inotify:
        try:
            return Inotify(min(self._most, _share()), self._refuse)
        except OSError:
            self._refuse((), REFUSED)
            raise

    def _give_back(self, watch: Watch) -> None:
        self._given_back.append(watch)
        self._drain()

    def _walked(
        self, inotify: Inotify, place: Sequence[str], depth: int, told: Told, reached: list[str],
    ) -> Watch:
        """Raises OSError, GlassfsError, and ValueError for what cannot be a name."""
        above = None
        number = descriptors.opened(lambda: os.open("/", _SEARCH))
        try:
            above = self._entered(inotify, None, "", number, number, foreign.device_of(number), not place)
            root = _identity(number)
            for step, name in enumerate(place, 1):
                reached.append(name)
                device = foreign.device_of(number, name)
                if device != above.device and foreign.is_on_glassfs(device):
                    raise _refused()
                inner = descriptors.opened(partial(os.open, name, _SEARCH, dir_fd=number))
                try:
                    above = self._entered(inotify, above, name, number, inner, device, step == len(place))
                finally:
                    os.close(number)
                    number = inner
                if step == depth:
                    root = _identity(number)
            with self._held():
                if above.is_over:
                    raise moved()
                inotify.start(self._run)
                watch = Watch(above, root, told, self._give_back)
                inotify.add(watch)
                return watch
        finally:
            os.close(number)
            if above is not None:
                with self._held():
                    inotify.unpin(above)

    def _entered(
        self, inotify: Inotify, above: Folder | None, name: str, outer: int, number: int, device: int | None,
        is_last: bool,
    ) -> Folder:
        """The folder that is open as ``number``, called ``name`` in the one open as ``outer``: watched and pinned.

        One that is known is not looked at again: if it is no longer what is there, that is about to be told. ``above``
        is unpinned, unless this raises.
        """
        with self._held():
            found = None if is_last else inotify.known(above, name)
            if found is not None:
                inotify.move_pin(above, found)
                return found
        if device is None:
            raise _refused()
        if (above is None or device != above.device) and self._file_system(inotify, number) not in LOCAL:
            raise _refused()
        with self._held():
            found = inotify.entered(above, name, number, device, ALL if is_last else ON_THE_WAY)
        # It may have been taken away before it was watched. From here on, that would be told.
        is_there = above is None or _identity(outer, name) == _identity(number)
        with self._held():
            if not is_there:
                inotify.unpin(found)
                raise moved()
            inotify.move_pin(above, None)
        return found

    def _file_system(self, inotify: Inotify, number: int) -> bytes:
        """The type of the file system that an open folder is on, found out without asking that."""
        with descriptors.opened(lambda: open(f"/proc/self/fdinfo/{number}", "rb")) as file:
            words = file.read().split()
        with self._held():
            return inotify.look_at_mounts().get(words[words.index(b"mnt_id:") + 1], b"")

    def _run(self, inotify: Inotify) -> None:
        """What the thread does, until nothing is watched any more."""
        is_over = False
        while not is_over:
            inotify.wait()
            with self._held():
                try:
                    may_have_more = inotify.take()
                except Exception:
                    log.exception("Changes could not be read")
                    may_have_more = False
                    inotify.lose()
                tells, inotify.tells = inotify.tells, {}
                is_over = self._is_finished(inotify)
            for (watch, name), is_last in tells.items():
                try:
                    if not watch.is_silent:
                        watch.told(name, is_last)
                except Exception:
                    log.exception("A change could not be told")
            if tells and not may_have_more:
                time.sleep(PAUSE)

    def _is_finished(self, inotify: Inotify) -> bool:
        """Whether nothing is watched any more; what that took is given back."""
        if inotify.walkers or not inotify.is_empty:
            return False
        if self._inotify is inotify:
            self._inotify = None
        inotify.close()
        return True

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The lock. Whoever gives back while it is held leaves that to the one who holds it."""
        try:
            with self._lock:
                yield
        finally:
            self._drain()

    def _drain(self) -> None:
        while self._given_back and self._lock.acquire(blocking=False):
            try:
                while self._given_back:
                    watch = self._given_back.popleft()
                    if self._inotify is not None:
                        self._inotify.remove(watch)
                        self._leave(self._inotify)
            finally:
                self._lock.release()

    def _leave(self, inotify: Inotify) -> None:
        """Sees to it that an end comes where nothing is watched any more."""
        if inotify.walkers or not inotify.is_empty:
            return
        if inotify.has_thread:
            inotify.wake()
        else:
            self._is_finished(inotify)

    def _is_refused(self, place: Sequence[str]) -> bool:
        if not self._refused:
            return False
        now = time.monotonic()
        return any(self._refused.get(tuple(place[:length]), now) > now for length in range(len(place) + 1))

    def _refuse(self, place: tuple[str, ...], seconds: float) -> None:
        """Nobody asks for a place and what is below it for a while."""
        if len(self._refused) >= REMEMBERED:
            self._refused.clear()
        self._refused[place] = time.monotonic() + seconds


def _share() -> int:
    try:
        with open(LIMIT_FILE, "rb") as file:
            return int(file.read()) // SHARE
    except (OSError, ValueError):
        return 0


def _identity(number: int, name: str = "") -> tuple[int, int]:
    """Device and inode of an open folder, or of what is called ``name`` in it. Raises OSError."""
    status = os.stat(name, dir_fd=number, follow_symlinks=False) if name else os.fstat(number)
    return status.st_dev, status.st_ino


def _refused() -> OSError:
    return OSError(errno.EOPNOTSUPP, "is not told of by this system alone")


pool = Watches()
