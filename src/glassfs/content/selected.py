"""Some episodes of a container, and some steps of each: what a selection shows of it. Any thread.

``selected`` wraps the contents of a container of any format: what is found through its table of episodes is left out or
cut, anything else is unchanged. Nothing is read before it is needed, and nothing is decoded for it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from math import isfinite
from typing import Any, NamedTuple

import xxhash

from glassfs.content.container import Container
from glassfs.content.data import Chosen, Counted, Slice
from glassfs.content.dtypes import parsed
from glassfs.content.episodes import EPISODES_KEY, FRAME, STEPS, TEXTS, WHOLE, episodes_table, recording_in
from glassfs.content.model import (
    TIME,
    Array,
    Content,
    Document,
    Fields,
    Group,
    Link,
    Member,
    Name,
    Omitted,
    Series,
    Stored,
    Video,
    members_of,
)
from glassfs.content.table import Column, Recording, Selection, Table, number_of
from glassfs.errors import LASTING, Damaged
from glassfs.lazy import np
from glassfs.once import once
from glassfs.sizes import PIECE

REWARDS = ("reward", "rewards")
_FRAME = re.compile(rb"\d{1,18}(?=$|~)")
_SUMS = ("num_episodes", "num_frames")
"""Facts that count what the whole container has."""
_ATTRIBUTES = b".attributes"
"""What formats append to the name of a group for the document of its attributes."""


class Steps(NamedTuple):
    """Steps of an episode: those that the slice ``[start:stop]`` of Python has, and of these each ``every``-th."""

    start: int | None = None
    stop: int | None = None
    every: int = 1

    def of(self, count: int) -> range:
        return range(count)[self.start : self.stop : self.every]


ALL = Steps()


class Picks:
    """What is shown of a container.

    ``episodes`` are those shown, by their numbers, with the splits that a selection gives them, None for those that the
    container says. ``missing`` is what else was selected, names and why it is not there. ``version`` is that of the
    container in which the episodes were found.
    """

    def __init__(
        self, episodes: Mapping[int, Sequence[str] | None], version: str = "", steps: Steps = ALL,
        missing: Sequence[tuple[str, str]] = (), selection: Selection | None = None,
    ) -> None:
        self.episodes, self.version, self.steps = episodes, version, steps
        self.missing, self.selection = missing, selection

    @cached_property
    def digest(self) -> str:
        """What differs if anything else is shown."""
        shown = sorted(self.episodes.items()), self.steps, self.missing, self.selection
        return xxhash.xxh64_hexdigest(repr(shown).encode("utf-8", "surrogatepass"))


def selected(container: Container, picks: Picks) -> Container:
    """Return a container of which only these episodes and steps are shown."""
    return _Selected(container, picks).container()


def row_of(row: Mapping[str, Any], number: int, picks: Picks, total_reward: float | None) -> dict[str, Any]:
    """Return the row of an episode, or its record, as it is in a selection.

    ``total_reward`` is that of the steps that are left, used if not all of them are.
    """
    found = dict(row)
    splits = picks.episodes.get(number)
    if splits is not None:
        found["splits"] = list(splits)
    if picks.steps != ALL and (count := found.get("num_frames")) is not None:
        fps = found.get("fps")
        found["num_frames"] = len(picks.steps.of(count))
        found["fps"] = fps / picks.steps.every if fps else fps
        found["total_reward"] = total_reward
    return found


def total_reward(recording: Recording, steps: Steps) -> float | None:
    """Return the sum of the rewards at some steps, None if the recording has none that can be read and summed up."""
    with suppress(*LASTING):
        for column in recording.steps.columns():
            content, name = column.content, column.name.decode("utf-8", "replace")
            if isinstance(content, Array) and (content.role == "reward" or name in REWARDS):
                dtype, shape = parsed(content.dtype), content.resolved_shape
                if dtype.kind not in "biuf" or len(shape) != 1:
                    continue
                data = chosen_rows(content, steps.of(shape[0])).data
                if data.size <= 16 * PIECE:
                    total = float(np.frombuffer(data.whole(), dtype).sum(dtype="f8"))
                    return total if isfinite(total) else None
    return None


def chosen_rows(array: Array, rows: range) -> Array:
    """Return some rows of an array, in their order, as an array."""
    count, *inner = array.resolved_shape
    row = array.data.size // max(1, count)
    if rows.step == 1 or len(rows) < 2:
        data: Any = Slice(array.data, rows.start * row if rows else 0, len(rows) * row)
    else:
        data = Chosen(array.data, row, rows) if row else array.data
    return replace(array, data=data, shape=(len(rows), *inner), as_stored=None, file=None)


def chosen_frames(video: Video, rows: range) -> Video:
    """Return some frames of a video as a video: where one is missing, all views agree that it is."""
    frame, is_missing, present = video.frame, video.is_missing, video.present
    return replace(
        video, count=len(rows), frame=lambda number: frame(rows[number]), fps=_slower(video.fps, rows.step),
        present=None if present is None else [rows.index(one) for one in present if one in rows],
        is_missing=None if is_missing is None else lambda number: is_missing(rows[number]),
    )


def _slower(fps: float | Callable[[], float], every: int) -> float | Callable[[], float]:
    return (lambda: fps() / every) if callable(fps) else fps / every


def _mapped(collection: Any, change: Callable[[Name, Content], Any], above: Name = ()) -> Any:
    """Return a collection that shows of each content, given its path, what ``change`` returns: the last component of
    its name and the content, None for nothing.
    """
    def several(members: Iterable[Member]) -> Iterator[Member]:
        for name, content in members:
            found = change((*above, *name), content)
            if found is not None:
                yield Member((*name[:-1], found[0]), found[1])

    def one(name: bytes, content: Any) -> Any:
        found = None if content is None else change((*above, name), content)
        return found and found[1]

    meanings, find = collection.meanings, getattr(collection, "find", None)
    if isinstance(collection, Fields):
        item = collection.item
        return replace(collection, item=lambda name: one(name, item(name)), meanings=lambda: several(meanings()))
    return Group(
        collection.key, lambda: several(collection.members()), lambda: several(meanings()),
        find and (lambda name: one(name, find(name))), collection.facts,
    )


class _Selected:
    """A container of which some episodes are shown."""

    def __init__(self, container: Container, picks: Picks) -> None:
        self._container, self._picks = container, picks

    def container(self) -> Container:
        whole = self._container
        root = whole.root
        if not isinstance(root, Fields) or self._picks.missing:
            lost = [
                Member((name.encode("utf-8", "surrogateescape"),), Omitted(b"", reason))
                for name, reason in self._picks.missing
            ]
            known = {"facts": root.facts} if isinstance(root, Group) else {}
            root = Group(root.key, lambda: [*members_of(self._root()), *lost], **known)  # type: ignore[arg-type]
        else:
            root = self._root()
        facts = {name: fact for name, fact in whole.facts.items() if name not in _SUMS}
        return replace(
            whole, root=root, episodes=self.table, arrays=whole.arrays and (lambda: root), facts=facts,
        )

    def _root(self) -> Any:
        """Return the root, which is an episode itself if there is no directory of episodes."""
        root, table = self._container.root, self._whole
        is_episode = table is not None and not table.directory
        return self._episode(root, 0) if is_episode else _mapped(root, self._shown)

    @once
    def _whole(self) -> Table | None:
        """The table of all episodes."""
        return self._container.episodes()

    def table(self) -> Table | None:
        """Return the table of the episodes that are shown."""
        whole, picks = self._whole, self._picks
        if whole is None or whole.records is None or whole.recording is None:
            return None
        records, recording, features = whole.records, whole.recording, whole.features

        def chosen(block: int, values: Iterable[Any]) -> list[Any]:
            numbers = (number_of(row, 0) for row in records.block(block))
            return [one for number, one in zip(numbers, values, strict=True) if number in picks.episodes]

        def rows(block: int) -> list[dict[str, Any]]:
            found = []
            for row in chosen(block, records.block(block)):
                number = number_of(row, 0)
                is_cut = picks.steps != ALL and row.get("total_reward") is not None
                total = total_reward(recording(number), picks.steps) if is_cut else None
                found.append(row_of(row, number, picks, total))
            return found

        def cut(number: int) -> Recording:
            if number not in picks.episodes:
                raise Damaged(f"episode {number} is not selected")
            found = recording(number)
            return _Cut(lambda: found, picks, number).recording if picks.steps != ALL else found

        columns = {
            column.name.decode("utf-8", "replace"): TEXTS if column.is_list else getattr(column.content, "dtype", "")
            for column in whole.columns()
        }
        table = episodes_table(
            sum(number < whole.rows for number in picks.episodes), rows, records.blocks, {**columns, "splits": TEXTS},
            records.cost, whole.directory, cut, features and (lambda block: chosen(block, features(block))),
        )
        return replace(table, selection=picks.selection)

    @once
    def _places(self) -> dict[Name, int]:
        """The numbers of the episodes that are groups of the container with links to them, by their paths."""
        found: dict[Name, int] = {}
        for name, content in members_of(self._container.root):
            if self._whole and name == (self._whole.directory,) and isinstance(content, Series) and content.has_links:
                for number in content.numbers:
                    link = content.item(number)
                    if isinstance(link, Link):
                        found[link.target[1:]] = number
        return found

    def _shown(self, path: Name, content: Content) -> Any:
        """Return what is shown of a content outside of episodes."""
        chosen, last = self._picks.episodes, path[-1]
        if isinstance(content, Table) and content.key == EPISODES_KEY:
            return last, self.table()
        if isinstance(content, Series) and self._whole and path == (self._whole.directory,):
            item = content.item
            return last, replace(
                content, numbers=[number for number in content.numbers if number in chosen],
                item=lambda number: self._episode(item(number), number),
            )
        number = self._places.get((*path[:-1], last.removesuffix(_ATTRIBUTES)))
        if number is not None:
            return (last, self._episode(content, number)) if number in chosen else None
        is_above = isinstance(content, Group) and any(place[: len(path)] == path for place in self._places)
        return last, _mapped(content, self._shown, path) if is_above else content

    def _episode(self, content: Any, number: int) -> Any:
        """Return an episode with the steps that are shown, and other contents unchanged."""
        if self._picks.steps == ALL or not isinstance(content, (Group, Fields)):
            return content
        members = content.meanings if isinstance(content, Fields) else partial(members_of, content)
        return _mapped(content, _Cut(lambda: recording_in(members()), self._picks, number).shown)


class _Cut:
    """An episode with some of its steps, given what returns its recording. What has no row for each step stays whole.
    """

    def __init__(self, find: Callable[[], Recording], picks: Picks, number: int) -> None:
        self._find, self._picks, self._number = find, picks, number

    @once
    def _whole(self) -> Recording:
        return self._find()

    @once
    def _rows(self) -> range:
        return self._picks.steps.of(self._whole.steps.rows)

    @once
    def _counts(self) -> tuple[int, ...]:
        """The numbers of rows that contents with a row for each step have.

        Observations may have one more, which the table of steps does not have. Times say which rows of aligned contents
        belong to a step: these stay whole.
        """
        count = self._whole.steps.rows
        return () if self._whole.is_aligned else (count, count + 1)

    @property
    def recording(self) -> Recording:
        whole = self._whole
        steps = replace(whole.steps, rows=len(self._rows), columns=self._columns)
        return replace(whole, record=self._record, steps=steps, cameras=lambda: [
            Member(name, self.shown(name, content)[1]) for name, content in whole.cameras()
        ])

    def shown(self, path: Name, content: Content) -> Any:
        """Return what is shown of a content at a path in the episode."""
        last = path[-1]
        match content:
            case Array():
                rows, *inner = content.known_shape or (-1,)
                if rows in self._counts and (
                    content.axis == TIME or path in self._timed or (len(inner) > 1 and rows > self._counts[0])
                ):
                    fps = _slower(content.fps, self._picks.steps.every)
                    return last, replace(chosen_rows(content, self._rows), fps=fps)
            case Video() if content.count in self._counts:
                return last, chosen_frames(content, self._rows)
            case Series() if content.has_files and path in self._cameras:
                return last, self._frames(content)
            case Table(key=key) if key == STEPS:
                return last, self.recording.steps
            case Recording(key=key) if key == WHOLE:
                return last, self.recording
            case Document() if path == (b"meta", b"episode"):
                return last, replace(content, value=self._record)
            case Fields() | Group():
                return last, _mapped(content, self.shown, path)
            # Frames that differ in more than their bytes are single contents, named by their numbers.
            case Stored() if path[:-1] in self._cameras and (frame := _FRAME.match(last)):
                number = int(frame[0])
                place = b"%0*d" % (len(frame[0]), self._rows.index(number)) if number in self._rows else None
                return place and (place + last[frame.end() :], content)
        return last, content

    @once
    def _cameras(self) -> set[Name]:
        """The paths of what has a frame for each step."""
        cameras = self._whole.cameras() if self._counts else ()
        return {name for name, one in cameras if not isinstance(one, Video) or one.count in self._counts}

    @once
    def _timed(self) -> set[Name]:
        """The paths of signals and cameras."""
        return self._cameras | {tuple(column.name.split(b"/")) for column in self._whole.steps.columns()}

    def _frames(self, frames: Series) -> Series:
        """Return the frames of the steps that are left, numbered from 0."""
        item, rows = frames.item, self._rows
        numbers: Sequence[int] = range(len(rows))
        if len(frames.numbers) != self._whole.steps.rows:
            first, last = (bisect_left(frames.numbers, one) for one in (rows.start, rows.stop))
            numbers = [rows.index(one) for one in frames.numbers[first:last] if one in rows]
        return replace(frames, numbers=numbers, item=lambda number: item(rows[number]), sizes=None)

    def _columns(self) -> list[Column]:
        counted = Counted(len(self._rows))
        return [
            column._replace(
                content=replace(content, data=counted, shape=(len(self._rows),)) if column.name == FRAME
                else chosen_rows(content, self._rows),
            )
            for column in self._whole.steps.columns() if isinstance(content := column.content, Array)
        ]

    def _record(self) -> dict[str, Any]:
        record = self._whole.record()
        is_rewarded = record.get("total_reward") is not None
        total = total_reward(self._whole, self._picks.steps) if is_rewarded else None
        return row_of(record, self._number, self._picks, total)
