"""The datasets over the episodes of a table: their features, which episodes are alike, and where each is. Any thread.

Finding them takes a pass over the rows of the table, and opens no container. Of an episode a few numbers are kept.
What LeRobot calls the signals and cameras of an episode, and how they become columns:

| in the episode | feature |
|---|---|
| what a layout calls state, action, reward | ``observation.state``, ``action``, ``next.reward`` |
| ``state``, in any group of observations | ``observation.state`` |
| else all vectors of floats that are observations, in order | ``observation.state`` |
| ``action``, ``actions``; several of them in order | ``action``; several also ``action.NAME`` |
| ``reward``, ``rewards`` | ``next.reward`` |
| ``is_terminal``, ``done``, ``dones`` | ``next.done`` |
| ``success`` | ``next.success`` |
| other signals in ``signal/``, ``obs/``, ``observations/`` or in no group | ``observation.NAME`` |
| signals in other groups | ``GROUP.NAME`` |
| cameras | ``observation.images.NAME`` |

Floats become float32, in which policies of LeRobot compute. ``next_obs/`` repeats ``obs/`` a step later: left out. A
selection renames and drops features by the names that they have here.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from glassfs import work
from glassfs.content import Selection, Table
from glassfs.content.allowance import LEAST, OBJECT, Allowance
from glassfs.content.episodes import ACTIONS, OBSERVED, Camera, Features, Signal, features_in, states_of
from glassfs.content.table import Episode
from glassfs.errors import GlassfsError, Refused
from glassfs.lazy import np
from glassfs.names import free_name, raw, shortened, text
from glassfs.view import mp4
from glassfs.view.mp4 import MOST_FRAMES, rate

STATE, ACTION, REWARD, DONE, SUCCESS = "observation.state", "action", "next.reward", "next.done", "next.success"
IMAGES, OBSERVATION = "observation.images.", "observation."
LONGEST_NAME = 120
"""Bytes of a feature's name: it is part of a path and of columns."""
WIDEST_STEP = 1 << 20
"""Limit of the values of a step: rows are made in memory."""
_REPEATED, _IMAGES = ("next_obs", "next_observations"), ("images", "image")
_NEXT = {
    "reward": REWARD, "rewards": REWARD, "is_terminal": DONE, "done": DONE, "dones": DONE, "success": SUCCESS,
}
_NUMBER = re.compile(r"[<|]([fiub])([1248])")
_UNSAFE = re.compile("[\x00-\x1f\x7f%/{}\ud800-\udfff]")
FLOAT, BOOLEAN = "<f4", "|b1"


class NumberFeature(NamedTuple):
    """A feature of numbers: its name, its dtype in the dataset, the values of a step, and the signals that it joins."""

    name: str
    dtype: str
    length: int
    parts: tuple[Signal, ...]

    @property
    def width(self) -> int:
        """The bytes of a step."""
        return self.length * int(self.dtype[2:])


DEFAULTS = tuple(NumberFeature(name, dtype, 1, ()) for name, dtype in (
    ("timestamp", FLOAT), ("frame_index", "<i8"), ("episode_index", "<i8"), ("index", "<i8"), ("task_index", "<i8"),
))
"""The columns that every dataset has beside those of its signals."""


class Film(NamedTuple):
    """A feature that is a video: its name, and the camera."""

    name: str
    camera: Camera


class Plan(NamedTuple):
    """The features of episodes, and what is left out of these: names and reasons."""

    columns: tuple[NumberFeature, ...]
    films: tuple[Film, ...]
    omitted: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, str]:
        """The dtypes and lengths of columns, and the heights and widths of films, as texts by name.

        Episodes in which they are equal can be in one dataset.
        """
        numbers = {one.name: f"({np.dtype(one.dtype).name}, {one.length})" for one in self.columns}
        return numbers | {film.name: f"({film.camera.height}x{film.camera.width})" for film in self.films}

    def like(self, other: Plan) -> Plan:
        """Return this plan in the order of another one with the same sizes."""
        place = [*other.sizes].index
        columns = sorted(self.columns, key=lambda one: place(one.name))
        return Plan(tuple(columns), tuple(sorted(self.films, key=lambda one: place(one.name))), self.omitted)


def plan_of(features: Features, selection: Selection | None = None) -> Plan:
    """Return the features of a dataset whose episodes have these signals and cameras, renamed and dropped as selected.

    Raises Refused if two would have one name.
    """
    named = _namer(selection or Selection(""))
    omitted: list[str] = []
    columns = [one for one in _columns(_usable(features.signals, omitted), named) if one.name]
    films = []
    for camera in features.cameras:
        parts = camera.name.split("/")
        if parts[0] in _REPEATED:
            continue
        reason = camera.reason or _fault(camera)
        if reason:
            omitted.append(f"{_safe(camera.name)}: {reason}")
            continue
        name = named(IMAGES + (camera.title or _rest(parts, (*OBSERVED, *_IMAGES))))
        if name:
            films.append(Film(name, camera))
    return Plan(tuple(columns), tuple(films), tuple(omitted))


def _fault(camera: Camera) -> str:
    """Return why the frames of a camera cannot be a video, or an empty text."""
    try:
        mp4.size_of(camera.width, camera.height, 1.0, 1)
    except GlassfsError as error:
        return error.reason
    return ""


def _usable(signals: Iterable[Signal], omitted: list[str]) -> list[Signal]:
    """Return the signals that a dataset can have; append the others to ``omitted``."""
    found = []
    left = WIDEST_STEP
    for signal in signals:
        if not _NUMBER.fullmatch(signal.dtype) or signal.length == 0:
            omitted.append(f"{_safe(signal.name)}: its values are not numbers")
        elif signal.name.split("/")[0] in _REPEATED:
            continue
        # Steps are made in memory, some at a time, and their width is what a container says.
        elif (signal.length or 1) > left:
            omitted.append(f"{_safe(signal.name)}: a step has more than {WIDEST_STEP:,} values")
        else:
            left -= signal.length or 1
            found.append(signal)
    return found


def _columns(signals: Sequence[Signal], named: Callable[[str], str]) -> Iterator[NumberFeature]:
    parts = {signal: signal.name.split("/") for signal in signals}
    actions = [signal for signal in signals if signal.role == "action"]
    actions = actions or [signal for signal, split in parts.items() if split[0] in ACTIONS]
    states = states_of(signals)
    # Policies look for one vector of state and one of actions. What they are joined of stays there by itself as well.
    if states:
        yield _column(named(STATE), states)
    if actions:
        yield _column(named(ACTION), actions)
    for signal, split in parts.items():
        if states == [signal] or actions == [signal]:
            continue
        if signal.role == "reward":
            yield _column(named(REWARD), [signal])
        elif split[0] in ACTIONS:
            yield _column(named(f"{ACTION}.{_rest(split, ACTIONS)}"), [signal])
        elif len(split) == 1 and split[0] in _NEXT:
            yield _column(named(_NEXT[split[0]]), [signal])
        elif split[0] in OBSERVED or len(split) == 1:
            yield _column(named(OBSERVATION + _rest(split, OBSERVED)), [signal])
        else:
            yield _column(named(".".join(split)), [signal])


def _column(name: str, parts: Sequence[Signal]) -> NumberFeature:
    """Return the column of one signal, or of several one after another."""
    length = sum(1 if signal.length is None else signal.length for signal in parts)
    dtypes = {signal.dtype for signal in parts}
    is_same = len(dtypes) == 1 and parts[0].dtype[1] != "f"
    dtype = parts[0].dtype if is_same else FLOAT
    return NumberFeature(name, BOOLEAN if name in (DONE, SUCCESS) else dtype, length, tuple(parts))


def _rest(split: Sequence[str], heads: Sequence[str]) -> str:
    """Return a name without the groups that its feature's name implies."""
    while len(split) > 1 and split[0] in heads:
        split = split[1:]
    return ".".join(split)


def _namer(selection: Selection) -> Callable[[str], str]:
    """Return what makes safe and distinct names of features, empty for those that are dropped.

    Paths and columns have the names unchanged.
    """
    taken: set[str] = set()
    renamed = {one.name for one in DEFAULTS}

    def named(wanted: str) -> str:
        safe = _short(wanted)
        name = free_name(safe, taken.__contains__, safe.__add__)
        taken.add(name)
        if name in selection.dropped:
            return ""
        if name in selection.renamed:
            name = _short(selection.renamed[name])
        if name in renamed:
            raise Refused(f"two features are called {name} after a rename")
        renamed.add(name)
        return name

    return named


def _short(wanted: str) -> str:
    # A name is a column, a directory and, in tools of LeRobot, a part of a format string: so braces go as well.
    safe = _safe(wanted)
    if len(raw(safe)) > LONGEST_NAME:
        safe = _safe(text(shortened(raw(safe).ljust(256, b"~"))))[-LONGEST_NAME:]
    return safe


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)


UNKNOWN = "unknown"
CHUNKS_SIZE = 1000
"""Files in a directory of chunks, as LeRobot's own datasets have (``chunks_size``)."""
FILE_BYTES = 100 << 20
"""Limit of a data file with more than one episode, in values; that of LeRobot's own datasets."""
LONGEST_FILM = 1024
"""Limit of the seconds of an MP4 file with more than one episode, which is shorter than that.

LeRobot compares times as float32 with a tolerance of 1e-4 s. Below 1024 s the steps of float32 are 6e-5 s.
"""


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

    def place(self, episode: int) -> tuple[str, int]:
        """Return the path of an episode's container, and its number there."""
        return self._paths[self._container_of[episode]], self._numbers[episode]

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
    known = features_in(features)
    if known is None:
        return None, "cannot be read"
    try:
        plan = plan_of(known, selection)
    except Refused as error:
        return None, error.reason
    return (plan, str(sorted(plan.sizes.items()))) if plan.sizes else (None, "has no signals")


def _absent(selection: Selection, texts: Iterable[str]) -> Iterator[str]:
    """Yield what a selection names and no episode has, whose features are these."""
    names = {name for known in map(features_in, texts) if known for name in plan_of(known).sizes}
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
