"""The sources that a user named, as one tree: a container, a folder, or several of either side by side. Any thread.

``Overview`` is the contract with the room ``datasets``, which joins the tables of all containers below a root.
"""

from __future__ import annotations

import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from glassfs.errors import DeviceFailed, GlassfsError, NotFound, Unavailable
from glassfs.names import distinct, raw
from glassfs.source import Entry, Kind, Named, Store
from glassfs.tree.containers.containers import Containers, ContainerSettings
from glassfs.tree.containers.lease import Location
from glassfs.tree.containers.watcher import COMPARED
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Directory, FixedDirectory, Node, Origin, Settled, Standing, error_of, inode, not_found
from glassfs.tree.omissions import Omission
from glassfs.tree.sources.folder import (
    ContainerDirectory,
    Folder,
    LostDirectory,
    PlainFile,
    node_at,
    plain_file,
)
from glassfs.tree.tree import Tree
from glassfs.view import ViewSet

VIEWED = 2
"""The inode number of the root with all views."""


class Start(NamedTuple):
    """A source in a tree: its path there, "" for the root, and its location."""

    path: str
    location: Location
    is_mount_root: bool = False


class Overview(ABC):
    """What a tree shows of all containers below its root together."""

    @abstractmethod
    def over(self, root: Directory, views: ViewSet) -> Directory:
        """Return the root, with the files added that these views make of the overview."""

    @abstractmethod
    def close(self) -> None: ...


class Sources:
    """The named sources, each under a name of its own, their ``containers`` and their ``tree``.

    ``reachable`` is the same tree, in which all views are found by their paths, whatever listings have.

    ``on_change`` is called when something shown has changed; ``refresh`` or ``Watcher.changes`` then return what. For
    ``on_drop`` see ``Containers``. ``overview`` makes the overview of several containers, given their starts and a
    title for them, "" if the user named several sources; without it there is none.

    Raises Refused or a read error for a source that is not a container or cannot be read.
    """

    def __init__(
        self, named: Sequence[Named], settings: ContainerSettings,
        overview: Callable[[Containers, Sequence[Start], str], Overview] | None = None,
        on_change: Callable[[], None] = lambda: None, on_drop: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        self.tree = Tree(self.root, self.close)
        self.reachable = Tree(self.root, self.close, unlisted=Tree(lambda: self.viewed("", VIEWED)))
        self.containers = Containers(settings, on_change, on_drop)
        self.locations: dict[str, Location] = {}
        self._shown: dict[str, Node] = {}
        self._stamps: dict[str, str] = {}
        self._queue: list[str] = []
        """Sources still to be compared before the next pass over all of them begins."""
        for name, one in zip(distinct(raw(one.name) for one in named), named, strict=True):
            self.locations[name] = Location(one.store, one.path)
        self._is_single = len(self.locations) == 1
        starts = [
            Start("" if self._is_single else name, location, self._is_single)
            for name, location in self.locations.items()
        ]
        title = next(iter(self.locations)) if self._is_single else ""
        self.overview = overview(self.containers, starts, title) if overview is not None else None
        self.has_folder = False
        try:
            for name in self.locations:
                self._open(name)
        except BaseException:
            self.close()
            raise

    @property
    def has_presumed(self) -> bool:
        """Whether there may be directories that are presumed to be containers (``Directory.is_presumed``)."""
        return self.has_folder and any(location.store.is_remote for location in self.locations.values())

    @property
    def newest(self) -> Origin:
        """The origin of the source that was modified last, as it was shown last."""
        return max((node.origin for node in list(self._shown.values())), key=lambda origin: origin.mtime_ns)

    def root(self) -> Directory:
        """Return the current root directory, with the views of the tree."""
        return self._with_overview(self.plain_root(), self.containers.services.views)

    def viewed(self, name: str, ino: int) -> Directory:
        """Return the root with all views, as a directory of this name."""
        return self._with_overview(viewed(self.plain_root(), name, ino), self.containers.services.views.with_all())

    def plain_root(self) -> Directory:
        """Return the root directory without the overview."""
        if not self._is_single:
            return SideBySide(self)
        node = self.node(next(iter(self.locations)))
        if isinstance(node, Directory):
            return node
        reason = node.reason if isinstance(node, PlainFile) else ""
        return LostDirectory(node.name, node.ino, node.origin, GlassfsError(reason or "is not a container"))

    def node(self, name: str) -> Node:
        """Return the current node of a source, or a directory with its last attributes if it cannot be opened."""
        location, at = self.locations[name], self._at(name)
        shown = "" if self._is_single else name
        try:
            entry = location.entry()
            ino = inode(entry.file_id, 0)
            node = node_at(self.containers, location, entry, shown, ino, at, is_mount_root=self._is_single)
            if node is None:
                raise NotFound("is neither a file nor a folder any more", location.shown())
        except Unavailable:
            raise
        except GlassfsError as error:
            # A container that is gone is retired now; one on a disk that fails may be there again.
            if not isinstance(error, DeviceFailed):
                self.containers.watcher.check(location)
            last = self._shown.get(name)
            if last is None:
                raise
            return LostDirectory(last.name, last.ino, last.origin, error)
        self._shown[name] = node
        return node

    def refresh(self) -> list[str]:
        """Compare what is shown with the stores; return the tree paths of what changed, "" for the root.

        Of folders only their own attributes count, as their listings are not cached. Waits for the stores.
        """
        changed = self.containers.refresh()
        if not self._queue:
            self._queue = list(self.locations)
        # Very many sources take several calls, so that one does not delay the notice of changes.
        names = self._queue[-COMPARED:]
        del self._queue[-COMPARED:]
        for name in names:
            location = self.locations[name]
            try:
                stamp = _stamp(location.entry())
            except (Unavailable, DeviceFailed):
                continue
            except GlassfsError:
                stamp = ""
            if self._stamps[name] != stamp:
                self._stamps[name] = stamp
                # Making the node notes its new attributes, and retires the lease on another version.
                with suppress(Unavailable):
                    self.node(name)
                if self._at(name) not in changed:
                    changed.append(self._at(name))
        return changed

    def close(self) -> None:
        if self.overview is not None:
            self.overview.close()
        self.containers.close()
        for store in self._stores():
            store.close()

    def finish(self) -> None:
        """Release what would outlive the process, which is about to end."""
        for store in self._stores():
            store.finish()

    def _with_overview(self, root: Directory, views: ViewSet) -> Directory:
        has_several = self.has_folder or not self._is_single
        return self.overview.over(root, views) if self.overview is not None and has_several else root

    def _stores(self) -> Iterable[Store]:
        return {id(location.store): location.store for location in self.locations.values()}.values()

    def _open(self, name: str) -> None:
        location = self.locations[name]
        entry = location.entry()
        self._stamps[name] = _stamp(entry)
        if entry.kind is Kind.FOLDER:
            self.has_folder = True
        else:
            self.containers.opened_at(location, entry.version, self._at(name))
        self.node(name)

    def _at(self, name: str) -> str:
        return "" if self._is_single else f"/{name}"


class SideBySide(Directory):
    """The root of several sources. Every user may list it: it shows only names from the command line.

    Owner and times are those of the source that was modified last.
    """

    mode = stat.S_IFDIR | 0o555

    def __init__(self, sources: Sources) -> None:
        super().__init__("", inode("|".join(sources.locations), 0), sources.newest)
        self._sources = sources

    @property
    def overview(self) -> Overview | None:
        return self._sources.overview

    def listing(self) -> Sequence[Node]:
        found = self._sources.locations.items()
        return [self._sources.node(name) for name, (store, path) in found if not store.hides(path)]

    def child(self, name: str) -> Node:
        location = self._sources.locations.get(name)
        if location is None or location.store.hides(location.path):
            raise not_found(name)
        return self._sources.node(name)


def _stamp(entry: Entry) -> str:
    """Return what to compare of a source. Of a folder that is independent of what is in it."""
    if entry.kind is Kind.FILE:
        return entry.stamp
    return f"{entry.file_id}:{entry.permissions}:{entry.uid}:{entry.gid}"


def viewed(directory: Directory, name: str, ino: int) -> Directory:
    """Return a directory called ``name`` with all views of what is in ``directory``."""
    if isinstance(directory, ContainerDirectory):
        return _ViewedContainer(name, ino, directory)
    return _Viewed(
        name, ino, directory,
        lambda node, name, ino: viewed(node, name, ino) if isinstance(node, Directory) else node,
    )


class _Other(Directory):
    """A directory outside containers under another name. ``exchange`` returns what is shown instead of each child.

    It is called with the child, its name and its inode number here; None leaves the child out. The directory is not
    watched: changes are reported for the original path.
    """

    def __init__(
        self, name: str, ino: int, directory: Directory, exchange: Callable[[Node, str, int], Node | None],
    ) -> None:
        super().__init__(name, ino, directory.origin)
        self._directory = directory
        self._exchange = exchange

    @property
    def mode(self) -> int:
        return self._directory.mode

    def listing(self) -> Sequence[Node]:
        return [other for node in self._directory.listing() if (other := self._exchanged(node)) is not None]

    def child(self, name: str) -> Node:
        other = self._exchanged(self._directory.child(name))
        if other is None:
            raise not_found(name)
        return other

    def _exchanged(self, node: Node) -> Node | None:
        return self._exchange(node, node.name, inode(node.name, self.ino))


class _Viewed(_Other):
    """A directory whose containers have all views: all of its names are shown."""

    def names(self) -> Iterator[str]:
        return self._directory.names()

    def omitted(self) -> Sequence[Omission]:
        return self._directory.omitted()


class _ViewedContainer(Standing):
    """A container with all views."""

    def __init__(self, name: str, ino: int, container: ContainerDirectory) -> None:
        super().__init__(name, ino, container.origin)
        self._container = container

    @property
    def is_presumed(self) -> bool:
        return self._container.is_presumed

    def xattrs(self) -> dict[str, bytes]:
        return {} if self.is_presumed else self._container.xattrs() | error_of(self.shown())

    def shown(self) -> Settled:
        return self._container.opened().viewed


def _own(node: Node, name: str, ino: int) -> Node | None:
    """Return a folder with its sub-folders and its container files as plain files, or such a file."""
    if isinstance(node, (Folder, SideBySide)):
        return _Other(name, ino, node, _own)
    if not isinstance(node, ContainerDirectory):
        return None
    location = node.location
    try:
        # The entry of now, as the node may stand for an older version.
        entry = location.entry()
    except GlassfsError:
        return None
    return plain_file(node.containers, location, entry, name, ino) if entry.kind is Kind.FILE else None


class OwnFiles(Directory):
    """The container files themselves, under the names of their ``sources``. A folder named alone stands for the whole.

    This is what ``.glassfs/source`` of a mount shows.
    """

    def __init__(self, name: str, ino: int, origin: Origin, sources: Sources) -> None:
        super().__init__(name, ino, origin)
        self._sources = sources

    def listing(self) -> Sequence[Node]:
        return self._shown().listing()

    def child(self, name: str) -> Node:
        return self._shown().child(name)

    def _shown(self) -> Directory:
        root = self._sources.plain_root()
        node = _own(root, self.name, self.ino)
        if isinstance(node, Directory):
            return node
        # The only source is a container.
        name = next(iter(self._sources.locations))
        file = _own(root, name, inode(name, self.ino))
        return FixedDirectory(self.name, self.ino, self.origin, {} if file is None else {name: file})
