"""The same tree with all views: what ``.glassfs/views`` of a mount shows. Any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glassfs.tree.nodes import Directory, Node, Settled, Standing, error_of, inode
from glassfs.tree.omissions import Omission
from glassfs.tree.sources.folder import ContainerDirectory
from glassfs.view import ALL, chosen


def viewed(directory: Directory, name: str, ino: int) -> Directory:
    """Return a directory called ``name`` with all views of what is in ``directory``."""
    if isinstance(directory, ContainerDirectory):
        return _ViewedContainer(name, ino, directory)
    return _Viewed(name, ino, directory)


class _Viewed(Directory):
    """A directory outside containers. It is not watched: changes are reported for the original path."""

    __slots__ = ("_directory",)

    def __init__(self, name: str, ino: int, directory: Directory) -> None:
        super().__init__(name, ino, directory.origin)
        self._directory = directory

    @property
    def mode(self) -> int:
        return self._directory.mode

    def listing(self) -> Sequence[Node]:
        return [self._viewed(node) for node in self._directory.listing()]

    def child(self, name: str) -> Node:
        return self._viewed(self._directory.child(name))

    def names(self) -> Iterator[str]:
        return self._directory.names()

    def omitted(self) -> Sequence[Omission]:
        return self._directory.omitted()

    def _viewed(self, node: Node) -> Node:
        return viewed(node, node.name, inode(node.name, self.ino)) if isinstance(node, Directory) else node


class _ViewedContainer(Standing):
    """A container with all views."""

    __slots__ = ("_container",)

    def __init__(self, name: str, ino: int, container: ContainerDirectory) -> None:
        super().__init__(name, ino, container.origin)
        self._container = container

    @property
    def is_presumed(self) -> bool:
        return self._container.is_presumed

    def xattrs(self) -> dict[str, bytes]:
        return {} if self.is_presumed else self._container.xattrs() | error_of(self.shown())

    def shown(self) -> Settled:
        return self._container.opened().root_with(chosen(ALL))
