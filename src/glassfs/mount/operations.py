"""What the kernel asks, answered from a tree. No ctypes here, and no FUSE: it can be driven by hand.

Every method may be called from any thread, and raises what the tree raises, or ``Answer`` for an errno of its own.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from glassfs.errors import Changed, IsADirectory, NotADirectory, NotFound
from glassfs.mount.errors import Answer
from glassfs.mount.options import MountOptions
from glassfs.tree import Directory, File, Node, Symlink, Tree

BLOCK = 512
STATFS_BLOCK = 4096
LONGEST_NAME = 255
REMEMBERED_VERSIONS = 50_000
REMEMBERED_MISSING = 50_000
"""Names in the root that were asked for and are not there: whoever asks for many must not cost memory for good."""


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


class Entry(NamedTuple):
    """A directory entry. The attributes are there if they are known without reading from the container."""

    name: bytes
    node: Node
    attributes: Attributes | None


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
    file: File
    path: str
    version: _Version
    is_old: bool = False
    """A newer version was opened under the same path."""


class Listing:
    """An opened directory: its children as they were then. ``entry`` makes of each what the kernel gets.

    While the kernel takes in some of them, the next ones are made by ``run``, which runs a task on another thread.
    """

    def __init__(
        self, nodes: Sequence[Node], entry: Callable[[Node], Entry], run: Callable[[Callable[[], object]], None],
    ) -> None:
        self._nodes = nodes
        self._entry = entry
        self._run = run
        self._lock = threading.Lock()
        self._expected = -1
        self._made: list[Entry] = []

    def entries(self, start: int = 0) -> Iterator[Entry]:
        """All entries from number ``start`` on."""
        with self._lock:
            made = self._made if self._expected == start else []
            self._expected, self._made = -1, []
        yield from made
        for number in range(start + len(made), len(self._nodes)):
            yield self._entry(self._nodes[number])

    def expect(self, start: int, count: int) -> None:
        """Somebody will soon ask for the entries from ``start`` on, and take about so many."""
        numbers = range(start, min(start + count, len(self._nodes)))

        def make() -> None:
            with self._lock:
                if self._expected == start:  # otherwise they have been asked for before their turn came
                    self._made = [self._entry(self._nodes[number]) for number in numbers]

        with self._lock:
            self._expected, self._made = start, []
        self._run(make)


class Operations:
    """The file system over ``tree``. ``total_size`` gives the bytes of all sources, for ``df``."""

    def __init__(self, tree: Tree, options: MountOptions, total_size: Callable[[], int]) -> None:
        self.tree = tree
        self.options = options
        self._total_size = total_size
        self._mask = ~options.umask
        self._files: dict[int, _Handle] = {}
        self._handles: dict[str, dict[int, _Handle]] = {}  # the same by path
        self._versions: OrderedDict[str, _Version] = OrderedDict()
        self._lock = threading.Lock()
        self._listings: dict[int, Listing] = {}
        self._numbers = itertools.count(1)
        self._names_at_root: set[str] = set()
        self._missing_at_root: OrderedDict[str, None] = OrderedDict()
        self._volatile: set[str] = set()
        self.on_volatile: Callable[[], None] = lambda: None
        """Called when something is opened that will be different for the next one: see ``taken_volatile``."""

    def node(self, path: str) -> Node:
        """The node at a path of the kernel."""
        name = path[1:].partition("/")[0]
        self._names_at_root.add(name)
        try:
            return self.tree.node(path)
        except NotFound:
            if path == f"/{name}":
                self._note_missing(name)
            raise

    def names_at_root(self) -> set[str]:
        """The names in the root that the kernel may remember."""
        with self._lock:
            return self._names_at_root.union(self._missing_at_root) - {""}

    def _note_missing(self, name: str) -> None:
        with self._lock:
            self._missing_at_root[name] = None
            self._names_at_root.discard(name)
            while len(self._missing_at_root) > REMEMBERED_MISSING:
                self._missing_at_root.popitem(last=False)

    def taken_volatile(self) -> set[str]:
        """The paths of what was opened since the last call and would be different by now."""
        with self._lock:
            taken, self._volatile = self._volatile, set()
            return taken

    def open_paths(self) -> list[str]:
        """The paths of all open files; one that is open twice is there twice."""
        return [handle.path for handle in list(self._files.values())]

    def attributes(self, node: Node) -> Attributes:
        """All attributes. May take a pass over the data for a file whose size needs one."""
        mode, size, origin = node.mode, 0, node.origin
        _, uid, gid = origin.access
        if isinstance(node, File):
            size = node.data.size
        elif isinstance(node, Symlink):
            size = len(os.fsencode(node.target))
        if not node.is_of_mount:
            uid = uid if self.options.uid is None else self.options.uid
            gid = gid if self.options.gid is None else self.options.gid
            mode = mode if isinstance(node, Symlink) else mode & self._mask
        # One link: to count sub-directories would take a look into each directory.
        return Attributes(mode, 1, node.ino, uid, gid, size, origin.mtime_ns)

    def known_attributes(self, node: Node) -> Attributes | None:
        """The attributes, if they are known without reading from the container."""
        is_known = not isinstance(node, File) or (node.data.is_sized and not node.is_volatile)
        return self.attributes(node) if is_known else None

    def _entry(self, node: Node) -> Entry:
        return Entry(node.name.encode("utf-8", "surrogateescape"), node, self.known_attributes(node))

    def readlink(self, path: str) -> str:
        node = self.node(path)
        if not isinstance(node, Symlink):
            raise Answer(errno.EINVAL)
        return node.target

    def open(self, path: str, flags: int) -> Opened:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise Answer(errno.EROFS)
        file = self.node(path)
        if not isinstance(file, File):
            raise IsADirectory("is a directory", part=path)
        file.origin.lease.acquire()
        try:
            file.prepare()
        except BaseException:
            file.origin.lease.release()
            raise
        identity = file.origin.identity
        number = next(self._numbers)
        with self._lock:
            if file.is_volatile:
                self._volatile.add(path)
            handles = self._handles.setdefault(path, {})
            old = [handle for handle in handles.values() if handle.file.origin.identity != identity]
            for handle in old:
                handle.is_old = True
            version = self._versions.get(path)
            if version is None or version.identity != identity:
                version = self._versions[path] = _Version(identity)
                if len(self._versions) > REMEMBERED_VERSIONS:
                    self._versions.popitem(last=False)
            handles[number] = self._files[number] = _Handle(file, path, version)
        if file.is_volatile:
            self.on_volatile()
        return Opened(number, bool(old) or file.is_volatile, version.is_settled)

    def opened(self, number: int) -> File:
        """The file behind a handle. Raises Changed where another has taken its place."""
        handle = self._files[number]
        if handle.is_old or handle.file.origin.lease.is_replaced:
            # The kernel keeps pages by path: bytes of the old file must not get among those of the new one.
            raise Changed("was replaced while it was open", part=handle.path)
        handle.version.is_settled = True
        return handle.file

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        return self.opened(handle).read_into(buffer, offset)

    def release(self, number: int) -> None:
        with self._lock:
            handle = self._files.pop(number)
            handle.version.is_settled = True
            handles = self._handles[handle.path]
            del handles[number]
            if not handles:
                del self._handles[handle.path]
        handle.file.origin.lease.release()

    def opendir(self, path: str) -> int:
        directory = self.node(path)
        if not isinstance(directory, Directory):
            raise NotADirectory("is not a directory", part=path)
        nodes = directory.listing()
        if path == "/":
            self._names_at_root.update(node.name for node in nodes)
        number = next(self._numbers)
        self._listings[number] = Listing(nodes, self._entry, directory.origin.services.cache.run)
        return number

    def listing(self, handle: int) -> Listing:
        """What ``opendir`` opened."""
        return self._listings[handle]

    def releasedir(self, handle: int) -> None:
        self._listings.pop(handle, None)

    def getxattr(self, path: str, name: str) -> bytes:
        if not name.startswith("user."):
            # Not ENODATA: on ENOTSUP ``ls -l`` stops asking after the first file.
            raise Answer(errno.ENOTSUP)
        try:
            return self.node(path).xattrs()[name]
        except KeyError:
            raise Answer(errno.ENODATA) from None

    def listxattr(self, path: str) -> list[str]:
        return list(self.node(path).xattrs())

    def statfs(self) -> dict[str, int]:
        """The fields of statvfs: as large as the sources, and nothing free."""
        return {
            "f_bsize": STATFS_BLOCK,
            "f_frsize": STATFS_BLOCK,
            "f_blocks": -(-self._total_size() // STATFS_BLOCK),
            "f_namemax": LONGEST_NAME,
        }


