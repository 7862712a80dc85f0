"""What a recording consists of, for joined tables: its signals and cameras, without their data.

Containers give it for each of their episodes as one short text, so that a table over many containers knows of each
episode which others are of the same kind. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from glassfs import names
from glassfs.content.episodes import MOST_CAMERAS, is_camera, steps_of
from glassfs.content.model import Array, Content, Member
from glassfs.content.summary import LONGEST
from glassfs.content.table import WIDEST
from glassfs.content.video import video_of

OBSERVED = ("signal", "obs", "observation", "observations")
"""Groups of observations."""
ACTIONS, OUTCOMES = ("action", "actions"), ("reward", "rewards", "is_terminal", "done", "dones", "success")


class Signal(NamedTuple):
    """An array with a row for each step: its path in the episode, its dtype, and the values in a row.

    ``length`` is None if each row is a single value, in an array of one axis. ``role`` is that of the array.
    """

    name: str
    dtype: str
    length: int | None
    role: str = ""


class Camera(NamedTuple):
    """A video with a frame for each step: its path in the episode, and its size in pixels.

    ``reason`` says why it cannot be shown as 8-bit frames, if it cannot. ``title`` is its name for people, if it has
    one beside its path.
    """

    name: str
    width: int
    height: int
    reason: str = ""
    title: str = ""


class Features(NamedTuple):
    """The signals and cameras of a recording, in the container's order. Bytes of names that are not UTF-8 are
    surrogates.
    """

    signals: tuple[Signal, ...]
    cameras: tuple[Camera, ...]


def features_of(members: Iterable[Member], steps: int | None) -> str:
    """Return the features of an episode with these contents as text; empty if they are unknown.

    If ``steps`` is unknown, the first signal gives it, as for ``with_recording``.
    """
    signals: list[Signal] = []
    videos: list[tuple[str, Content]] = []
    for name, content in members:
        text, found = names.text(b"/".join(name)), steps_of(content)
        if is_camera(content):
            videos.append((text, content))
        elif isinstance(content, Array) and found is not None and steps in (None, found) and len(signals) < WIDEST:
            steps = found
            signals.append(signal_of(text, content))
    cameras = [_camera(text, content, steps) for text, content in videos]
    return as_text(signals, list(filter(None, cameras))[:MOST_CAMERAS])


def signal_of(name: str, array: Array) -> Signal:
    shape = array.known_shape or ()
    return Signal(name, array.dtype, shape[1] if len(shape) == 2 else None, array.role)


def states_of(signals: Sequence[Signal]) -> list[Signal]:
    """Return the signals that are the state of a step, one after another.

    They are what a layout calls that; else the one called ``state``; else all vectors of floats that are observations.
    """
    known = [signal for signal in signals if signal.role == "state"]
    if known:
        return known
    parts = {signal: signal.name.split("/") for signal in signals}
    heads = {split[0] for split in parts.values() if len(split) > 1}
    # Where a container has a group of observations, signals outside it are something else. Where it has none, all
    # signals are observations but those with a meaning of their own.
    has_group = any(head in heads for head in OBSERVED)
    observed = [
        signal for signal, split in parts.items()
        if (split[0] in OBSERVED if has_group else len(split) == 1 and split[0] not in (*ACTIONS, *OUTCOMES))
    ]
    state = next((signal for signal in (*observed, *signals) if parts[signal][-1] == "state"), None)
    vectors = [signal for signal in observed if signal.dtype[1] == "f" and signal.length is not None]
    return vectors if state is None else [state]


def as_text(signals: Sequence[Signal], cameras: Sequence[Camera]) -> str:
    """Return features as text. Equal features have equal texts; too many of them are unknown."""
    text = json.dumps([signals, cameras], separators=(",", ":"))
    return text if len(text) <= LONGEST else ""


def parsed(text: str) -> Features | None:
    """Return the features in a text, or None if they are unknown."""
    if not text:
        return None
    signals, cameras = json.loads(text)
    return Features(tuple(Signal(*signal) for signal in signals), tuple(Camera(*camera) for camera in cameras))


def _camera(name: str, content: Content, steps: int | None) -> Camera | None:
    """Return a camera, or None if it has not a frame for each step."""
    video = video_of(content)
    if video is None or video.count != steps:
        return None
    is_deep = isinstance(content, Array) and content.dtype == "<u2"
    return Camera(name, video.width, video.height, "has samples of 16 bits" if is_deep else "", video.title)
