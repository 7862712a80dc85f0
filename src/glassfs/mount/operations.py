"""What the kernel asks, answered from a tree in node ids. No ctypes here, and no FUSE: it can be driven by hand.

Every method may be called from any thread, and raises what the tree raises, or ``Answer`` for an errno of its own.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from glassfs.errors import Changed, GlassfsError, IsADirectory, NotFound
from glassfs.mount.errors import Answer
from glassfs.mount.inodes import ROOT, Inodes
from glassfs.mount.options import MountOptions
from glassfs.tree import Directory, File, Node, Origin, Settled, Symlink
from glassfs.tree.nodes import XATTR_PREFIX, Facts

BLOCK = 512
STATFS_BLOCK = 4096
LONGEST_NAME = 255
LONG = 86_400.0
"""Seconds that the kernel may rely on what cannot change, or on what it will be told of."""
SHORT = 0.5
REMEMBERED_NAMES = 20_000
KEPT_SNAPSHOTS = 64
SETTLED = 2 * 10**9
"""Nanoseconds after which the next change of a folder is sure to give it another mtime."""
COOKIE = 32
"""Bits of a position in a listing; above them stands which snapshot of a folder that changes it belongs to."""


AnyNode = TypeVar("AnyNode", bound=Node)


class Attributes(NamedTuple):
    """A node's stat fields. Times are nanoseconds since 1970."""

    mode: int
    nlink: int
    ino: int
    uid: int
    gid: int
    size: int
    mtime_ns: int

    @property
    def blocks(self) -> int:
        return -(-self.size // BLOCK)


class Found(NamedTuple):
    """What a look-up gives: an id with one more reference, the attributes, and for how many seconds they are good."""

    ident: int
    node: Node
    attributes: Attributes
    entry_timeout: float
    timeout: float


class Stale(NamedTuple):
    """What the kernel is to forget: entries of directories, by the directory's node id and name, and nodes."""

    entries: Sequence[tuple[int, str]] = ()
    nodes: Sequence[int] = ()


class Missing(NotFound):
    """There is no such name, and for ``timeout`` seconds there will not be."""

    def __init__(self, reason: str = "", source: str = "", part: str = "", timeout: float = 0.0) -> None:
        super().__init__(reason, source, part)
        self.timeout = timeout


class Listing:
    """The children of a directory, in order: those of a container, or what was in a folder when it was listed.

    ``own`` is listed before them. ``cookie`` is added to each position; ``timeout`` is for how many seconds all this is
    good.
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
        self._nodes = () if isinstance(directory, Settled) else directory.listing()
        self._count = directory.count if isinstance(directory, Settled) else len(self._nodes)

    def __len__(self) -> int:
        return self._count + (self.own is not None)

    @property
    def nodes(self) -> Sequence[Node]:
        """Without ``own``; those of a container are made when they are asked for."""
        return self.directory.listing() if self.is_settled else self._nodes

    def nodes_from(self, start: int) -> Iterator[Node]:
        """The nodes from position ``start`` on."""
        if self.own is not None:
            if start == 0:
                yield self.own
            start = max(0, start - 1)
        nodes = self.nodes
        for number in range(start, self._count):
            yield nodes[number]

    def node(self, position: int) -> Node:
        if self.own is not None:
            if not position:
                return self.own
            position -= 1
        return self.directory.at(position) if isinstance(self.directory, Settled) else self._nodes[position]

    def held_from(self, start: int) -> Iterator[tuple[int, Node]]:
        """What is listed from position ``start`` on and may change: ids, each with one more reference, and nodes.

        0 is the id of what has to be asked for. Who stops early gives back the last one by ``forget``.
        """
        if self.own is not None:
            if start == 0:
                yield self._inodes.hold_named(self._parent, self.own), self.own
            start = max(0, start - 1)
        for node in itertools.islice(self._nodes, start, None):
            yield 0 if node.is_volatile else self._inodes.hold_named(self._parent, node), node

    def held_inside(self, start: int) -> tuple[int, Iterable[Facts]]:
        """What is listed of a container from position ``start`` on: the id of the first, and facts.

        Each has one more reference; whoever does not need that many gives back the others.
        """
        start -= self.own is not None
        if start >= self._count or not isinstance(self.directory, Settled):
            return 0, ()
        run = self._inodes.hold_settled(self._parent, self.directory, self.directory.inside, self._count - start)
        return run.first + start, self.directory.facts(start, self._count)


class Operations:
    """The file system over ``root``, with ``own`` as one more directory in it.

    ``total_size`` gives the bytes of all sources, for ``df``.
    """

    def __init__(
        self, root: Callable[[], Directory], own: Callable[[], Directory], options: MountOptions,
        total_size: Callable[[], int],
    ) -> None:
        self.options = options
        self.inodes = Inodes(root, own)
        self.longest = LONG
        """Seconds; less where the kernel cannot be told that something has changed."""
        self.has_presumed = False
        """Whether there may be directories that are presumed, so that OPENDIR has to ask."""
        self._total_size = total_size
        self._mask = ~(options.umask or 0)
        self._lock = threading.Lock()
        self._snapshots: OrderedDict[tuple[int, int], Listing] = OrderedDict()
        self._numbers = itertools.count(1)
        self._names_at_root: set[str] = set()
        self._noted = ""
        """The version whose names at the root are all among them."""
        self._unsettled: dict[int, float] = {}

    def look_up(self, parent: int, name: str) -> Found:
        """A name in a directory. Raises Missing where it is not there."""
        if parent == ROOT:
            self._note_at_root(name)
        directory = self.inodes.directory(parent)
        timeout = self._timeout_in(parent, directory)
        try:
            ident, node = self.inodes.look_up(parent, directory, name)
        except NotFound as error:
            # No variable has the exception: its frames would refer to it, and wait for the collector.
            raise Missing(error.reason, error.source, error.part, timeout) from None
        try:
            attributes = self.attributes_of(node)
            # After what may have taken long: the kernel is told of a change once, and must not get the old name later.
            _checked(node)
        except BaseException:
            self.inodes.forget(ident, 1)
            raise
        if node.is_volatile:
            return Found(ident, node, attributes, 0.0, self.longest)
        timeout = self.timeout_of(node, timeout)
        return Found(ident, node, attributes, timeout, timeout)

    def timeout_of(self, node: Node, timeout: float) -> float:
        """For how many seconds a node is good in a directory where others are for so many."""
        return min(SHORT, timeout) if node.origin.has_other_names else timeout

    def forget(self, ident: int, references: int) -> None:
        self.inodes.forget(ident, references)

    def node(self, ident: int) -> Node:
        """Raises Changed where the node belongs to a version that another has taken the place of."""
        return _checked(self.inodes.node(ident))

    def attributes(self, ident: int) -> tuple[Attributes, float]:
        """All attributes, and for how many seconds they are good."""
        if self.inodes.is_in_container(ident):
            return self.attributes_of(self.node(ident)), self.longest
        with suppress(NotFound, Changed):  # deleted, or in a folder that is, and still open: the attributes that it had
            self.inodes.renew(ident)
        return self.attributes_of(self.node(ident)), min(SHORT, self.longest)

    def attributes_of(self, node: Node) -> Attributes:
        """All attributes. May take a pass over the data for a file whose size needs one."""
        size = 0
        if isinstance(node, File):
            size = node.data.size
        elif isinstance(node, Symlink):
            size = len(os.fsencode(node.target))
        if node.is_of_mount:
            origin = node.origin
            return Attributes(node.mode, 1, node.ino, origin.uid, origin.gid, size, origin.mtime_ns)
        return self.attributes_in(node.origin, node.mode, node.ino, size)

    def attributes_in(self, origin: Origin, mode: int, ino: int = 0, size: int = 0) -> Attributes:
        """Those of what comes from a source."""
        _, uid, gid = origin.access
        uid = uid if self.options.uid is None else self.options.uid
        gid = gid if self.options.gid is None else self.options.gid
        mode = mode if stat.S_ISLNK(mode) else mode & self._mask
        # One link: to count sub-directories would take a look into each directory.
        return Attributes(mode, 1, ino, uid, gid, size, origin.mtime_ns)

    def known_attributes(self, node: Node) -> Attributes | None:
        """The attributes, if they are known without reading from the container."""
        is_known = not isinstance(node, File) or (node.data.is_sized and not node.is_volatile)
        return self.attributes_of(node) if is_known else None

    def read_into(self, ident: int, buffer: memoryview, offset: int) -> int:
        """Fills the buffer from ``offset`` on, as far as the file goes; the number of bytes."""
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
        """Somebody opens a directory. Raises Changed where it is none, and the kernel looks its name up again."""
        _checked(self.inodes.directory(ident)).enter()

    def listing(self, ident: int, cookie: int) -> tuple[Listing, int]:
        """What to list a directory from, and from which position on: 0, or where a cookie has led before."""
        number, position = cookie >> COOKIE, cookie & (1 << COOKIE) - 1
        if number:
            with self._lock:
                kept = self._snapshots.get((ident, number))
            if kept is not None:
                return kept, position
        directory = _checked(self.inodes.directory(ident))
        timeout = self._timeout_in(ident, directory)
        own = self.inodes.own() if ident == ROOT else None
        number = 0 if isinstance(directory, Settled) else next(self._numbers) & 0x3FFFFFFF
        listing = Listing(self.inodes, ident, directory, own, number << COOKIE, timeout)
        if ident == ROOT and listing.is_settled:
            self._note_all_at_root(listing.nodes)
        if not listing.is_settled:
            if time.time_ns() - directory.origin.mtime_ns < SETTLED:
                self._unsettled[ident] = time.monotonic() + SHORT
            with self._lock:
                self._snapshots[ident, number] = listing
                if len(self._snapshots) > KEPT_SNAPSHOTS:
                    self._snapshots.popitem(last=False)
        return listing, position

    def listed(self, ident: int, cookie: int) -> None:
        """Somebody has come to the end of a listing."""
        if cookie >> COOKIE:
            with self._lock:
                self._snapshots.pop((ident, cookie >> COOKIE), None)

    def getxattr(self, ident: int, name: str) -> bytes:
        if not name.startswith("user."):
            # Not ENODATA: on ENOTSUP ``ls -l`` stops asking after the first file.
            raise Answer(errno.ENOTSUP)
        node = self.node(ident)
        if isinstance(node, Directory) and name.startswith(XATTR_PREFIX):
            node.enter()
        try:
            return node.xattrs()[name]
        except KeyError:
            raise Answer(errno.ENODATA) from None

    def listxattr(self, ident: int) -> list[str]:
        return list(self.node(ident).xattrs())

    def statfs(self) -> dict[str, int]:
        """The fields of statvfs: as large as the sources, and nothing free."""
        return {
            "f_bsize": STATFS_BLOCK,
            "f_frsize": STATFS_BLOCK,
            "f_blocks": -(-self._total_size() // STATFS_BLOCK),
            "f_namemax": LONGEST_NAME,
        }

    def stale(self, at: str) -> Stale:
        """What the kernel may have of what is at a path of the tree: entries by directory and name, and node ids."""
        ident, above, entries = ROOT, [], []
        for name in at.split("/")[1:]:
            entries, above = [(ident, name)], [ident]
            below = self.inodes.named(ident, name)
            if below is None:
                return Stale(entries, above)
            ident = below
        for one in (*above, ident):
            with suppress(GlassfsError):  # gone, or another: that shows when somebody asks
                self.inodes.renew(one)
        if ident == ROOT:
            with self._lock:
                entries = [(ROOT, name) for name in self._names_at_root]
        return Stale(entries, [*above, ident, *self.inodes.below(ident)])

    def unsettled(self) -> list[int]:
        """Folders of which the kernel may have kept a listing, although they may have changed under the same mtime."""
        now = time.monotonic()
        due = [ident for ident, when in list(self._unsettled.items()) if when <= now]
        for ident in due:
            self._unsettled.pop(ident, None)
        return due

    def _timeout_in(self, ident: int, directory: Directory) -> float:
        """For how many seconds what is in a directory is good. To be asked before looking at what that is."""
        is_told = isinstance(directory, Settled) or directory.watch()
        if is_told and (ident != ROOT or len(self._names_at_root) < REMEMBERED_NAMES):
            return self.longest
        return min(SHORT, self.longest)

    def _note_at_root(self, name: str) -> None:
        """The kernel has to be told of each name in the root when a container is the root and changes."""
        with self._lock:
            if len(self._names_at_root) < REMEMBERED_NAMES:
                self._names_at_root.add(name)

    def _note_all_at_root(self, nodes: Sequence[Node]) -> None:
        """Once for each version, however many requests a listing takes."""
        identity = nodes[0].origin.identity if nodes else ""
        with self._lock:
            if self._noted == identity:
                return
            for node in nodes:
                if len(self._names_at_root) >= REMEMBERED_NAMES:
                    break
                self._names_at_root.add(node.name)
            self._noted = identity


def _checked(node: AnyNode) -> AnyNode:
    """Raises Changed where it belongs to a version that another has taken the place of."""
    if node.origin.lease.is_replaced:
        raise Changed("was replaced while it was open", part=node.name)
    return node
