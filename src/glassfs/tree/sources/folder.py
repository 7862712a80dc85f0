"""What stands at a place of a store, as a node: a mirrored folder, a container as a directory, a plain file, a link.

Folders are read anew each time, as anybody may change them. Nodes remember nothing: what is open is with the
``Containers``. Any thread.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from functools import partial

from glassfs.content import Extent
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotADirectory, NotFound, Unavailable
from glassfs.names import component, free_name, raw, shown_at_root
from glassfs.source import Entry, Kind, Source
from glassfs.tree.containers.containers import Containers
from glassfs.tree.containers.lease import ContainerLease, Location, OpenContainer, identity_of
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import (
    XATTR_PREFIX,
    Access,
    Directory,
    File,
    FixedDirectory,
    Node,
    Origin,
    Settled,
    Standing,
    Symlink,
    error_of,
    inode,
    not_found,
)

_NO_LEASE = Lease(())
_MAY_BE_MADE = re.compile(r"%[0-9A-F]{2}|~[0-9]+$|~[0-9a-f]{16}")
"""What is in every name that had to be changed to be shown."""
ATTEMPTS = 4
"""How many times a file that keeps changing is looked at."""


def node_at(
    containers: Containers, location: Location, entry: Entry, name: str, ino: int, at: str, is_mount_root: bool = False,
) -> Node | None:
    """The node for what stands at a place, or None for what has nothing to show. ``at`` is its path in the tree.

    ``entry`` is what stood there a moment ago. Raises Unavailable where it cannot be found out now what it is.
    """
    for _ in range(ATTEMPTS):
        try:
            return _node(containers, location, entry, name, ino, at, is_mount_root)
        except Changed as error:
            reason = error.without_source
            try:
                entry = location.store.entry(location.path)
            except (NotFound, NotADirectory):
                break
        except NotFound:
            break
    else:
        return plain_file(containers, location, entry, name, ino, reason)
    containers.look(location, None)
    return None


def _node(
    containers: Containers, location: Location, entry: Entry, name: str, ino: int, at: str, is_mount_root: bool,
) -> Node | None:
    """The same for what ``entry`` says is there. Raises NotFound, and Changed where it is something else by now."""
    if entry.kind is Kind.FOLDER:
        origin = _origin(containers, entry)
        return Folder(name, ino, origin, containers, location, at, is_mount_root)
    if entry.kind is Kind.MOUNT:
        return FixedDirectory(name, ino, _origin(containers, entry), {})
    if entry.kind is Kind.LINK:
        return Symlink(name, ino, _origin(containers, entry), entry.target)
    if entry.kind is not Kind.FILE:
        return None
    try:
        containers.look(location, entry)
        verdict = containers.verdict(location, entry, at)
    except (NotFound, Changed, Unavailable):
        raise
    except GlassfsError as error:
        return plain_file(containers, location, entry, name, ino, error.without_source)
    lease = verdict.lease
    if lease is None:
        return plain_file(containers, location, entry, name, ino, verdict.refusal or "")
    origin = Origin(
        identity_of(verdict.entries), Access.of(verdict.entries), entry.mtime_ns, containers.services, lease,
        lease.format, entry.volume, any(one.has_other_names for one in verdict.entries),
    )
    return ContainerDirectory(name, ino, origin, containers, lease)


def plain_file(
    containers: Containers, location: Location, entry: Entry, name: str, ino: int, reason: str = "",
) -> PlainFile:
    """The file at a place as itself."""
    source = location.store.source(location.path, entry)
    origin = Origin(
        entry.version, Access.of([entry]), entry.mtime_ns, containers.services, Lease([source]), volume=entry.volume,
        has_other_names=entry.has_other_names,
    )
    return PlainFile(name, ino, origin, source, reason)


def _origin(containers: Containers, entry: Entry) -> Origin:
    """The origin of what has no bytes. A folder is the same whatever is in it; a link has one target for good."""
    identity = entry.version if entry.kind is Kind.LINK else entry.file_id
    return Origin(
        identity, Access.of([entry]), entry.mtime_ns, containers.services, _NO_LEASE, volume=entry.volume,
    )


class PlainFile(File):
    """A file that is not a container, as itself; ``reason`` says why one that looks like a container is not."""

    __slots__ = ("_reason", "_source")

    def __init__(self, name: str, ino: int, origin: Origin, source: Source, reason: str = "") -> None:
        super().__init__(name, ino, origin, Extent(source, 0, source.size))
        self._source = source
        self._reason = reason

    def prepare(self) -> None:
        """Opens the file, which nobody has had to do yet: that of a container was opened with it."""
        self._source.read_into(memoryview(bytearray()), 0)

    def xattrs(self) -> dict[str, bytes]:
        return {XATTR_PREFIX + "error": self._reason.encode("utf-8", "replace")} if self._reason else {}


class ContainerDirectory(Standing):
    """A container as a directory: the version that stood there when the node was made, parsed when it is needed.

    Each of its methods raises Refused where it cannot be opened, or Changed where another one is there by now, or where
    it was presumed and is none, which the next look-up will know.
    """

    __slots__ = ("_lease", "containers")

    def __init__(self, name: str, ino: int, origin: Origin, containers: Containers, lease: ContainerLease) -> None:
        super().__init__(name, ino, origin)
        self.containers = containers
        self._lease = lease

    @property
    def location(self) -> Location:
        return self._lease.location

    @property
    def is_presumed(self) -> bool:
        return self._lease.is_presumed

    def shown(self) -> Settled:
        return self.opened().root

    def opened(self) -> OpenContainer:
        return self.containers.opened(self._lease)

    def xattrs(self) -> dict[str, bytes]:
        if self.is_presumed:
            return {}
        found = {XATTR_PREFIX + "format": self._lease.format.encode()}
        return found | error_of(self.shown()) if self.origin.services.views else found


class Folder(Directory):
    """A folder of a store, mirrored.

    A name that can be shown unchanged stays as it is; of others that come out the same, each gets a number.
    """

    __slots__ = ("_at", "_containers", "_is_mount_root", "_location")

    def __init__(
        self, name: str, ino: int, origin: Origin, containers: Containers, location: Location, at: str,
        is_mount_root: bool = False,
    ) -> None:
        super().__init__(name, ino, origin)
        self._containers = containers
        self._location = location
        self._at = at
        self._is_mount_root = is_mount_root

    @property
    def mode(self) -> int:
        return stat.S_IFDIR | self.origin.access.permissions & 0o555

    def listing(self) -> Sequence[Node]:
        return [node for name, original, entry in self._entries() if (node := self._node(name, original, entry))]

    def child(self, name: str) -> Node:
        node = None
        if self._shown_name(name) == name:
            try:
                node = self._node(name, name, self._location.store.entry((*self._location.path, name)))
            except (NotFound, NotADirectory):
                self._containers.look(self._below(name), None)
        if node is None and _MAY_BE_MADE.search(name):
            node = next((self._node(*found) for found in self._entries() if found[0] == name), None)
        if node is None:
            raise not_found(name)
        return node

    def names(self) -> Iterator[str]:
        return (name for name, _, entry in self._entries() if entry.kind is not Kind.OTHER)

    def watch(self) -> bool:
        return self._containers.watch(self._location, self._at)

    @property
    def location(self) -> Location:
        return self._location

    @property
    def containers(self) -> Containers:
        return self._containers

    @property
    def is_mount_root(self) -> bool:
        return self._is_mount_root

    def _entries(self) -> Iterator[tuple[str, str, Entry]]:
        return shown_entries(self._location, self._is_mount_root)

    def _node(self, name: str, original: str, entry: Entry) -> Node | None:
        return node_at(
            self._containers, self._below(original), entry, name, inode(name, self.ino), f"{self._at}/{name}",
        )

    def _below(self, original: str) -> Location:
        return Location(self._location.store, (*self._location.path, original))

    def _shown_name(self, original: str) -> str:
        return _shown_name(original, self._is_mount_root)


def shown_entries(folder: Location, is_mount_root: bool) -> Iterator[tuple[str, str, Entry]]:
    """What is in a folder: the name to show, the name that the store has, and the rest."""
    found = list(folder.store.list(folder.path))
    taken = {original for original, _ in found if _shown_name(original, is_mount_root) == original}
    for original, entry in found:
        name = _shown_name(original, is_mount_root)
        if name and name != original:
            name = free_name(name, taken.__contains__, partial(component, raw(original)))
            taken.add(name)
        yield name, original, entry


def _shown_name(original: str, is_mount_root: bool) -> str:
    try:
        name = component(raw(original))
    except UnicodeEncodeError:  # no name that a file can have
        return ""
    return shown_at_root(name) if is_mount_root else name


class LostDirectory(Directory):
    """A source that was given by name and cannot be looked at now, under the attributes that it had."""

    __slots__ = ("_reason",)

    def __init__(self, name: str, ino: int, origin: Origin, reason: GlassfsError) -> None:
        super().__init__(name, ino, origin)
        self._reason = reason

    def listing(self) -> Sequence[Node]:
        raise self._fault()

    def child(self, name: str) -> Node:
        raise self._fault()

    def _fault(self) -> GlassfsError:
        if isinstance(self._reason, DeviceFailed):
            return self._reason.at()
        return Changed(self._reason.reason, self._reason.source, self._reason.part)
