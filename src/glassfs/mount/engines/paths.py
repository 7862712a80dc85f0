"""Map the paths and handles of libfuse's high-level API to the node ids of ``Operations``. No ctypes.

A path is looked up name by name; the ids of the directories on the way are cached for a moment. Every reference that a
look-up returns is held by this cache or by an open handle, or released. The kernel caches pages by path; ``Handles``
ensures that two versions of a file never share them. Any thread.
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
from glassfs.lru import LRU
from glassfs.mount.errors import Answer
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import ATTEMPTS, Attributes, Listing, Lookup, Operations
from glassfs.settings import settings
from glassfs.tree import Directory, File, Settled
from glassfs.tree.lease import Lease

MAX_DIRECTORIES = 4096
MAX_VERSIONS = 50_000


class _CachedDirectory:
    """The directory at a path. Its id is held until it has no users, and so is the id of one child in a container.

    The child keeps the ids of all its siblings, and their nodes, from being dropped.
    """

    __slots__ = ("child", "ident", "is_settled", "lease", "until", "users")

    def __init__(self, found: Lookup, until: float) -> None:
        self.ident = found.ident
        self.lease: Lease = found.node.origin.lease
        self.is_settled = isinstance(found.node, Settled)
        self.until = until
        self.child = 0
        self.users = 1
        """Look-ups in progress, and the cache."""


class Paths:
    """Nodes by path."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._lock = threading.Lock()
        self._directories: OrderedDict[str, _CachedDirectory] = OrderedDict()
        """By path, the oldest first."""

    def take(self, path: str) -> Lookup:
        """Look up a path; the caller must release the reference by ``forget``."""
        found, directory = self._found(path)
        self._leave(directory)
        return found

    @contextmanager
    def at(self, path: str) -> Iterator[Lookup]:
        """Look up a path and hold the reference while the block lasts."""
        found, directory = self._found(path)
        try:
            yield found
        finally:
            if isinstance(found.node, Directory) and found.ident != ROOT:
                self._leave(self._remembered(path, found))
            elif not self._is_kept(found, directory):
                self.forget(found.ident)
            self._leave(directory)

    def forget(self, ident: int) -> None:
        self._operations.forget(ident, 1)

    def expire(self) -> bool:
        """Drop expired directories; return whether others are left. Call this a few times a second."""
        now = time.monotonic()
        while True:
            with self._lock:
                path, directory = next(iter(self._directories.items()), ("", None))
                if directory is None or directory.until > now:
                    return directory is not None
                del self._directories[path]
            self._leave(directory)

    def _found(self, path: str) -> tuple[Lookup, _CachedDirectory | None]:
        """Return the node at a path with a reference, and its directory with one more user."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self._looked_up(path)
            except (Changed, NotADirectory, NotFound) as error:
                if not self._dropped_stale(path, isinstance(error, Changed)):
                    raise
        return self._looked_up(path)

    def _looked_up(self, path: str) -> tuple[Lookup, _CachedDirectory | None]:
        operations = self._operations
        above, _, name = path.rpartition("/")
        if not name:
            return Lookup(ROOT, operations.node(ROOT), operations.attributes(ROOT)[0], 0.0, 0.0), None
        directory = self._directory(above)
        try:
            return operations.look_up(ROOT if directory is None else directory.ident, name), directory
        except BaseException:
            self._leave(directory)
            raise

    def _is_kept(self, found: Lookup, directory: _CachedDirectory | None) -> bool:
        """Return whether the directory keeps the reference to the node that was found in it."""
        if directory is None or not directory.is_settled:
            return False
        with self._lock:
            is_first = not directory.child
            if is_first:
                directory.child = found.ident
        return is_first

    def _directory(self, path: str) -> _CachedDirectory | None:
        """Return the directory at a path with one more user, or None for the root."""
        names: list[str] = []
        directory = self._known(path)
        while path and directory is None:
            path, _, name = path.rpartition("/")
            names.append(name)
            directory = self._known(path)
        while names:
            name = names.pop()
            try:
                found = self._operations.look_up(ROOT if directory is None else directory.ident, name)
            finally:
                self._leave(directory)
            if not isinstance(found.node, Directory):
                self.forget(found.ident)
                raise NotADirectory("is not a directory", part=name)
            path = f"{path}/{name}"
            directory = self._remembered(path, found)
        return directory

    def _known(self, path: str) -> _CachedDirectory | None:
        """Return the cached directory at a path with one more user, or None."""
        # Counted under the lock, so that no other thread gives up the id between finding the directory and using it.
        with self._lock:
            directory = self._directories.get(path)
            if directory is None:
                return None
            if directory.until > time.monotonic() and not directory.lease.is_retired:
                directory.users += 1
                return directory
            del self._directories[path]
        self._leave(directory)
        return None

    def _remembered(self, path: str, found: Lookup) -> _CachedDirectory:
        """Cache a directory and the reference to it; return it with one more user."""
        directory = _CachedDirectory(found, time.monotonic() + settings.path_cached)
        with self._lock:
            # Two threads may have looked up the same path: the later one replaces the entry, whose users still hold it.
            before = [self._directories.pop(path)] if path in self._directories else []
            if len(self._directories) >= MAX_DIRECTORIES:
                before.append(self._directories.popitem(last=False)[1])
            self._directories[path] = directory
            directory.users += 1
        for one in before:
            self._leave(one)
        return directory

    def _leave(self, directory: _CachedDirectory | None) -> None:
        if directory is None:
            return
        with self._lock:
            directory.users -= 1
            is_used = directory.users > 0
        if not is_used:
            for ident in filter(None, (directory.child, directory.ident)):
                self.forget(ident)

    def _dropped_stale(self, path: str, is_changed: bool) -> bool:
        """Drop cached directories above a path that may be stale; return whether there were any.

        A failed look-up in a container that has not changed needs no second attempt.
        """
        above = path.rpartition("/")[0]
        dropped = []
        with self._lock:
            nearest = self._directories.get(above)
            if nearest is not None and nearest.is_settled and not nearest.lease.is_retired and not is_changed:
                return False
            while above:
                if above in self._directories:
                    dropped.append(self._directories.pop(above))
                above = above.rpartition("/")[0]
        # Not under the lock: giving up the last reference may drop listings and leases.
        for directory in dropped:
            self._leave(directory)
        return bool(dropped)


class OpenReply(NamedTuple):
    """A handle for ``read_into``, and how the kernel may cache.

    ``is_direct``: it must not use pages for this handle, as an older version is open under the same path and both would
    share them. ``keeps_pages``: the pages it has are of the version that was opened.
    """

    number: int
    is_direct: bool
    keeps_pages: bool


@dataclass(slots=True)
class _PageVersion:
    """The version of a file whose pages the kernel may have under a path."""

    identity: str
    is_settled: bool = False
    """Whether the kernel has dropped the pages of the previous version, as it does before the first read or release."""


@dataclass(slots=True)
class _Handle:
    ident: int
    path: str
    version: _PageVersion
    is_old: bool = False
    """A newer version was opened under the same path."""


class Handles:
    """Open files and directories. Each holds a reference to its id, and so the lease on its container."""

    def __init__(self, operations: Operations, paths: Paths) -> None:
        self._operations = operations
        self._paths = paths
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._files: dict[int, _Handle] = {}
        self._by_path: dict[str, dict[int, _Handle]] = {}
        self._versions: LRU[str, _PageVersion] = LRU(MAX_VERSIONS)
        self._listings: dict[int, tuple[int, Listing]] = {}
        self._shown: LRU[str, str] = LRU(MAX_VERSIONS)
        """The identity of the version whose attributes the kernel got last, by path."""

    def __len__(self) -> int:
        return len(self._files) + len(self._listings)

    def show(self, path: str) -> Attributes:
        """Return the attributes of the node at a path. The kernel caches them, and so the size, for some time."""
        with self._paths.at(path) as found:
            if isinstance(found.node, File):
                self._shown.put(path, found.node.origin.identity)
            return found.attributes

    def open(self, path: str, flags: int) -> OpenReply:
        """Open a file. Raises Answer(ESTALE) if the kernel has attributes of another version.

        The kernel then asks for attributes and opens again. Otherwise a file that grew would seem to end early.
        """
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise Answer(errno.EROFS)
        found = self._paths.take(path)
        try:
            file = found.node
            if not isinstance(file, File):
                raise IsADirectory("is a directory", part=path)
            if self._shown.get(path) not in (None, file.origin.identity):
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
                version = _PageVersion(identity)
                self._versions.put(path, version)
            others[number] = self._files[number] = _Handle(found.ident, path, version)
        return OpenReply(number, bool(old) or file.is_volatile, version.is_settled)

    def ident(self, number: int) -> int:
        """Return the id behind a handle. Raises Changed if another version was opened under its path."""
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
            self._operations.listed(found.ident, listing.cookie)  # the handle keeps it
        except BaseException:
            self._paths.forget(found.ident)
            raise
        number = next(self._numbers)
        self._listings[number] = found.ident, listing
        return number

    def listing(self, number: int) -> Listing:
        """Return the listing that ``opendir`` opened."""
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
