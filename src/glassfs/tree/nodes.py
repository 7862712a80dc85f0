"""Directories, files and symbolic links: names, sizes, inode numbers and attributes.

Nodes are immutable and cheap; a directory's children are made when somebody looks into it, and made again after they
were dropped. Any thread. What a content raises goes through unchanged.
"""

from __future__ import annotations

import stat
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import xxhash

from glassfs.cache import BlockCache
from glassfs.content import Content, Data
from glassfs.errors import GlassfsError, NotFound
from glassfs.names import raw, text
from glassfs.source import Entry
from glassfs.tree.lease import Lease
from glassfs.tree.listings import Listings
from glassfs.view import ViewSet

XATTR_PREFIX = "user.glassfs."
NO_VIEWS = ViewSet()
FIRST_EXTENSION = ".npy"
"""Of several files that a name without an extension may mean, the one that is meant."""
_INODE = (1 << 63) - 1  # some programs take the number for a signed one


class Services(NamedTuple):
    """What the nodes of one tree work with."""

    cache: BlockCache
    listings: Listings[Children]
    views: ViewSet = NO_VIEWS
    """The derived views that are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class Children:
    """What is remembered of a directory: its children in their order, and the place of each name in it.

    ``error`` says what is missing, and ``cost`` is the memory that all of this takes, about.
    """

    nodes: tuple[Node, ...]
    numbers: Mapping[str, int]
    error: str
    cost: int


class Access(NamedTuple):
    """Who may do what: nine permission bits, an owner and a group."""

    permissions: int
    uid: int
    gid: int

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Access:
        """What all of these files grant together.

        Where they differ in owner or group nobody is the owner of all of them: every class gets only what each file
        gives to its owner, its group and all others alike.
        """
        first = entries[0]
        permissions = 0o777
        for entry in entries:
            permissions &= entry.permissions
        if any((entry.uid, entry.gid) != (first.uid, first.gid) for entry in entries):
            permissions = (permissions & permissions >> 3 & permissions >> 6 & 7) * 0o111
        return cls(permissions, first.uid, first.gid)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What all nodes of one version of a container, of a file or of a folder have in common.

    ``identity`` tells this version from all others; that of a folder, which has none, is its place. ``volume`` is what
    it lies on, and ``has_other_names`` who may change it (see ``Entry``). Times are nanoseconds since 1970.
    """

    identity: str
    access: Access
    mtime_ns: int
    services: Services
    lease: Lease
    format: str = ""
    volume: str = ""
    has_other_names: bool = False

    @property
    def uid(self) -> int:
        return self.access.uid

    @property
    def gid(self) -> int:
        return self.access.gid

    @property
    def file_mode(self) -> int:
        return stat.S_IFREG | self.access.permissions & 0o444

    @property
    def directory_mode(self) -> int:
        """That of a directory in a container: whoever may read the container may search it."""
        readable = self.access.permissions & 0o444
        return stat.S_IFDIR | readable | readable >> 2


Facts = tuple[bytes, int, int, int | None]
"""What a listing tells of a node: name, inode number, mode, and a file's size unless it takes reading to know that."""


def inode(name: str, parent: int) -> int:
    """The inode number of ``name`` in the directory with number ``parent``; the root of a container has parent 0."""
    return inode_of_bytes(raw(name), parent)


def inode_of_bytes(name: bytes, parent: int) -> int:
    return xxhash.xxh64_intdigest(name, parent) & _INODE or 1


class Node:
    """``name`` is the path component, ``ino`` the inode number.

    Not an ABC: what kind of node something is gets asked many times for each entry, and takes five times as long there.
    """

    __slots__ = ("ino", "name", "origin")

    is_of_mount = False
    """Whether it belongs to a mount itself: what a person said of owners and modes of sources does not apply to it."""
    is_volatile = False
    """Whether the next look-up gives other bytes."""

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

    @property
    def size(self) -> int:
        return self.data.size

    def prepare(self) -> None:
        """Called by whoever has acquired the lease and will read later, when the source may have been deleted."""

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
    def is_presumed(self) -> bool:
        """Whether so far only its name says that it is one, as looking into it costs much."""
        return False

    def enter(self) -> None:
        """Looks into one that is presumed: raises Changed where it is none, and what finding that out raises."""

    @property
    def mode(self) -> int:
        return self.origin.directory_mode

    @abstractmethod
    def listing(self) -> Sequence[Node]:
        """All children, in a fixed order."""

    @abstractmethod
    def child(self, name: str) -> Node:
        """Raises NotFound."""

    def names(self) -> Iterator[str]:
        """The names of all children, which may cost less than making them."""
        return (node.name for node in self.listing())

    def named(self, name: str) -> Node:
        """The child of this name, else a file that has an extension behind it, ``.npy`` before others. For people.

        Raises NotFound.
        """
        for whole in (name, f"{name}{FIRST_EXTENSION}"):
            try:
                return self.child(whole)
            except NotFound:
                continue
        found = first_with_stem(name, self.names())
        node = None if found is None else self.child(found)
        if node is None or isinstance(node, Directory):
            raise not_found(name)
        return node

    def watch(self) -> bool:
        """Whether ``refresh`` of its sources will tell of what changes in it from now on, and soon."""
        return False


class Settled(Directory):
    """A directory of a container, whose children never change: each has a number, its place in the listing.

    A child can be made from its number at any time, and made again after it was dropped. Any of these may raise
    Damaged where the children cannot be found out.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def count(self) -> int:
        """How many children there are."""

    @abstractmethod
    def find(self, name: str) -> int:
        """The number of the child of this name. Raises NotFound."""

    @abstractmethod
    def at(self, number: int) -> Node:
        """The child with this number, which has to be one of theirs."""

    @property
    def inside(self) -> Origin:
        """The origin of its children."""
        return self.origin

    def found(self, name: str) -> tuple[int, Node]:
        """A child and its number. Raises NotFound."""
        number = self.find(name)
        return number, self.at(number)

    def child(self, name: str) -> Node:
        return self.found(name)[1]

    def listing(self) -> Sequence[Node]:
        return _Numbered(self)

    def facts(self, start: int, stop: int) -> Iterator[Facts]:
        """What a listing tells of the children from one number up to another."""
        return map(facts_of, self.listing()[start:stop])

    def names(self) -> Iterator[str]:
        return (text(fact[0]) for fact in self.facts(0, self.count))


class Standing(Settled):
    """A directory that stands for another one, which it finds each time: its children are that one's."""

    __slots__ = ()

    @abstractmethod
    def shown(self) -> Settled:
        """That one. May raise whatever finding it out does."""

    def enter(self) -> None:
        if self.is_presumed:
            self.shown()

    @property
    def count(self) -> int:
        return self.shown().count

    @property
    def inside(self) -> Origin:
        return self.shown().origin

    def find(self, name: str) -> int:
        return self.shown().find(name)

    def at(self, number: int) -> Node:
        return self.shown().at(number)

    def found(self, name: str) -> tuple[int, Node]:
        return self.shown().found(name)

    def listing(self) -> Sequence[Node]:
        return self.shown().listing()

    def facts(self, start: int, stop: int) -> Iterator[Facts]:
        return self.shown().facts(start, stop)

    def names(self) -> Iterator[str]:
        return self.shown().names()

    def named(self, name: str) -> Node:
        return self.shown().named(name)


def facts_of(node: Node) -> Facts:
    size = node.data.size if isinstance(node, File) and node.data.is_sized else None
    return raw(node.name), node.ino, node.mode, size


class _Numbered(Sequence[Node]):
    """The listing of a settled directory, whose children are made when they are asked for."""

    __slots__ = ("_count", "_directory")

    def __init__(self, directory: Settled) -> None:
        self._directory = directory
        self._count = directory.count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | Sequence[Node]:
        if isinstance(index, slice):
            return [self._directory.at(number) for number in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._directory.at(index)


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
            raise not_found(name) from None


def error_of(node: Node) -> dict[str, bytes]:
    """Of its extended attributes the one that says what of it could not be shown, if there is one."""
    return {name: value for name, value in node.xattrs().items() if name == XATTR_PREFIX + "error"}


def stem(name: str) -> str:
    """A name without its extension."""
    return name.rpartition(".")[0]


def first_with_stem(wanted: str, names: Iterable[str]) -> str | None:
    return next((name for name in names if stem(name) == wanted), None) if wanted else None


def not_found(path: str) -> NotFound:
    return NotFound("no such file or directory", part=path)
