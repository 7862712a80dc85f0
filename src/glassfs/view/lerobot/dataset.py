"""The datasets over the episodes of a table: which episodes are alike, and where each is. Any thread.

Finding them takes a pass over the rows of the table, and opens no container. Of an episode a few numbers are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from glassfs import work
from glassfs.content import Table
from glassfs.content.allowance import LEAST, OBJECT, Allowance
from glassfs.content.features import parsed
from glassfs.content.table import Episode
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


class SplitEpisodes(NamedTuple):
    """The first and the last episode of a split, and how many it has."""

    first: int
    last: int
    episodes: int


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

    ``split`` is the only split that it has, empty if it has all.
    """

    def __init__(self, embodiment: str, fps: float, plan: Plan, split: str, allowance: Allowance) -> None:
        self._allowance, self.cost = allowance, 32 * OBJECT
        """The bytes of memory that it takes, roughly: first for the plan."""
        allowance.take(self.cost, "datasets")
        self.embodiment = embodiment
        self.split = split
        self.fps = fps
        self.plan = plan
        self.step_width = sum(column.width for column in (*plan.columns, *DEFAULTS))
        """The bytes of a step in all columns."""
        self.starts = array("Q", [0])
        """The first frame of each episode, and the end."""
        self.tasks: dict[str, int] = {}
        """The numbers of the tasks by their texts."""
        self.task_of = array("I")
        self._splits: dict[str, SplitEpisodes] = {}
        self.files = Files(FILE_BYTES)
        self.videos = Files(LONGEST_FILM)
        """The MP4 files of each camera."""
        self._paths: list[str] = []
        self._container_of = array("I")
        self._numbers = array("Q")

    def add(self, episode: Episode, frames: int, task: str) -> None:
        """Add an episode. Raises TooLarge if it takes more than is left of the allowance."""
        splits = [self.split] if self.split else episode.record.get("splits") or ()
        texts = [split for split in splits if split not in self._splits] + [task] * (task not in self.tasks)
        if episode.container not in self._paths[-1:]:
            # Episodes of one container mostly follow each other; a path that comes again is kept again.
            self._paths.append(episode.container)
            texts.append(episode.container)
        cost = OBJECT + sum(OBJECT + len(text) for text in texts)
        self._allowance.take(cost, "episodes of datasets")
        self.cost += cost
        for split in splits:
            before = self._splits.get(split, SplitEpisodes(self.episodes, 0, 0))
            self._splits[split] = SplitEpisodes(before.first, self.episodes, before.episodes + 1)
        self.files.add(frames * self.step_width)
        self.videos.add(frames / self.fps)
        self._container_of.append(len(self._paths) - 1)
        self._numbers.append(episode.number)
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
        if not self._splits or self._scattered:
            return {"train": f"0:{self.episodes}"}
        return {name: f"{one.first}:{one.last + 1}" for name, one in self._splits.items()}

    @property
    def _scattered(self) -> list[str]:
        """The splits whose episodes are not consecutive, and the numbers of these."""
        scattered = ((name, one) for name, one in self._splits.items() if one.last - one.first + 1 > one.episodes)
        return [f"{name} {one.episodes}" for name, one in scattered]

    @property
    def omitted(self) -> tuple[str, ...]:
        """What is left out: signals, cameras and splits."""
        if not self._scattered:
            return self.plan.omitted
        names = ", ".join(self._scattered[:20])
        reason = f"the episodes of some are not consecutive ({names}), so all are one split"
        return *self.plan.omitted, f"splits: {reason}; -o lerobot_splits, or --views lerobot-splits, has them apart"

    def place(self, episode: int) -> Place:
        return Place(self._paths[self._container_of[episode]], self._numbers[episode])

    def length(self, episode: int) -> int:
        return self.starts[episode + 1] - self.starts[episode]

    def episode_at(self, frame: int) -> int:
        """Return the episode that has a frame of the dataset."""
        return bisect_right(self.starts, frame) - 1


class Datasets(NamedTuple):
    """All datasets of a table by the names of their directories, and how many episodes are in none of them."""

    by_name: dict[str, EpisodeSet]
    omitted: dict[str, int]
    """Numbers of episodes by reason."""


def datasets_of(table: Table, budget: int, is_by_split: bool = False) -> Datasets:
    """Return the datasets of a table, of each split if asked for, in a part of ``budget`` bytes of memory at most.

    Raises TooLarge if there are too many, and what reading the rows raises.
    """
    allowance = Allowance(max(LEAST, budget // 4))
    found: dict[tuple[str, float, str, str], EpisodeSet | str] = {}
    omitted: dict[str, int] = {}
    for count, episode in enumerate(table.described()):
        if not count % CHUNKS_SIZE:
            work.check()
        record = episode.record
        second, frame = rate(record.get("fps"))
        for split in (is_by_split and record.get("splits")) or ("",):
            # Readers expect one rate, and each feature with one shape, throughout a dataset.
            key = record.get("embodiment") or UNKNOWN, second / frame, episode.features, split
            dataset = found.get(key)
            if dataset is None:
                dataset = found[key] = _dataset(*key, allowance)
            frames = record.get("num_frames") or 0
            reason = dataset if isinstance(dataset, str) else "has no steps" if not frames else ""
            if frames > MOST_FRAMES:
                reason = "has too many steps"
            if reason or isinstance(dataset, str):
                omitted[reason] = omitted.get(reason, 0) + 1
                break  # whichever splits have it, it is one episode
            dataset.add(episode, frames, record.get("language_instruction") or "")
    datasets = [one for one in found.values() if isinstance(one, EpisodeSet) and one.episodes]
    return Datasets(_named(datasets), omitted)


def _dataset(embodiment: str, fps: float, features: str, split: str, allowance: Allowance) -> EpisodeSet | str:
    """Return an empty dataset of such episodes, or why there is none."""
    known = parsed(features)
    if known is None:
        return "cannot be read"
    plan = plan_of(known)
    if not plan.columns and not plan.films:
        return "has no signals"
    return EpisodeSet(embodiment, fps, plan, split, allowance)


def _named(datasets: list[EpisodeSet]) -> dict[str, EpisodeSet]:
    """Return datasets by the names of their directories: of one embodiment, the one with the most frames first."""
    found: dict[str, EpisodeSet] = {}
    # The one with the most frames gets the plain name: users expect it there. Others have numbers after it.
    for dataset in sorted(datasets, key=lambda one: -one.frames):
        called = f"{dataset.embodiment}-{dataset.split}" if dataset.split else dataset.embodiment
        name = text(shortened(raw(called.encode("utf-8", "replace").decode())))
        found[free_name(name, found.__contains__, name.__add__)] = dataset
    return found
