"""An open container: its contents, facts about it, and its damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassfs.content.model import Collection, Name
from glassfs.content.summary import EPISODE_ROWS, EPISODES, Summary
from glassfs.content.table import Table
from glassfs.source import Source


class Fault(NamedTuple):
    """Damage in a container: where (a path or the name of a part) and what."""

    place: str
    reason: str


@dataclass(frozen=True)
class LayoutReport:
    """What the first layout finds in a container: why it does not match, empty if it does; the paths that are there;
    how many episodes it has; and of the first one, by name, what is found and why something is not.
    """

    mismatch: str = ""
    matches: Sequence[str] = ()
    episodes: int = 0
    found: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


def _no_episodes() -> None:
    """Return nothing, for containers of other things."""


@dataclass(slots=True)
class Container:
    """An open container.

    ``facts`` are what its header and index say: JSON values in display order. ``sources`` are all its files, its own
    first. ``check`` yields damage that reading all contents does not find (holes, overlaps, cross-references).
    ``episodes`` returns the table of its episodes; for a container that is one episode, a table of one row and no
    ``directory``. ``summaries`` are functions that return its rows for other joined tables, by their names, or None if
    it has none after all. ``held`` is the most memory in bytes that the container ever takes while it is open, without
    its sources, if the format knows that beforehand; otherwise it is measured, which takes as long as opening it.
    ``is_generic`` says that the format knows of no episodes: layouts may find some. ``prepare`` then reads at once what
    groups at some paths have, except for groups in them of some names, and those of their attributes that have some
    names, as far as that saves time.
    ``layout_report`` says what the first of its layouts finds in it.
    """

    format: str
    version: str
    root: Collection
    sources: list[Source]
    facts: dict[str, Any] = field(default_factory=dict)
    check: Callable[[], Iterator[Fault]] = lambda: iter(())
    episodes: Callable[[], Table | None] = _no_episodes
    summaries: Mapping[str, Callable[[], Summary | None]] = field(default_factory=dict)
    held: int | None = None
    is_generic: bool = False
    prepare: Callable[[Sequence[Name], Sequence[str], Sequence[str]], None] = lambda paths, names, skipped: None
    layout_report: Callable[[], LayoutReport] = LayoutReport

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the joined tables to which it may give rows."""
        return (*((EPISODES,) if self.episodes is not _no_episodes else ()), *self.summaries)

    def summary(self, name: str) -> Summary | None:
        """Return its rows for the joined table of this name, or None."""
        if name == EPISODES and self.episodes is not _no_episodes:
            table = self.episodes()
            return Summary(EPISODE_ROWS, table) if table is not None else None
        find = self.summaries.get(name)
        return find() if find else None

    def close(self) -> None:
        for source in self.sources:
            source.close()
