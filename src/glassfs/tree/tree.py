"""A tree: paths looked up from its root. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from glassfs.errors import GlassfsError, IsADirectory, NotADirectory
from glassfs.tree.nodes import Directory, File, Node

KEPT_PATHS = 4096


class Tree:
    """Paths start with ``/`` and have no empty components; ``/`` is the root.

    As a context manager it is closed at the end. ``closing`` gives back what the nodes hold.
    """

    def __init__(self, root: Directory, closing: Callable[[], None] | None = None) -> None:
        self.root = root
        self._closing = closing
        self._directories: dict[str, Directory] = {"": root}
        self._lock = threading.Lock()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back files, decoded blocks and spool files at once. Whoever looks again has them opened again."""
        if self._closing is not None:
            self._closing()

    def lookup(self, path: str) -> Node:
        """The node at ``path``. Raises NotFound, NotADirectory, or what finding out raises."""
        parent, _, name = path.rpartition("/")
        directory = self._directories.get(parent)
        if directory is None:
            directory = self._walk(parent)
        return directory.child(name) if name else directory

    def directory(self, path: str) -> Directory:
        node = self.lookup(path)
        if not isinstance(node, Directory):
            raise NotADirectory(path)
        return node

    def file(self, path: str) -> File:
        node = self.lookup(path)
        if not isinstance(node, File):
            raise IsADirectory(path)
        return node

    def walk(
        self, path: str = "/", on_error: Callable[[str, GlassfsError], None] | None = None,
    ) -> Iterator[tuple[str, Node]]:
        """All nodes below ``path``, parents first, with their paths.

        Where a directory cannot be listed, ``on_error`` is told its path and why; without it the error ends the walk.
        """
        waiting = [path.rstrip("/")]
        while waiting:
            start = waiting.pop()
            try:
                nodes = self.directory(start or "/").listing()
            except GlassfsError as error:
                if on_error is None:
                    raise
                on_error(start or "/", error)
                continue
            inner = []
            for node in nodes:
                below = f"{start}/{node.name}"
                yield below, node
                if isinstance(node, Directory):
                    inner.append(below)
            waiting += reversed(inner)

    def replace_root(self, root: Directory) -> None:
        """Puts another root, which shows more, in the place of the root."""
        self.root = root
        self.forget()

    def forget(self) -> None:
        """Looks every path up anew from now on."""
        with self._lock:
            self._directories = {"": self.root}

    def _walk(self, path: str) -> Directory:
        known = path
        while (directory := self._directories.get(known)) is None:
            known = known.rpartition("/")[0]
        for name in path[len(known) + 1 :].split("/") if path != known else ():
            node = directory.child(name)
            if not isinstance(node, Directory):
                raise NotADirectory(path)
            directory = node
        with self._lock:
            if len(self._directories) >= KEPT_PATHS:
                self._directories = {"": self.root}
            self._directories[path] = directory
        return directory
