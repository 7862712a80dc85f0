"""An open container: its contents, facts about it, and its damage; files in it that may be containers. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassfs.content.allowance import OBJECT, Allowance
from glassfs.content.data import Data
from glassfs.content.model import Collection, Name, Part
from glassfs.content.summary import ARRAYS, EPISODE_ROWS, EPISODES, Summary
from glassfs.content.table import Table
from glassfs.errors import TooLarge
from glassfs.source import Source, inner_version


class Fault(NamedTuple):
    """Damage in a container: where (a path or the name of a part) and what."""

    place: str
    reason: str


def _no_episodes() -> None:
    """Return nothing, for containers of other things."""


@dataclass
class Container:
    """An open container.

    ``facts`` are what its header and index say: JSON values in display order. ``sources`` are all its files, its own
    first. ``check`` yields damage that reading all contents does not find (holes, overlaps, cross-references).
    ``episodes`` returns the table of its episodes; for a container that is one episode, a table of one row and no
    ``directory``. ``summaries`` are functions that return its rows for other joined tables, by their names, or None if
    it has none after all. ``arrays`` returns the collection whose arrays are rows of the table ``arrays``, with each of
    them once and no links followed, for formats of arrays. ``held`` returns the memory in bytes that the container
    takes now beside what was taken from its allowance, a few objects, and its sources; the tree adds the former.
    ``is_generic`` says that the format knows of no episodes: layouts may find some. ``prepare`` then reads at once what
    groups at some paths have, except for groups in them of some names, and those of their attributes that have some
    names, as far as that saves time.
    ``layout_report`` yields lines about what the first of its layouts finds in it. It raises Refused for one that does
    not match.
    """

    format: str
    version: str
    root: Collection
    sources: list[Source]
    facts: dict[str, Any] = field(default_factory=dict)
    check: Callable[[], Iterator[Fault]] = lambda: iter(())
    episodes: Callable[[], Table | None] = _no_episodes
    summaries: Mapping[str, Callable[[], Summary | None]] = field(default_factory=dict)
    arrays: Callable[[], Collection] | None = None
    held: Callable[[], int] = lambda: 0
    is_generic: bool = False
    prepare: Callable[[Sequence[Name], Sequence[str], Sequence[str]], None] = lambda paths, names, skipped: None
    layout_report: Callable[[], Iterator[str]] = lambda: iter(())

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the joined tables to which it may give rows."""
        episodes = (EPISODES,) if self.episodes is not _no_episodes else ()
        return (*episodes, *self.summaries, *((ARRAYS,) if self.arrays else ()))

    def summary(self, name: str) -> Summary | None:
        """Return its rows for the joined table of this name, or None; those of arrays are found another way."""
        if name == EPISODES and self.episodes is not _no_episodes:
            table = self.episodes()
            return Summary(EPISODE_ROWS, table) if table is not None else None
        find = self.summaries.get(name)
        return find() if find else None

    def close(self) -> None:
        for source in self.sources:
            source.close()


def layout_faults(
    parts: Iterable[tuple[int, int, str]], size: int, allowance: Allowance, may_share: bool = False, padding: int = 0,
) -> Iterator[Fault]:
    """Yield ranges of a file of ``size`` bytes that belong to no part, and, unless parts ``may_share`` bytes, overlaps.

    A part has a start, an end and a name; those without bytes in the file are ignored. Gaps of ``padding`` bytes or
    less are no fault. The allowance bounds how scattered parts may be.
    """
    runs = [(0, 0, "the start of the file")]
    for start, end, what in parts:
        if not start < end <= size:
            continue
        if start == runs[-1][1]:  # as written: most parts form one run
            runs[-1] = (runs[-1][0], end, what)
            continue
        try:
            allowance.take(2 * OBJECT, "parts")
        except TooLarge as error:
            yield Fault("file", f"its parts are too scattered to check for gaps and overlaps: {error.reason}")
            return
        runs.append((start, end, what))
    # Runs in the order of their offsets either touch, leave a gap, or overlap. As a run can lie inside an earlier one,
    # each is compared with the end of all before it.
    reached, before = 0, ""
    for start, end, what in (*sorted(runs), (size, size, "the end of the file")):
        if start - reached > padding:
            yield Fault("file", f"{start - reached} bytes at {reached}, after {before}, belong to nothing")
        elif start < min(reached, size) and not may_share:
            twice = f"{start} to {min(end, reached)}"
            yield Fault("file", f"bytes {twice} are used twice: before the end of {before}, and of {what}")
        if end >= reached:
            reached, before = end, what


@dataclass
class Nested(Part):
    """A file that a container stores under a name of its own, and that may be a container itself.

    Members of a group that have a container's name and first bytes are shown as directories, all others as files.
    ``container`` is the source in which ``data`` are stored, and ``ident`` distinguishes these bytes from all others in
    it. ``stored`` is their size there, if they are compressed. ``head`` returns the first bytes, at most as many as its
    argument, and is given if reading them costs less than reading so much of ``data``; it may raise Damaged.
    """

    container: Source
    ident: str
    stored: int | None = None
    head: Callable[[int], bytes] | None = None

    def first_bytes(self, size: int) -> bytes:
        """Return the first bytes, about ``size`` of them at most. Raises Damaged."""
        return self.data.read(0, min(size, self.data.size)) if self.head is None else self.head(size)


class NestedSource(Source):
    """The bytes of a nested file. It is of the same version as its container, and open as long as that is.

    ``depth`` is the number of containers around it. ``expansion`` is the number of its bytes for each byte that the
    outermost container stores of it.
    """

    def __init__(self, nested: Nested) -> None:
        data, container = nested.data, nested.container
        # Limits against archives that expand without end, one in the other, multiply along the way from the outermost
        # file.
        stored = data.size if nested.stored is None else nested.stored
        version = inner_version(container.version, nested.ident)
        self.name = f"{container.name}/{nested.key.decode('utf-8', 'backslashreplace')}"
        self.entry = container.entry._replace(version=version, file_id=version, stamp=version, size=data.size)
        self.is_remote = container.is_remote
        self.depth, self.expansion = 1, data.size / max(1, stored)
        if isinstance(container, NestedSource):
            self.depth += container.depth
            self.expansion *= container.expansion
        self._data: Data = data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._demand_inside(offset, len(buffer))
        self._data.read_into(buffer, offset)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        self._demand_inside(offset, size)
        whole = self._data.mapped()
        return None if whole is None else whole[offset : offset + size]

    def _demand_inside(self, offset: int, size: int) -> None:
        if offset < 0 or offset + size > self.size:
            raise self.outside(offset, size)
