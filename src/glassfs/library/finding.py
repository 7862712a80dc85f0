"""Find the node at a path that a user writes: exact names first, files without their extension, derived views.

Directories are cached by their paths. Those in a container belong to one version of it, which is compared with its
store now and then, not on each lookup. Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from glassfs.content import Group
from glassfs.content.allowance import held_by_content
from glassfs.errors import Changed, GlassfsError, NoSuchEntry, NotADirectory, NotFound
from glassfs.names import component, raw
from glassfs.settings import settings
from glassfs.terminal import printable
from glassfs.tree import Directory, Node, Sources, Symlink, Tree
from glassfs.tree.build import NODE_COST, FieldsDirectory
from glassfs.tree.build import directory as directory_of
from glassfs.tree.containers.lease import ContainerLease
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import FixedDirectory, Settled, entered, inode, stem
from glassfs.tree.omissions import said
from glassfs.tree.sources.folder import LostDirectory
from glassfs.tree.sources.sources import VIEWED
from glassfs.tree.tree import normal

DIRECTORY_COST = 4 << 10
"""Bytes that a cached directory counts, with the nodes that it keeps."""
LINKS = 40
"""Links one after another that are followed, as Linux does."""
REPLACED = "has been replaced since this entry was found"

Found = tuple[str, Node]
"""The path that leads to a node without links, with a leading slash, and the node."""
Resolved = tuple[str, Directory]
"""The path that leads to a directory without links, the root's is empty, and the directory."""


class UnfollowedLink(NotFound):
    """A link that leads out of what was opened, or one of too many links one after another."""


class LibraryPaths:
    """The paths of one tree, and of the same tree with all views."""

    def __init__(self, open_sources: Callable[[Callable[[Lease], None]], Sources], budget: int) -> None:
        """Call ``open_sources`` with a listener for leases whose nodes are to be released.

        Cached directories may hold ``budget`` bytes, and as many those of the tree with all views.
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
            return self._listed.find(path, is_exact)
        except NotFound as missing:
            # A program that has keys of the container, such as ``a%b``, need not know how names of files are escaped.
            keys = "/".join(name and component(raw(name)) for name in path.split("/"))
            for names, directories in ((path, self._viewed), (keys, self._listed)):
                with suppress(NotFound):
                    return directories.find(names, is_exact)
            raise NoSuchEntry("there is no such entry", missing.source, printable(path.lstrip("/"))) from None

    def entered(self, path: str, is_exact: bool = False) -> Node:
        """Return the node at a path, parsed if it is presumed."""
        return entered(lambda: self.find(path, is_exact)[1])

    def beside(self, path: str, directory: Directory, suffix: str) -> Node | None:
        """Return the file called like a directory plus ``suffix``, also one of a view that is not listed, or None.

        Raises Changed if its container has another version than the directory.
        """
        version = version_of(directory)
        for _ in range(2):
            # Listed directories come first: they are mostly made already, and those with all views take longer.
            found = _child(self._listed, path + suffix) or _child(self._viewed, path + suffix)
            # Without such a file, the directory itself shows which version is there now.
            now = found or _child(self._viewed, path)
            if not version or (now is not None and version_of(now) == version):
                return found
            self._listed.forget()  # the cached paths may be the outdated ones
            self._viewed.forget()
        raise Changed(REPLACED, part=printable(path.lstrip("/")))

    def hint(self, path: str) -> str:
        """Return what ``hint`` does."""
        return hint(lambda known: self._listed.at(known)[1], path)

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
    """The directories of a tree by their paths, which begin with a slash; the root's is empty.

    Those that were found are cached up to a total weight of ``limit``; when there are more, all others are dropped. One
    that was found before its lease was retired is not added after that.
    """

    def __init__(self, root: Callable[[], Directory], is_current: Callable[[Lease], bool], limit: int) -> None:
        self._root = root
        self._compare = is_current
        self._limit = limit
        self._lock = threading.Lock()
        self._cached: dict[str, Directory] = {}
        self._weights: dict[str, int] = {}
        self._weight = 0
        self._paths_of: dict[Lease, tuple[str, ...]] = {}
        """Tuples, as the garbage collector stops visiting those of strings; it would visit lists again and again."""
        self._expired = 0.0
        """Containers that were compared with their stores up to this time are compared again."""

    def forget(self, lease: Lease | None = None) -> None:
        """Drop all cached directories, or those of one lease."""
        with self._lock:
            if lease is None:
                self._drop_all()
            else:
                for path in self._paths_of.pop(lease, ()):
                    self._cached.pop(path, None)
                    self._weight -= self._weights.pop(path, 0)

    def _drop_all(self) -> None:
        self._cached.clear()
        self._paths_of, self._weights, self._weight = {}, {}, 0

    def find(self, path: str, is_exact: bool) -> Found:
        """Return what a path leads to, following links. Raises NotFound and NotADirectory."""
        try:
            return self._found(path, is_exact)
        except Changed:
            # The container was replaced meanwhile: look the path up again.
            self.forget()
            return self._found(path, is_exact)

    def _found(self, path: str, is_exact: bool) -> Found:
        for _ in range(LINKS):
            parent, _, name = path.rpartition("/")
            place, directory = self.at(parent)
            if not name:
                return "/", directory
            node = directory.child(name) if is_exact else directory.named(name)
            if not isinstance(node, Symlink):
                return f"{place}/{node.name}", node
            path = target(place, node)
        raise UnfollowedLink("there are too many links one after another", part=printable(path))

    def at(self, path: str) -> Resolved:
        """Return the directory at a path, following links. Raises NotFound and NotADirectory."""
        for _ in range(LINKS):
            known = self._get(path)
            if known is not None:
                return path, known
            place, directory, names = self._nearest(path)
            while names:
                name = names.pop()
                # Only at the end of a path: on the way to something deeper, listing is what finds it.
                unlisted = _collection_in(directory, name, names[0]) if len(names) == 1 else None
                if unlisted is not None:
                    directory, cost = unlisted
                    self._put(path, directory, cost)
                    return path, directory
                node = directory.child(name)
                if isinstance(node, Symlink):
                    # From the root again, where most of the way is cached. A link itself is not cached: those in
                    # folders may change.
                    path = below(target(place, node), "/".join(reversed(names))).rstrip("/")
                    break
                place = f"{place}/{name}"
                if not isinstance(node, Directory):
                    raise NotADirectory("is not a directory", part=printable(place.lstrip("/")))
                directory = node
                self._put(place, directory)
            else:
                return place, directory
        raise UnfollowedLink("there are too many links one after another", part=printable(path))

    def expire(self) -> None:
        self._expired = time.monotonic()

    def _get(self, path: str) -> Directory | None:
        directory = self._cached.get(path)
        return directory if directory is not None and self._is_current(directory.origin.lease) else None

    def _nearest(self, path: str) -> tuple[str, Directory, list[str]]:
        """Return the last cached directory on the way to a path, and the names that lead on from it, the last first."""
        names: list[str] = []
        while path:
            path, _, name = path.rpartition("/")
            names.append(name)
            directory = self._get(path)
            if directory is not None:
                return path, directory, names
        root = self._root()
        if not isinstance(root, LostDirectory):
            self._put("", root)
        return "", root, names

    def _is_current(self, lease: Lease) -> bool:
        if not lease.sources:  # only directories that are listed anew on each call are cached for these
            return True
        now = time.monotonic()
        # Several lookups of one sample are answered by one comparison with the store.
        if now - lease.compared < settings.container_valid and lease.compared > self._expired and not lease.is_retired:
            return True
        is_current = self._compare(lease)
        if is_current:
            lease.compared = now
        else:
            self.forget(lease)
        return is_current

    def _put(self, path: str, directory: Directory, cost: int = DIRECTORY_COST) -> None:
        lease = directory.origin.lease
        if path and not lease.sources and isinstance(directory, (FixedDirectory, Settled)):
            return  # Its listing never changes, and nothing would report that another directory took its place.
        with self._lock:
            if lease.is_retired:
                return
            if path not in self._cached:
                if self._weight + cost > self._limit:
                    self._drop_all()
                self._paths_of[lease] = (*self._paths_of.get(lease, ()), path)
                self._weights[path] = cost
                self._weight += cost
            self._cached[path] = directory


def _child(directories: _Directories, path: str) -> Node | None:
    parent, _, name = path.rpartition("/")
    try:
        return directories.at(parent)[1].child(name)
    except (NotFound, NotADirectory):
        return None


def _collection_in(fields: Directory, outer: str, name: str) -> tuple[Directory, int] | None:
    """Return ``fields.child(outer).child(name)``, and the bytes that it holds, without listing ``outer``.

    Programs that load samples read an image of a camera of an episode, and seldom another one of that episode. Listing
    its images makes the directories of all cameras, and keeps them all. Returns None if it takes these calls to find
    the directory, or what they raise. Raises Damaged as they do.
    """
    if not isinstance(fields, FieldsDirectory):
        return None
    outline = fields.fields.outline
    number = outline.stems.get(outer)
    if number is None or number >= outline.collections:
        return None
    group = fields.fields.item(outline.names[number])
    try:
        # Names that are not those of a key, such as numbered ones, are left to the listing.
        original = raw(name)
    except UnicodeEncodeError:
        return None
    if not isinstance(group, Group) or group.find is None or component(original) != name:
        return None
    found = group.find(original)
    if found is None:
        return None
    node = directory_of(name, inode(name, inode(outer, fields.ino)), fields.origin, found)
    return node, NODE_COST + held_by_content(found)


def hint(directory_at: Callable[[str], Directory], path: str) -> str:
    """Return a clause that says why there is nothing at a path, or the existing paths most similar to it.

    ``directory_at`` takes "" for the root.
    """
    import difflib  # rarely needed

    above, name = "", ""
    try:
        # The deepest existing directory on the way to the path, and the name missing in it.
        directory = directory_at(above)
        with suppress(GlassfsError):
            for name in normal(path)[1:].split("/"):
                directory = directory_at(f"{above}/{name}")
                above = f"{above}/{name}"
        for one in directory.omitted():
            if one.name and one.name in (name, stem(name)):
                return f"; {said([one])[0]}"
        # Comparing takes time in proportion to the number of names, and to the square of their lengths.
        names = list(islice(directory.names(), 2000))
    except GlassfsError:
        return ""
    shown = f"{above}/".lstrip("/")
    meant = {one[:64]: known for known in reversed(names) for one in (stem(known), known) if one}
    close = [meant[known] for known in difflib.get_close_matches(name[:64], meant, 3, 0.5)]
    near = dict.fromkeys(printable(shown + known) for known in close or sorted(names)[:3])
    return f"; the nearest: {', '.join(near)}" if near else ""


def followed(tree: Tree, path: str, is_link_kept: bool = False) -> Found:
    """Return what a normal path leads to in a tree through links; a link at its end only unless it ``is_link_kept``.

    Raises as ``Tree.lookup``, and UnfollowedLink for a link that leads out of the tree.
    """
    place, node, links = "/", tree.lookup("/"), 0
    names = list(parts(path))[::-1]
    while names:
        above, place = place, below(place, names.pop())
        node = tree.lookup(place)
        if isinstance(node, Symlink) and (names or not is_link_kept):
            links += 1
            if links > LINKS:
                raise UnfollowedLink("there are too many links one after another", part=printable(path))
            # From the root again: the way to the link's target may have links of its own.
            names += list(parts(target(above, node)))[::-1]
            place = "/"
    return place, node


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
