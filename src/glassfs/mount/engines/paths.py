"""Paths and handles, which libfuse's high-level interface speaks in, over the node ids of ``Operations``. No ctypes.

A path is looked up name by name, and of the directories on the way it is remembered for a moment which ids they have.
Every reference that a look-up gives is held by what is remembered, by an open handle, or given back. The kernel keeps
pages by path: ``Handles`` sees to it that two versions of a file never share them. Any thread.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from glassfs.errors import Changed, IsADirectory, NotADirectory, NotFound
from glassfs.mount.errors import Answer
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import Attributes, Found, Listing, Operations
from glassfs.tree import Directory, File, Settled
from glassfs.tree.lease import Lease

MOMENT = 0.2
"""Seconds for which it is remembered where a path led to: these come on top of those that the kernel remembers."""
REMEMBERED_DIRECTORIES = 4096
REMEMBERED_VERSIONS = 50_000


class _Place:
    """A directory that a path has led to, whose id is held until it has no users any more.

    So is that of one of its children in a container: with it go the ids of all others, and nodes made for them.
    """

    __slots__ = ("child", "ident", "is_settled", "lease", "until", "users")

    def __init__(self, found: Found, until: float) -> None:
        self.ident = found.ident
        self.lease: Lease = found.node.origin.lease
        self.is_settled = isinstance(found.node, Settled)
        self.until = until
        self.child = 0
        self.users = 1
        """Those who look into it, and what is remembered."""


class Paths:
    """What the paths of the kernel lead to."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._lock = threading.Lock()
        self._places: OrderedDict[str, _Place] = OrderedDict()
        """By path, the oldest first."""

    def take(self, path: str) -> Found:
        """What is at a path, with a reference that the caller gives back by ``forget``."""
        found, place = self._found(path)
        self._leave(place)
        return found

    @contextmanager
    def at(self, path: str) -> Iterator[Found]:
        """What is at a path, for as long as the block lasts."""
        found, place = self._found(path)
        try:
            yield found
        finally:
            if isinstance(found.node, Directory) and found.ident != ROOT:
                self._leave(self._remembered(path, found))
            elif not self._is_kept(found, place):
                self.forget(found.ident)
            self._leave(place)

    def forget(self, ident: int) -> None:
        self._operations.forget(ident, 1)

    def expire(self) -> None:
        """Gives back what was remembered for long enough. To be called a few times a second."""
        now = time.monotonic()
        while True:
            with self._lock:
                path, place = next(iter(self._places.items()), ("", None))
                if place is None or place.until > now:
                    return
                del self._places[path]
            self._leave(place)

    def _found(self, path: str) -> tuple[Found, _Place | None]:
        """What is at a path, with a reference, and the directory that it is in, with one more user."""
        try:
            return self._looked_up(path)
        except (Changed, NotADirectory, NotFound) as error:
            if not self._doubt(path, isinstance(error, Changed)):
                raise
        return self._looked_up(path)

    def _looked_up(self, path: str) -> tuple[Found, _Place | None]:
        operations = self._operations
        above, _, name = path.rpartition("/")
        if not name:
            return Found(ROOT, operations.node(ROOT), operations.attributes(ROOT)[0], 0.0, 0.0), None
        place = self._place(above)
        try:
            return operations.look_up(ROOT if place is None else place.ident, name), place
        except BaseException:
            self._leave(place)
            raise

    def _is_kept(self, found: Found, place: _Place | None) -> bool:
        """Whether the reference to what was found is kept with the directory that it is in."""
        if place is None or not place.is_settled:
            return False
        with self._lock:
            is_first = not place.child
            if is_first:
                place.child = found.ident
        return is_first

    def _place(self, path: str) -> _Place | None:
        """The directory at a path, with one more user, or None for the root."""
        names: list[str] = []
        place = self._known(path)
        while path and place is None:
            path, _, name = path.rpartition("/")
            names.append(name)
            place = self._known(path)
        while names:
            name = names.pop()
            try:
                found = self._operations.look_up(ROOT if place is None else place.ident, name)
            finally:
                self._leave(place)
            if not isinstance(found.node, Directory):
                self.forget(found.ident)
                raise NotADirectory("is not a directory", part=name)
            path = f"{path}/{name}"
            place = self._remembered(path, found)
        return place

    def _known(self, path: str) -> _Place | None:
        """What is remembered of a path, with one more user."""
        with self._lock:
            place = self._places.get(path)
            if place is None:
                return None
            if place.until > time.monotonic() and not place.lease.is_retired:
                place.users += 1
                return place
            del self._places[path]
        self._leave(place)
        return None

    def _remembered(self, path: str, found: Found) -> _Place:
        """Remembers a directory and the reference to it; the place, with one more user."""
        place = _Place(found, time.monotonic() + MOMENT)
        with self._lock:
            before = [self._places.pop(path)] if path in self._places else []
            if len(self._places) >= REMEMBERED_DIRECTORIES:
                before.append(self._places.popitem(last=False)[1])
            self._places[path] = place
            place.users += 1
        for one in before:
            self._leave(one)
        return place

    def _leave(self, place: _Place | None) -> None:
        if place is None:
            return
        with self._lock:
            place.users -= 1
            is_used = place.users > 0
        if not is_used:
            for ident in filter(None, (place.child, place.ident)):
                self.forget(ident)

    def _doubt(self, path: str, is_changed: bool) -> bool:
        """Whether something was remembered on the way to a path that may have been outdated; it no longer is.

        What is not in a directory of a container that is there as it was will not be there for the next one either.
        """
        above = path.rpartition("/")[0]
        dropped = []
        with self._lock:
            nearest = self._places.get(above)
            if nearest is not None and nearest.is_settled and not nearest.lease.is_retired and not is_changed:
                return False
            while above:
                if above in self._places:
                    dropped.append(self._places.pop(above))
                above = above.rpartition("/")[0]
        for place in dropped:
            self._leave(place)
        return bool(dropped)


class Opened(NamedTuple):
    """A handle for ``read_into``, and what the kernel may do.

    ``is_direct``: it must not keep pages for this handle, nor read what it has; so while an older version is open
    under the same path, as both would share the pages. ``keeps_pages``: what it has is of the version that was opened.
    """

    number: int
    is_direct: bool
    keeps_pages: bool


@dataclass(slots=True)
class _Version:
    """Of which file the kernel may have pages under a path."""

    identity: str
    is_settled: bool = False
    """The kernel has dropped the pages of the version before: it does that before the first read or release."""


@dataclass(slots=True)
class _Handle:
    ident: int
    path: str
    version: _Version
    is_old: bool = False
    """A newer version was opened under the same path."""


class Handles:
    """Open files and directories, each of which holds a reference to its id, and so the lease on its container."""

    def __init__(self, operations: Operations, paths: Paths) -> None:
        self._operations = operations
        self._paths = paths
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._files: dict[int, _Handle] = {}
        self._by_path: dict[str, dict[int, _Handle]] = {}
        self._versions: OrderedDict[str, _Version] = OrderedDict()
        self._listings: dict[int, tuple[int, Listing]] = {}
        self._shown: OrderedDict[str, str] = OrderedDict()
        """Of which version the kernel has been told the attributes, by path."""

    def __len__(self) -> int:
        return len(self._files) + len(self._listings)

    def show(self, path: str) -> Attributes:
        """The attributes of what is at a path. The kernel keeps them, and with them the size, for some time."""
        with self._paths.at(path) as found:
            if isinstance(found.node, File):
                with self._lock:
                    self._shown[path] = found.node.origin.identity
                    if len(self._shown) > REMEMBERED_VERSIONS:
                        self._shown.popitem(last=False)
            return found.attributes

    def open(self, path: str, flags: int) -> Opened:
        """Raises Answer where the kernel has attributes of another version: on ESTALE it asks for them and comes again.

        Otherwise what is larger now would seem to end where the older version did.
        """
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise Answer(errno.EROFS)
        found = self._paths.take(path)
        try:
            file = found.node
            if not isinstance(file, File):
                raise IsADirectory("is a directory", part=path)
            if self._shown.get(path, file.origin.identity) != file.origin.identity:
                raise Answer(errno.ESTALE)
            file.prepare()
        except BaseException:
            self._paths.forget(found.ident)
            raise
        identity = file.origin.identity
        number = next(self._numbers)
        with self._lock:
            others = self._by_path.setdefault(path, {})
            old = [handle for handle in others.values() if handle.version.identity != identity]
            for handle in old:
                handle.is_old = True
            version = self._versions.get(path)
            if version is None or version.identity != identity:
                version = self._versions[path] = _Version(identity)
                if len(self._versions) > REMEMBERED_VERSIONS:
                    self._versions.popitem(last=False)
            others[number] = self._files[number] = _Handle(found.ident, path, version)
        return Opened(number, bool(old) or file.is_volatile, version.is_settled)

    def ident(self, number: int) -> int:
        """The id behind a handle. Raises Changed where another version was opened under its path."""
        handle = self._files.get(number)
        if handle is None:
            raise Answer(errno.EBADF)
        if handle.is_old:
            raise Changed("was replaced while it was open", part=handle.path)
        handle.version.is_settled = True
        return handle.ident

    def read_into(self, number: int, buffer: memoryview, offset: int) -> int:
        return self._operations.read_into(self.ident(number), buffer, offset)

    def release(self, number: int) -> None:
        with self._lock:
            handle = self._files.pop(number, None)
            if handle is None:
                raise Answer(errno.EBADF)
            handle.version.is_settled = True
            others = self._by_path[handle.path]
            del others[number]
            if not others:
                del self._by_path[handle.path]
        self._paths.forget(handle.ident)

    def opendir(self, path: str) -> int:
        found = self._paths.take(path)
        try:
            listing, _ = self._operations.listing(found.ident, 0)
            self._operations.listed(found.ident, listing.cookie)  # it is kept here
        except BaseException:
            self._paths.forget(found.ident)
            raise
        number = next(self._numbers)
        self._listings[number] = found.ident, listing
        return number

    def listing(self, number: int) -> Listing:
        """What ``opendir`` opened."""
        try:
            return self._listings[number][1]
        except KeyError:
            raise Answer(errno.EBADF) from None

    def releasedir(self, number: int) -> None:
        try:
            ident, _ = self._listings.pop(number)
        except KeyError:
            raise Answer(errno.EBADF) from None
        self._paths.forget(ident)
