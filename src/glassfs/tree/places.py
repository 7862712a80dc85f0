"""The sources that a person names, as a tree: a container, several, or a folder mirrored with all that is in it.

A container is opened when somebody looks at it, and closed when others were looked at since; the verdict whether a
file is a container at all is remembered for as long as the file stays the same. ``refresh`` compares what is shown
with what is on disk and drops what changed. Any thread.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from glassfs.cache import BlockCache
from glassfs.content import Container, Extent
from glassfs.content.data import Data
from glassfs.errors import Changed, GlassfsError, NotFound, Refused
from glassfs.formats.registry import HEAD, open_container, recognise
from glassfs.source import Identity, LocalSource
from glassfs.source.local import identity_of
from glassfs.tree.build import container_root
from glassfs.tree.names import RESERVED, component
from glassfs.tree.nodes import (
    XATTR_PREFIX,
    Directory,
    File,
    FixedDirectory,
    Listings,
    Node,
    Origin,
    Symlink,
    inode,
    modes,
)
from glassfs.tree.tree import Tree

log = logging.getLogger(__name__)

OPEN_CONTAINERS = 64
REMEMBERED_VERDICTS = 100_000


@dataclass(slots=True)
class Shown:
    """An opened container and the directory that shows it."""

    container: Container
    root: Directory
    identity: Identity


class Places:
    """What all places of one tree share: the cache, the listings, and which containers are open."""

    def __init__(self, cache: BlockCache | None = None, limit: int = OPEN_CONTAINERS) -> None:
        self.cache = cache or BlockCache()
        self.listings = Listings()
        self.tree: Tree | None = None
        self.closings = 0
        self._limit = max(1, limit)
        self._lock = threading.Lock()
        self._open: OrderedDict[ContainerPlace, None] = OrderedDict()
        self._verdicts: OrderedDict[Identity, str | None] = OrderedDict()

    def open_containers(self) -> list[ContainerPlace]:
        with self._lock:
            return list(self._open)

    def opened(self, place: ContainerPlace) -> None:
        """Notes that a container is in use, and closes the one whose use is longest ago if there are too many."""
        closing = []
        with self._lock:
            self._open[place] = None
            self._open.move_to_end(place)
            while len(self._open) > self._limit:
                closing.append(self._open.popitem(last=False)[0])
                self.closings += 1
        for old in closing:
            old.close()
            self.forget_paths()

    def refresh(self) -> list[str]:
        """Closes the open containers whose files are no longer what was opened; their paths in the tree."""
        changed = [place for place in self.open_containers() if not place.is_current()]
        for place in changed:
            self.closed(place)
        return [place.place for place in changed]

    def closed(self, place: ContainerPlace) -> None:
        """Closes a container that changed."""
        with self._lock:
            self._open.pop(place, None)
        place.close(is_replaced=os.path.exists(place.path))
        self.forget_paths()

    def close(self) -> None:
        """Closes all containers, and drops all decoded blocks."""
        with self._lock:
            closing, self._open = list(self._open), OrderedDict()
        for place in closing:
            place.close()
        self.forget_paths()
        self.cache.clear()

    def forget_paths(self) -> None:
        if self.tree is not None:
            self.tree.forget()

    def refusal(self, path: str, identity: Identity) -> str | None:
        """Why the file at ``path`` is not shown as a container ("": it does not look like one), or None where it is.

        Raises OSError where that cannot be found out; it is then asked anew the next time.
        """
        with self._lock:
            if identity in self._verdicts:
                return self._verdicts[identity]
        verdict = self._examine(path)
        with self._lock:
            self._verdicts[identity] = verdict
            if len(self._verdicts) > REMEMBERED_VERDICTS:
                self._verdicts.popitem(last=False)
        return verdict

    def _examine(self, path: str) -> str | None:
        source = LocalSource(path)
        try:
            if recognise(source.read(0, min(HEAD, source.size))) is None:
                return ""
            open_container(source, self.cache).close()
        except Refused as error:
            log.warning("%s", error)
            return error.reason
        finally:
            source.close()
        return None


class ContainerPlace(Directory):
    """A container file as a directory, opened when somebody looks inside and again after it changed."""

    __slots__ = ("_folder", "_is_mount_root", "_lock", "_places", "_shown", "path", "place")

    def __init__(
        self, name: str, ino: int, origin: Origin, path: str, places: Places, place: str, is_mount_root: bool = False,
        folder: FolderPlace | None = None,
    ) -> None:
        super().__init__(name, ino, origin)
        self.path = path
        self.place = place
        self._places = places
        self._folder = folder
        self._is_mount_root = is_mount_root
        self._shown: Shown | None = None
        self._lock = threading.Lock()

    def shown(self) -> Shown:
        """The container, opened. Raises Refused or OSError."""
        with self._lock:
            if self._shown is None:
                source = LocalSource(self.path)
                container = open_container(source, self._places.cache)
                origin = Origin.of(source, self._places.cache, self._places.listings, container.format)
                root = container_root(container.root, origin, self.name, self._is_mount_root)
                self.origin = origin
                self._shown = Shown(container, root, source.identity)
            shown = self._shown
        self._places.opened(self)
        return shown

    def is_current(self, shown: Shown | None = None) -> bool:
        """Whether the file is still the one that was opened."""
        shown = shown or self._shown
        try:
            return shown is None or identity_of(os.stat(self.path)) == shown.identity
        except OSError:
            return False

    def close(self, is_replaced: bool = False) -> None:
        """Forgets the container. Its files stay readable for whoever has one open, unless another took its place."""
        if self._folder is not None:
            self._folder.forget(self)
        with self._lock:
            shown, self._shown = self._shown, None
            if shown is not None:
                shown.root.origin.is_replaced = is_replaced
        if shown is not None:
            origin = shown.root.origin
            self._places.listings.forget(origin)
            origin.retired = shown.container.park
            if not origin.users:
                origin.retired = None  # what keeps the origin must not keep the container
                if self.is_current(shown):
                    shown.container.park()

    def _root(self) -> Directory:
        try:
            return self.shown().root
        except FileNotFoundError as error:
            raise Changed(f"{self.path}: is gone") from error
        except (Refused, OSError) as error:
            raise Changed(str(error)) from error

    def listing(self) -> Sequence[Node]:
        return self._root().listing()

    def child(self, name: str) -> Node:
        return self._root().child(name)

    @property
    def is_counted(self) -> bool:
        return self._shown is not None

    @property
    def link_count(self) -> int:
        try:
            return self._root().link_count
        except GlassfsError:
            return 2

    def xattrs(self) -> dict[str, bytes]:
        return {XATTR_PREFIX + "format": self.shown().container.format.encode()}


class FolderPlace(Directory):
    """A folder of the local system, mirrored. It is read anew each time, as anybody may change it.

    Of what is in it, it knows the folders and the open containers that somebody has looked up, and nothing else.
    """

    __slots__ = ("_is_mount_root", "_known", "_lock", "_places", "_root", "path", "place")

    def __init__(
        self, name: str, ino: int, origin: Origin, path: str, places: Places, place: str, root: str,
        is_mount_root: bool = False,
    ) -> None:
        super().__init__(name, ino, origin)
        self.path = path
        self.place = place
        self._places = places
        self._root = root  # symbolic links are followed as long as they stay below here
        self._is_mount_root = is_mount_root
        self._known: dict[str, tuple[Identity, FolderPlace | ContainerPlace]] = {}
        self._lock = threading.Lock()

    def listing(self) -> Sequence[Node]:
        try:
            self.origin = _origin(os.stat(self.path), self._places)
            with os.scandir(self.path) as entries:
                originals = sorted(entry.name for entry in entries)
        except OSError as error:
            raise Changed(f"{self.path}: {error.strerror}") from error
        found: dict[str, Node] = {}
        for original in originals:
            name = self._shown_name(original)
            node = self._node(name, original)
            if node is not None:
                found[name] = node
        with self._lock:
            for name in self._known.keys() - found.keys():
                del self._known[name]
        return list(found.values())

    def child(self, name: str) -> Node:
        node = self._node(name, name, is_looked_up=True) if self._shown_name(name) == name else None
        if node is None:  # gone, or the name is one that had to be escaped
            node = next((node for node in self.listing() if node.name == name), None)
        if node is None:
            raise NotFound(name)
        return node

    def forget(self, place: ContainerPlace) -> None:
        with self._lock:
            known = self._known.get(place.name)
            if known is not None and known[1] is place:
                del self._known[place.name]

    def _shown_name(self, original: str) -> str:
        name = component(os.fsencode(original))
        return f"%2E{name[1:]}" if self._is_mount_root and name == RESERVED else name

    def _node(self, name: str, original: str, is_looked_up: bool = False) -> Node | None:
        """The node for an entry as it is now: the known one if the entry is still the same. None if it is gone."""
        path = os.path.join(self.path, original)
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode) and self._is_followed(path):
                status = os.stat(path)
        except OSError:
            return None
        identity = identity_of(status)
        with self._lock:
            known = self._known.get(name)
        if known is not None:
            if known[0] == identity or (isinstance(known[1], FolderPlace) and known[0][:2] == identity[:2]):
                return known[1]
            if isinstance(known[1], ContainerPlace):
                self._places.closed(known[1])
        try:
            node = self._made(name, path, status)
        except OSError as error:
            origin = _origin(status, self._places)
            return PlainFile(name, inode(name, self.ino), origin, path, status.st_size, str(error))
        if is_looked_up and isinstance(node, (FolderPlace, ContainerPlace)):
            with self._lock:
                self._known[name] = identity, node
        return node

    def _made(self, name: str, path: str, status: os.stat_result) -> Node | None:
        ino = inode(name, self.ino)
        if stat.S_ISLNK(status.st_mode):
            return Symlink(name, ino, _origin(status, self._places), os.readlink(path))
        origin = _origin(status, self._places)
        place = f"{self.place}/{name}"
        if stat.S_ISDIR(status.st_mode):
            return FolderPlace(name, ino, origin, path, self._places, place, self._root)
        if not stat.S_ISREG(status.st_mode):
            return None
        refusal = self._places.refusal(path, identity_of(status))
        if refusal is None:
            return ContainerPlace(name, ino, origin, path, self._places, place, folder=self)
        return PlainFile(name, ino, origin, path, status.st_size, refusal)

    def _is_followed(self, path: str) -> bool:
        """Whether a link leads to something below the root that does not contain the link itself."""
        target = os.path.realpath(path)
        folder = os.path.realpath(self.path)
        is_inside = os.path.commonpath((target, self._root)) == self._root
        return is_inside and os.path.exists(target) and os.path.commonpath((target, folder)) != target


class PlainFile(File):
    """A file that is no container, as itself; ``reason`` says why one that looks like a container is none."""

    __slots__ = ("_path", "_reason")

    def __init__(self, name: str, ino: int, origin: Origin, path: str, size: int, reason: str) -> None:
        super().__init__(name, ino, origin, _FileData(path, size))
        self._path = path
        self._reason = reason

    def opened(self) -> File:
        """With a descriptor of its own, which goes when the opened file does."""
        return File(self.name, self.ino, self.origin, Extent(_opened(self._path), 0, self.size))

    def xattrs(self) -> dict[str, bytes]:
        return {XATTR_PREFIX + "error": self._reason.encode("utf-8", "replace")} if self._reason else {}


class _FileData(Data):
    """The bytes of a file that is opened for each read."""

    __slots__ = ("_path", "_size")

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        _opened(self._path).read_into(buffer, offset)


def _opened(path: str) -> LocalSource:
    try:
        return LocalSource(path)
    except OSError as error:
        raise Changed(f"{path}: {error.strerror}") from error


def open_tree(paths: Sequence[str], places: Places) -> Tree:
    """The tree for what a person named: one container, one folder, or several of either side by side.

    Raises Refused or OSError, naming the file.
    """
    if len(paths) == 1:
        root = _named(paths[0], "", "", places, is_mount_root=True)
    else:
        children: dict[str, Node] = {}
        for path in paths:
            original = os.fsencode(os.path.basename(os.path.abspath(path)))
            name, number = component(original), 2
            while name in children or name == RESERVED:
                name = component(original, f"~{number}")
                number += 1
            children[name] = _named(path, name, f"/{name}", places)
        newest = max((node.origin for node in children.values()), key=lambda origin: origin.mtime_ns)
        root = FixedDirectory("", inode("|".join(map(os.path.abspath, paths)), 0), newest, children)
    places.tree = Tree(root, places.close)
    return places.tree


def _named(path: str, name: str, place: str, places: Places, is_mount_root: bool = False) -> Directory:
    """A source that was given by name: what cannot be opened is an error here."""
    status = os.stat(path)
    origin = _origin(status, places)
    absolute = os.path.abspath(path)
    ino = inode(f"{status.st_dev}:{status.st_ino}", 0)
    if stat.S_ISDIR(status.st_mode):
        return FolderPlace(name, ino, origin, absolute, places, place, os.path.realpath(path), is_mount_root)
    found = ContainerPlace(name, ino, origin, absolute, places, place, is_mount_root)
    found.shown()
    return found


def _origin(status: os.stat_result, places: Places) -> Origin:
    identity = ":".join(map(str, identity_of(status)))
    owner = (status.st_uid, status.st_gid)
    return Origin(identity, *modes(status.st_mode), *owner, status.st_mtime_ns, places.cache, places.listings)
