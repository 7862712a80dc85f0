"""Directories, files and symbolic links: names, sizes, inode numbers and attributes.

Nodes are immutable and cheap. A directory's children are made on demand, and again after eviction. Any thread. Errors
of contents pass through unchanged.
"""

from __future__ import annotations

import stat
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import xxhash

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Array, Container, Content, Data, Link, Nested
from glassfs.content.allowance import EXPANSION
from glassfs.errors import Changed, GlassfsError, NotFound, TooLarge
from glassfs.names import component, raw, text
from glassfs.settings import settings
from glassfs.source import Entry
from glassfs.tree.lease import Lease
from glassfs.tree.listings import Listings
from glassfs.tree.omissions import ERROR, Omission
from glassfs.view import ViewSet

XATTR_PREFIX = "user.glassfs."
NO_VIEWS = ViewSet()
FIRST_EXTENSION = ".npy"
"""The extension preferred when a name without one matches several files."""
SIZING_BYTES = 1 << 30
"""Bytes that finding the size of a file may read and decode, beside ``EXPANSION`` times those of the container."""
_INODE = (1 << 63) - 1  # some programs treat the number as signed


@dataclass(eq=False)
class OpenNested:
    """A container inside another one, and its root directory."""

    container: Container
    root: Settled


class Services(NamedTuple):
    """What the nodes of a tree share. ``nested`` opens the container in a directory of that name, inode and origin."""

    cache: BlockCache
    listings: Listings[Children]
    nested: Callable[[str, int, Origin, Nested], OpenNested]
    views: ViewSet = NO_VIEWS


@dataclass(eq=False)
class Children:
    """The cached listing of a directory: its children in order, and the number of each name. Never changed.

    ``omitted`` has the members that are not among them. ``cost`` is the approximate memory of all this in bytes.
    """

    nodes: tuple[Node, ...]
    numbers: Mapping[str, int]
    omitted: Sequence[Omission]
    cost: int


class Access(NamedTuple):
    """Nine permission bits, an owner and a group."""

    permissions: int
    uid: int
    gid: int

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Access:
        """Return what all of these files grant together.

        If they differ in owner or group, no user owns all of them: each class gets only what every file grants to its
        owner, its group and others alike.
        """
        first = entries[0]
        if len(entries) == 1:
            return cls(first.permissions & 0o777, first.uid, first.gid)
        # The kernel checks one owner, one group and nine bits, so several files are reduced to the rights that each
        # of them gives. Too little is safe here; too much would show bytes that the user may not read.
        permissions = 0o777
        for entry in entries:
            permissions &= entry.permissions
        if any((entry.uid, entry.gid) != (first.uid, first.gid) for entry in entries):
            permissions = (permissions & permissions >> 3 & permissions >> 6 & 7) * 0o111
        return cls(permissions, first.uid, first.gid)


@dataclass(eq=False)
class Origin:
    """What all nodes of one version of a container, of a file or of a folder have in common. Never changed.

    ``identity`` differs between versions; that of a folder is its file id. For ``volume`` and ``has_other_names`` see
    ``Entry``. Times are nanoseconds since 1970. Directories in a container may be searched by all who may read it.
    """

    identity: str
    access: Access
    mtime_ns: int
    services: Services
    lease: Lease
    format: str = ""
    volume: str = ""
    has_other_names: bool = False
    file_mode: int = field(init=False)
    directory_mode: int = field(init=False)

    def __post_init__(self) -> None:
        readable = self.access.permissions & 0o444
        self.file_mode = stat.S_IFREG | readable
        self.directory_mode = stat.S_IFDIR | readable | readable >> 2


Facts = tuple[bytes, int, int, int | None]
"""A listing's entry: name, inode number, mode, and a file's size or None if that needs a read."""


def inode(name: str, parent: int) -> int:
    """Return the inode number of ``name`` in the directory with number ``parent``; a container's root has parent 0."""
    return xxhash.xxh64_intdigest(name.encode("utf-8", "surrogateescape"), parent) & _INODE or 1  # ``names.raw``


def inodes_of(names: Iterable[bytes], parent: int) -> list[int]:
    """Return the inode numbers of many names in one directory."""
    digest = xxhash.xxh64_intdigest
    return [digest(name, parent) & _INODE or 1 for name in names]


class Node:
    """``name`` is the path component, ``ino`` the inode number.

    Not an ABC: isinstance, called many times for each entry, would take five times as long.
    """

    is_of_mount = False
    """Whether it belongs to the mount itself, so that the owner and mode options for sources do not apply to it."""
    is_volatile = False
    """Whether each lookup gives new bytes."""

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
    """A regular file. Its size may need a pass over the data the first time, which may raise Damaged."""

    def __init__(self, name: str, ino: int, origin: Origin, data: Data, content: Content | None = None) -> None:
        self.name, self.ino, self.origin = name, ino, origin  # Node's, without a call: there are many files
        self.data = data
        self.content = content

    @property
    def mode(self) -> int:
        return self.origin.file_mode

    @property
    def size(self) -> int:
        """The size in bytes. Raises TooLarge if finding it takes too much work for a container of this size."""
        data = self.data
        return data.size if data.is_sized or data.is_cheap else self._measured()

    def _measured(self) -> int:
        # A small container may expand to very much, so the work that a ``stat`` may take grows with its size. What was
        # too large once is noted, as ``ls -l`` asks again and again.
        lease = self.origin.lease
        stored = lease.size
        if not stored:  # of no container: joined tables have limits of their own
            return self.data.size
        notes, note = self.origin.services.cache.notes, (self.origin.identity, self.ino, "too large")
        if notes.get(note) is None:
            try:
                seconds = min(settings.sizing_most, settings.sizing + settings.sizing_most * stored / (1 << 30))
                return work.limited(SIZING_BYTES + EXPANSION * stored, seconds, lambda: self.data.size)
            except work.OverBudget:
                notes.put(note, ())
        raise TooLarge("its size takes too long to find for so small a container", lease.sources[0].name, self.name)

    def prepare(self) -> None:
        """Open the source now, as it may be deleted before the first read. The caller must hold the lease."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from ``offset`` to the end of the file at most; return the number of bytes."""
        count = min(len(buffer), self.data.size - offset)
        if count <= 0:
            return 0
        self.data.read_into(buffer[:count], offset)
        return count

    def read(self, offset: int, size: int) -> bytes:
        size = min(size, self.data.size - offset)
        return self.data.read(offset, size) if size > 0 else b""

    def xattrs(self) -> dict[str, bytes]:
        if self.content is None:
            return {}
        try:
            described = self.content.attributes()
        except GlassfsError as error:
            described = {"error": str(error)}
        found = ({"format": self.origin.format} if self.origin.format else {}) | described
        encoded = {XATTR_PREFIX + name: text.encode("utf-8", "replace") for name, text in found.items()}
        return {XATTR_PREFIX + "key": self.content.key} | encoded


class Symlink(Node):
    """A symbolic link."""

    mode = stat.S_IFLNK | 0o777

    def __init__(self, name: str, ino: int, origin: Origin, target: str) -> None:
        super().__init__(name, ino, origin)
        self.target = target


class Directory(Node):
    """A directory. Methods that need the children may raise Damaged."""

    @property
    def is_presumed(self) -> bool:
        """Whether only its name or its first bytes say so far that it is one, as opening it takes long."""
        return False

    def enter(self) -> None:
        """Open it if it is presumed. Raises Changed if it is a plain file, or a read error."""

    @property
    def mode(self) -> int:
        return self.origin.directory_mode

    @abstractmethod
    def listing(self) -> Sequence[Node]:
        """Return all children in a fixed order."""

    @abstractmethod
    def child(self, name: str) -> Node:
        """Return the child of this name. Raises NotFound."""

    def names(self) -> Iterator[str]:
        """Return the names of all children, which may cost less than making the nodes."""
        return (node.name for node in self.listing())

    def named(self, name: str) -> Node:
        """Return the child of this name, or the file of this name plus an extension, preferably ``.npy``.

        Raises NotFound.
        """
        for whole in (name, f"{name}{FIRST_EXTENSION}"):
            try:
                return self.child(whole)
            except NotFound:
                continue
        found = next((known for known in self.names() if stem(known) == name), None) if name else None
        node = None if found is None else self.child(found)
        if node is None or isinstance(node, Directory):
            raise not_found(name)
        return node

    def omitted(self) -> Sequence[Omission]:
        """Return its direct members that are not shown. Costs as much as ``listing``, and raises what that raises."""
        return ()

    def watch(self) -> bool:
        """Return whether the tree's sources report changes in it from now on, soon after they happen."""
        return False


class Settled(Directory):
    """A directory of a container. Its children never change, and can be made from their index in the listing."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of children."""

    @abstractmethod
    def at(self, number: int) -> Node:
        """Return the child with this number, which must be in range."""

    @property
    def inside(self) -> Origin:
        """The origin of its children."""
        return self.origin

    @abstractmethod
    def found(self, name: str) -> tuple[int, Node]:
        """Return the number and the child of this name. Raises NotFound."""

    def child(self, name: str) -> Node:
        return self.found(name)[1]

    def listing(self) -> Sequence[Node]:
        return _Numbered(self)

    def facts(self, start: int, stop: int) -> Iterator[Facts]:
        """Return the facts of the children from ``start`` to before ``stop``."""
        return map(facts_of, map(self.at, range(self.count)[start:stop]))  # callers may take only some

    def names(self) -> Iterator[str]:
        return (text(fact[0]) for fact in self.facts(0, self.count))


class Standing(Settled):
    """A directory whose children are those of another one, which is looked up on each call."""

    @abstractmethod
    def shown(self) -> Settled:
        """Return that directory. May raise any read error."""

    def enter(self) -> None:
        if self.is_presumed:
            self.shown()

    @property
    def count(self) -> int:
        return self.shown().count

    @property
    def inside(self) -> Origin:
        return self.shown().origin

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

    def omitted(self) -> Sequence[Omission]:
        return self.shown().omitted()


def entered(find: Callable[[], Node]) -> Node:
    """Return the node that ``find`` returns, parsed if it is presumed to be a directory."""
    node = find()
    try:
        if isinstance(node, Directory):
            node.enter()
    except Changed:  # it is no directory, or was replaced
        node = find()
    return node


def held_by_names(node: Node) -> int:
    """Return the bytes that the original name of a child holds, or a link's target, and the description of its type."""
    content = node.content if isinstance(node, File) else None
    if content is None:
        return len(node.target) if isinstance(node, Symlink) else 0
    # A long description is held as text and in headers.
    return len(content.key) + (3 * len(content.dtype) if isinstance(content, Array) else 0)


def target_of(link: Link) -> str:
    """Return the target of a link as a path."""
    return link.shown or "/".join(part.decode() if part == b".." else component(part) for part in link.target) or "."


def facts_of(node: Node) -> Facts:
    size = node.data.size if isinstance(node, File) and node.data.is_sized else None
    return raw(node.name), node.ino, node.mode, size


class _Numbered(Sequence[Node]):
    """The listing of a settled directory, which makes its children on access."""

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
    """A directory with given children."""

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
    """Return the extended attribute that says what of a node cannot be read, if that is known."""
    return {name: value for name, value in node.xattrs().items() if name == ERROR}


def stem(name: str) -> str:
    """Return a name without its extension."""
    return name.rpartition(".")[0]


def not_found(path: str) -> NotFound:
    return NotFound("no such file or directory", part=path)
