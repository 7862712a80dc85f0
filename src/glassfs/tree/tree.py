"""A tree: paths looked up from its root. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from glassfs.errors import Changed, GlassfsError, IsADirectory, NotADirectory, NotFound
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Directory, File, Node

KEPT_PATHS = 4096


class Tree:
    """``root`` gives the root directory as it is now. As a context manager the tree is closed at the end.

    Paths are as a person would write them: a slash in front or not, ``.``, ``..`` and repeated slashes as usual.
    ``closing`` gives back what the nodes hold.
    """

    def __init__(self, root: Callable[[], Directory], closing: Callable[[], None] | None = None) -> None:
        self._root = root
        self._closing = closing
        self._directories: dict[str, Directory] = {}
        self._paths_of: dict[Lease, list[str]] = {}
        """The paths of these directories by what they are of."""
        self._generation = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def root(self) -> Directory:
        return self._root()

    def wrap_root(self, wrap: Callable[[Directory], Directory]) -> None:
        """Shows another root, which shows more, in the place of the root."""
        inner = self._root
        self._root = lambda: wrap(inner())
        self.forget()

    def close(self) -> None:
        """Gives back files, decoded blocks and spool files at once. Whoever looks again has them opened again."""
        if self._closing is not None:
            self._closing()

    def lookup(self, path: str) -> Node:
        """The node at ``path``, whatever its name says. Raises NotFound, NotADirectory, or what finding out raises."""
        try:
            return self._certain(normal(path))
        except NotFound as error:
            raise NotFound(error.reason, error.source, path) from None

    def node(self, path: str) -> Node:
        """The same for a path that is normal: a slash in front, none at the end, nothing that could be left out."""
        parent, _, name = path.rpartition("/")
        if not name:
            return self._root()
        try:
            return (self._directories.get(parent) or self._walked(parent)).child(name)
        except Changed:
            # A directory on the way is one of a container that was replaced since: what is there now?
            self.forget()
            return self._walked(parent).child(name)

    def directory(self, path: str) -> Directory:
        node = self.lookup(path)
        if not isinstance(node, Directory):
            raise NotADirectory("is not a directory", part=path)
        return node

    def file(self, path: str) -> File:
        node = self.lookup(path)
        if not isinstance(node, File):
            raise IsADirectory("is not a file", part=path)
        return node

    def walk(
        self, path: str = "/", on_error: Callable[[str, GlassfsError], None] | None = None,
    ) -> Iterator[tuple[str, Node]]:
        """All nodes below ``path``, parents first, with their paths. What is presumed comes once it is known.

        Where a directory cannot be listed, ``on_error`` is told its path and why; without it the error ends the walk.
        """
        waiting: list[tuple[str, Node, bool]] = [(normal(path).rstrip("/"), self.directory(path), False)]
        while waiting:
            start, node, is_presumed = waiting.pop()
            nodes: Sequence[Node] = ()
            fault = None
            try:
                if is_presumed:
                    node = self._certain(start)
                if isinstance(node, Directory):
                    nodes = node.listing()
            except GlassfsError as error:
                if on_error is None:
                    raise
                fault = error
            if is_presumed:
                yield start, node
            if fault is not None and on_error is not None:
                on_error(start or "/", fault)
            inner: list[tuple[str, Node, bool]] = []
            for node in nodes:
                below = f"{start}/{node.name}"
                is_presumed = isinstance(node, Directory) and node.is_presumed
                if not is_presumed:
                    yield below, node
                if isinstance(node, Directory):
                    inner.append((below, node, is_presumed))
            waiting += reversed(inner)

    def forget(self, lease: Lease | None = None) -> None:
        """Looks every path up anew from now on, or those that lead to what is leased."""
        with self._lock:
            self._generation += 1
            if lease is None:
                self._directories, self._paths_of = {}, {}
            else:
                for path in self._paths_of.pop(lease, ()):
                    self._directories.pop(path, None)

    def _certain(self, path: str) -> Node:
        """The node at a normal path, which is looked into if it is presumed."""
        node = self.node(path)
        try:
            if isinstance(node, Directory):
                node.enter()
        except Changed:
            node = self.node(path)
        return node

    def _walked(self, path: str) -> Directory:
        """The directory at a normal path (the root is empty), remembered unless all was forgotten meanwhile."""
        with self._lock:
            generation = self._generation
            known, directory = path, self._directories.get(path)
            while directory is None and known:
                known = known.rpartition("/")[0]
                directory = self._directories.get(known)
        if directory is None:
            directory = self._root()
        for name in path[len(known) + 1 :].split("/") if path != known else ():
            node = directory.child(name)
            if not isinstance(node, Directory):
                raise NotADirectory("is not a directory", part=path)
            directory = node
        with self._lock:
            # Of what has other names nobody is told when something else takes its place.
            if self._generation == generation and not directory.origin.has_other_names:
                if len(self._directories) >= KEPT_PATHS:
                    self._directories, self._paths_of = {}, {}
                if path not in self._directories:
                    self._paths_of.setdefault(directory.origin.lease, []).append(path)
                self._directories[path] = directory
        return directory


def normal(path: str) -> str:
    """The path with a slash in front, none at the end, and no ``.``. ``..`` is resolved, within the root."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
