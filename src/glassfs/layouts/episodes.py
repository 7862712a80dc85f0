"""The episodes of a generic container, found as a layout describes them. Any thread.

Nothing is listed or read before it is needed, and what cannot be read hides nothing else.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from glassfs.content import (
    Array,
    Container,
    Content,
    Document,
    Group,
    Link,
    Member,
    Recording,
    Series,
    Table,
    episodes_table,
    with_recording,
)
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.content.episodes import EPISODES_KEY, recording_in
from glassfs.content.features import features_of
from glassfs.errors import LASTING
from glassfs.layouts.expressions import Comparison, Expression, FunctionCall, Reference
from glassfs.layouts.form import EACH, ENDS, FIRST, NUMBER, WHOLE, Layout, Pattern
from glassfs.layouts.recording import (
    EpisodeContents,
    EpisodePlace,
    below,
    child,
    flattened,
    items_of,
    name_of,
    path_of,
    texts_of,
)
from glassfs.names import text
from glassfs.once import once
from glassfs.sizes import PIECE

AT_ONCE = 16
"""Episodes in a block of the table."""
TRIED = 4
"""Groups that a wildcard of ``match`` looks into: a container of another layout costs no more."""

_Described = tuple[dict[str, Any], str]
"""A row and the features of its episode."""


class _Found(NamedTuple):
    """The layout of a container, the number of its episodes, and what returns one of them."""

    layout: Layout
    number: int
    episode: Callable[[int], EpisodePlace]

    @property
    def has_groups(self) -> bool:
        """Whether episodes are groups of the container."""
        return self.layout.kind == EACH

    @property
    def is_one(self) -> bool:
        """Whether the container is one episode itself."""
        return self.number == 1 and not self.has_groups


def interpreted(container: Container, layouts: Sequence[Layout], allowance: Allowance) -> Container:
    """Return a generic container with the episodes that the first matching layout finds in it, others unchanged."""
    if not container.is_generic or not isinstance(container.root, Group):
        return container
    episodes = Episodes(container, container.root, layouts, allowance)
    root = replace(container.root, members=episodes.members, find=None)
    return replace(container, root=root, episodes=episodes.table, layout_report=episodes.report)


class Episodes:
    """The episodes of a container with this root, by the first of the layouts that it matches."""

    def __init__(self, container: Container, root: Group, layouts: Sequence[Layout], allowance: Allowance) -> None:
        self._container, self._root = container, root
        self._layouts = layouts
        self._allowance = allowance
        self._last: tuple[int, list[_Described]] = (-1, [])
        """The number of the block of the table that was described last, and its rows."""
        self._known_lists: dict[str, dict[str, list[str]] | None] = {}
        """Of each pattern of lists, the names of those that have an episode, by its name; None if unreadable."""

    @once
    def _found(self) -> _Found | None:
        """The episodes, None if there are none."""
        layout = next((layout for layout in self._layouts if self._why_not(layout) is None), None)
        found = self._by(layout) if layout is not None else None
        return found if found is not None and found.number else None

    def _why_not(self, layout: Layout) -> str | None:
        """Return why the container does not match a layout, None if it does."""
        if layout.formats and self._container.format not in layout.formats:
            return f"formats: {', '.join(layout.formats)}, but the container is {self._container.format}"
        missing = (pattern.text for pattern in layout.match if not _exists(self._root, pattern.parts))
        return next((f"match: nothing is at {path}" for path in missing), None)

    def report(self) -> Iterator[str]:
        """Yield lines that say what the first layout finds, and what it does not find and why."""
        layout = self._layouts[0]
        reason = self._why_not(layout)
        if reason is not None:
            yield f"no match: {reason}"
            return
        yield from (f"match: {pattern.text} is there" for pattern in layout.match)
        found = self._found
        if found is None:
            where = ", ".join(layout.places)
            yield f"episodes: none; {layout.kind} = {where} leads to no steps" if where else "episodes: none"
            return
        yield f"episodes: {found.number}"
        yield from self._contents(found, 0).report(found.has_groups)

    def _by(self, layout: Layout) -> _Found:
        if layout.kind == WHOLE:
            return _Found(layout, 1, lambda number: EpisodePlace((self._root,)))
        if layout.kind == EACH:
            episodes = self._numbered(layout.places[0])
            return _Found(layout, len(episodes), episodes.__getitem__)
        # There may be millions: of each, only its first step is kept.
        bounds, total = self._bounds(layout)
        self._allowance.take(bounds.itemsize * len(bounds), "episodes")
        return _Found(
            layout, len(bounds) - 1,
            lambda number: EpisodePlace((self._root,), range(bounds[number], bounds[number + 1]), total),
        )

    def _numbered(self, place: str) -> list[EpisodePlace]:
        """Return the groups below a path whose names have numbers, in the order of these."""
        *above, last = place.split("/")
        groups = [self._root]
        for part in above:
            inner = child(groups[-1], part)
            if not isinstance(inner, Group):
                return []
            groups.append(inner)
        named = re.compile(r"(\d{1,18})".join(map(re.escape, last.split(NUMBER))))
        found = []
        for name, content in groups[-1].members():
            match = named.fullmatch(text(name[0])) if len(name) == 1 else None
            if match is not None and isinstance(content, Group):
                self._allowance.take(3 * OBJECT, "episodes")
                found.append((int(match[1]), name, EpisodePlace((*groups, content))))
        return [episode for *_, episode in sorted(found, key=lambda one: one[:2])]

    def _bounds(self, layout: Layout) -> tuple[array[int], int]:
        """Return the first step of each episode in flat arrays and the end of the last one, and the rows of arrays."""
        import numpy as np

        arrays = {path_of(name): one for name, one in flattened(self._root) if isinstance(one, Array)}
        rows = {path: one.known_shape[0] for path, one in arrays.items() if one.known_shape}
        flags = [path for path in layout.places if path in rows]
        total = next((rows[path] for path in (*layout.count, *flags) if path in rows), 0)
        bounds = array("I" if total < 1 << 32 else "Q", [0])
        if not total:
            return bounds, 0
        items = [values for path in flags if (values := items_of(arrays[path])) is not None]
        if layout.kind == ENDS:
            ends = items[0].ravel() if items and items[0].dtype.kind in "iu" else np.zeros(0, "i8")
            is_rising = len(ends) > 0 and ends[0] > 0 and bool((ends[1:] > ends[:-1]).all()) and ends[-1] <= total
            steps = ends if is_rising else ends[:0]
        elif any(rows.get(pattern.text, 0 if pattern.is_literal else total) != total for pattern in layout.match):
            steps = np.zeros(0, "i8")  # arrays of other lengths are no steps of one recording
        else:
            is_border = np.zeros(total, bool)
            for values in items:
                if len(values) == total and values.dtype.kind in "biuf":
                    is_border |= values.reshape(total, -1).any(1)
            # A flag at the last step of an episode is one before the first step of the next.
            inner = 1 + np.flatnonzero(is_border[1:] if layout.kind == FIRST else is_border[:-1])
            steps = np.append(inner, total)
        bounds.frombytes(steps.astype(bounds.typecode).tobytes())
        return bounds, total

    def table(self) -> Table | None:
        """Return the table of episodes, None if there are none."""
        found = self._found
        if found is None:
            return None
        return episodes_table(
            found.number, lambda block: [row for row, _ in self._described(found, block)], -(-found.number // AT_ONCE),
            cost=lambda block: 4 * PIECE, directory=b"" if found.is_one else EPISODES_KEY,
            recording=lambda number: recording_in(self._episode(found, number)),
            features=lambda block: [features for _, features in self._described(found, block)],
        )

    def _described(self, found: _Found, block: int) -> list[_Described]:
        """Return the rows of a block of the table with their features."""
        last, described = self._last
        if last != block:
            numbers = range(block * AT_ONCE, min(found.number, (block + 1) * AT_ONCE))
            if found.has_groups:
                paths = [tuple(group.key for group in found.episode(number).groups[1:]) for number in numbers]
                self._container.prepare(paths, self._attributes)
            described = []
            for number in numbers:
                contents, position = self._contents(found, number), None if found.is_one else number
                try:
                    row = contents.row(position, found.has_groups)
                    features = features_of(contents.recorded, contents.steps, found.layout.camera_name)
                except LASTING:  # it cannot be listed, which hides no other episode
                    row, features = {"position": position}, ""
                described.append((row, features))
            self._last = block, described
        return described

    def _contents(self, found: _Found, number: int) -> EpisodeContents:
        return EpisodeContents(found.layout, found.episode(number), self._lists, self._allowance.part())

    @once
    def _attributes(self) -> list[str]:
        """The attributes of episodes that rows need."""
        layout = self._found.layout if self._found else None
        return sorted(set(filter(None, map(_attribute, _expressions(layout))))) if layout else []

    def _lists(self, pattern: str, name: bytes) -> list[str] | None:
        if pattern not in self._known_lists:
            self._known_lists[pattern] = self._read_lists(pattern)
        known = self._known_lists[pattern]
        return None if known is None else list(known.get(text(name), ()))

    def _read_lists(self, pattern: str) -> dict[str, list[str]] | None:
        """Return the names of the lists that match, by the texts in them. None if they cannot be read."""
        wanted, found = Pattern(pattern), dict[str, list[str]]()
        try:
            above = below(self._root, wanted.parts[:-1])
            if not isinstance(above, Group):
                return None
            for name, content in above.members():
                texts = texts_of(content) if wanted.fits((*wanted.parts[:-1], *name_of(name))) else None
                for one in texts if isinstance(texts, list) else ():
                    self._allowance.take(2 * OBJECT, "lists of episodes")
                    found.setdefault(str(one), []).append(name_of(name)[-1])
        except LASTING:
            return None
        return found

    def members(self) -> Iterator[Member]:
        """Yield the contents of the root."""
        found = self._found
        if found is None:
            yield from self._root.members()
        elif found.is_one:
            yield from self._episode(found, 0)
        else:
            yield from self._around(found, self._root, 0) if found.has_groups else self._root.members()
            yield Member((EPISODES_KEY,), self._directory(found))
            table = self.table()
            if table is not None:
                yield Member((EPISODES_KEY,), table)

    def _directory(self, found: _Found) -> Content:
        """Return the directory of all episodes by their numbers: their steps, or links to their groups."""
        if not found.has_groups:
            return Series(
                EPISODES_KEY, found.number, lambda number: Group(b"%d" % number, partial(self._episode, found, number)),
                has_groups=True,
            )

        def links() -> Iterator[Member]:
            for number in range(found.number):
                key = b"%d" % number
                above = (group.key for group in found.episode(number).groups[1:])
                yield Member((key,), Link(key, (b"..", *above)))

        return Group(EPISODES_KEY, links)

    def _around(self, found: _Found, group: Group, depth: int) -> Iterator[Member]:
        """Yield the contents of a group around the episodes, these with what makes them episodes."""
        groups = found.episode(0).groups
        is_last = depth == len(groups) - 2
        numbers = {found.episode(number).group.key: number for number in range(found.number)} if is_last else {}
        for name, content in group.members():
            if isinstance(content, Group) and content.key in numbers:
                content = replace(content, members=partial(self._episode, found, numbers[content.key]))
            elif isinstance(content, Group) and not is_last and content.key == groups[depth + 1].key:
                content = replace(content, members=partial(self._around, found, content, depth + 1))
            yield Member(name, content)

    def _episode(self, found: _Found, number: int) -> Iterator[Member]:
        """Yield the contents of an episode, the table of its steps, and the episode as a whole."""
        contents = self._contents(found, number)
        yield from contents.shown()
        record = partial(contents.record, None if found.is_one else number, found.has_groups)
        yield Member((b"meta", b"episode"), Document(b"episode", record))
        whole = with_recording(lambda: contents.recorded, record, contents.steps)
        yield from (member for member in whole if isinstance(member.content, (Table, Recording)))


def _exists(group: Group, parts: Sequence[str]) -> bool:
    """Return whether a group has a content at a path with wildcards."""
    wanted = Pattern(parts[0])
    tried = 0
    for name, content in group.members():
        path = name_of(name)
        if path == list(parts[: len(path)]) or (len(path) == 1 and wanted.fits(path)):
            rest = parts[len(path) :]
            if not rest:
                return True
            if isinstance(content, Group):
                tried += 1
                with suppress(*LASTING):  # another one may be readable
                    if _exists(content, rest):
                        return True
                if tried == TRIED:
                    return False
    return False


def _expressions(layout: Layout) -> Iterator[Expression]:
    for choices in (*layout.columns.values(), *layout.record.values()):
        for choice in choices:
            yield choice.value
            if choice.when is not None:
                yield choice.when


def _attribute(expression: Expression) -> str | None:
    """Return the attribute of the episode that an expression needs, if it needs one."""
    if isinstance(expression, Comparison):
        return _attribute(expression.left)
    if isinstance(expression, FunctionCall):
        return _attribute(expression.argument)
    is_own = isinstance(expression, Reference) and expression.is_attribute and not expression.level
    return expression.path if is_own and isinstance(expression, Reference) else None
