"""One instance of inotify(7): the folders that it watches, each at its place, and what happened to them.

Each folder on the way to a watched one is watched, too, so that it is told when another takes the place of any of them,
and so is the table of mounts. ``Watches`` (``watching``) lets one thread at a time in here. Linux only.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from inotify_simple import INotify, flags, parse_events

from glassfs.source import mountinfo

YOUNG = 30.0
"""Seconds for which a watch is not given up for another one: who walks through everything must not cost all of them."""
NOISE = 10_000
"""Events in a second above which the folder with the most of them is given up."""
QUIET = 30.0
"""Seconds for which it is not watched again, nor is what is below."""
REFUSED = 5.0
"""Seconds for which nobody asks again what was refused."""
BUFFER = 1 << 16
_LONGEST_EVENT = 16 + 256
_MODES = flags.ONLYDIR | flags.EXCL_UNLINK | flags.MASK_ADD
# A folder that somebody has open is not told to be gone itself: the one above it has to be asked for that.
ON_THE_WAY = flags.DELETE | flags.DELETE_SELF | flags.MOVE_SELF | _MODES
ALL = ON_THE_WAY | flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.MODIFY | flags.ATTRIB | flags.CLOSE_WRITE
_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED
_TAKEN = flags.DELETE | flags.MOVED_FROM

Told = Callable[[str, bool], None]
"""Called with the name of what changed in a folder, empty for the folder, and with whether the watch is over."""


class Watch:
    """That somebody is told of a folder, until ``is_over``. ``root`` is device and inode of one on the way to it.

    ``was_used`` is set by whoever relies on it, so that it is kept before others.
    """

    __slots__ = ("_give_back", "folder", "is_over", "is_silent", "root", "since", "told", "was_used")

    def __init__(
        self, folder: Folder, root: tuple[int, int], told: Told, give_back: Callable[[Watch], None],
    ) -> None:
        self.folder = folder
        self.root = root
        self.told = told
        self.since = time.monotonic()
        self.is_over = self.is_silent = self.was_used = False
        self._give_back = give_back

    def give_back(self) -> None:
        """Nobody is told any more. May be called in the middle of anything, as garbage is collected."""
        self.is_over = self.is_silent = True
        self._give_back(self)


class Folder:
    """A folder that is watched, or on the way to one; ``number`` is what inotify calls it.

    It is there for as long as there are ``watches`` of it or folders ``below`` it, or somebody ``pins`` it.
    """

    __slots__ = ("above", "below", "device", "is_over", "name", "number", "pins", "watches")

    def __init__(self, above: Folder | None, name: str, number: int, device: int) -> None:
        self.above = above
        self.name = name
        self.number = number
        self.device = device
        self.below: dict[str, Folder] = {}
        self.watches: set[Watch] = set()
        self.pins = 0
        self.is_over = False

    @property
    def place(self) -> tuple[str, ...]:
        names = []
        folder: Folder | None = self
        while folder is not None and folder.above is not None:
            names.append(folder.name)
            folder = folder.above
        return tuple(reversed(names))


class Inotify:
    """One instance of inotify, and the folders that it watches. Whoever calls has the lock, but for ``wait``.

    ``tells`` are what is to be told, and whether that is the last. Raises OSError where there can be no instance.
    """

    def __init__(self, most: int, refuse: Callable[[tuple[str, ...], float], None]) -> None:
        self.walkers = 0
        self.tells: dict[tuple[Watch, str], bool] = {}
        self._most = most
        self._refuse = refuse
        self._top: Folder | None = None
        self._numbers: dict[int, list[Folder]] = {}
        self._watches: dict[Watch, None] = {}
        self._counts: Counter[int] = Counter()
        self._counted_since = 0.0
        self._ready: set[int] = set()
        self._thread: threading.Thread | None = None
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
    def is_empty(self) -> bool:
        return self._top is None

    @property
    def has_thread(self) -> bool:
        return self._thread is not None

    def start(self, run: Callable[[Inotify], None]) -> None:
        if self._thread is None:
            thread = threading.Thread(target=run, args=(self,), name="glassfs-watching", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                raise OSError(errno.ENOMEM, "there can be no more threads") from None
            self._thread = thread

    def wake(self) -> None:
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        self._descriptors.close()

    # Folders.

    def known(self, above: Folder | None, name: str) -> Folder | None:
        """Raises OSError where ``above`` is no longer where it was."""
        if above is None:
            return self._top
        if above.is_over:
            raise moved()
        return above.below.get(name)

    def entered(self, above: Folder | None, name: str, number: int, device: int, mask: int) -> Folder:
        """The folder that is open as ``number``, watched and pinned. Raises OSError."""
        if self.known(above, name) is None and not self._has_room():
            raise OSError(errno.ENOSPC, "too many folders are watched")
        watched = self._inotify.add_watch(f"/proc/self/fd/{number}", mask)
        found = self.known(above, name)
        if found is not None and found.number != watched:  # it was exchanged, which nobody has told yet
            self._end(found)
            found = None
        if found is None:
            found = Folder(above, name, watched, device)
            if above is None:
                self._top = found
            else:
                above.below[name] = found
            self._numbers.setdefault(watched, []).append(found)
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
        """Of one that is over nothing is left to remove."""
        if watch in self._watches:
            del self._watches[watch]
            watch.folder.watches.discard(watch)
            self._prune(watch.folder)

    def _has_room(self) -> bool:
        """Gives up the oldest watches that were not used again, until there is room for one more."""
        now = time.monotonic()
        while len(self._numbers) >= self._most:
            watch = next(iter(self._watches), None)
            if watch is None or now - watch.since < YOUNG:
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
        self.tells[watch, ""] = True

    def _end(self, folder: Folder) -> None:
        """What was at that place is no longer watched, nor what is below it."""
        if folder.above is None:
            self._top = None
        else:
            folder.above.below.pop(folder.name, None)
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
        """Forgets folders that nobody needs any more."""
        while folder is not None and not (folder.is_over or folder.watches or folder.below or folder.pins):
            folder.is_over = True
            self._forget(folder)
            if folder.above is None:
                self._top = None
            else:
                folder.above.below.pop(folder.name, None)
            folder = folder.above

    def _forget(self, folder: Folder) -> None:
        places = self._numbers.get(folder.number, [])
        places.remove(folder)
        if not places:
            del self._numbers[folder.number]
            with suppress(OSError):  # the kernel has forgotten it by itself
                self._inotify.rm_watch(folder.number)

    # What happened.

    def wait(self) -> None:
        self._ready = {number for number, _ in self._poll.poll()}

    def take(self) -> bool:
        """Notes what there is to tell of what happened; whether there may be more."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if self._table.fileno() in self._ready:
            self.look_at_mounts()
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._inotify.fileno(), BUFFER)
        events = parse_events(data)
        for event in events:
            self.happened(event.wd, event.mask, event.name)
        self._quieten(number for number, *_ in events)
        return len(data) > BUFFER - _LONGEST_EVENT

    def happened(self, number: int, mask: int, name: str) -> None:
        """One event of inotify."""
        if mask & flags.Q_OVERFLOW:
            self.lose()
        for folder in tuple(self._numbers.get(number, ())):
            if mask & _GONE:
                self._end(folder)
                continue
            self._tell(folder, name)
            if mask & _TAKEN and name in folder.below:
                self._end(folder.below[name])

    def lose(self) -> None:
        """Events were lost, perhaps also of what is on the way to a folder: nothing is watched any more."""
        self._refuse((), REFUSED)
        if self._top is not None:
            self._end(self._top)

    def _tell(self, folder: Folder, name: str) -> None:
        for watch in folder.watches:
            self.tells.setdefault((watch, name), False)

    def _quieten(self, numbers: Iterable[int]) -> None:
        """Gives up the folder with the most events where there are too many."""
        now = time.monotonic()
        if now - self._counted_since > 1:
            self._counted_since = now
            self._counts.clear()
        self._counts.update(number for number in numbers if number in self._numbers)
        if sum(self._counts.values()) > NOISE:
            loudest, _ = self._counts.most_common(1)[0]
            del self._counts[loudest]
            for folder in tuple(self._numbers.get(loudest, ())):
                self._refuse(folder.place, QUIET)
                self._end(folder)

    def look_at_mounts(self) -> dict[bytes, bytes]:
        """The file system of each mount by its number; what was mounted or unmounted is another folder now."""
        before, self._mounts = self._mounts, self._read_mounts()
        for line in before ^ self._mounts:
            self._mounted(mountinfo.unescape(line.place))
        return {line.number: line.file_system for line in self._mounts}

    def _read_mounts(self) -> set[_Mount]:
        self._table.seek(0)
        found = set()
        for line in self._table.readall().split(b"\n"):
            fields, _, rest = line.partition(b" - ")
            if rest:
                number, _, device, root, place, *_ = fields.split(b" ")
                found.add(_Mount(number, device, root, place, rest.split(b" ")[0]))
        return found

    def _mounted(self, path: str) -> None:
        """Something else stands at ``path`` than before."""
        folder = self._top
        *way, name = path.strip("/").split("/")
        for inner in way:
            folder = folder.below.get(inner) if folder is not None else None
        if folder is None:
            return
        if not name:  # the root of all
            self._end(folder)
            return
        self._tell(folder, name)
        if name in folder.below:
            self._end(folder.below[name])


class _Mount(NamedTuple):
    """A line of the table of mounts, without options, which change what is there for nobody."""

    number: bytes
    device: bytes
    root: bytes
    place: bytes
    file_system: bytes


def moved() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))
