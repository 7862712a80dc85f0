"""Nodes of what is at a location in a store: a mirrored folder, a container as a directory, a plain file, a link.

Folders are listed anew on each call, as other processes may change them. Nodes cache nothing; open containers belong to
``Containers``. Any thread.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from functools import partial

from glassfs.content import Extent
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotADirectory, NotFound, Unavailable
from glassfs.formats.registry import may_be_container
from glassfs.names import component, free_name, raw, shown_name
from glassfs.source import Entry, Kind, Source
from glassfs.terminal import printable
from glassfs.tree.containers.containers import Containers
from glassfs.tree.containers.lease import ContainerLease, Location, OpenContainer
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
from glassfs.tree.omissions import Omission

_NO_LEASE = Lease(())
_MAY_BE_CHANGED = re.compile(r"%[0-9A-F]{2}|~[0-9]+$|~[0-9a-f]{16}")
"""Found in every shown name that differs from the name in the store."""


def node_at(
    containers: Containers, location: Location, entry: Entry, name: str, ino: int, at: str, is_mount_root: bool = False,
) -> Node | None:
    """Return the node for what is at a location, or None if there is nothing to show.

    ``entry`` is what was there a moment ago, ``at`` the path in the tree. Raises Unavailable if the kind of a file
    cannot be determined now.
    """
    # What was listed may be replaced before it is opened. The name is then described and opened again.
    for _ in range(4):  # a file that changes more often is shown as itself
        try:
            return _node(containers, location, entry, name, ino, at, is_mount_root)
        except Changed as error:
            reason = error.without_source
            try:
                entry = location.entry()
            except (NotFound, NotADirectory):
                break
        except NotFound:
            break
    else:
        return plain_file(containers, location, entry, name, ino, reason)
    containers.watcher.check(location)
    return None


def _node(
    containers: Containers, location: Location, entry: Entry, name: str, ino: int, at: str, is_mount_root: bool,
) -> Node | None:
    """Return the node for ``entry``. Raises NotFound or Changed if it is out of date."""
    kind = entry.kind
    if kind is not Kind.FILE:
        if kind is Kind.FOLDER:
            return Folder(name, ino, _origin(containers, entry), containers, location, at, is_mount_root)
        if kind is Kind.MOUNT:
            return FixedDirectory(name, ino, _origin(containers, entry), {})
        return Symlink(name, ino, _origin(containers, entry), entry.target) if kind is Kind.LINK else None
    try:
        lease = containers.verdict(location, entry, at)
    except (NotFound, Changed, Unavailable):
        raise
    except GlassfsError as error:
        return plain_file(containers, location, entry, name, ino, error.without_source)
    if isinstance(lease, str):
        return plain_file(containers, location, entry, name, ino, lease)
    has_other_names = any(entry.has_other_names for entry in lease.entries)
    return ContainerDirectory(name, ino, lease.origin(containers.services, has_other_names), containers, lease)


def plain_file(
    containers: Containers, location: Location, entry: Entry, name: str, ino: int, reason: str = "",
) -> PlainFile:
    """Return the file at a location as itself."""
    source = location.store.source(location.path, entry)
    return PlainFile(name, ino, _origin(containers, entry, Lease([source])), source, reason)


def _origin(containers: Containers, entry: Entry, lease: Lease = _NO_LEASE) -> Origin:
    """Return the origin of a file, folder or link. A folder is the same whatever it contains."""
    return Origin(
        entry.version if entry.kind in (Kind.FILE, Kind.LINK) else entry.file_id, Access.of([entry]), entry.mtime_ns,
        containers.services, lease, volume=entry.volume, has_other_names=entry.has_other_names,
    )


class PlainFile(File):
    """A file as itself. ``reason`` says why a file that looks like a container is not shown as one."""

    def __init__(self, name: str, ino: int, origin: Origin, source: Source, reason: str = "") -> None:
        super().__init__(name, ino, origin, Extent(source, 0, source.size))
        self._source = source
        self.reason = reason

    def prepare(self) -> None:
        """Open the file. (Those of containers are open already.)"""
        self._source.read_into(memoryview(bytearray()), 0)

    def xattrs(self) -> dict[str, bytes]:
        return {XATTR_PREFIX + "error": self.reason.encode("utf-8", "replace")} if self.reason else {}


class ContainerDirectory(Standing):
    """A container as a directory, in the version that was there when the node was made; parsed when needed.

    Methods raise Refused if it cannot be opened, and Changed if it was replaced or turns out to be a plain file.
    """

    def __init__(self, name: str, ino: int, origin: Origin, containers: Containers, lease: ContainerLease) -> None:
        self.name, self.ino, self.origin = name, ino, origin  # Node's, without a call
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
        # Views have errors that only parsing finds; the container's own are known once it was listed.
        opened = self.opened() if self.origin.services.views else self.containers.parsed(self._lease)
        return found if opened is None else found | error_of(opened.root)


class Folder(Directory):
    """A folder of a store, mirrored. Names that can be shown unchanged are; others that come out equal are numbered."""

    def __init__(
        self, name: str, ino: int, origin: Origin, containers: Containers, location: Location, at: str,
        is_mount_root: bool = False,
    ) -> None:
        super().__init__(name, ino, origin)
        self.containers = containers
        self.location = location
        self.is_mount_root = is_mount_root
        self._at = at

    @property
    def mode(self) -> int:
        return stat.S_IFDIR | self.origin.access.permissions & 0o555

    def listing(self) -> Sequence[Node]:
        return list(filter(None, map(self._listed, self._entries())))

    def child(self, name: str) -> Node:
        node = None
        location = self.location.below(name)
        if shown_name(name, self.is_mount_root) == name and not location.store.hides(location.path):
            try:
                node = self._node(name, location, location.entry())
            except (NotFound, NotADirectory):
                self.containers.watcher.check(location)
        # Only listing the folder tells which file is shown under a name that was changed.
        if node is None and _MAY_BE_CHANGED.search(name):
            node = next((self._listed(found) for found in self._entries() if found[0] == name), None)
        if node is None:
            raise not_found(name)
        return node

    def names(self) -> Iterator[str]:
        return (name for name, _, entry in self._entries() if entry.kind is not Kind.OTHER)

    def omitted(self) -> Sequence[Omission]:
        found = (omission(name, self.location.below(original), entry) for name, original, entry in self._entries())
        return [one for one in found if one is not None]

    def watch(self) -> bool:
        store, path = self.location
        return store.is_watched(path) or self.containers.watcher.watch(self.location, self._at)

    def _entries(self) -> Iterator[tuple[str, str, Entry]]:
        return shown_entries(self.location, self.is_mount_root)

    def _listed(self, found: tuple[str, str, Entry]) -> Node | None:
        name, original, entry = found
        return self._node(name, self.location.below(original), entry)

    def _node(self, name: str, location: Location, entry: Entry) -> Node | None:
        at = f"{self._at}/{name}"
        return node_at(self.containers, location, entry, name, inode(name, self.ino), at)


def omission(name: str, location: Location, entry: Entry) -> Omission | None:
    """Return what is left out under a name of a folder, None for nothing.

    A link with the name of a container that leads to nothing is damage: that is how git-annex and DVC show a file whose
    data are not here.
    """
    if entry.kind is Kind.LINK and location.store.follows_links and may_be_container(location.path[-1]):
        try:
            location.store.open(location.path).close()
        except NotFound:
            return Omission(name, printable(f"link to nothing: {entry.target}"), is_damage=True)
        except GlassfsError:
            pass
    if entry.kind is Kind.OTHER:  # no file can have its name
        name = printable(location.path[-1])
    return Omission(name, printable(entry.omitted)) if entry.omitted else None


def shown_entries(folder: Location, is_mount_root: bool) -> Iterator[tuple[str, str, Entry]]:
    """Yield the name to show, the name in the store, and the entry of each file in a folder."""
    found = list(folder.store.list(folder.path))
    # Names that need no change come first: they keep their names whatever else is in the folder.
    taken = {original for original, _ in found if shown_name(original, is_mount_root) == original}
    for original, entry in found:
        name = shown_name(original, is_mount_root)
        if name and name != original:
            name = free_name(name, taken.__contains__, partial(component, raw(original)))
            taken.add(name)
        yield name, original, entry


class LostDirectory(Directory):
    """A named source that cannot be opened now, with its last attributes. Listing it raises the ``reason``."""

    def __init__(self, name: str, ino: int, origin: Origin, reason: GlassfsError) -> None:
        super().__init__(name, ino, origin)
        self._reason = reason

    def listing(self) -> Sequence[Node]:
        raise self._error()

    def child(self, name: str) -> Node:
        raise self._error()

    def omitted(self) -> Sequence[Omission]:
        raise self._error()

    def _error(self) -> GlassfsError:
        if isinstance(self._reason, DeviceFailed):
            return self._reason.at()
        return Changed(self._reason.reason, self._reason.source, self._reason.part)
