"""What LeRobot calls the signals and cameras of an episode, and how they become columns. Pure functions.

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

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from glassfs.content import Selection
from glassfs.content.features import ACTIONS, OBSERVED, Camera, Features, Signal, states_of
from glassfs.errors import GlassfsError, Refused
from glassfs.lazy import np
from glassfs.names import free_name, raw, shortened, text
from glassfs.view import mp4

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
