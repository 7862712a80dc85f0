"""Find the node at a path that a user writes: exact names first, files without their extension, derived views.

Directories are cached by their paths. Those in a container belong to one version of it, which is compared with its
store now and then, not on each lookup. A lookup from an entry starts at the entry's own directory as long as that
version is current (``_Directories.inside``): programs that load samples ask an episode for several files. It finds what
the walk from the root finds, which decides in all other cases. Any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from glassfs.errors import Changed, GlassfsError, NoSuchEntry, NotADirectory, NotFound
from glassfs.keyed_lock import KeyedLock
from glassfs.library.unlisted import collection_in, group_in
from glassfs.names import component, raw
from glassfs.terminal import printable
from glassfs.tree import Directory, Node, Sources, Symlink, Tree
from glassfs.tree.containers.lease import ContainerLease
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import FixedDirectory, Settled, Standing, stem
from glassfs.tree.omissions import said
from glassfs.tree.paths import PathCache
from glassfs.tree.sources.folder import LostDirectory
from glassfs.tree.sources.sources import VIEWED
from glassfs.tree.tree import normal

VALID_SECONDS = 0.1
"""How long a container is taken as unchanged after it was compared with its store."""
CACHED_PATHS = 8192
LISTED_BYTES = 4 << 10
"""Bytes that a directory counts for which was found from an entry, by listing those above it."""
MOST_LINKS = 40
REPLACED = "has been replaced since this entry was found"
COMPARED_NAMES = 2_000
COMPARED_CHARACTERS = 64
SUGGESTED = 3

_NO_NAMES = ("", ".", "..")

Found = tuple[str, Node]
"""The path that leads to a node without links, with a leading slash, and the node."""


class UnfollowedLink(NotFound):
    """A link that leads out of what was opened, or one of too many links one after another."""


Resolved = tuple[str, Directory]
"""The path that leads to a directory without links, the root's is empty, and the directory."""


class Paths:
    """The paths of one tree, and of the same tree with all views."""

    def __init__(self, open_sources: Callable[[Callable[[Lease], None]], Sources], budget: int) -> None:
        """Call ``open_sources`` with a listener for leases whose nodes are to be released.

        Directories that are found from entries may hold ``budget`` bytes.
        """
        self._listed = _Directories(lambda: self.sources.root(), self._is_current, budget)
        self._viewed = _Directories(lambda: self.sources.viewed("", VIEWED), self._is_current, budget)
        self.sources = open_sources(self._forget)

    def find(self, path: str, is_exact: bool = False) -> Found:
        """Return what a normal path leads to, also one of keys as the container has them; if ``is_exact``, only exact
        names count.

        Raises NoSuchEntry, NotADirectory, or a read error.
        """
        try:
            return self._found(path, self._listed, is_exact)
        except NotFound as missing:
            keys = "/".join(name and component(raw(name)) for name in path.split("/"))
            for names, directories in ((path, self._viewed), (keys, self._listed)):
                with suppress(NotFound):
                    return self._found(names, directories, is_exact)
            raise NoSuchEntry("there is no such entry", missing.source, printable(path.lstrip("/"))) from None

    def find_below(self, place: str, directory: Directory, inner: str) -> Found:
        """Return what ``find`` returns for ``inner`` below the normal path at which a directory was found earlier."""
        if directory.origin.services is self.sources.containers.services:
            try:
                found = self._listed.inside(place, directory, inner)
                if found is not None:
                    return found
            except (NotFound, Changed):
                pass  # a view, or a name that is not there
        return self.find(below(place, inner))

    def entered(self, path: str, is_exact: bool = False) -> Node:
        """Return the node at a path, parsed if it is presumed."""
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
                # The container was replaced meanwhile: look the path up again.
                directories.forget()
                place, directory = directories.at(parent)
                node = directory.child(name) if is_exact else directory.named(name)
            if not isinstance(node, Symlink):
                return f"{place}/{node.name}", node
            path = target(place, node)
        raise UnfollowedLink("there are too many links one after another", part=printable(path))

    def beside(self, path: str, directory: Directory, suffix: str) -> Node | None:
        """Return the file called like a directory plus ``suffix``, among all views, or None.

        Raises Changed if its container has another version than the directory.
        """
        version = version_of(directory)
        found = self._child(path + suffix)
        if version and self._version_at(path, found) != version:
            # The paths with views may be the outdated ones: look again.
            self._viewed.forget()
            found = self._child(path + suffix)
            if self._version_at(path, found) != version:
                raise Changed(REPLACED, part=printable(path.lstrip("/")))
        return found

    def _version_at(self, path: str, beside: Node | None) -> str:
        """Return the version of what is at a path, "" for nothing; a file beside it is of the same version."""
        node = self._child(path) if beside is None else beside
        return "" if node is None else version_of(node)

    def _child(self, path: str) -> Node | None:
        parent, _, name = path.rpartition("/")
        try:
            return self._viewed.at(parent)[1].child(name)
        except (NotFound, NotADirectory):
            return None

    def hint(self, path: str) -> str:
        """Return why there is nothing at a path, if that is known, or the existing paths most similar to it."""
        def directory_at(known: str) -> Directory:
            return self._listed.at(known)[1]

        if omitted := why_omitted(directory_at, path):
            return f"; {omitted}"
        near = nearest(directory_at, path)
        return f"; the nearest: {', '.join(near)}" if near else ""

    def expire(self) -> None:
        """Compare containers with their stores at the next lookup."""
        self._listed.expire()
        self._viewed.expire()

    def _is_current(self, lease: Lease) -> bool:
        return self.sources.containers.watcher.is_current(lease)

    def _forget(self, lease: Lease) -> None:
        self._listed.forget(lease)
        self._viewed.forget(lease)


class _Directories:
    """The directories of a tree by their paths, which begin with a slash; the root's is empty."""

    def __init__(self, root: Callable[[], Directory], is_current: Callable[[Lease], bool], budget: int) -> None:
        self._root = root
        self._compare = is_current
        self._cached: PathCache[Directory | str] = PathCache(CACHED_PATHS)
        """Directories, and for paths with links those without."""
        self._inside: PathCache[Directory] = PathCache(budget)
        """Those in containers, kept apart if they were found from entries or unlisted: an episode has several, and so
        many would drive out the containers that they are in, which take longest to find."""
        self._finding = KeyedLock()
        self._expired = 0.0
        """Containers that were compared with their stores up to this time are compared again."""

    def root(self) -> Directory:
        return self.at("")[1]

    def at(self, path: str) -> Resolved:
        """Return the directory at a path, following links. Raises NotFound and NotADirectory."""
        return self._get(path) or self._walked(path)

    def inside(self, place: str, directory: Directory, inner: str) -> Found | None:
        """Return what ``inner`` leads to in a directory found at ``place``, without a walk from the root.

        Returns None if the directory is not one of the current version of a container, or if there are links on the
        way, or names such as "..". Raises NotFound and Changed.
        """
        lease = directory.origin.lease
        if not isinstance(lease, ContainerLease) or isinstance(directory, Standing) or not self._is_current(lease):
            return None
        above, _, name = inner.rpartition("/")
        if name in _NO_NAMES or not place.startswith(lease.at):  # joined tables show containers at other paths, too
            return None
        if above:
            place = f"{place}/{above}"
            found = self._inside.get(place)
            if found is None or not self._is_current(found.origin.lease):
                found = self._below(place, directory, above)
                if found is None:
                    return None
            directory = found
        node = directory.named(name)
        return None if isinstance(node, Symlink) else (f"{place}/{node.name}", node)

    def _below(self, path: str, directory: Directory, inner: str) -> Directory | None:
        """Return the directory to which ``inner``, and ``path`` from the root, lead; None for other nodes and links."""
        generation = self._inside.generation
        names = inner.split("/")
        found = self._unlisted(path, directory, *names) if len(names) == 2 else None
        if found is not None:
            return found
        for name in names:
            node = directory.child(name)
            if not isinstance(node, Directory):
                return None
            directory = node
        self._inside.put(path, directory, directory.origin.lease, generation, LISTED_BYTES)
        return directory

    def _unlisted(self, path: str, directory: Directory, outer: str, name: str) -> Directory | None:
        """Return the directory of ``name`` in that of ``outer``, at ``path`` from the root, if ``collection_in`` does.
        """
        group = group_in(directory, outer)
        if group is None:
            return None
        generation, lease = self._inside.generation, directory.origin.lease
        with self._finding.hold(path):  # as finding it may take a pass over much of the container
            known = self._inside.get(path)
            if known is not None and known.origin.lease is lease:
                return known
            found = collection_in(group, directory, outer, name)
            if found is None:
                return None
            self._inside.put(path, found[0], lease, generation, found[1])
            return found[0]

    def forget(self, lease: Lease | None = None) -> None:
        self._cached.forget(lease)
        self._inside.forget(lease)

    def expire(self) -> None:
        self._expired = time.monotonic()

    def _is_current(self, lease: Lease) -> bool:
        if not lease.sources:  # only directories that are listed anew on each call are cached for these
            return True
        now = time.monotonic()
        if now - lease.compared < VALID_SECONDS and lease.compared > self._expired and not lease.is_retired:
            return True
        is_current = self._compare(lease)
        if is_current:
            lease.compared = now
        else:
            self.forget(lease)
        return is_current

    def _walked(self, path: str) -> Resolved:
        generation, links = self._cached.generation, 0
        (place, directory), names = self._nearest(path, generation)
        is_lasting = True
        while names:
            name = names.pop()
            below = f"{place}/{name}"
            known = self._get(below) if links else None
            if known is not None:
                place, directory = known
                continue
            if len(names) == 1:
                found = self._unlisted(f"{below}/{names[0]}", directory, name, names[0])
                if found is not None:
                    place, directory = f"{below}/{names.pop()}", found
                    break
            node = directory.child(name)
            if isinstance(node, Symlink):
                # Links in a container keep their targets; those in a folder may change.
                is_lasting = is_lasting and bool(directory.origin.lease.sources)
                links += 1
                if links > MOST_LINKS:
                    raise UnfollowedLink("there are too many links one after another", part=printable(path))
                names += reversed(list(parts(target(place, node))))
                place, directory = self.at("")
                continue
            if not isinstance(node, Directory):
                raise NotADirectory("is not a directory", part=printable(below.lstrip("/")))
            place, directory = below, node
            if not names or not _is_made_quickly(node):
                self._put(below, (below, node), generation)
        if place != path and is_lasting:
            self._put(path, (place, directory), generation)
        return place, directory

    def _nearest(self, path: str, generation: int) -> tuple[Resolved, list[str]]:
        """Return the last cached directory on the way to a path, and the names that lead on from it, the last first."""
        names: list[str] = []
        while path:
            path, _, name = path.rpartition("/")
            names.append(name)
            known = self._get(path)
            if known is not None:
                return known, names
        root = self._root()
        if not isinstance(root, LostDirectory):
            self._put("", ("", root), generation)
        return ("", root), names

    def _get(self, path: str) -> Resolved | None:
        found = self._cached.get(path)
        if isinstance(found, str):
            path, found = found, self._cached.get(found)
        if found is None:
            found = self._inside.get(path)
        if not isinstance(found, Directory) or not self._is_current(found.origin.lease):
            return None
        return path, found

    def _put(self, path: str, found: Resolved, generation: int) -> None:
        place, directory = found
        lease = directory.origin.lease
        if path and not lease.sources and isinstance(directory, (FixedDirectory, Settled)):
            return  # Its listing never changes, and nothing would report that another directory took its place.
        self._cached.put(path, directory if place == path else place, lease, generation)


def _is_made_quickly(directory: Directory) -> bool:
    """Return whether a directory is made without a store: it is one in a container."""
    return isinstance(directory, Settled) and not isinstance(directory, Standing)


def nearest(directory_at: Callable[[str], Directory], path: str) -> list[str]:
    """Return the existing paths most similar to a missing one. ``directory_at`` takes "" for the root."""
    import difflib  # rarely needed

    try:
        above, directory, name = _end_of_way(directory_at, path)
        names = list(islice(directory.names(), COMPARED_NAMES))
    except GlassfsError:
        return []
    shown = f"{above}/".lstrip("/")
    meant = {(stem(known) or known)[:COMPARED_CHARACTERS]: known for known in reversed(names)}
    meant |= {known[:COMPARED_CHARACTERS]: known for known in reversed(names)}
    close = [meant[known] for known in difflib.get_close_matches(name[:COMPARED_CHARACTERS], meant, SUGGESTED, 0.5)]
    return list(dict.fromkeys(printable(shown + known) for known in close or sorted(names)[:SUGGESTED]))


def why_omitted(directory_at: Callable[[str], Directory], path: str) -> str:
    """Return why a container does not show what it has at a missing path; an empty text if it has nothing there."""
    with suppress(GlassfsError):
        _, directory, name = _end_of_way(directory_at, path)
        found = next((one for one in directory.omitted() if one.name in (name, stem(name)) and one.name), None)
        if found is not None:
            return said([found])[0]
    return ""


def _end_of_way(directory_at: Callable[[str], Directory], path: str) -> tuple[str, Directory, str]:
    """Return the deepest existing directory on the way to a missing path, its path, and the name missing in it."""
    above, name = "", ""
    directory = directory_at(above)
    for name in normal(path)[1:].split("/"):
        try:
            directory = directory_at(f"{above}/{name}")
        except GlassfsError:
            break
        above = f"{above}/{name}"
    return above, directory, name


def followed(tree: Tree, path: str) -> Found:
    """Return what a normal path leads to in a tree, links included. Raises as ``Tree.lookup``.

    Raises UnfollowedLink for a link that leads out of the tree.
    """
    for _ in range(MOST_LINKS):
        try:
            node = tree.lookup(path)
        except NotADirectory:
            path = _without_first_link(tree, path)
            continue
        if not isinstance(node, Symlink):
            return path, node
        path = target(path.rpartition("/")[0], node)
    raise UnfollowedLink("there are too many links one after another", part=printable(path))


def _without_first_link(tree: Tree, path: str) -> str:
    names = list(parts(path))
    for number in range(1, len(names)):
        above, rest = "/".join(names[:number]), "/".join(names[number:])
        node = tree.lookup(above)
        if isinstance(node, Symlink):
            return below(target(above.rpartition("/")[0], node), rest)
    raise NotADirectory("is not a directory", part=path)


def version_of(node: Node) -> str:
    """Return the version of the container or file that a node belongs to; "" for a folder or a presumed container."""
    lease = node.origin.lease
    if isinstance(lease, ContainerLease):  # its identity covers further files that a presumed node did not know yet
        return "" if lease.is_presumed else lease.identity
    return "" if isinstance(node, Directory) else node.origin.identity


def target(parent: str, link: Symlink) -> str:
    """Return the normal path that a link in a directory leads to. Raises UnfollowedLink if it is outside the tree."""
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
        raise UnfollowedLink("is a link that leads out of what was opened", part=printable(f"{parent}/{link.name}"[1:]))
    return "/" + "/".join(found)


def below(path: str, inner: str) -> str:
    """Return the normal path of ``inner`` below another path."""
    return normal(f"{path}/{inner}")


def parts(pattern: str) -> Iterator[str]:
    return (part for part in pattern.split("/") if part not in ("", "."))
