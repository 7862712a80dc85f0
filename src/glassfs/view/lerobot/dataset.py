"""The datasets over the episodes of a table: which episodes are alike, and where each is. Any thread.

Finding them takes a pass over the rows of the table, and opens no container. Of an episode a few numbers are kept.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import NamedTuple

from glassfs import work
from glassfs.content import Selection, Table
from glassfs.content.allowance import LEAST, OBJECT, Allowance
from glassfs.content.features import parsed
from glassfs.content.table import Episode
from glassfs.errors import Refused
from glassfs.names import free_name, raw, shortened, text
from glassfs.view.lerobot.plan import DEFAULTS, Plan, plan_of
from glassfs.view.mp4 import MOST_FRAMES, rate

UNKNOWN = "unknown"
CHUNKS_SIZE = 1000
"""Files in a directory of chunks, as LeRobot's own datasets have (``chunks_size``)."""
FILE_BYTES = 100 << 20
"""Limit of a data file with more than one episode, in values; that of LeRobot's own datasets."""
LONGEST_FILM = 1024
"""Limit of the seconds of an MP4 file with more than one episode, which is shorter than that.

LeRobot compares times as float32 with a tolerance of 1e-4 s. Below 1024 s the steps of float32 are 6e-5 s.
"""


class Place(NamedTuple):
    """Where an episode is: the path of its container, and its number there."""

    container: str
    number: int


class Files:
    """How consecutive episodes are divided into files of less than ``most``, unless one episode is more."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._filled = 0.0
        self.of = array("I")
        """The file of each episode, rising."""

    def __len__(self) -> int:
        return self.of[-1] + 1 if self.of else 0

    def add(self, size: float) -> None:
        """Add an episode: to the last file, unless that is full."""
        # An episode is in one file: LeRobot reads it from there with the position of its first frame.
        is_full = self._filled + size >= self._most
        self._filled = size if is_full else self._filled + size
        self.of.append(len(self) - (not is_full) if self.of else 0)

    def episodes(self, number: int) -> range:
        """Return the episodes of a file."""
        return range(bisect_left(self.of, number), bisect_right(self.of, number))


class EpisodeSet:
    """Episodes with the same features, in the order of the table. Frames are counted over all of them.

    ``split`` is the only split that it has, empty if it has all. ``plan`` is that of the first episode: others may have
    the features from signals and cameras of other names.
    """

    def __init__(self, embodiment: str, fps: float, split: str, plan: Plan, allowance: Allowance) -> None:
        self._allowance = allowance
        allowance.take(32 * OBJECT, "datasets")
        self.embodiment = embodiment
        self.split = split
        self.fps = fps
        self.plan = plan
        self._plans: dict[str, Plan] = {}
        self.plan_of: list[Plan] = []
        """The plan of each episode, with its features in the order of ``plan``."""
        self.step_width = sum(column.width for column in (*plan.columns, *DEFAULTS))
        """The bytes of a step in all columns."""
        self.starts = array("Q", [0])
        """The first frame of each episode, and the end."""
        self.tasks: dict[str, int] = {}
        """The numbers of the tasks by their texts."""
        self.task_of = array("I")
        self._splits: dict[str, range] = {}
        """The episodes of each split; none if they are not consecutive."""
        self.files = Files(FILE_BYTES)
        self.videos = Files(LONGEST_FILM)
        """The MP4 files of each camera."""
        self._paths: list[str] = []
        self._container_of = array("I")
        self._numbers = array("Q")

    def add(self, episode: Episode, plan: Plan, frames: int, task: str) -> None:
        """Add an episode with such a plan. Raises TooLarge if it takes more than is left of the allowance."""
        splits = [self.split] if self.split else episode.record.get("splits") or ()
        texts = [split for split in splits if split not in self._splits] + [task] * (task not in self.tasks)
        if episode.container not in self._paths[-1:]:
            # Episodes of one container mostly follow each other; a path that comes again is kept again.
            self._paths.append(episode.container)
            texts.append(episode.container)
        own = self._plans.get(episode.features)
        if own is None:
            own = self._plans[episode.features] = plan.like(self.plan)
            texts.append(episode.features)
        self._allowance.take(OBJECT + sum(OBJECT + len(text) for text in texts), "episodes of datasets")
        for split in splits:
            before = self._splits.get(split, range(self.episodes, self.episodes))
            self._splits[split] = range(before.start, self.episodes + 1) if before.stop == self.episodes else range(0)
        self.files.add(frames * self.step_width)
        self.videos.add(frames / self.fps)
        self._container_of.append(len(self._paths) - 1)
        self._numbers.append(episode.number)
        self.plan_of.append(own)
        self.task_of.append(self.tasks.setdefault(task, len(self.tasks)))
        self.starts.append(self.starts[-1] + frames)

    @property
    def episodes(self) -> int:
        return len(self.task_of)

    @property
    def frames(self) -> int:
        return self.starts[-1]

    @property
    def splits(self) -> dict[str, str]:
        """The splits as LeRobot has them: ranges of episodes, or one of all if those of any are not consecutive."""
        if not all(self._splits.values()) or not self._splits:
            return {"train": f"0:{self.episodes}"}
        return {name: f"{one.start}:{one.stop}" for name, one in self._splits.items()}

    @property
    def omitted(self) -> Iterable[str]:
        """What is left out: signals, cameras and splits."""
        omitted = dict.fromkeys(reason for plan in self._plans.values() for reason in plan.omitted)
        scattered = [name for name, episodes in self._splits.items() if not episodes]
        if not scattered:
            return omitted
        names = ", ".join(scattered[:20])
        reason = f"the episodes of some are not consecutive ({names}), so all are one split"
        return *omitted, f"splits: {reason}; -o lerobot_splits, or --views lerobot-splits, has them apart"

    def place(self, episode: int) -> Place:
        return Place(self._paths[self._container_of[episode]], self._numbers[episode])

    def length(self, episode: int) -> int:
        return self.starts[episode + 1] - self.starts[episode]

    def episode_at(self, frame: int) -> int:
        """Return the episode that has a frame of the dataset."""
        return bisect_right(self.starts, frame) - 1


class Datasets(NamedTuple):
    """All datasets of a table by the names of their directories."""

    by_name: dict[str, EpisodeSet]
    omitted: list[str]
    """How many episodes are in none of them, and why; what a selection names in vain, and what it could name."""
    cost: int
    """The bytes of memory that they take, roughly."""


def datasets_of(table: Table, budget: int, is_by_split: bool = False) -> Datasets:
    """Return the datasets of a table, of each split if asked for, in a part of ``budget`` bytes of memory at most.

    Raises TooLarge if there are too many, and what reading the rows raises.
    """
    allowance = Allowance(max(LEAST, budget // 4))
    plans: dict[str, tuple[Plan | None, str]] = {}
    found: dict[tuple[str, float, str, str], EpisodeSet] = {}
    omitted = Counter[str]()
    for count, episode in enumerate(table.described()):
        if not count % CHUNKS_SIZE:
            work.check()
        record = episode.record
        if episode.features not in plans:
            # What is parsed of such a text takes 2 KiB, and 30 bytes for each character.
            allowance.take(16 * OBJECT + 32 * len(episode.features), "features of episodes")
            plans[episode.features] = _planned(episode.features, table.selection)
        plan, kind = plans[episode.features]
        frames = record.get("num_frames") or 0
        reason = kind if plan is None else "" if frames else "has no steps"
        if frames > MOST_FRAMES:
            reason = "has too many steps"
        if reason or plan is None:
            omitted[reason] += 1
            continue
        second, frame = rate(record.get("fps"))
        for split in (is_by_split and record.get("splits")) or ("",):
            # Readers expect one rate, and each feature with one shape, throughout a dataset.
            key = record.get("embodiment") or UNKNOWN, second / frame, split, kind
            dataset = found.get(key)
            if dataset is None:
                dataset = found[key] = EpisodeSet(*key[:3], plan, allowance)
            dataset.add(episode, plan, frames, record.get("language_instruction") or "")
    by_name = _named([*found.values()])
    reasons = [f"{count} episodes: {reason}" for reason, count in omitted.items()]
    if table.selection:
        reasons += [*_absent(table.selection, plans), *_hints(by_name.values())]
    return Datasets(by_name, reasons, allowance.size - allowance.left)


def _planned(features: str, selection: Selection | None) -> tuple[Plan | None, str]:
    """Return the plan of such episodes and its sizes as one text, or None and why there is none."""
    known = parsed(features)
    if known is None:
        return None, "cannot be read"
    try:
        plan = plan_of(known, selection)
    except Refused as error:
        return None, error.reason
    return (plan, str(sorted(plan.sizes.items()))) if plan.sizes else (None, "has no signals")


def _absent(selection: Selection, texts: Iterable[str]) -> Iterator[str]:
    """Yield what a selection names and no episode has, whose features are these."""
    names = {name for known in map(parsed, texts) if known for name in plan_of(known).sizes}
    for name in sorted({*selection.renamed, *selection.dropped} - names):
        close = get_close_matches(name, names, 1)
        yield f"selection: no episode has {name}" + (f" (did you mean {close[0]}?)" if close else "")


def _hints(datasets: Iterable[EpisodeSet]) -> Iterator[str]:
    """Yield what would make one dataset of several with the same embodiment and rate, those with most frames first."""
    groups = defaultdict[object, list[EpisodeSet]](list)
    for dataset in datasets:
        groups[dataset.embodiment, dataset.fps, dataset.split].append(dataset)
    for first, *others in groups.values():
        if others:
            ours, theirs = (one.plan.sizes.items() for one in (first, others[0]))
            # Up to 20 features of each: this is a text for people.
            left, right = sorted(ours - theirs)[:20], sorted(theirs - ours)[:20]
            both = dict(ours).keys() & dict(theirs)
            renames: dict[str, str] = {}
            for name, size in right:
                free = {new for new, its in left if its == size and not both & {name, new}} - {*renames.values()}
                renames.update((name, new) for new in get_close_matches(name, free, 1, 0))
            drops = sorted({*dict(left + right)} - {*renames, *renames.values()})
            advice = [f"rename = {json.dumps(renames, separators=(', ', ' = '))} or drop both"] * bool(renames)
            advice += [f"drop = {json.dumps(drops)}"] * bool(drops)
            has, have = (", ".join(map(" ".join, some)) or "nothing else" for some in (left, right))
            yield (
                f"{first.embodiment}: {1 + len(others)} datasets instead of one: {first.episodes} episodes have {has}, "
                f"{others[0].episodes} have {have}: {' and '.join(advice)}"
            )


def _named(datasets: list[EpisodeSet]) -> dict[str, EpisodeSet]:
    """Return datasets by the names of their directories: of one embodiment, the one with the most frames first."""
    found: dict[str, EpisodeSet] = {}
    # The one with the most frames gets the plain name: users expect it there. Others have numbers after it.
    for dataset in sorted(datasets, key=lambda one: -one.frames):
        called = f"{dataset.embodiment}-{dataset.split}" if dataset.split else dataset.embodiment
        name = text(shortened(raw(called.encode("utf-8", "replace").decode())))
        found[free_name(name, found.__contains__, name.__add__)] = dataset
    return found
