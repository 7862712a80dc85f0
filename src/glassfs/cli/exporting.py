"""Write the nodes of a tree to a target, for ``glassfs export``, here or in a worker. One thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from glassfs.cli.common import nodes_from
from glassfs.cli.many import as_fault
from glassfs.cli.progress import Progress
from glassfs.cli.target import PIECE, Existing, NotWritten, Target, Unusable
from glassfs.errors import Damaged, GlassfsError
from glassfs.tree import Directory, File, Node, Symlink, Tree


class Export:
    """Writes nodes of a tree of ``source`` to a target. Nodes that fail are reported, counted and left out.

    ``failed`` is called with the path of a node that is left out, and the reason.
    """

    def __init__(
        self, tree: Tree, source: str, target: Target, existing: Existing, bar: Progress,
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._tree, self._source = tree, source
        self._target = target
        self._is_resumed = existing is Existing.RESUME
        self._bar = bar
        self._report = failed
        self._buffer = memoryview(bytearray(PIECE))
        self._unusable: set[str] = set()
        self._has_folders = os.path.isdir(source)
        self.failures = 0

    def run(self, starts: list[str]) -> int:
        """Write what is at these paths and return the number of nodes that failed. Raises Unusable if continuing is
        pointless.
        """
        for start in starts:
            self.make_folders_above(start)
            self.write_all(start)
        return self.failures

    def write_all(self, start: str) -> None:
        """Write what is at a path and below it; the folders above it must exist."""
        for path, node in nodes_from(self._tree, start, self._unlisted):
            self.write(path, node)

    def is_left_out(self, path: str) -> bool:
        """Return whether nothing can be written there because its folder could not be made, which was reported."""
        return bool(self._unusable) and path.rpartition("/")[0] in self._unusable

    def make_folders_above(self, start: str) -> None:
        parts = start.split("/")
        for end in range(2, len(parts)):
            path = "/".join(parts[:end])
            self.write(path, self._tree.lookup(path))

    def write(self, path: str, node: Node) -> None:
        """Write one node without those below it. Raises Unusable."""
        if path == "/":
            return
        if self.is_left_out(path):
            self.leave_out(path, node)
            return
        try:
            if isinstance(node, Directory):
                self._make_folder(path, node)
            elif isinstance(node, Symlink):
                if not (self._is_resumed and self._target.has_link(path, node.target)):
                    self._target.link(path, node.target, node.origin.mtime_ns)
            elif isinstance(node, File):
                self._write_file(path, node)
        except Unusable:
            raise
        except NotWritten as error:
            below = " and nothing below it is written" if isinstance(node, Directory) else ""
            self._report(path, NotWritten(f"{error}{below}"))
            self.leave_out(path, node)
        except (GlassfsError, OSError) as error:  # from the source; the target raises NotWritten
            self.failed(path, error)
        except Exception as error:
            self.failed(path, as_fault(error, f"{self._source}: {path}"))

    def _make_folder(self, path: str, node: Directory) -> None:
        if self._has_folders and self._is_target(path):
            raise Unusable(f"is inside the source, as {path}; name another folder")
        self._target.make_folder(path, node.mode)

    def _is_target(self, path: str) -> bool:
        """Return whether a folder of the source is the target, which may be mounted a second time in there."""
        try:
            return self._target.is_at(self._source + path)
        except OSError:
            return False

    def _write_file(self, path: str, node: File) -> None:
        origin = node.origin
        is_sized = node.data.is_sized
        if self._is_resumed and self._target.has_file(path, origin.mtime_ns, node.size if is_sized else None):
            if is_sized:
                self._bar.correct(-node.size)
            return
        if not is_sized:
            self._bar.correct(node.size)
        with origin.lease:
            self._target.write(path, node.mode, origin.mtime_ns, self._pieces(node))

    def _pieces(self, node: File) -> Iterator[memoryview]:
        size = node.size
        for position in range(0, size, PIECE):
            piece = self._buffer[: size - position]
            if node.read_into(piece, position) != len(piece):
                raise Damaged("ends before its size")
            yield piece
            self._bar.advance(len(piece))

    def leave_out(self, path: str, node: Node | None) -> None:
        """Count a node that is not written, nor any below it; the reason is reported already."""
        if isinstance(node, Directory):
            self._unusable.add(path)
        self.failures += 1

    def failed(self, path: str, error: Exception) -> None:
        """Count and report a node that is left out."""
        self.failures += 1
        self._report(path, error)

    def _unlisted(self, path: str, error: GlassfsError) -> None:
        if path not in self._unusable:
            self.failed(path, error)
