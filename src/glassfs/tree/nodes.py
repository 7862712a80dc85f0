"""Directories, files and symbolic links: names, sizes, inode numbers and attributes.

Nodes are immutable and cheap; a directory's children are made when somebody looks into it, kept in the ``Listings``
of the tree, and made again after they were dropped. Any thread. What a content raises goes through unchanged.
"""

from __future__ import annotations

import stat
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from glassfs.cache import BlockCache
from glassfs.content import Content, Data
from glassfs.errors import GlassfsError, NotFound
from glassfs.source import Source

XATTR_PREFIX = "user.glassfs."
KEPT_NODES = 200_000
LOCKS = 64


class Listings:
    """The children of directories that were looked into lately, up to a number of nodes in all."""

    def __init__(self, limit: int = KEPT_NODES) -> None:
        self._limit = limit
        self._count = 0
        self._kept: OrderedDict[tuple[Origin, int], Mapping[str, Node]] = OrderedDict()
        self._lock = threading.Lock()
        self._making = tuple(threading.Lock() for _ in range(LOCKS))

    def children(self, directory: Directory, make: Callable[[], Mapping[str, Node]]) -> Mapping[str, Node]:
        """What ``make`` gives for this directory, made by one thread and remembered."""
        key = (directory.origin, directory.ino)
        found = self._find(key)
        if found is None:
            with self._making[directory.ino % LOCKS]:
                found = self._find(key)
                if found is None:
                    found = make()
                    self._keep(key, found)
        return found

    def forget(self, origin: Origin) -> None:
        """Drops all that belongs to a container, and keeps nothing of it from now on: it was closed."""
        with self._lock:
            origin.is_forgotten = True
            for key in [key for key in self._kept if key[0] is origin]:
                self._count -= len(self._kept.pop(key)) + 1

    def _find(self, key: tuple[Origin, int]) -> Mapping[str, Node] | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _keep(self, key: tuple[Origin, int], children: Mapping[str, Node]) -> None:
        with self._lock:
            if key[0].is_forgotten:
                return
            self._kept[key] = children
            self._count += len(children) + 1
            while self._count > self._limit and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._count -= len(dropped) + 1


@dataclass(slots=True, eq=False)
class Origin:
    """What all nodes of one container, or of one file or folder, share. Times are nanoseconds since 1970."""

    identity: str
    file_mode: int
    directory_mode: int
    uid: int
    gid: int
    mtime_ns: int
    cache: BlockCache
    listings: Listings
    format: str = ""
    is_replaced: bool = False
    """Another file has taken the place of the one that this shows."""
    is_forgotten: bool = False
    """The container was closed; kept by the listings."""
    users: int = 0
    """How many have a file open; kept by the kernel side, under its lock."""
    retired: Callable[[], None] | None = None
    """What to do when the last of them is gone, once the container has been closed."""

    @classmethod
    def of(cls, source: Source, cache: BlockCache, listings: Listings, format_name: str = "") -> Origin:
        """Modes are 0444 and 0555 less what the source's own mode forbids."""
        identity = source.identity
        return cls(
            ":".join(map(str, identity)), *modes(source.mode), source.uid, source.gid, identity.mtime_ns,
            cache, listings, format_name,
        )


def modes(source_mode: int) -> tuple[int, int]:
    """The modes of files and of directories that show a source of this mode."""
    readable = stat.S_IMODE(source_mode) & 0o444
    return stat.S_IFREG | readable, stat.S_IFDIR | readable | readable >> 2


def inode(name: str, parent: int) -> int:
    """The inode number of ``name`` in the directory with number ``parent``; the root of a container has parent 0."""
    return xxhash.xxh64_intdigest(name.encode("utf-8", "surrogateescape"), parent) or 1


class Node(ABC):
    """``name`` is the path component, ``ino`` the inode number."""

    __slots__ = ("ino", "name", "origin")

    def __init__(self, name: str, ino: int, origin: Origin) -> None:
        self.name = name
        self.ino = ino
        self.origin = origin

    @property
    @abstractmethod
    def mode(self) -> int:
        """Type and permissions, as in st_mode."""

    def xattrs(self) -> dict[str, bytes]:
        """Extended attributes by their full names."""
        return {}


class File(Node):
    """A regular file. The size may take a pass over the data the first time, and that may raise Damaged."""

    __slots__ = ("content", "data")

    def __init__(self, name: str, ino: int, origin: Origin, data: Data, content: Content | None = None) -> None:
        self.name, self.ino, self.origin = name, ino, origin  # Node's, without a call: there are many files
        self.data = data
        self.content = content

    @property
    def mode(self) -> int:
        return self.origin.file_mode

    is_volatile = False
    """Whether the bytes differ from one opening to the next."""

    @property
    def size(self) -> int:
        return self.data.size

    def opened(self) -> File:
        """What somebody who opens the file reads."""
        return self

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fills the buffer from ``offset`` on, as far as the file goes; returns the number of bytes."""
        count = min(len(buffer), self.data.size - offset)
        if count <= 0:
            return 0
        self.data.read_into(buffer[:count], offset)
        return count

    def read(self, offset: int, size: int) -> bytes:
        buffer = bytearray(max(0, min(size, self.data.size - offset)))
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def xattrs(self) -> dict[str, bytes]:
        if self.content is None:
            return {}
        try:
            described = self.content.attributes()
        except GlassfsError as error:
            described = {"error": str(error)}
        found = {"format": self.origin.format} | described
        encoded = {XATTR_PREFIX + name: text.encode("utf-8", "replace") for name, text in found.items()}
        return {XATTR_PREFIX + "key": self.content.key} | encoded


class Symlink(Node):
    """A symbolic link."""

    __slots__ = ("target",)

    def __init__(self, name: str, ino: int, origin: Origin, target: str) -> None:
        super().__init__(name, ino, origin)
        self.target = target

    @property
    def mode(self) -> int:
        return stat.S_IFLNK | 0o777


class Directory(Node):
    """A directory. ``listing`` and ``child`` may raise Damaged where the children cannot be found out."""

    __slots__ = ()

    @property
    def mode(self) -> int:
        return self.origin.directory_mode

    @abstractmethod
    def listing(self) -> Sequence[Node]:
        """All children, in a fixed order."""

    @abstractmethod
    def child(self, name: str) -> Node:
        """Raises NotFound."""

    @property
    def is_counted(self) -> bool:
        """Whether the number of sub-directories is known without looking into the container."""
        return True

    @property
    def link_count(self) -> int:
        """2 and the number of sub-directories that can be seen: 2 where the directory cannot be listed."""
        try:
            return 2 + sum(isinstance(node, Directory) for node in self.listing())
        except GlassfsError:
            return 2


class FixedDirectory(Directory):
    """A directory whose children are given."""

    __slots__ = ("_children",)

    def __init__(self, name: str, ino: int, origin: Origin, children: Mapping[str, Node]) -> None:
        super().__init__(name, ino, origin)
        self._children = children

    def listing(self) -> Sequence[Node]:
        return list(self._children.values())

    def child(self, name: str) -> Node:
        try:
            return self._children[name]
        except KeyError:
            raise NotFound(name) from None
