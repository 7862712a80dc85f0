"""Make nodes of contents: lazy directories, files of views, containers inside containers, name collisions.

Where names collide after escaping, directories merge. Of files the first in the container's order keeps the name; the
others get ``~2``, ``~3`` … before the extension (docs/manual/contents.md, "Names" and "Containers in containers").
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import count, repeat
from typing import TypeAlias

from glassfs import work
from glassfs.content import (
    Beside,
    Collection,
    Content,
    Data,
    Fields,
    Group,
    Link,
    Member,
    Nested,
    NestedSource,
    Omitted,
    Series,
    Stored,
    members_of,
)
from glassfs.content.allowance import OBJECT, held, held_by_content, held_by_member
from glassfs.errors import Damaged, GlassfsError
from glassfs.formats.registry import HEAD, INDEX, Head, may_be_container, recognise
from glassfs.names import component, free_name, shown_at_root
from glassfs.terminal import printable
from glassfs.tree.nodes import (
    NO_VIEWS,
    XATTR_PREFIX,
    Children,
    Facts,
    File,
    Node,
    OpenNested,
    Origin,
    Settled,
    Standing,
    Symlink,
    error_of,
    held_by_names,
    inode,
    inodes_of,
    not_found,
    target_of,
)
from glassfs.tree.omissions import ERROR, Omission, as_attributes
from glassfs.view import Key, data_of, file_of, folder_of, has_file

LISTING_COST, NODE_COST = 4 * OBJECT, 7 * OBJECT
"""Approximate bytes of a cached directory, and of each child with its content, beside what their names hold."""
FACTS_AT_ONCE = 64
"""Entries of a series whose names and inode numbers are made together: a reply to the kernel holds a few times more."""
DEEPEST = 256
"""The most directories that a name is split into; the rest of the name becomes one component."""
CHECKED_AT_ONCE = 256
"""Members after which a listing continues only if a caller still waits for it."""

MOST_DEPTH = 4
"""Containers around a container that is still shown as a directory."""
MOST_EXPANSION = 32
"""Bytes of such a container for each byte that the outermost one stores of it: so compression inside compression costs
no more than a file as large would."""

_Run = tuple[int, list[Member]]
"""Members below a directory, and how many components of their names lead to it."""

Below: TypeAlias = "Draft | Collection"
"""What is in a directory: mostly one collection, which needs no draft."""


class Draft:
    """The contents of a directory to be made: groups, and members of groups further up whose names lead below it.

    Names are split one level at a time, when a directory is listed, so that the cost of a name does not grow with the
    number of its components. The draft of a node never changes.
    """

    def __init__(self, *groups: Collection) -> None:
        self.groups = list(groups)
        self.runs: list[_Run] = []

    def opened(self, has_views: bool) -> tuple[dict[str, Below], list[Member], list[Omission], int]:
        """Return the directories right below, the members that become files here, and those that are not shown.

        The last item is the approximate bytes that what is below takes beside its nodes. Without views, what only
        describes the members of groups is left out.
        """
        directories: dict[str, Below] = {}
        files: list[Member] = []
        omitted: list[Omission] = []
        kept = 0
        runs: list[tuple[int, Iterable[Member]]] = list(self.runs)
        for group in self.groups:
            runs.append((0, group.members() if isinstance(group, Group) and not has_views else members_of(group)))
        for depth, members in runs:
            onward: list[Member] = []
            last = None
            for number, member in enumerate(members):
                if not number % CHECKED_AT_ONCE:
                    work.check()
                name, content = member
                if len(name) != depth + 1:
                    if depth < DEEPEST:
                        if name[depth] != last:  # mostly the same as of the previous member
                            last = name[depth]
                            onward = _below(directories, last).onward(depth + 1)
                        onward.append(member)
                        # Further down these are members of a group further up, and a reference takes 8 bytes.
                        kept += 8 if depth else held_by_member(member)
                        continue
                    name = (b"/".join(name[depth:]),)
                    member = Member(name, content)
                folder: Collection | None
                if isinstance(content, Collection):
                    folder = content
                elif isinstance(content, Omitted):
                    shown = component(name[-1]) if name[-1] else ""
                    omitted.append(Omission(shown, printable(content.reason), content.is_damage))
                    continue
                else:
                    files.append(member)
                    folder = folder_of(content)
                if folder is not None:
                    kept += held_by_content(folder)
                    shown = component(name[-1])
                    if shown in directories:
                        _below(directories, name[-1]).groups.append(folder)
                    else:
                        directories[shown] = folder
        return directories, files, omitted, kept

    def onward(self, depth: int) -> list[Member]:
        """Return the list to which further members are appended."""
        if not self.runs or self.runs[-1][0] != depth:
            self.runs.append((depth, []))
        return self.runs[-1][1]


def _below(directories: dict[str, Below], part: bytes) -> Draft:
    """Return the draft of the directory of this name, adding it if needed."""
    name = component(part)
    found = directories.get(name)
    if not isinstance(found, Draft):
        found = directories[name] = Draft() if found is None else Draft(found)
    return found


def container_root(
    root: Collection, origin: Origin, name: str = "", is_mount_root: bool = False, number: int = 0,
) -> Settled:
    """Return the directory of a container's contents; ``number`` distinguishes those with the same contents."""
    return directory(name, inode(origin.identity, number), origin, root, is_mount_root)


def directory(name: str, ino: int, origin: Origin, content: Collection, is_mount_root: bool = False) -> Settled:
    """Return the directory of one collection."""
    if isinstance(content, Fields) and not origin.services.views.views:
        return FieldsDirectory(name, ino, origin, content)
    if isinstance(content, Series):
        return SeriesDirectory(name, ino, origin, content)
    return ContentDirectory(name, ino, origin, Draft(content), is_mount_root)


_Waiting = tuple[bytes, str, "Data | Collection | Link", Content]


class ContentDirectory(Settled):
    """A directory of a container."""

    def __init__(self, name: str, ino: int, origin: Origin, draft: Draft, is_mount_root: bool = False) -> None:
        self.name, self.ino, self.origin = name, ino, origin  # Node's, without a call: there are many directories
        self._draft = draft
        self._is_mount_root = is_mount_root

    @property
    def count(self) -> int:
        return len(self._children().nodes)

    def at(self, number: int) -> Node:
        return self._children().nodes[number]

    def found(self, name: str) -> tuple[int, Node]:
        children = self._children()
        number = children.numbers.get(name)
        if number is None:
            raise not_found(name)
        return number, children.nodes[number]

    def listing(self) -> Sequence[Node]:
        return self._children().nodes

    def xattrs(self) -> dict[str, bytes]:
        groups = [group for group in self._draft.groups if isinstance(group, Group)]
        found = dict[str, bytes]()
        if groups:
            found = {XATTR_PREFIX + "format": self.origin.format.encode(), XATTR_PREFIX + "key": groups[0].key}
            described = groups[0].attributes()
            found |= {XATTR_PREFIX + name: text.encode("utf-8", "replace") for name, text in described.items()}
        known = self.origin.services.listings.known(self.origin, self.ino)
        error = b"" if known is None else as_attributes(known.omitted).get(ERROR)
        return found | {ERROR: error} if error else found

    def omitted(self) -> Sequence[Omission]:
        return self._children().omitted

    def _children(self) -> Children:
        return self.origin.services.listings.children(self.origin, self.ino, self._make)

    def _make(self) -> Children:
        directories, files, omitted, kept = self._draft.opened(bool(self.origin.services.views))
        cost = LISTING_COST + kept
        with self.origin.services.cache.measuring(cost + NODE_COST * (len(directories) + len(files))):
            return self._made(directories, files, omitted, cost)

    def _made(
        self, directories: dict[str, Below], files: Sequence[Member], omitted: list[Omission], cost: int,
    ) -> Children:
        """Make the children, which cost so many bytes beside their nodes, and append to ``omitted``."""
        children: dict[str, Node] = {}
        for below_name, below in directories.items():
            name = self._shown(below_name)
            ino = inode(name, self.ino)
            if isinstance(below, Draft):
                children[name] = ContentDirectory(name, ino, self.origin, below)
            else:
                children[name] = directory(name, ino, self.origin, below)
        # Directories come first, as their names may not be numbered: a path through one must lead where it led before.
        cache, views = self.origin.services.cache, self.origin.services.views
        waiting: list[_Waiting] = []
        derived: list[_Waiting] = []
        for number, (components, content) in enumerate(files):
            if not number % CHECKED_AT_ONCE:
                work.check()
            original = components[-1]
            key = (self.origin.identity, self.ino, number)
            if isinstance(content, Nested):
                name = self._shown(component(original))
                if name not in children and is_container(content):
                    children[name] = NestedDirectory(name, inode(name, self.ino), self.origin, content)
                    continue
            if isinstance(content, Link):
                waiting.append((original, "", content, content))
            elif has_file(content):
                suffix, data = file_of(content, cache, key)
                name = self._shown(component(original, suffix))
                if name in children:
                    waiting.append((original, suffix, data, content))
                else:
                    children[name] = File(name, inode(name, self.ino), self.origin, data, content)
            if views:
                derived += self._derived(original, content, key, omitted)
        if views:
            beside = Beside(b"", [Member(name[-1:], content) for name, content in files if has_file(content)])
            derived += self._derived(b"", beside, (self.origin.identity, self.ino), omitted)
        if waiting or derived:
            self._put_beside(children, waiting)
            self._put_beside(children, derived)
        cost += NODE_COST * len(children) + sum(map(held_by_names, children.values()))
        cost += sum(map(held, omitted))
        numbers = dict(zip(children, count(), strict=False))
        return Children(tuple(children.values()), numbers, omitted, cost)

    def _shown(self, name: str) -> str:
        """Return a name as it is shown here: in the root of a mount one is taken."""
        return shown_at_root(name) if self._is_mount_root else name

    def _derived(self, name: bytes, content: Content, key: Key, omitted: list[Omission]) -> list[_Waiting]:
        """Return what derived views make of a content, and append those that fail."""
        def on_error(view: str, error: GlassfsError) -> None:
            reason = f"view {view}: {error}"
            omitted.append(Omission(component(name) if name else "", printable(reason), isinstance(error, Damaged)))

        services = self.origin.services
        made = services.views.shown(content, services.cache, key, on_error)
        return [(shown.name or name, shown.suffix, shown.thing, content) for shown in made]

    def _put_beside(self, children: dict[str, Node], waiting: Iterable[_Waiting]) -> None:
        """Add nodes to the children, under other names where theirs are taken."""
        # One iterator for all equal names: trying ~2, ~3 … anew for each of many would take quadratic time.
        numbers: defaultdict[tuple[bytes, str], Iterator[int]] = defaultdict(lambda: count(2))
        for original, suffix, thing, content in waiting:
            name = free_name(
                self._shown(component(original, suffix)), children.__contains__,
                partial(_numbered, original, suffix),
                numbers[original, suffix],
            )
            ino = inode(name, self.ino)
            if isinstance(thing, Data):
                children[name] = File(name, ino, self.origin, thing, content)
            elif isinstance(thing, Link):
                children[name] = Symlink(name, ino, self.origin, target_of(thing))
            else:
                # Collections made by a view have no further views, or there might be no end to them.
                services = self.origin.services._replace(views=NO_VIEWS)
                children[name] = directory(name, ino, replace(self.origin, services=services), thing)


def _numbered(original: bytes, suffix: str, number: str) -> str:
    return component(original, number + suffix)


class FieldsDirectory(Settled):
    """A directory of contents whose names are known before the contents are made. Nothing is cached."""

    def __init__(self, name: str, ino: int, origin: Origin, fields: Fields) -> None:
        self.name, self.ino, self.origin = name, ino, origin
        self.fields = fields

    @property
    def count(self) -> int:
        return len(self.fields.outline.names)

    def found(self, name: str) -> tuple[int, Node]:
        # The only child that may have this name: the extension of a file is known once it is made.
        number = self.fields.outline.stems.get(name.partition(".")[0])
        if number is not None:
            node = self.at(number)
            if name == node.name:
                return number, node
        raise not_found(name)

    def at(self, number: int) -> Node:
        fields, origin, ino = self.fields, self.origin, self.ino
        outline = fields.outline
        name, content = outline.texts[number], fields.item(outline.names[number])
        if number < outline.collections:
            return directory(name, inode(name, ino), origin, content)  # type: ignore[arg-type]
        suffix, data = file_of(content, origin.services.cache, (origin.identity, ino, number))
        name += suffix
        return File(name, inode(name, ino), origin, data, content)

    def listing(self) -> Sequence[Node]:
        return tuple(map(self.at, range(self.count)))  # they are few

    def xattrs(self) -> dict[str, bytes]:
        return {XATTR_PREFIX + "format": self.origin.format.encode(), XATTR_PREFIX + "key": self.fields.key}


class SeriesDirectory(Settled):
    """A directory of numbered contents. Nothing is cached."""

    def __init__(self, name: str, ino: int, origin: Origin, series: Series) -> None:
        self.name, self.ino, self.origin = name, ino, origin
        self._series = series

    @cached_property
    def _shape(self) -> tuple[str, str]:
        """The pattern of all names, and the suffix in it."""
        series, suffix = self._series, ""
        if series.numbers and series.has_files and not series.is_mixed:
            suffix = file_of(series.item(series.numbers[0]), self.origin.services.cache, ()).suffix
        return f"%0{series.digits}d" + suffix.replace("%", "%%"), suffix

    @property
    def count(self) -> int:
        return len(self._series.numbers)

    def found(self, name: str, is_whole: bool = True) -> tuple[int, Node]:
        pattern, suffix = self._shape
        digits = name.partition(".")[0] if self._series.is_mixed else name.removesuffix(suffix)
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            number, numbers = int(digits), self._series.numbers
            position = bisect_left(numbers, number)
            if position < len(numbers) and numbers[position] == number:
                node = self._node(number, pattern % number)
                if name == node.name or (not is_whole and name == digits):
                    return position, node
        raise not_found(name)

    def named(self, name: str) -> Node:
        if self._series.is_mixed:
            return self.found(name, is_whole=False)[1]
        suffix = self._shape[1]
        return self.found(name if not suffix or name.endswith(suffix) else name + suffix)[1]

    def at(self, number: int) -> Node:
        named = self._series.numbers[number]
        return self._node(named, self._shape[0] % named)

    def _node(self, number: int, name: str) -> Node:
        series, origin = self._series, self.origin
        content = series.item(number)
        if series.is_mixed:
            name += file_of(content, origin.services.cache, ()).suffix
        ino = inode(name, self.ino)
        if series.has_groups:
            return directory(name, ino, origin, content)  # type: ignore[arg-type]
        if isinstance(content, Link):
            return Symlink(name, ino, origin, target_of(content))
        data = data_of(content, origin.services.cache, (origin.identity, self.ino, number))
        return File(name, ino, origin, data, content)

    def facts(self, start: int, stop: int) -> Iterator[Facts]:
        series, origin, numbers = self._series, self.origin, self._series.numbers[start:stop]
        sizes: Iterable[int | None] | None = self._sizes(start, stop) if series.has_files else repeat(None)
        if sizes is None:
            yield from super().facts(start, stop)
            return
        # Making contents and nodes would take several times as long.
        pattern, parent = self._shape[0].encode(), self.ino
        mode = origin.file_mode if series.has_files else origin.directory_mode if series.has_groups else Symlink.mode
        all_sizes = iter(sizes)
        for at in range(0, len(numbers), FACTS_AT_ONCE):
            names = [pattern % number for number in numbers[at : at + FACTS_AT_ONCE]]
            yield from zip(names, inodes_of(names, parent), repeat(mode), all_sizes, strict=False)

    def _sizes(self, start: int, stop: int) -> Iterable[int] | None:
        """Return the sizes of these files, if they are known without making any but the first."""
        series, origin = self._series, self.origin
        if not series.numbers or not (series.is_uniform or series.sizes):
            return None
        first = series.item(series.numbers[0])
        data = data_of(first, origin.services.cache, (origin.identity, self.ino, 0))
        if series.is_uniform:
            return repeat(data.size) if data.is_sized else None
        # The size of a content is that of its file only if the file shows the same bytes.
        is_shown_unchanged = isinstance(first, Stored) and data is first.data
        return series.sizes(start, stop) if series.sizes and is_shown_unchanged else None


def is_container(nested: Nested) -> bool:
    """Return whether a nested file is shown as a directory. It is opened later.

    Its name decides, and its first bytes unless reading them takes a request. Raises Passing.
    """
    name = nested.key.decode("utf-8", "replace")
    if not may_be_container(name) or name.lower().endswith(INDEX):  # there are no files beside it
        return False
    # Depth and expansion are those of the whole way from the outermost file, which a bomb would multiply.
    source = NestedSource(nested)
    if source.depth > MOST_DEPTH or source.expansion > MOST_EXPANSION:
        return False
    if source.is_remote:
        return True
    try:
        head = Head(nested.first_bytes(HEAD), name.rpartition("/")[2], source.size)
    except Damaged:
        return False
    return recognise(head) is not None


class NestedDirectory(Standing):
    """A container inside another one, opened when it is entered, or when its attributes are asked for.

    If it cannot be opened, it contains nothing but its own file, and its attributes have the reason.
    """

    def __init__(self, name: str, ino: int, origin: Origin, content: Nested) -> None:
        super().__init__(name, ino, origin)
        self.content = content

    @property
    def file(self) -> File:
        """Its bytes, which are in no listing."""
        return File(self.name, self.ino, self.origin, self.content.data, self.content)

    def opened(self) -> OpenNested:
        return self.origin.services.nested(self.name, self.ino, self.origin, self.content)

    def shown(self) -> Settled:
        return self.opened().root

    def xattrs(self) -> dict[str, bytes]:
        opened = self.opened()
        format_name = opened.container.format.encode()
        return self.file.xattrs() | {XATTR_PREFIX + "format": format_name} | error_of(opened.root)
