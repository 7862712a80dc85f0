"""The episodes of a generic container, found as a layout describes them. Any thread.

Nothing is listed or read before it is needed, and what cannot be read hides nothing else. Finding the borders of
episodes in flat arrays reads whole arrays of flags, so they are kept in the catalogue: later processes read no flags.
"""

from __future__ import annotations

import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

from glassfs import work
from glassfs.content import (
    Array,
    Container,
    Content,
    Document,
    Group,
    Link,
    Member,
    Omitted,
    Recording,
    Series,
    Table,
    dtypes,
    episodes_table,
    with_recording,
)
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.content.episodes import EPISODES_KEY, features_of, recording_in
from glassfs.errors import LASTING, Damaged, GlassfsError, Refused, TooLarge
from glassfs.layouts.form import EACH, ENDS, FIRST, NUMBER, WHOLE, Layout, Pattern
from glassfs.layouts.recording import (
    EpisodeContents,
    EpisodePlace,
    Shared,
    below,
    child,
    flattened,
    items_of,
    name_of,
    path_of,
    texts_of,
)
from glassfs.lazy import NDArray, np
from glassfs.names import text
from glassfs.once import once
from glassfs.sizes import PIECE, human_size

AT_ONCE = 16
"""Episodes in a block of the table."""
TRIED = 4
"""Groups that a wildcard of ``match`` looks into: a container of another layout costs no more."""

_Described = tuple[dict[str, Any], str]
"""A row and the features of its episode."""


class KeptFacts(Protocol):
    """An open container (``formats.registry.Opening``): the memory that may be taken, and what is kept of it on disk.
    """

    @property
    def allowance(self) -> Allowance: ...

    def found(self, name: bytes) -> bytes | None:
        """Return what ``keep`` stored under a name, perhaps in another process."""

    def keep(self, name: bytes, value: bytes) -> None: ...


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


def interpreted(container: Container, layouts: Sequence[Layout], opened: KeptFacts) -> Container:
    """Return a generic container with the episodes that the first matching layout finds in it, others unchanged."""
    if not container.is_generic or not isinstance(container.root, Group):
        return container
    episodes = Episodes(container, container.root, layouts, opened)
    root = replace(container.root, members=episodes.members, find=None)
    return replace(container, root=root, episodes=episodes.table, layout_report=episodes.report)


@dataclass
class Episodes:
    """The episodes of a container with this root, by the first of the layouts that it matches."""

    _container: Container
    _root: Group
    _layouts: Sequence[Layout]
    _opened: KeptFacts
    _fault: GlassfsError | None = None
    """Why the episodes cannot be found, if that is so."""
    _last: tuple[int, Sequence[_Described]] = (-1, ())
    """The number of the block of the table that was described last, and its rows."""

    def __post_init__(self) -> None:
        self._shared = Shared(cache(self._lists))

    @once
    def _found(self) -> _Found | None:
        """The episodes, None if there are none."""
        layout = next((layout for layout in self._layouts if not self._why_not(layout)), None)
        try:
            found = self._by(layout) if layout is not None else None
        except LASTING as error:
            # Without a flag that cannot be read, several episodes would be shown as one.
            self._fault = error
            return None
        return found if found is not None and found.number else None

    def _why_not(self, layout: Layout) -> str:
        """Return why the container does not match a layout, empty if it does."""
        if layout.formats and self._container.format not in layout.formats:
            return f"formats: {', '.join(layout.formats)}, but the container is {self._container.format}"
        missing = (pattern.text for pattern in layout.match if not _exists(self._root, pattern.parts))
        return next((f"match: nothing is at {path}" for path in missing), "")

    def report(self) -> Iterator[str]:
        """Yield what the first layout finds, and what it does not find and why. Raises Refused if it does not match."""
        layout = self._layouts[0]
        mismatch = self._why_not(layout)
        if mismatch:
            raise Refused(f"no match: {mismatch}", self._container.sources[0].name)
        yield from (f"match: {pattern.text} is there" for pattern in layout.match)
        found = self._found
        if found is not None:
            yield f"episodes: {found.number}"
            yield from self._contents(found, 0).tried()
        else:
            reason = self._fault.reason if self._fault else f"{', '.join(layout.places)} leads to no steps"
            yield f"episodes: none: {layout.kind}: {reason}"

    def _by(self, layout: Layout) -> _Found:
        if layout.kind == WHOLE:
            return _Found(layout, 1, lambda number: EpisodePlace((self._root,)))
        if layout.kind == EACH:
            episodes = self._numbered(layout.places[0])
            return _Found(layout, len(episodes), episodes.__getitem__)
        # There may be millions: of each, only its first step is kept.
        steps, rows = borders_of(self._root, layout, self._opened)
        return _Found(
            layout, len(steps) - 1,
            lambda number: EpisodePlace((self._root,), range(steps[number], steps[number + 1]), rows),
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
                self._opened.allowance.take(3 * OBJECT, "episodes")
                found.append((int(match[1]), name, EpisodePlace((*groups, content))))
        return [episode for *_, episode in sorted(found, key=lambda one: one[:2])]

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

    def _described(self, found: _Found, block: int) -> Sequence[_Described]:
        """Return the rows of a block of the table with their features, kept ones if there are some."""
        last, described = self._last
        if last != block:
            name = b"rows 1 %b %d" % (found.layout.digest, block)
            described = _unpacked(self._opened.found(name) or b"", len(self._numbers(found, block)))
            if not described:
                described, is_whole = self._made(found, block)
                if is_whole:  # what is missing may be there tomorrow: a filter, for example
                    self._opened.keep(name, zlib.compress(json.dumps(described).encode(), 1))
            self._last = block, described
        return described

    def _made(self, found: _Found, block: int) -> tuple[list[_Described], bool]:
        """Return the rows of a block from the contents, and whether all could be read."""
        self._prepare(found, block)
        described, is_whole = [], True
        for number in self._numbers(found, block):
            contents, position = self._contents(found, number), None if found.is_one else number
            try:
                described.append((contents.row(position), features_of(contents.recorded, contents.steps)))
            except LASTING:  # it cannot be listed, which hides no other episode
                described.append(({"position": position}, ""))
                contents.is_whole = False
            is_whole = is_whole and contents.is_whole
        return described, is_whole

    def _numbers(self, found: _Found, block: int) -> range:
        return range(found.number)[block * AT_ONCE : (block + 1) * AT_ONCE]

    def _prepare(self, found: _Found, block: int) -> None:
        """Ask for all that the rows of a block need of groups at once."""
        numbers = self._numbers(found, block)
        if found.has_groups:
            paths = [tuple(group.key for group in found.episode(number).groups[1:]) for number in numbers]
            layout = found.layout
            choices = [one for some in layout.columns.values() for one in some]
            needed = {one.own for choice in choices for one in (choice.value, choice.when) if one and one.own}
            self._container.prepare(paths, sorted(needed), [pattern.text for pattern in layout.omit])

    def _contents(self, found: _Found, number: int) -> EpisodeContents:
        return EpisodeContents(found.layout, found.episode(number), self._shared, self._opened.allowance.part())

    def _lists(self, pattern: str) -> dict[str, list[str]] | None:
        """Return the names of the lists that match, by the texts in them. None if they cannot be read."""
        wanted, found = Pattern(pattern), dict[str, list[str]]()
        try:
            above = below(self._root, wanted.parts[:-1])
            if not isinstance(above, Group):
                return None
            for name, content in above.members():
                texts = texts_of(content) if wanted.fits((*wanted.parts[:-1], *name_of(name))) else None
                for one in dict.fromkeys(map(str, texts)) if isinstance(texts, list) else ():
                    self._opened.allowance.take(2 * OBJECT, "lists of episodes")
                    found.setdefault(one, []).append(name_of(name)[-1])
        except LASTING:
            return None
        return found

    def members(self) -> Iterator[Member]:
        """Yield the contents of the root."""
        found = self._found
        if found is None:
            yield from self._root.members()
            if self._fault is not None:
                is_damage = isinstance(self._fault, Damaged)
                yield Member((EPISODES_KEY,), Omitted(EPISODES_KEY, f"episodes: {self._fault.reason}", is_damage))
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
        def episode(number: int) -> Group | Link:
            key = b"%d" % number
            if not found.has_groups:
                return Group(key, partial(self._episode, found, number))
            return Link(key, (b"..", *(group.key for group in found.episode(number).groups[1:])))

        return Series(
            EPISODES_KEY, range(found.number), episode, has_groups=not found.has_groups, has_links=found.has_groups,
        )

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
        record = partial(contents.record, None if found.is_one else number)
        yield Member((b"meta", b"episode"), Document(b"episode", record))
        depth = len(found.episode(number).groups) - 1 if found.has_groups else None
        whole = with_recording(lambda: contents.recorded, record, contents.steps, depth, bool(found.layout.base))
        yield from (member for member in whole if isinstance(member.content, (Table, Recording)))


def _unpacked(kept: bytes, count: int) -> list[_Described]:
    """Return rows that were kept, none if they are not ``count``."""
    with suppress(ValueError, TypeError, zlib.error):
        described = [(dict(row), str(features)) for row, features in json.loads(zlib.decompress(kept))]
        return described if len(described) == count else []
    return []


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


def borders_of(root: Group, layout: Layout, opened: KeptFacts) -> tuple[array[int], int]:
    """Return the first step of each episode and the end of the last one, and how many rows the arrays have.

    Raises Damaged if a flag cannot be read, and TooLarge.
    """
    arrays = {path_of(name): one for name, one in flattened(root) if isinstance(one, Array)}
    rows = {path: one.known_shape[0] for path, one in arrays.items() if one.known_shape}
    total = next((rows[path] for path in (*layout.count, *layout.places) if path in rows), 0)
    found = array("I" if total < 1 << 32 else "Q", [0])
    # Arrays of other lengths are no steps of one recording.
    counted = (pattern for pattern in layout.match if layout.kind != ENDS)
    if not total or any(rows.get(one.text, 0 if one.is_literal else total) != total for one in counted):
        return found, 0
    name = b"borders 1 %b %d" % (layout.digest, total)
    kept = opened.found(name) or b""
    ends = np.frombuffer(kept if not len(kept) % found.itemsize else b"", f"u{found.itemsize}")
    if not len(ends) or not _are_ends(ends, total):
        ends = _ends(arrays, layout, total, opened.allowance.part()).astype(f"u{found.itemsize}")
        opened.keep(name, ends.tobytes())
    opened.allowance.take(found.itemsize * len(ends), "episodes")
    found.frombytes(ends.tobytes())
    return found, total


def _are_ends(ends: NDArray[Any], total: int) -> bool:
    """Return whether these can be the ends of episodes: they rise up to ``total`` steps at most."""
    return bool(ends[0] > 0 and ends[-1] <= total and (ends[1:] > ends[:-1]).all())


def _ends(arrays: Mapping[str, Array], layout: Layout, total: int, allowance: Allowance) -> NDArray[Any]:
    """Return the end of each episode, none if the arrays contradict each other."""
    flags = [arrays[path] for path in layout.places if path in arrays]
    if layout.kind == ENDS:
        ends = items_of(flags[0]) if flags else None
        if ends is None or ends.dtype.kind not in "iu":
            return np.zeros(0, "i8")
        ends = ends.ravel()
        return ends if len(ends) and _are_ends(ends, total) else ends[:0]
    # A flag at the last step of an episode is one before the first step of the next.
    shift = 0 if layout.kind == FIRST else 1
    steps = [step + shift for one in flags for step in _flagged(one, total, allowance)]
    inner = np.unique(np.concatenate(steps)) if steps else np.zeros(0, "i8")
    return np.append(inner[(inner > 0) & (inner < total)], total)


def _flagged(flag: Array, total: int, allowance: Allowance) -> Iterator[NDArray[Any]]:
    """Yield the steps at which a flag is true, those of some bytes at a time. Raises TooLarge."""
    dtype, shape = dtypes.parsed(flag.dtype), flag.known_shape
    if dtype.kind not in "biuf" or not shape or shape[0] != total:
        return
    # A small compressed file may declare any number of flags, and each of them may be true.
    if flag.data.size > 4 * allowance.size:
        raise TooLarge(f"flags of {human_size(flag.data.size)} are too many to be read")
    row = flag.data.size // total
    at_once = max(1, PIECE // max(1, row))
    for first in range(0, total, at_once):
        work.check()
        count = min(at_once, total - first)
        values = np.frombuffer(flag.data.read(first * row, count * row), dtype).reshape(count, -1)
        found = first + np.flatnonzero(values.any(1))
        allowance.take(found.nbytes, "episodes")
        yield found
