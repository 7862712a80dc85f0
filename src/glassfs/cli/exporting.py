"""Write the nodes of a tree to a target, for ``glassfs export``, here or in a worker. One thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from glassfs.cli.common import nodes_from
from glassfs.cli.many import Progress, fault_of
from glassfs.cli.target import Existing, NotWritten, Target, Unusable, opened_folder
from glassfs.datasets.batch.found import Problem
from glassfs.errors import Damaged, NotADirectory, NotFound
from glassfs.library.finding import Found, followed
from glassfs.library.finding import target as goal_of
from glassfs.sizes import PIECE
from glassfs.source import Connection
from glassfs.tree import Directory, File, Node, Symlink, Tree
from glassfs.tree.omissions import Omission
from glassfs.tree.tree import normal

LINKS = AUTO, KEEP, FOLLOW = "auto", "keep", "follow"
"""What to do with symbolic links: keep those to what is exported, and those out of the source, and copy what others
lead to; keep all; copy what each leads to."""


@dataclass
class Written:
    """Files and links in the target, bytes written, nodes that are missing, and what the tree does not show."""

    files: int = 0
    bytes: int = 0
    failures: int = 0
    omitted: int = 0

    def add(self, other: Written) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.failures += other.failures
        self.omitted += other.omitted


@dataclass(frozen=True)
class ExportJob:
    """What to export, and where to. ``name`` and ``folder`` are what messages call the source and the target.

    ``starts`` are the paths of what is exported, and where each is in the target. If there are ``forms``, such as
    ``.png``, only what is called so, or ends so, is written, with all below it.
    """

    source: str
    name: str
    target: str
    folder: str
    existing: Existing
    links: str
    starts: Mapping[str, str]
    views: str
    connection: Connection
    forms: tuple[str, ...] = ()

    def has(self, place: str) -> bool:
        """Return whether what gets that path in the target is to be written, or a directory with all below it."""
        return not self.forms or any(f".{name}".endswith(self.forms) for name in place.split("/"))

    def opened_target(self, mode: int = 0, is_begun: bool = False) -> AbstractContextManager[Target]:
        """Open the target for a ``with``; see ``opened_folder`` for what is refused."""
        return opened_folder(self.target, mode, self.existing, self.source, is_begun)


class Export:
    """Writes nodes of a tree to the open target of a job. Nodes that fail are shown, counted and left out."""

    def __init__(
        self, job: ExportJob, tree: Tree, target: Target, show: Callable[[Problem], object], bar: Progress = Progress(),  # noqa: B008
    ) -> None:
        self._job, self._tree, self._target = job, tree, target
        self._show, self._bar = show, bar
        self._buffer = memoryview(bytearray(PIECE))
        self._copies = dict(job.starts)
        """Where the target has what is at a path of the tree."""
        self._under_way: list[str] = []
        """The goals of links that are being copied."""
        self._waiting: dict[str, tuple[str, Directory]] = {}
        """Directories, by their places, that are made when something in them is written."""
        self.written = Written()

    def run(self) -> Written:
        """Write what is at ``starts``. Raises Unusable if continuing is pointless."""
        for start, place in list(self._copies.items()):
            if start == place:
                self.make_folders_above(start)
            self.write_all(start, place)
        return self.written

    def write_all(self, start: str, place: str) -> None:
        """Write what is at a path and below it to ``place``; the folders above it must exist."""
        cut = len(start.rstrip("/"))
        for path, node in nodes_from(self._tree, start, self.failed, self.omit):
            self.write(path, node, f"{place.rstrip('/')}{path[cut:]}".rstrip("/") or "/")

    def make_folders_above(self, start: str) -> None:
        parts = start.split("/")
        for end in range(2, len(parts)):
            path = "/".join(parts[:end])
            self.write(path, self._tree.lookup(path), path)

    def write(self, path: str, node: Node, place: str, is_needed: bool = False) -> None:
        """Write one node without those below it, unless it is a link that is followed. Raises Unusable.

        One that the job has not chosen is written if it ``is_needed``, a directory as soon as something in it is.
        """
        if place == "/":
            return
        above = place.rpartition("/")[0]
        is_chosen = is_needed or self._job.has(place)
        if not is_chosen and isinstance(node, Directory):
            self._waiting[place] = path, node
            return
        if is_chosen and above in self._waiting:
            self.write(*self._waiting.pop(above), above, is_needed=True)
        try:
            if isinstance(node, Directory):
                self._make_folder(path, node, place)
            elif isinstance(node, Symlink):
                self._write_link(path, node, place, is_chosen)
            elif isinstance(node, File):
                self._write_file(node, place, is_chosen)
        except Unusable:
            raise
        except Exception as error:  # from the source, or NotWritten from the target
            self.failed(place if isinstance(error, NotWritten) else path, error)

    def _make_folder(self, path: str, node: Directory, place: str) -> None:
        # The target may be visible below the source through another mount: the export would copy itself without end.
        with suppress(OSError):  # as where the source is no folder
            if self._target.is_at(self._job.source + path):
                raise Unusable(f"is inside the source, as {path}; name another folder")
        self._target.make_folder(place, node.mode)

    def _write_link(self, path: str, node: Symlink, place: str, is_chosen: bool) -> None:
        """Write a link, if it is chosen, or copy what it leads to."""
        # A link's text stays where it leads to the same thing in the target; otherwise what it leads to is copied.
        text = node.target if self._job.links == KEEP else self._resolved(path, node, place)
        if not isinstance(text, str):
            self._follow(*text, place)
            return
        if is_chosen:
            self._target.link(place, text, node.origin.mtime_ns)
            self.written.files += 1

    def _resolved(self, path: str, link: Symlink, place: str) -> str | Found:
        """Return the text of the link to write, or what to copy instead of it."""
        is_followed = self._job.links == FOLLOW
        try:
            goal = goal_of(path.rpartition("/")[0], link)
            if not is_followed and (copy := self._copy_of(goal, place)):
                return _leading_to(copy, link.target, place)
            goal, node = followed(self._tree, goal)
        # Such a link is kept under every rule: there is nothing that could be copied.
        except (NotFound, NotADirectory):  # out of the source, or to nothing
            return link.target
        if not is_followed and (copy := self._copy_of(goal, place)):
            return _leading_to(copy, link.target, place)
        is_endless = any(is_within(below, goal) for below in (path, *self._under_way))
        # Directories that link to each other can be copied into each other without end, at twice as many each time.
        if not (is_endless or len(self._under_way) >= 8):
            return goal, node
        if is_followed:
            raise NotWritten(f"is a link to a directory that contains it ({link.target}), which cannot be followed")
        return link.target

    def _copy_of(self, path: str, link: str) -> str | None:
        """Return where the target has what is at a path, None if it has not all that the link is to lead to."""
        above = path
        while (place := self._copies.get(above or "/")) is None:
            if not above:
                return None
            above = above.rpartition("/")[0]
        copy = f"{place.rstrip('/')}{path[len(above.rstrip('/')) :]}"
        return copy if self._job.has(copy) or not self._job.has(link) else None

    def _follow(self, path: str, node: Node, place: str) -> None:
        """Copy what a link leads to."""
        # Links met later lead to this copy instead of to another one.
        self._copies.setdefault(path, place)
        self._under_way.append(path)
        try:
            if isinstance(node, Directory):
                self.write_all(path, place)
            else:
                self.write(path, node, place)
        finally:
            self._under_way.pop()

    def _write_file(self, node: File, place: str, is_chosen: bool) -> None:
        origin = node.origin
        size = node.size if node.data.is_sized else None
        # The bar's sum has files of known size, and nothing that links lead to.
        bar = self._bar if size is not None and not self._under_way else Progress()
        if not is_chosen or (
            self._job.existing is Existing.RESUME and self._target.has_file(place, origin.mtime_ns, size)
        ):
            bar.advance(size or 0)
        else:
            # The container may be replaced while its file is copied: with the lease, all bytes are of one version.
            with origin.lease:
                size = node.size
                self._target.write(place, node.mode, origin.mtime_ns, self._pieces(node, size, bar))
            self.written.bytes += size
        self.written.files += is_chosen

    def _pieces(self, node: File, size: int, bar: Progress) -> Iterator[memoryview]:
        """Yield the bytes of a file in pieces, which share a buffer."""
        for position in range(0, size, PIECE):
            piece = self._buffer[: size - position]
            if node.read_into(piece, position) != len(piece):
                raise Damaged("ends before its size")
            yield piece
            bar.advance(len(piece))

    def failed(self, path: str, error: Exception) -> None:
        """Count and report a node that is left out."""
        self.written.failures += 1
        self._report(path, error)

    def omit(self, path: str, omission: Omission) -> None:
        """Count and report what the tree does not show."""
        self.written.omitted += not omission.is_damage
        self.written.failures += omission.is_damage
        self._report(path, omission.error)

    def _report(self, path: str, error: Exception) -> None:
        """Show what is left out, under its name in the source or the target."""
        job = self._job
        if isinstance(error, NotWritten):
            self._show(Problem(os.path.join(job.folder, path[1:]), str(error)))
        else:
            self._show(fault_of(error, job.name, path)._replace(place=f"{job.name}: {path}"))


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _leading_to(goal: str, text: str, place: str) -> str:
    """Return the text of a link at ``place`` that leads to ``goal``: ``text`` if that does."""
    above = place.rpartition("/")[0] or "/"
    return text if normal(f"{above}/{text}") == goal else os.path.relpath(goal, above)

