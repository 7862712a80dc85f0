"""Open what a user named as sources: whole, or what a selection shows of them. Any thread.

A selection is evaluated over the rows of all episodes, and again when these have changed, so it holds for files that
come and go as well.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from glassfs.cache import BlockCache
from glassfs.content.selected import Picks
from glassfs.content.summary import EPISODES
from glassfs.content.table import Episode, Selection
from glassfs.datasets.joined import Audience, Joins
from glassfs.datasets.selections import Asked, SelectionError, Words, asked, is_selection
from glassfs.errors import DeviceFailed, Unavailable
from glassfs.formats.registry import may_be_container
from glassfs.names import distinct, raw
from glassfs.settings import settings as times
from glassfs.source import Connection, Kind, Named, Path, locate
from glassfs.source.remote.url import shown
from glassfs.threads import DaemonPool
from glassfs.tree.containers.containers import Containers, ContainerSettings
from glassfs.tree.containers.lease import Location
from glassfs.tree.containers.selected import SelectedStore, Shown
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import NO_VIEWS
from glassfs.tree.sources.sources import Sources, Start

if TYPE_CHECKING:
    from glassfs.datasets.snapshots import Snapshot

NAMED = 100
"""Episodes that are selected and not there of which names are shown."""


def open_sources(
    names: Sequence[str], settings: ContainerSettings | None = None, audience: Audience = Audience(),  # noqa: B008
    connection: Connection = Connection(),  # noqa: B008
    on_change: Callable[[], None] = lambda: None, on_drop: Callable[[Lease], None] = lambda lease: None,
    follows: bool = True, words: Words | None = None,
) -> Sources:
    """Open what a user named, with the tables over it. Raises Refused for what is not a container, and read errors.

    Remote sources are opened with ``connection``; their blocks share the memory budget of the cache. Links out of local
    ones are followed if ``follows``, for the user of this process alone. ``words`` select some of the episodes, as the
    file of a selection does. For the other arguments see ``Sources``.
    """
    settings = settings or ContainerSettings(BlockCache())
    _, found = located(names, connection, settings, follows, words, audience.is_shared)
    return Sources(found, settings, partial(Joins, audience=audience), on_change, on_drop)


def located(
    names: Sequence[str], connection: Connection, settings: ContainerSettings, follows: bool = True,
    words: Words | None = None, is_shared: bool = False,
) -> tuple[Sequence[str], Sequence[Named]]:
    """Return the names of sources, and the stores and paths of these; of a selection those that show what it selects.

    A file is a selection only where a user names it: what is in a folder chooses nothing that glassfs reads. If every
    user sees what is shown, ``is_shared``, nothing names files that not every user may read. Raises SelectionError,
    also if nothing is selected, NotFound, and what reading the rows of episodes raises.
    """
    find = partial(locate, connection=connection, is_file=may_be_container, follows=follows, cache=settings.cache)
    if words is None and not any(map(is_selection, names)):
        return names, find(names)
    selection = asked(names, words)
    selecting = Selecting(selection, find(selection.sources), settings, is_shared)
    return selection.sources, selecting.named


class Selecting:
    """The evaluation of a selection over ``sources``. ``named`` are these, with stores that show what is selected."""

    def __init__(
        self, selection: Asked, sources: Sequence[Named], settings: ContainerSettings, is_shared: bool = False,
    ) -> None:
        self._asked, self._is_shared = selection, is_shared
        self._selection = Selection(selection.text, selection.renamed, selection.dropped)
        self._containers = Containers(settings._replace(views=NO_VIEWS))
        self._starts = starts_of(sources)
        self._joins = Joins(self._containers, self._starts)
        self._snapshot: Snapshot | None = None
        self._until = 0.0
        self._pool = DaemonPool("selection", 1)
        self._shown: Mapping[str, Shown] = {}
        try:
            self._evaluate()
            if not any(one.picks for one in self._shown.values()):
                raise self._none()
        except BaseException:
            self.close()
            raise
        # Sources may overlap, and episodes are selected by one name of their container.
        self.named = [
            one._replace(store=SelectedStore(one.store, partial(self._now, start.path), self.close, self._selection))
            for one, start in zip(sources, self._starts, strict=True)
        ]

    def close(self) -> None:
        self._joins.close()
        self._containers.close()

    def _now(self, name: str) -> Shown:
        """Return what is shown of a source. If that is due, it is found again, on a thread that no request can stop."""
        now = time.monotonic()
        if now >= self._until:
            self._until = now + times.table_longest_valid
            with suppress(Unavailable):
                self._pool.submit(self._evaluate)
        return self._shown[name]

    def _evaluate(self) -> None:
        begun = time.monotonic()
        try:
            snapshot = self._joins.snapshot()
            last = self._snapshot or snapshot
            known = {gap.path for gap in last.read().gaps}
            new = (gap.error for gap in snapshot.read().gaps if gap.path not in known)
            # What could be read before, and cannot for a moment, is still selected.
            is_lacking = any(isinstance(error, (DeviceFailed, Unavailable)) for error in new)
            if snapshot is not self._snapshot and not is_lacking:
                self._shown = self._found(snapshot)
                self._snapshot = snapshot
        finally:
            ended = time.monotonic()
            longest = min(times.table_longest_valid, times.table_valid_times * (ended - begun))
            self._until = ended + max(times.table_valid, longest)

    def chosen(self) -> tuple[Sequence[Episode], Mapping[str, str]]:
        """Return the episodes that are selected, in the order of the table, and what is named and not there: words."""
        asked = self._asked
        missing: dict[str, str] = dict.fromkeys(asked.episodes or (), "selected")
        missing |= dict.fromkeys(asked.exclude, "excluded")
        chosen = list(self._chosen(self._joins.snapshot().table(EPISODES).described(), missing))
        if asked.sample is not None:
            kept = asked.sample.of([f"{one.container}:{one.number}" for one in chosen])
            chosen = [one for place, one in enumerate(chosen) if place in kept]
        return chosen, missing

    def _found(self, snapshot: Snapshot) -> Mapping[str, Shown]:
        """Return what is shown of each source, by its name."""
        asked, (chosen, missing) = self._asked, self.chosen()
        splits = asked.splits_of(len(chosen))
        numbers: dict[str, dict[int, Sequence[str] | None]] = {}
        for place, one in enumerate(chosen):
            numbers.setdefault(one.container, {})[one.number] = splits(place)
        lost = [(name, f"episode: is {word}, but not there") for name, word in [*missing.items()][:NAMED]]
        if len(missing) > NAMED:
            lost.append(("", f"episode: {len(missing) - NAMED:,} more are named, but not there"))
        read = snapshot.read()
        lost += [
            (gap.path, f"container: cannot be read, and is not selected: {gap.error.without_source}")
            for gap in read.gaps
            if (asked.episodes is None or any(name.startswith(gap.path) for name in missing))
            and not (self._is_shared and not all(one.is_public for one in (gap, read.files.get(gap.path)) if one))
        ]
        return self._by_source(snapshot, numbers, lost)

    def _chosen(self, episodes: Iterable[Episode], missing: dict[str, str]) -> Iterator[Episode]:
        """Yield the episodes that satisfy the condition and are named; remove their names from ``missing``."""
        from glassfs.datasets.where import condition

        asked = self._asked
        is_chosen = condition(asked.where) if asked.where else lambda row: True
        named = None if asked.episodes is None else frozenset(asked.episodes)
        excluded = frozenset(asked.exclude)
        for one in episodes:
            names = {one.container, *names_of(one)}
            is_named = named is None or not named.isdisjoint(names)
            is_excluded = not excluded.isdisjoint(names)
            for name in names if is_excluded or (named and is_named) else ():
                missing.pop(name, None)
            if is_named and not is_excluded and is_chosen(one.record):
                # All of them are in memory: of a row, what names the episode.
                yield one._replace(record={"episode_name": one.record.get("episode_name")}, features="")

    def _by_source(
        self, snapshot: Snapshot, numbers: Mapping[str, Mapping[int, Sequence[str] | None]],
        lost: Sequence[tuple[str, str]],
    ) -> Mapping[str, Shown]:
        steps, selection = self._asked.steps, self._selection
        picks = {start.path: dict[Path, Picks]() for start in self._starts}
        for container, episodes in numbers.items():
            file = snapshot.file_of(container)
            own = picks.get(container.partition("/")[0], picks.get(""))  # a single folder is the root of all names
            assert own is not None
            own[file.location.path] = Picks(episodes, file.version, steps, selection=selection)
        folders = [start for start in self._starts if start.location.entry().kind is Kind.FOLDER]
        if not folders and lost:  # no folder can say it
            first = next(filter(None, picks.values()), {})
            for path, one in [*first.items()][:1]:
                first[path] = Picks(one.episodes, one.version, steps, lost, selection)
        omitted = {start.path: dict[Path, list[tuple[str, str]]]() for start in self._starts}
        for name, reason in lost if folders else ():
            start = next((one for one in folders if name.startswith(f"{one.path}/")), folders[0])
            own_lost = omitted[start.path].setdefault(start.location.path, [])
            own_lost.append((name.removeprefix(f"{start.path}/"), reason))
        return {
            name: Shown(paths, frozenset(path[:length] for path in paths for length in range(len(path))), omitted[name])
            for name, paths in picks.items()
        }

    def _none(self) -> SelectionError:
        """Return why nothing is selected."""
        from glassfs.datasets.where import why_none
        from glassfs.layouts.form import at_line

        asked, known, names = self._asked, Counter[str](), list[str]()
        for one in self._joins.snapshot().table(EPISODES).described():
            known.update(name for name, value in one.record.items() if value is not None)
            names += names_of(one)[:1]
        at, reason = asked.file, why_none(asked.where, known)
        if asked.episodes and (lost := next(iter(self.chosen()[1]), "")):
            near = get_close_matches(lost, names[:5_000], 1)  # comparing all could take minutes
            at, reason = at_line(at, asked.text, f".*{re.escape(lost)}"), f"{lost} is not there"
            reason += f"; did you mean {near[0]}?" if near else ""
        return SelectionError(
            f"no episode is selected{'' if known else ', as there are none'}{'; ' * bool(reason)}{reason}",
            at or ", ".join(map(shown, asked.sources)),
        )


def starts_of(sources: Sequence[Named]) -> list[Start]:
    """Return where sources are in the table of their episodes: a single folder is its root."""
    names = distinct(raw(one.name) for one in sources)
    found = []
    for name, (store, path, _) in zip(names, sources, strict=True):
        is_root = len(sources) == 1 and store.entry(path).kind is Kind.FOLDER
        found.append(Start("" if is_root else name, Location(store, path)))
    return found


def names_of(episode: Episode) -> list[str]:
    """Return the names of an episode in a selection, the best one first: that of its directory, and its number.

    Where names are numbers themselves, the number of an episode is the name of another one.
    """
    name, number = episode.record.get("episode_name"), str(episode.number)
    return [f"{episode.container}:{one}" for one in ((name,) if name and name.isdigit() else (name, number)) if one]


def selected_store(named: Named, picks: Picks) -> SelectedStore:
    """Return a store of which these episodes of one container are shown."""
    shown = Shown({named.path: picks}, frozenset(), {})
    return SelectedStore(named.store, lambda: shown, lambda: None, picks.selection)
