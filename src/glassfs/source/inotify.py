"""One instance of inotify(7): the folders that it watches, by path, and the events that it reads.

Each folder on the way to a watched one is watched as well, to detect when any of them is replaced, and so is the mount
table. ``Watches`` (``watching``) serializes all calls. Linux only.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from inotify_simple import INotify, flags, parse_events

from glassfs import threads
from glassfs.source import mountinfo

YOUNG_SECONDS = 30.0
"""Age up to which a watch is not dropped for another one: a walk through a tree must not cost all other watches."""
MAX_EVENTS_PER_SECOND = 10_000
"""Above this, the folder with the most events is no longer watched."""
QUIET_SECONDS = 30.0
"""Time for which that folder and what is below it is not watched again."""
REFUSED_SECONDS = 5.0
"""Time for which a watch that failed is not tried again."""
BUFFER = 1 << 16
_LONGEST_EVENT = 16 + 256
_MODES = flags.ONLYDIR | flags.EXCL_UNLINK | flags.MASK_ADD
# inotify reports the deletion of an open folder only when it is closed; its parent reports it at once.
ON_THE_WAY = flags.DELETE | flags.DELETE_SELF | flags.MOVE_SELF | _MODES
ALL = ON_THE_WAY | flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.MODIFY | flags.ATTRIB | flags.CLOSE_WRITE
_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED
_TAKEN = flags.DELETE | flags.MOVED_FROM

Notify = Callable[[str, bool], None]
"""Called with the name of what changed in a folder (empty: the folder itself) and whether the watch is over."""


@dataclass(eq=False, repr=False, slots=True)
class Watch:
    """A request to be notified about ``folder``, until ``is_over``.

    ``root`` is the (device, inode) of one folder on the way. Callers set ``was_used`` when they rely on the watch, so
    that it outlives unused ones.
    """

    folder: Folder
    root: tuple[int, int]
    notify: Notify
    on_release: Callable[[Watch], None]
    since: float = field(default_factory=time.monotonic)
    is_over: bool = False
    is_silent: bool = False
    was_used: bool = False

    def release(self) -> None:
        """End the watch without notification. May be called at any point, also by the garbage collector."""
        self.is_over = self.is_silent = True
        self.on_release(self)


@dataclass(eq=False, repr=False, slots=True)
class Folder:
    """A folder that is watched or on the way to one; ``wd`` is its watch descriptor.

    It exists as long as it has ``watches``, folders ``below`` or ``pins``.
    """

    above: Folder | None
    name: str
    wd: int
    device: int
    below: dict[str, Folder] = field(default_factory=dict)
    watches: set[Watch] = field(default_factory=set)
    pins: int = 0
    is_over: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        names = []
        folder: Folder | None = self
        while folder is not None and folder.above is not None:
            names.append(folder.name)
            folder = folder.above
        return tuple(reversed(names))


class Inotify:
    """One instance of inotify and the folders that it watches. Callers hold the lock, except for ``wait``.

    ``pending`` has the notifications to send, and whether each is the last of its watch. Raises OSError if the system
    grants no instance.
    """

    def __init__(self, most: int, refuse: Callable[[tuple[str, ...], float], None]) -> None:
        self.walkers = 0
        self.pending: dict[tuple[Watch, str], bool] = {}
        self._most = most
        self._refuse = refuse
        self._top: Folder | None = None
        self._folders: dict[int, list[Folder]] = {}
        self._watches: dict[Watch, None] = {}
        self._counts: Counter[int] = Counter()
        self._counted_since = 0.0
        self._ready: set[int] = set()
        self.has_thread = False
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

    @property
    def is_used(self) -> bool:
        """Whether a folder is watched or about to be."""
        return bool(self.walkers) or self._top is not None

    def start(self, run: Callable[[Inotify], None]) -> None:
        if not self.has_thread:
            threads.start("watching", run, self)
            self.has_thread = True

    def wake(self) -> None:
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        self._descriptors.close()

    # Folders.

    def known(self, above: Folder | None, name: str) -> Folder | None:
        """Return the folder if it is watched. Raises OSError if ``above`` was replaced."""
        if above is None:
            return self._top
        if above.is_over:
            raise replaced()
        return above.below.get(name)

    def entered(self, above: Folder | None, name: str, fd: int, device: int, mask: int) -> Folder:
        """Return the folder that is open as ``fd``, watched and pinned. Raises OSError."""
        if self.known(above, name) is None and not self._has_room():
            raise OSError(errno.ENOSPC, "too many folders are watched")
        watched = self._inotify.add_watch(f"/proc/self/fd/{fd}", mask)
        found = self.known(above, name)
        if found is not None and found.wd != watched:  # replaced, and the event is still in the queue
            self._end(found)
            found = None
        if found is None:
            found = Folder(above, name, watched, device)
            if above is None:
                self._top = found
            else:
                above.below[name] = found
            self._folders.setdefault(watched, []).append(found)
        found.pins += 1
        return found

    def move_pin(self, before: Folder | None, after: Folder | None) -> None:
        if after is not None:
            after.pins += 1
        if before is not None:
            self.unpin(before)

    def unpin(self, folder: Folder) -> None:
        folder.pins -= 1
        self._prune(folder)

    def add(self, watch: Watch) -> None:
        watch.folder.watches.add(watch)
        self._watches[watch] = None

    def remove(self, watch: Watch) -> None:
        """Remove a watch unless it is over already."""
        if watch in self._watches:
            del self._watches[watch]
            watch.folder.watches.discard(watch)
            self._prune(watch.folder)

    def _has_room(self) -> bool:
        """Drop the oldest watches that were not used again until there is room for one more."""
        now = time.monotonic()
        while len(self._folders) >= self._most:
            watch = next(iter(self._watches), None)
            if watch is None or now - watch.since < YOUNG_SECONDS:
                return False
            if watch.was_used:
                watch.was_used, watch.since = False, now
                self._watches[watch] = self._watches.pop(watch)
            else:
                self._over(watch)
                self.remove(watch)
                self.wake()
        return True

    def _over(self, watch: Watch) -> None:
        watch.is_over = True
        self.pending[watch, ""] = True

    def _end(self, folder: Folder) -> None:
        """Stop watching the folder at that path and all below it."""
        self._detach(folder)
        ending = [folder]
        while ending:
            one = ending.pop()
            ending += one.below.values()
            for watch in one.watches:
                self._watches.pop(watch, None)
                self._over(watch)
            one.watches, one.below, one.is_over = set(), {}, True
            self._forget(one)
        if folder.above is not None:
            self._prune(folder.above)
        self.wake()

    def _prune(self, folder: Folder | None) -> None:
        """Remove folders that have no users left."""
        while folder is not None and not (folder.is_over or folder.watches or folder.below or folder.pins):
            folder.is_over = True
            self._forget(folder)
            self._detach(folder)
            folder = folder.above

    def _detach(self, folder: Folder) -> None:
        if folder.above is None:
            self._top = None
        else:
            folder.above.below.pop(folder.name, None)

    def _forget(self, folder: Folder) -> None:
        folders = self._folders.get(folder.wd, [])
        folders.remove(folder)
        if not folders:
            del self._folders[folder.wd]
            with suppress(OSError):  # the kernel has removed it already
                self._inotify.rm_watch(folder.wd)

    # Events.

    def wait(self) -> None:
        self._ready = {number for number, _ in self._poll.poll()}

    def take(self) -> bool:
        """Read events and queue notifications; return whether there may be more events."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if self._table.fileno() in self._ready:
            self.check_mounts()
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._inotify.fileno(), BUFFER)
        events = parse_events(data)
        for event in events:
            self.happened(event.wd, event.mask, event.name)
        self._quieten(number for number, *_ in events)
        return len(data) > BUFFER - _LONGEST_EVENT

    def happened(self, wd: int, mask: int, name: str) -> None:
        """Handle one event of inotify."""
        if mask & flags.Q_OVERFLOW:
            self.lose()
        for folder in tuple(self._folders.get(wd, ())):
            if mask & _GONE:
                self._end(folder)
                continue
            self._notify(folder, name)
            if mask & _TAKEN and name in folder.below:
                self._end(folder.below[name])

    def lose(self) -> None:
        """Handle lost events, which may concern any folder on the way to another: stop watching everything."""
        self._refuse((), REFUSED_SECONDS)
        if self._top is not None:
            self._end(self._top)

    def _notify(self, folder: Folder, name: str) -> None:
        for watch in folder.watches:
            self.pending.setdefault((watch, name), False)

    def _quieten(self, numbers: Iterable[int]) -> None:
        """Stop watching the folder with the most events if there are too many."""
        now = time.monotonic()
        if now - self._counted_since > 1:
            self._counted_since = now
            self._counts.clear()
        self._counts.update(number for number in numbers if number in self._folders)
        if sum(self._counts.values()) > MAX_EVENTS_PER_SECOND:
            loudest, _ = self._counts.most_common(1)[0]
            del self._counts[loudest]
            for folder in tuple(self._folders.get(loudest, ())):
                self._refuse(folder.path, QUIET_SECONDS)
                self._end(folder)

    def check_mounts(self) -> dict[str, str]:
        """Return the file system of each mount by mount id; folders under new or removed mounts count as replaced."""
        before, self._mounts = self._mounts, self._read_mounts()
        for mount in before ^ self._mounts:
            self._remounted(mount.path)
        return {mount.mount_id: mount.file_system for mount in self._mounts}

    def _read_mounts(self) -> set[mountinfo.Mount]:
        self._table.seek(0)
        return set(mountinfo.parsed(self._table.readall()))

    def _remounted(self, path: str) -> None:
        """Handle that another folder than before is at ``path``."""
        folder = self._top
        *way, name = path.strip("/").split("/")
        for inner in way:
            folder = folder.below.get(inner) if folder is not None else None
        if folder is None:
            return
        if not name:  # the root directory
            self._end(folder)
            return
        self._notify(folder, name)
        if name in folder.below:
            self._end(folder.below[name])


def replaced() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))
