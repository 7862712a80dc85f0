"""The container files themselves: what ``.glassfs/source`` of a mount shows. Any thread."""

from __future__ import annotations

from collections.abc import Sequence

from glassfs.errors import GlassfsError
from glassfs.source import Kind
from glassfs.tree.nodes import Directory, Node, Origin, inode, not_found
from glassfs.tree.sources.folder import ContainerDirectory, Folder, plain_file
from glassfs.tree.sources.sources import Sources


class _OwnFolder(Directory):
    """A mirrored folder that shows its sub-folders and its container files, these as plain files."""

    __slots__ = ("_folder",)

    def __init__(self, name: str, ino: int, folder: Folder) -> None:
        super().__init__(name, ino, folder.origin)
        self._folder = folder

    @property
    def mode(self) -> int:
        return self._folder.mode

    def listing(self) -> Sequence[Node]:
        return [own for node in self._folder.listing() if (own := self._own(node)) is not None]

    def child(self, name: str) -> Node:
        node = self._own(self._folder.child(name))
        if node is None:
            raise not_found(name)
        return node

    def _own(self, node: Node) -> Node | None:
        return _own_file(node, node.name, inode(node.name, self.ino))


class OwnFiles(Directory):
    """The container files under the names of their ``sources``. A folder named alone stands for the whole."""

    __slots__ = ("_sources",)

    def __init__(self, name: str, ino: int, origin: Origin, sources: Sources) -> None:
        super().__init__(name, ino, origin)
        self._sources = sources

    def listing(self) -> Sequence[Node]:
        folder = self._folder()
        if folder is not None:
            return folder.listing()
        return [node for name in self._sources.locations if (node := self._own(name)) is not None]

    def child(self, name: str) -> Node:
        folder = self._folder()
        if folder is not None:
            return folder.child(name)
        node = self._own(name) if name in self._sources.locations else None
        if node is None:
            raise not_found(name)
        return node

    def _folder(self) -> _OwnFolder | None:
        root = self._sources.plain_root()
        return _OwnFolder(self.name, self.ino, root) if isinstance(root, Folder) else None

    def _own(self, name: str) -> Node | None:
        return _own_file(self._sources.node(name), name, inode(name, self.ino))


def _own_file(node: Node, name: str, ino: int) -> Node | None:
    """Return the file of a container, or the folder; None for other nodes."""
    if isinstance(node, Folder):
        return _OwnFolder(name, ino, node)
    if not isinstance(node, ContainerDirectory):
        return None
    location = node.location
    try:
        # The entry of now, as the node may stand for an older version.
        entry = location.store.entry(location.path)
    except GlassfsError:
        return None
    return plain_file(node.containers, location, entry, name, ino) if entry.kind is Kind.FILE else None
