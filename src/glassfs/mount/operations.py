"""Answer requests of the kernel from a tree, in node ids. Without ctypes and FUSE, so tests can call it directly.

Every method may be called from any thread. It raises what the tree raises, or ``Answer`` for an errno of its own.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from glassfs.errors import Changed, GlassfsError, IsADirectory, NotFound
from glassfs.lru import LRU
from glassfs.mount.errors import Answer
from glassfs.mount.inodes import ROOT, Inodes
from glassfs.mount.runs import Run
from glassfs.mount.status import ListedOmissions
from glassfs.settings import settings
from glassfs.tree import Directory, File, Node, Origin, Settled, Symlink
from glassfs.tree.nodes import XATTR_PREFIX, Facts
from glassfs.tree.omissions import ERROR, OMITTED, Omission, as_attributes

BLOCK = 512
LONGEST_NAME = 255
MAX_NAMES = 20_000
"""Names in the root that are remembered, as the kernel must forget each when a container that is the root changes."""
POSITION_BITS = 32
"""Bits of a cookie that are the position in a listing; the upper ones number the snapshot of a folder."""

AnyNode = TypeVar("AnyNode", bound=Node)
_new = tuple.__new__
"""Makes a named tuple without calling a function of Python. For what is made in each look-up, which takes 10 µs."""


class Attributes(NamedTuple):
    """The stat fields of a node. Times are nanoseconds since 1970."""

    mode: int
    ino: int
    uid: int
    gid: int
    size: int
    mtime_ns: int


class Lookup(NamedTuple):
    """The result of a look-up: a node id with one more reference, attributes, and timeouts in seconds.

    If there is no such name, the id is 0, and the kernel may remember that for ``entry_timeout`` seconds.
    """

    ident: int
    attributes: Attributes | None
    entry_timeout: float
    timeout: float


class Stale(NamedTuple):
    """What the kernel must forget: entries by node id of the directory and name, and the attributes of nodes.

    Nodes are given by id: some one by one, and all that the kernel knows of versions whose attributes changed, by
    version.
    """

    entries: Sequence[tuple[int, str]] = ()
    nodes: Sequence[int] = ()
    versions: Mapping[Hashable, Iterable[int]] = MappingProxyType({})


@dataclass
class _Listed:
    """The mtime of a folder that the kernel has listed, in nanoseconds, and what is added to it for the kernel.

    ``cached`` is what was added when the kernel listed the folder last.
    """

    mtime_ns: int
    shift: int = 0
    cached: int = 0


class Listing:
    """The children of a directory in order: those in a container, or a snapshot of a folder.

    ``own`` is listed first. ``cookie`` is added to each position. ``timeout`` is that of the entries, in seconds.
    """

    def __init__(
        self, inodes: Inodes, parent: int, directory: Directory, own: Node | None, cookie: int, timeout: float,
    ) -> None:
        self.directory = directory
        self.own = own
        self.cookie = cookie
        self.timeout = timeout
        self.is_settled = isinstance(directory, Settled)
        self._inodes = inodes
        self._parent = parent
        # A folder may change while it is listed, and names must not move; the children of a container stay.
        self._nodes = () if isinstance(directory, Settled) else directory.listing()
        self._count = (own is not None) + (directory.count if isinstance(directory, Settled) else len(self._nodes))

    def __len__(self) -> int:
        return self._count

    def node(self, position: int) -> Node:
        if self.own is not None:
            if not position:
                return self.own
            position -= 1
        return self.directory.at(position) if isinstance(self.directory, Settled) else self._nodes[position]

    def held_from(self, start: int) -> Iterator[tuple[int, Node]]:
        """Yield ids, each with one more reference, and nodes from position ``start`` on, except those in a container.

        The id is 0 for nodes that need a look-up. A caller that stops early must release the last id by ``forget``.
        """
        for position in range(start, int(self.own is not None) if self.is_settled else self._count):
            node = self.node(position)
            yield 0 if node.is_volatile else self._inodes.hold_named(self._parent, node), node

    def held_inside(self, origin: Origin, start: int) -> tuple[Run, int, Iterable[Facts]]:
        """Return the run of the children in a container, the first id from position ``start`` on, and facts of these.

        There must be some, and they have this origin. Each id has one more reference. The caller must call
        ``Inodes.keep``.
        """
        assert isinstance(self.directory, Settled)
        run = self._inodes.hold_settled(self._parent, self.directory, origin, self._count - start)
        start -= self.own is not None
        return run, run.first + start, self.directory.facts(start, self.directory.count)


class Operations:
    """The file system over ``root``, with ``own`` as one more directory in it.

    ``total_size`` returns the bytes of all sources, for ``df``. Nodes of sources have the owner ``uid`` and the group
    ``gid`` if given, and none of the mode bits ``umask``. If ``only_for`` is a user id, the kernel lets only that user
    and root enter the root directory.
    """

    def __init__(
        self, root: Callable[[], Directory], own: Callable[[], Directory], total_size: Callable[[], int],
        uid: int | None = None, gid: int | None = None, umask: int = 0, only_for: int | None = None,
    ) -> None:
        self.total_size = total_size
        self._uid, self._gid, self._mask, self._only_for = uid, gid, ~umask, only_for
        self.inodes = Inodes(root, own)
        self.has_presumed = False
        """Whether directories may turn out to be files, so that OPENDIR must check."""
        self.omitted = ListedOmissions()
        self._lock = threading.Lock()
        # Each snapshot is read to the end soon, and what the kernel has listed matters for seconds.
        self._snapshots: LRU[tuple[int, int], Listing] = LRU(64)
        self._numbers = itertools.count(1)
        self._names_at_root: set[str] = set()
        self._noted = ""
        """The version whose names at the root are all in ``_names_at_root``."""
        self._listed: LRU[int, _Listed] = LRU(4096)
        """Listed folders, and the root, by node id."""
        self._unsettled: dict[int, float] = {}
        """When to check folders again that were listed just after a change, by node id."""

    def look_up(self, parent: int, name: str) -> Lookup:
        """Look up a name in a directory. Raises Changed if its version was replaced."""
        if parent == ROOT:
            self._note_at_root((name,))
        directory = self.inodes.directory(parent)
        # The watch begins before the look-up, and the timeout is found before: a change in between is reported then.
        is_settled = isinstance(directory, Settled)
        timeout = settings.cached if is_settled and parent != ROOT else self._timeout_in(parent, directory)
        try:
            ident, node = self.inodes.look_up(parent, directory, name)
        except NotFound:
            return Lookup(0, None, timeout, 0.0)
        try:
            is_listed = not (is_settled or isinstance(node, Settled)) and isinstance(node, Directory)
            attributes = self._shown(ident, node) if is_listed else self.attributes_of(node)
            # Last, as the above may take long: the kernel is notified once and must not get a stale name afterwards.
            _checked(node)
        except BaseException:
            self.inodes.forget(ident, 1)
            raise
        if node.is_volatile:
            return Lookup(ident, attributes, 0.0, settings.cached)
        if node.origin.has_other_names:
            timeout = self.timeout_of(node, timeout)
        return _new(Lookup, (ident, attributes, timeout, timeout))

    def timeout_of(self, node: Node, timeout: float) -> float:
        """Return the timeout of a node in a directory where ``timeout`` is that of others."""
        return min(settings.cached_unwatched, timeout) if node.origin.has_other_names else timeout

    def node(self, ident: int) -> Node:
        """Return a node. Raises Changed if its version was replaced."""
        return _checked(self.inodes.node(ident))

    def attributes(self, ident: int) -> tuple[Attributes, float]:
        """Return all attributes, and their timeout in seconds."""
        if self.inodes.is_in_container(ident):
            return self.attributes_of(self.node(ident)), settings.cached
        with suppress(NotFound, Changed):  # deleted while open: the last known attributes
            self.inodes.renew(ident)
        return self._shown(ident, self.node(ident)), settings.cached_unwatched

    def _shown(self, ident: int, node: Node) -> Attributes:
        """Return all attributes, with an mtime by which the kernel sees whether its listing is out of date."""
        attributes = self.attributes_of(node)
        if ident == ROOT and self._only_for is not None:
            attributes = attributes._replace(uid=self._only_for, mode=attributes.mode & ~0o077)
        listed = self._listed.peek(ident)
        if listed is None or not listed.shift or listed.mtime_ns != attributes.mtime_ns:
            return attributes
        return attributes._replace(mtime_ns=attributes.mtime_ns + listed.shift)

    def attributes_of(self, node: Node) -> Attributes:
        """Return all attributes. May read all data of a file whose size needs that."""
        size = 0
        if isinstance(node, File):
            data = node.data
            size = data.size if data.is_sized else node.size
        elif isinstance(node, Symlink):
            size = len(os.fsencode(node.target))
        if node.is_of_mount:
            origin = node.origin
            return Attributes(node.mode, node.ino, *origin.access[1:], size, origin.mtime_ns)
        return self.attributes_in(node.origin, node.mode, node.ino, size)

    def attributes_in(self, origin: Origin, mode: int, ino: int = 0, size: int = 0) -> Attributes:
        """Return the attributes of a node that comes from a source."""
        access = origin.access
        uid = access.uid if self._uid is None else self._uid
        gid = access.gid if self._gid is None else self._gid
        mode = mode if stat.S_ISLNK(mode) else mode & self._mask
        return _new(Attributes, (mode, ino, uid, gid, size, origin.mtime_ns))

    def known_attributes(self, node: Node) -> Attributes | None:
        """Return the attributes, or None if they need a read from the container."""
        is_known = not isinstance(node, File) or (node.data.is_sized and not node.is_volatile)
        return self.attributes_of(node) if is_known else None

    def read_into(self, ident: int, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from ``offset`` on, up to the end of the file; return the number of bytes."""
        node = self.node(ident)
        if not isinstance(node, File):
            raise IsADirectory("is a directory", part=node.name)
        return node.read_into(buffer, offset)

    def readlink(self, ident: int) -> str:
        node = self.node(ident)
        if not isinstance(node, Symlink):
            raise Answer(errno.EINVAL)
        return node.target

    def enter(self, ident: int) -> None:
        """Verify a directory that is opened. Raises Changed if it is none; the kernel then looks its name up again."""
        _checked(self.inodes.directory(ident)).enter()

    def listing(self, ident: int, cookie: int) -> tuple[Listing, int]:
        """Return the listing of a directory, and the position in it that the cookie stands for."""
        number, position = cookie >> POSITION_BITS, cookie & (1 << POSITION_BITS) - 1
        if number:
            kept = self._snapshots.get((ident, number))
            if kept is not None:
                return kept, position
        directory = _checked(self.inodes.directory(ident))
        timeout = self._timeout_in(ident, directory)
        own = self.inodes.own() if ident == ROOT else None
        # Cookies of a folder begin with the number of their snapshot. In a container the position says it all, so that
        # a listing may continue after days, and needs no memory.
        number = 0 if isinstance(directory, Settled) else next(self._numbers) & 0x3FFFFFFF
        listing = Listing(self.inodes, ident, directory, own, number << POSITION_BITS, timeout)
        if isinstance(directory, Settled):
            if not position:
                self._note_omitted(ident, directory)
            if ident == ROOT and self._noted != directory.inside.identity:
                self._noted = directory.inside.identity
                self._note_at_root(list(itertools.islice(directory.names(), MAX_NAMES)))
        if ident == ROOT or not listing.is_settled:
            listed = self._listed.get(ident)
            if listed is None or listed.mtime_ns != directory.origin.mtime_ns:
                listed = _Listed(directory.origin.mtime_ns)
                self._listed.put(ident, listed)
            listed.cached = listed.shift
            # Clocks of file systems are coarse: a folder may change again within the same mtime after it was listed.
            # The kernel compares mtimes only, so it is asked again later, with an mtime that differs.
            if listed.shift or not _is_settled(directory.origin.mtime_ns):
                self._unsettled[ident] = time.monotonic() + settings.cached_unwatched
        if not listing.is_settled:
            self._snapshots.put((ident, number), listing)
        return listing, position

    def listed(self, ident: int, cookie: int) -> None:
        """Drop the snapshot of a listing that was read to the end."""
        if cookie >> POSITION_BITS:
            self._snapshots.pop((ident, cookie >> POSITION_BITS))

    def getxattr(self, ident: int, name: str) -> bytes:
        if not name.startswith("user."):
            # Not ENODATA: after ENOTSUP ``ls -l`` does not ask for other files.
            raise Answer(errno.ENOTSUP)
        node = self.node(ident)
        if isinstance(node, Directory) and name.startswith(XATTR_PREFIX):
            node.enter()
            if name in (ERROR, OMITTED):  # ``xattrs`` lists no directory
                found = {OMITTED: b""} | as_attributes(self._note_omitted(ident, node))
                if name in found:
                    return found[name]
        try:
            return node.xattrs()[name]
        except KeyError:
            raise Answer(errno.ENODATA) from None

    def _note_omitted(self, ident: int, directory: Directory) -> Sequence[Omission]:
        """Return what a directory does not show, and note it under its path."""
        omitted = directory.omitted()
        if omitted or self.omitted:
            names, above = list[str](), ident
            with suppress(GlassfsError):  # one above may be gone
                while above != ROOT:
                    names.append(self.inodes.node(above).name)
                    above = self.inodes.parent(above)
                self.omitted.note("/" + "/".join(reversed(names)), omitted)
        return omitted

    def listxattr(self, ident: int) -> list[str]:
        """Return the names of attributes. Lists no directory, as ``ls -l`` of coreutils 9.6 asks for each."""
        node = self.node(ident)
        names = list(node.xattrs())
        if isinstance(node, Directory) and not (node.is_of_mount or node.is_presumed):
            names.append(OMITTED)
        return names

    def stale(self, paths: Iterable[str], is_first: bool = True) -> Stale:
        """Return what the kernel may know of paths of the tree that have changed.

        If this ``is_first`` notification of a change, files and containers also get new ids: the kernel must not show
        pages of other bytes, and cannot be asked to drop them without waiting for readers.
        """
        entries: list[tuple[int, str]] = []
        nodes: list[int] = []
        names: set[tuple[int, str]] = set()
        for at in paths:
            parent, ident, name = ROOT, ROOT, ""
            for name in at.split("/")[1:]:
                parent = ident
                below = self.inodes.named(parent, name)
                if below is None:
                    ident = parent
                    break
                ident = below
            if name:
                entries.append((parent, name))
            else:
                with self._lock:
                    entries += [(ROOT, known) for known in self._names_at_root]
            for one in dict.fromkeys((parent, ident)):
                with suppress(GlassfsError):  # deleted or replaced: the next request shows that
                    self.inodes.renew(one)
                self._relist(one)
                nodes.append(one)
            names.add((parent, name))
        versions = self.inodes.same_version(names)
        # Last, as the ids that the names had until now are those that the kernel knows, and is notified of.
        if is_first:
            for parent, name in names:
                self.inodes.detach(parent, name)
        return Stale(entries, nodes, versions)

    def unsettled(self) -> list[int]:
        """Return folders that may have changed under the same mtime after the kernel cached their listing."""
        now = time.monotonic()
        due = [ident for ident, when in list(self._unsettled.items()) if when <= now]
        for ident in due:
            self._unsettled.pop(ident, None)
            listed = self._listed.get(ident)
            if listed is not None and not _is_settled(listed.mtime_ns):
                self._unsettled[ident] = now + settings.cached_unwatched
                listed.shift += 1
            elif listed is not None and listed.cached == listed.shift:
                listed.shift = 0  # also differs from what it was when the kernel listed the folder
        return due

    def _relist(self, ident: int) -> None:
        """Have the kernel list a directory anew, also if its mtime is the same as before.

        It compares mtimes. Asked to drop the cached listing, it would wait for the process that reads it.
        """
        listed = self._listed.get(ident)
        if listed is not None:
            with suppress(GlassfsError):
                if self.inodes.node(ident).origin.mtime_ns == listed.mtime_ns:
                    listed.shift += 1

    def _timeout_in(self, ident: int, directory: Directory) -> float:
        """Return the timeout of a directory's entries. Call it before reading them, as it begins to watch."""
        if ident != ROOT and isinstance(directory, Settled):
            return settings.cached
        is_notified = isinstance(directory, Settled) or directory.watch()
        if is_notified and (ident != ROOT or len(self._names_at_root) < MAX_NAMES):
            return settings.cached
        return settings.cached_unwatched

    def _note_at_root(self, names: Iterable[str]) -> None:
        """Remember names in the root: when a container that is the root changes, each must be invalidated."""
        with self._lock:
            for name in names:
                if len(self._names_at_root) < MAX_NAMES:
                    self._names_at_root.add(name)


def _is_settled(mtime_ns: int) -> bool:
    """Return whether the next change of a folder is sure to change its mtime."""
    return time.time_ns() - mtime_ns >= settings.settled * 10**9


def _checked(node: AnyNode) -> AnyNode:
    """Return the node. Raises Changed if its version was replaced."""
    if node.origin.lease.is_replaced:
        raise Changed("was replaced while it was open", part=node.name)
    return node
