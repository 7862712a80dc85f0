"""The sources that a person named as one tree: a container, a folder, or several of either side by side. Any thread."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from glassfs.content.join import Joined
from glassfs.errors import DeviceFailed, GlassfsError, NotFound, Unavailable
from glassfs.names import RESERVED, component, free_name, raw
from glassfs.source import Entry, Kind, Named, Store
from glassfs.tree.containers.containers import COMPARED, Containers
from glassfs.tree.containers.lease import Location
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Directory, Node, Origin, inode, not_found
from glassfs.tree.sources.folder import LostDirectory, node_at
from glassfs.tree.sources.joined import Audience, Joinable, Joins, WithJoined
from glassfs.tree.sources.viewed import viewed
from glassfs.tree.sources.walk import Start
from glassfs.tree.tree import Tree
from glassfs.view import ALL, ViewSet, chosen


class Sources:
    """What was named, each under a name of its own, and the tree of it. ``tree.close`` closes the containers.

    Raises Refused, or whatever finding out raises, for what is no container or cannot be read.
    """

    def __init__(
        self, named: Sequence[Named], containers: Containers, audience: Audience = Audience(),  # noqa: B008
    ) -> None:
        self.containers = containers
        self.locations: dict[str, Location] = {}
        self._shown: dict[str, Node] = {}
        self._stamps: dict[str, str] = {}
        self._waiting: list[str] = []
        """Those whose turn to be compared comes before that of all others."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when something that was shown is not what it was; ``refresh`` then tells what."""
        self.on_drop: Callable[[Lease], None] = lambda lease: None
        """Called when what was parsed of a container was dropped or exchanged: see ``Containers.dropped``."""
        for one in named:
            original = raw(one.name)
            name = free_name(
                component(original), lambda name: name in self.locations or name == RESERVED,
                partial(component, original),
            )
            self.locations[name] = Location(one.store, one.path)
        self._is_single = len(self.locations) == 1
        starts = [
            Start("" if self._is_single else name, location, self._is_single)
            for name, location in self.locations.items()
        ]
        self.joins = Joins(containers, starts, audience)
        self.has_folder = False
        try:
            for name in self.locations:
                self._begin(name)
        except BaseException:
            self.close()
            raise
        self.tree = Tree(self.root, self.close)
        containers.changed, containers.dropped = self._changed, self._dropped

    @property
    def has_presumed(self) -> bool:
        """Whether there may be directories of which only the name says so (``Directory.is_presumed``)."""
        return self.has_folder and any(location.store.is_remote for location in self.locations.values())

    @property
    def newest(self) -> Origin:
        """What the source that changed last was when it was looked at last."""
        return max((node.origin for node in list(self._shown.values())), key=lambda origin: origin.mtime_ns)

    def root(self) -> Directory:
        """The root directory as it is now, with the views of the tree."""
        return self._joined(self.plain_root(), self.containers.services.views)

    def viewed(self, name: str, ino: int) -> Directory:
        """The same with all views, as a directory of this name."""
        root = viewed(self.plain_root(), name, ino)
        return self._joined(root, chosen(ALL))

    def plain_root(self) -> Directory:
        """The root directory without what is joined."""
        if self._is_single:
            node = self.node(next(iter(self.locations)))
            if isinstance(node, Directory):
                return node
            reason = node.xattrs().get("user.glassfs.error", b"is not a container").decode("utf-8", "replace")
            return LostDirectory(node.name, node.ino, node.origin, GlassfsError(reason))
        return _SideBySide(self)

    def _joined(self, root: Directory, views: ViewSet) -> Directory:
        """A root below which there may be several containers, with the views of what is joined."""
        is_joined = (self.has_folder or not self._is_single) and any(
            issubclass(Joined, view.kinds) for view in views.views
        )
        return WithJoined(root, self.joins, views) if is_joined else root

    def node(self, name: str) -> Node:
        """The node of one of the sources, as it is now; under its last attributes where it is not there."""
        location, at = self.locations[name], self._at(name)
        shown = "" if self._is_single else name
        try:
            entry = location.store.entry(location.path)
            node = node_at(self.containers, location, entry, shown, _number(entry), at, is_mount_root=self._is_single)
            if node is None:
                raise NotFound("is neither a file nor a folder any more", location.store.shown(location.path))
        except Unavailable:
            raise
        except GlassfsError as error:
            if not isinstance(error, DeviceFailed):
                self.containers.look(location, None)
            last = self._shown.get(name)
            if last is None:
                raise
            return LostDirectory(last.name, last.ino, last.origin, error)
        self._shown[name] = node
        return node

    def refresh(self) -> list[str]:
        """Compares what is shown with the stores; the paths in the tree of what changed, "" for all of it.

        Where very many were named, some are compared each time. Of folders only their own attributes count: what is in
        them is looked up anew each time.
        """
        changed = self.containers.refresh()
        if not self._waiting:
            self._waiting = list(self.locations)
        some = self._waiting[-COMPARED:]
        del self._waiting[-COMPARED:]
        for name in some:
            location = self.locations[name]
            try:
                entry = location.store.entry(location.path)
                stamp = _stamp(entry)
            except (Unavailable, DeviceFailed):
                continue
            except GlassfsError:
                stamp = ""
            if self._stamps[name] != stamp:
                self._stamps[name] = stamp
                with suppress(Unavailable):
                    self.node(name)
                if self._at(name) not in changed:
                    changed.append(self._at(name))
                    self.tree.forget()
        return changed

    def heard(self) -> list[str]:
        """Of that, what others have noticed and stores have told. Waits for no store but one that told of a change."""
        return self.containers.heard()

    def made_of(self, location: Location, entry: Entry) -> Sequence[Entry]:
        """All files that the container at a place is made of, its own first; that alone if it is no container."""
        at = next(self._at(name) for name, named in self.locations.items() if named == location)
        return self.containers.verdict(location, entry, at).entries

    def _changed(self) -> None:
        self.tree.forget()
        self.on_change()

    def _dropped(self, lease: Lease) -> None:
        self.tree.forget(lease)
        self.on_drop(lease)

    def close(self) -> None:
        self.joins.close()
        self.containers.close()
        for store in self._stores():
            store.close()

    def finish(self) -> None:
        """The process is about to end, without giving anything back by itself."""
        for store in self._stores():
            store.finish()

    def _stores(self) -> Iterable[Store]:
        return {id(location.store): location.store for location in self.locations.values()}.values()

    def _begin(self, name: str) -> None:
        """Opens one of the sources."""
        location = self.locations[name]
        entry = location.store.entry(location.path)
        self._stamps[name] = _stamp(entry)
        if entry.kind is Kind.FOLDER:
            self.has_folder = True
        else:
            self.containers.opened_at(location, entry.version, self._at(name))
        self.node(name)

    def _at(self, name: str) -> str:
        return "" if self._is_single else f"/{name}"


class _SideBySide(Joinable):
    """The root of several sources, which everybody may list: it shows only the names that were given on a command line.

    Owner and times are those of the source that changed last.
    """

    __slots__ = ("_sources",)

    def __init__(self, sources: Sources) -> None:
        super().__init__("", inode("|".join(sources.locations), 0), sources.newest)
        self._sources = sources

    @property
    def mode(self) -> int:
        return stat.S_IFDIR | 0o555

    @property
    def joins(self) -> Joins:
        return self._sources.joins

    def listing(self) -> Sequence[Node]:
        return [self._sources.node(name) for name in self._sources.locations]

    def child(self, name: str) -> Node:
        if name not in self._sources.locations:
            raise not_found(name)
        return self._sources.node(name)


def _number(entry: Entry) -> int:
    return inode(entry.file_id, 0)


def _stamp(entry: Entry) -> str:
    """What counts of a source. Of a folder that is itself, whatever is in it."""
    if entry.kind is Kind.FILE:
        return entry.stamp
    return f"{entry.file_id}:{entry.permissions}:{entry.uid}:{entry.gid}"
