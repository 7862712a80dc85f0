"""From contents to nodes, through the views: paths, collisions, lazy directories (README, "Names").

Names that still meet after escaping are settled within one directory: directories merge; of files the first in the
container's order keeps the name, and the others get ``~2``, ``~3`` … before the extension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, overload

from glassfs.content import Content, Group, Series, members_of
from glassfs.tree.names import component, shown_at_root
from glassfs.tree.nodes import XATTR_PREFIX, Directory, File, Node, Origin, inode, not_found
from glassfs.view import data_of, file_of, folder_of

DEEPEST = 256
"""Names are split into so many directories at most; what is left is one component."""


def container_root(group: Group, origin: Origin, name: str = "", is_mount_root: bool = False) -> Directory:
    """The directory that shows a container's contents."""
    return ContentDirectory(name, inode(origin.identity, 0), origin, Draft([group]), is_mount_root)


class _Leaf(NamedTuple):
    """A content that becomes a file."""

    name: bytes
    content: Content


class Draft:
    """What a directory is made of: groups to be opened, and what members with longer names put into it."""

    __slots__ = ("directories", "groups", "leaves")

    def __init__(self, groups: Sequence[Group | Series] = ()) -> None:
        self.groups = list(groups)
        self.directories: dict[str, Draft] = {}
        self.leaves: list[_Leaf] = []

    @property
    def only_series(self) -> Series | None:
        if len(self.groups) == 1 and not self.directories and not self.leaves and isinstance(self.groups[0], Series):
            return self.groups[0]
        return None

    def opened(self) -> Draft:
        """The same with the members of its groups in place."""
        if not self.groups:
            return self
        whole = Draft()
        whole.leaves += self.leaves
        whole.directories = {name: draft.copy() for name, draft in self.directories.items()}
        folder: tuple[bytes, ...] = ()
        place = whole
        for group in self.groups:
            for names, content in members_of(group):
                if len(names) > DEEPEST:
                    names = (*names[:DEEPEST], b"/".join(names[DEEPEST:]))
                if names[:-1] != folder:  # mostly a member lies beside the one before it
                    folder = names[:-1]
                    place = whole.below(folder)
                place.add(names[-1], content)
        return whole

    def below(self, folder: tuple[bytes, ...]) -> Draft:
        """The directory ``folder`` below this one, made where it is not there yet."""
        place = self
        for part in folder:
            name = component(part)
            found = place.directories.get(name)
            if found is None:
                found = place.directories[name] = Draft()
            place = found
        return place

    def copy(self) -> Draft:
        copied = Draft(self.groups)
        copied.leaves = list(self.leaves)
        copied.directories = {name: draft.copy() for name, draft in self.directories.items()}
        return copied

    def add(self, name: bytes, content: Content) -> None:
        if isinstance(content, (Group, Series)):
            self.directories.setdefault(component(name), Draft()).groups.append(content)
            return
        self.leaves.append(_Leaf(name, content))
        folder = folder_of(content)
        if folder is not None:
            self.directories.setdefault(component(name), Draft()).groups.append(folder)


class ContentDirectory(Directory):
    """A directory of a container."""

    __slots__ = ("_draft", "_is_mount_root")

    def __init__(self, name: str, ino: int, origin: Origin, draft: Draft, is_mount_root: bool = False) -> None:
        super().__init__(name, ino, origin)
        self._draft = draft
        self._is_mount_root = is_mount_root

    def listing(self) -> Sequence[Node]:
        return list(self._children().values())

    def child(self, name: str) -> Node:
        try:
            return self._children()[name]
        except KeyError:
            raise not_found(name) from None

    def xattrs(self) -> dict[str, bytes]:
        groups = [group for group in self._draft.groups if isinstance(group, Group)]
        if not groups:
            return {}
        found = {XATTR_PREFIX + "format": self.origin.format.encode(), XATTR_PREFIX + "key": groups[0].key}
        reasons = [group.error for group in groups if group.error]
        if reasons:
            found[XATTR_PREFIX + "error"] = "; ".join(reasons).encode("utf-8", "replace")
        return found

    def _children(self) -> Mapping[str, Node]:
        return self.origin.services.listings.children(self.origin, self.ino, self._make)

    def _make(self) -> dict[str, Node]:
        draft = self._draft.opened()
        children: dict[str, Node] = {}
        for name, below in draft.directories.items():
            if self._is_mount_root:
                name = shown_at_root(name)
            children[name] = directory(name, inode(name, self.ino), self.origin, below)
        taken: dict[tuple[bytes, str], int] = {}
        waiting = []
        for number, (original, content) in enumerate(draft.leaves):
            key = (self.origin.identity, self.ino, number)
            suffix, data = file_of(content, self.origin.services.cache, key)
            name = component(original, suffix)
            if self._is_mount_root:
                name = shown_at_root(name)
            if name in children:
                waiting.append((original, suffix, data, content))
            else:
                children[name] = File(name, inode(name, self.ino), self.origin, data, content)
        for original, suffix, data, content in waiting:
            count = taken.get((original, suffix), 2)
            while (name := component(original, f"~{count}{suffix}")) in children:
                count += 1
            taken[original, suffix] = count + 1
            children[name] = File(name, inode(name, self.ino), self.origin, data, content)
        return children


class SeriesDirectory(Directory):
    """A directory of numbered contents, none of which is kept."""

    __slots__ = ("_series", "_suffix")

    def __init__(self, name: str, ino: int, origin: Origin, series: Series) -> None:
        super().__init__(name, ino, origin)
        self._series = series
        self._suffix = ""
        if series.count and not series.has_groups:
            self._suffix = file_of(series.item(0), origin.services.cache, ()).suffix

    def listing(self) -> Sequence[Node]:
        return _Numbered(self)

    @property
    def count(self) -> int:
        return self._series.count

    def child(self, name: str) -> Node:
        digits = name.removesuffix(self._suffix)
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            number = int(digits)
            if number < self._series.count and self._name(number) == name:
                return self.node(number)
        raise not_found(name)

    def node(self, number: int) -> Node:
        """The child with this number, which has to be one of theirs. As fast as can be: a listing asks for all."""
        name, content, origin = self._name(number), self._series.item(number), self.origin
        if isinstance(content, (Group, Series)):
            return directory(name, inode(name, self.ino), origin, Draft([content]))
        data = data_of(content, origin.services.cache, (origin.identity, self.ino, number))
        return File(name, inode(name, self.ino), origin, data, content)

    def _name(self, number: int) -> str:
        return f"{number:0{self._series.digits}d}{self._suffix}"


class _Numbered(Sequence[Node]):
    """The listing of a series."""

    __slots__ = ("_count", "_directory")

    def __init__(self, directory: SeriesDirectory) -> None:
        self._directory = directory
        self._count = directory.count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | Sequence[Node]:
        if isinstance(index, slice):
            return [self._directory.node(number) for number in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._directory.node(index)


def directory(name: str, ino: int, origin: Origin, draft: Draft) -> Directory:
    series = draft.only_series
    return ContentDirectory(name, ino, origin, draft) if series is None else SeriesDirectory(name, ino, origin, series)
