"""From a path, as a person writes it, to a node: exact names first, files without their extension, derived views.

Directories are remembered by their paths. Those in a container are those of one version of it, which is compared with
what stands in its place now, but not for each look. Any thread.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from glassfs.errors import Changed, GlassfsError, NoSuchEntry, NotADirectory, NotFound
from glassfs.terminal import printable
from glassfs.tree import Directory, Node, Sources, Symlink
from glassfs.tree.containers.lease import ContainerLease
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import FixedDirectory, Settled, stem
from glassfs.tree.sources.folder import LostDirectory
from glassfs.tree.tree import normal

PATIENCE = 0.1
"""Seconds for which a container is taken for what it was when it was compared last."""
KEPT_PATHS = 8192
MOST_LINKS = 40
REPLACED = "has been replaced since this entry was found"
VIEWED = 2
"""The inode number of the root with all views."""
COMPARED_NAMES = 2_000
COMPARED_LETTERS = 64
SUGGESTED = 3

Found = tuple[str, Node]
"""A path, with a slash in front, by which the node is found at once, and the node."""


class ResolvedDirectory(NamedTuple):
    """A directory, and the path to it that leads over no link; the root's is empty."""

    path: str
    directory: Directory


class Paths:
    """The paths of one tree, and of the same tree with all views."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._listed = _Directories(sources, has_views=False)
        self._viewed = _Directories(sources, has_views=True)
        sources.on_drop = self._forget

    def find(self, path: str, is_exact: bool = False) -> Found:
        """What a normal path leads to; if ``is_exact``, only what is called just so.

        Raises NoSuchEntry, NotADirectory, and what finding out raises.
        """
        try:
            return self._found(path, self._listed, is_exact)
        except NotFound as missing:
            try:
                return self._found(path, self._viewed, is_exact)
            except NotFound:
                raise NoSuchEntry("there is no such entry", missing.source, printable(path.lstrip("/"))) from None

    def certain(self, path: str, is_exact: bool = False) -> Node:
        """The node, looked into if only its name says that it is a directory."""
        node = self.find(path, is_exact)[1]
        try:
            if isinstance(node, Directory):
                node.enter()
        except Changed:
            node = self.find(path, is_exact)[1]
        return node

    def _found(self, path: str, directories: _Directories, is_exact: bool) -> Found:
        for _ in range(MOST_LINKS):
            parent, _, name = path.rpartition("/")
            if not name:
                return "/", directories.root()
            try:
                place, directory = directories.at(parent)
                node = directory.child(name) if is_exact else directory.named(name)
            except Changed:
                # Another one has taken the place of the container meanwhile: what is there now?
                directories.forget()
                place, directory = directories.at(parent)
                node = directory.child(name) if is_exact else directory.named(name)
            if not isinstance(node, Symlink):
                return f"{place}/{node.name}", node
            path = target(place, node)
        raise NotFound("there are too many links one after another", part=printable(path))

    def beside(self, path: str, directory: Directory, suffix: str) -> Node | None:
        """What is called like the directory at a path, with ``suffix`` behind it, among all views, if anything.

        Raises Changed where there is another version by now than that of the directory.
        """
        version = version_of(directory)
        found = self._child(path + suffix)
        if version and self._version_at(path, found) != version:
            # Which of the two is older? The paths with views may not have been compared as lately as the others.
            self._viewed.forget()
            found = self._child(path + suffix)
            if self._version_at(path, found) != version:
                raise Changed(REPLACED, part=printable(path.lstrip("/")))
        return found

    def _version_at(self, path: str, beside: Node | None) -> str:
        """That of what is at a path, or nothing; what is beside it is of the same."""
        node = self._child(path) if beside is None else beside
        return "" if node is None else version_of(node)

    def _child(self, path: str) -> Node | None:
        parent, _, name = path.rpartition("/")
        try:
            return self._viewed.at(parent)[1].child(name)
        except (NotFound, NotADirectory):
            return None

    def nearest(self, path: str) -> list[str]:
        """The paths most like one that leads nowhere."""
        above, name = "", ""
        directory = self._listed.root()
        for name in normal(path)[1:].split("/"):
            try:
                above, directory = self._listed.at(f"{above}/{name}")
            except GlassfsError:
                break
        shown = f"{above}/".lstrip("/")
        try:
            names = list(islice(directory.names(), COMPARED_NAMES))
        except GlassfsError:
            return []
        meant = {(stem(known) or known)[:COMPARED_LETTERS]: known for known in reversed(names)}
        meant |= {known[:COMPARED_LETTERS]: known for known in reversed(names)}
        close = [meant[known] for known in difflib.get_close_matches(name[:COMPARED_LETTERS], meant, SUGGESTED, 0.5)]
        return list(dict.fromkeys(printable(shown + known) for known in close or sorted(names)[:SUGGESTED]))

    def doubt(self) -> None:
        """Whoever looks something up next is told what is there now, and not a moment ago."""
        self._listed.doubt()
        self._viewed.doubt()

    def _forget(self, lease: Lease) -> None:
        self._listed.forget(lease)
        self._viewed.forget(lease)


class _Directories:
    """The directories of a tree by their paths, which have a slash in front; the root's is empty."""

    def __init__(self, sources: Sources, has_views: bool) -> None:
        self._sources = sources
        self._has_views = has_views
        self._lock = threading.Lock()
        self._known: dict[str, ResolvedDirectory] = {}
        self._paths_of: dict[Lease, list[str]] = {}
        self._compared: dict[Lease, float] = {}
        self._generation = 0

    def root(self) -> Directory:
        return self.at("")[1]

    def at(self, path: str) -> ResolvedDirectory:
        """Links on the way are followed. Raises NotFound and NotADirectory."""
        return self._remembered(path) or self._walked(path)

    def forget(self, lease: Lease | None = None) -> None:
        with self._lock:
            self._generation += 1
            if lease is None:
                self._known, self._paths_of, self._compared = {}, {}, {}
                return
            self._compared.pop(lease, None)
            for path in self._paths_of.pop(lease, ()):
                self._known.pop(path, None)

    def doubt(self) -> None:
        with self._lock:
            self._compared = {}

    def _is_current(self, lease: Lease) -> bool:
        if not lease.sources:  # of those only what is read anew each time is remembered
            return True
        now = time.monotonic()
        if not lease.is_retired and now < self._compared.get(lease, 0.0):
            return True
        is_current = self._sources.containers.is_current(lease)
        if is_current:
            self._compared[lease] = now + PATIENCE
        else:
            self.forget(lease)
        return is_current

    def _walked(self, path: str) -> ResolvedDirectory:
        generation, links = self._generation, 0
        root = self._remembered("")
        if root is None:
            root = ResolvedDirectory("", self._root())
            if not isinstance(root.directory, LostDirectory):
                self._remember("", root, generation)
        names = path.split("/")[1:]
        names.reverse()
        place, is_lasting = root, True
        while names:
            name = names.pop()
            below = f"{place.path}/{name}"
            known = self._remembered(below)
            if known is not None:
                place = known
                continue
            node = place.directory.child(name)
            if isinstance(node, Symlink):
                is_lasting = is_lasting and _is_lasting(place)
                links += 1
                if links > MOST_LINKS:
                    raise NotFound("there are too many links one after another", part=printable(path))
                names += reversed(list(parts(target(place.path, node))))
                place = root
                continue
            if not isinstance(node, Directory):
                raise NotADirectory("is not a directory", part=printable(below.lstrip("/")))
            place = ResolvedDirectory(below, node)
            self._remember(below, place, generation)
        if place is not root and is_lasting:
            self._remember(path, place, generation)
        return place

    def _root(self) -> Directory:
        return self._sources.viewed("", VIEWED) if self._has_views else self._sources.root()

    def _remembered(self, path: str) -> ResolvedDirectory | None:
        found = self._known.get(path)
        return found if found is not None and self._is_current(found.directory.origin.lease) else None

    def _remember(self, path: str, place: ResolvedDirectory, generation: int) -> None:
        lease = place.directory.origin.lease
        if path and not lease.sources and isinstance(place.directory, (FixedDirectory, Settled)):
            return  # What is in it never changes, and nothing would tell that another has taken its place.
        with self._lock:
            if self._generation != generation or lease.is_retired:
                return
            if len(self._known) >= KEPT_PATHS:
                self._known, self._paths_of, self._compared = {}, {}, {}
            if path not in self._known:
                self._paths_of.setdefault(lease, []).append(path)
            self._known[path] = place
        if lease.sources:
            self._compared.setdefault(lease, time.monotonic() + PATIENCE)


def version_of(node: Node) -> str:
    """That of the container, or the file, that a node is of; nothing for a folder, and for what is presumed."""
    lease = node.origin.lease
    if isinstance(lease, ContainerLease):  # its identity covers further files that a presumed node did not know yet
        return "" if lease.is_presumed else lease.identity
    return "" if isinstance(node, Directory) else node.origin.identity


def _is_lasting(place: ResolvedDirectory) -> bool:
    """Whether the links in a directory lead where they do as long as it is of the same version."""
    return bool(place.directory.origin.lease.sources)


def target(parent: str, link: Symlink) -> str:
    """The normal path that a link in a directory leads to. Raises NotFound where that is not in the tree."""
    found = list(parts(parent))
    is_inside = not link.target.startswith("/")
    for part in parts(link.target):
        if part != "..":
            found.append(part)
        elif found:
            found.pop()
        else:
            is_inside = False
    if not is_inside:
        raise NotFound("is a link that leads out of what was opened", part=printable(f"{parent}/{link.name}"[1:]))
    return "/" + "/".join(found)


def below(path: str, inner: str) -> str:
    """A path that is written from another one on."""
    return normal(f"{path}/{inner}")


def parts(pattern: str) -> Iterator[str]:
    return (part for part in pattern.split("/") if part not in ("", "."))
