"""A tree: nodes looked up by paths from its root. Any thread."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence

from glassfs.errors import Changed, GlassfsError, IsADirectory, NotADirectory, NotFound
from glassfs.tree.build import DEEPEST
from glassfs.tree.nodes import Directory, File, Node, Settled, entered
from glassfs.tree.omissions import Omission


class Tree:
    """The directories and files below the directory that ``root`` returns. A context manager, closed at the end.

    Paths may begin with a slash or not, and contain ``.``, ``..`` and repeated slashes. ``closing`` releases what the
    nodes hold. Paths that lead nowhere are looked up in ``unlisted``, whose nodes are in no listing of this tree.
    """

    def __init__(
        self, root: Callable[[], Directory], closing: Callable[[], None] | None = None, unlisted: Tree | None = None,
    ) -> None:
        self._root = root
        self._closing = closing
        self._unlisted = unlisted

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def root(self) -> Directory:
        return self._root()

    def close(self) -> None:
        """Release files, decoded blocks and spool files now. Later calls open them again."""
        if self._closing is not None:
            self._closing()

    def lookup(self, path: str) -> Node:
        """Return the node at ``path``, parsed if it is presumed. Raises NotFound, NotADirectory, or a read error."""
        try:
            return self._entered(normal(path))
        except NotFound as error:
            raise NotFound(error.reason, error.source, path) from None

    def node(self, path: str) -> Node:
        """Return the node at a path as of ``normal``; a presumed directory is not parsed. Raises as ``lookup``."""
        try:
            try:
                return self._walked(path)
            except Changed:
                # A directory on the way belongs to a container that was replaced meanwhile: look the path up again.
                return self._walked(path)
        except NotFound as missing:
            if self._unlisted is None:
                raise
            try:
                return self._unlisted.node(path)
            except NotFound:
                raise missing from None

    def _walked(self, path: str) -> Node:
        node: Node = self._root()
        for name in filter(None, path.split("/")):
            if not isinstance(node, Directory):
                raise NotADirectory("is not a directory", part=path.rpartition("/")[0])
            node = node.child(name)
        return node

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
        on_omitted: Callable[[str, Omission], None] | None = None,
    ) -> Iterator[tuple[str, Node]]:
        """Yield all nodes below ``path`` with their paths, parents first. Presumed directories are parsed first.

        ``on_error`` is called with the path of a directory that cannot be listed, and the error; without it the error
        ends the walk. ``on_omitted`` is called with the path that a member would have that is not shown.
        """
        # A list instead of recursion: folders may be nested deeper than Python's stack is.
        waiting: list[tuple[str, Node, bool]] = [(normal(path).rstrip("/"), self.directory(path), False)]
        while waiting:
            start, node, is_presumed = waiting.pop()
            nodes: Sequence[Node] = ()
            omitted: Sequence[Omission] = ()
            failure = None
            try:
                if is_presumed:
                    node = self._entered(start)
                if isinstance(node, Directory):
                    demand_shallow(node, start.count("/"))
                    nodes = node.listing()
                    omitted = node.omitted() if on_omitted is not None else ()
            except GlassfsError as error:
                if on_error is None:
                    raise
                failure = error
            if is_presumed:
                yield start, node
            if failure is not None and on_error is not None:
                on_error(start or "/", failure)
            if on_omitted is not None:
                for one in omitted:
                    on_omitted(f"{start}/{one.name}".rstrip("/") or "/", one)
            inner: list[tuple[str, Node, bool]] = []
            for node in nodes:
                below = f"{start}/{node.name}"
                is_presumed = isinstance(node, Directory) and node.is_presumed
                if not is_presumed:
                    yield below, node
                if isinstance(node, Directory):
                    inner.append((below, node, is_presumed))
            waiting += reversed(inner)

    def _entered(self, path: str) -> Node:
        """Return the node at a normal path, parsed if it is presumed."""
        return entered(lambda: self.node(path))


def demand_shallow(directory: Directory, depth: int) -> None:
    """Raise GlassfsError for a folder of a source that a walk should not enter: a server may have them without end."""
    if depth > DEEPEST and not isinstance(directory, Settled):
        raise GlassfsError(f"is more than {DEEPEST} folders deep")


def normal(path: str) -> str:
    """Return the path with a leading slash, no trailing one, no ``.``, and ``..`` resolved within the root."""
    return posixpath.normpath("/" + path.strip("/"))
