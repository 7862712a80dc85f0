"""One episode of a generic container as its layout describes it: contents, steps, roles, and its row. Any thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from glassfs.content import TIME, Array, Group, Member, Omitted, Records, Slice, Text, Video, dtypes
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.content.episodes import EPISODE_COLUMNS, TEXT, TEXTS, is_camera, steps_of
from glassfs.content.model import Content, Name
from glassfs.errors import LASTING, Damaged
from glassfs.layouts.expressions import ROOT, evaluate
from glassfs.layouts.form import Choice, Layout, Pattern
from glassfs.names import text
from glassfs.once import once
from glassfs.sizes import PIECE

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEEPEST = 8
"""Groups below an episode whose contents belong to it under longer names."""
MOST_TEXTS = 1_000
"""Texts of a list that is the value of a column."""

Lists = Callable[[str, bytes], "list[str] | None"]


class EpisodePlace(NamedTuple):
    """An episode: the groups from the root to it, its own last.

    ``flat`` are its steps, if they are some of the ``rows`` of flat arrays, or all.
    """

    groups: tuple[Group, ...]
    flat: range | None = None
    rows: int = 0

    @property
    def group(self) -> Group:
        return self.groups[-1]


class EpisodeContents:
    """An episode and a layout. ``lists`` returns the names of lists, by their pattern, that have the episode.

    Its contents take from the allowance. A value that cannot be read is unknown.
    """

    def __init__(self, layout: Layout, episode: EpisodePlace, lists: Lists, allowance: Allowance) -> None:
        self._layout, self._episode, self._lists = layout, episode, lists
        self._allowance = allowance

    @once
    def _contents(self) -> list[Member]:
        """All contents, those of groups under longer names; of flat ones, the arrays that have the steps.

        Raises Damaged if the group cannot be listed, and TooLarge.
        """
        found, flat = [], self._episode.flat
        for name, content in flattened(self._episode.group):
            if flat is not None and len(flat) < self._episode.rows:
                shape = content.known_shape if isinstance(content, Array) else None
                if not isinstance(content, Array) or not shape or shape[0] != self._episode.rows:
                    continue
                content = rows_of(content, flat.start, len(flat))
            self._allowance.take(3 * OBJECT, "the contents of an episode")
            found.append(Member(name, content))
        return found

    @once
    def _arrays(self) -> dict[str, Array]:
        return {path_of(name): one for name, one in self._contents if isinstance(one, Array)}

    @once
    def steps(self) -> int | None:
        """The number of steps, None if nothing counts them."""
        if self._episode.flat is not None:
            return len(self._episode.flat)
        shapes = (self._arrays[path].known_shape for path in self._layout.count if path in self._arrays)
        return next((shape[0] for shape in shapes if shape), None)

    def shown(self) -> Iterator[Member]:
        """Yield the contents that have files."""
        for name, content in self._contents:
            if isinstance(content, Array):
                shape, path = content.known_shape, path_of(name)
                is_image = self._is_camera(path) and self._layout.cameras is not None
                content = replace(
                    content, axis=TIME if shape and shape[0] == self.steps else "", role=self._roles.get(path, ""),
                    modality="rgb" if is_image else content.modality, fps=self._rate,
                )
            elif isinstance(content, Video):
                content = replace(content, fps=self._rate)
            yield Member(name, content)

    @once
    def recorded(self) -> list[Member]:
        """What belongs to the recording: with one more row than there are steps, arrays lose the last one."""
        found = []
        for name, content in self.shown():
            path = name_of(name)
            if any(pattern.covers(path) for pattern in self._layout.omit):
                continue
            if is_camera(content) and not self._is_camera("/".join(path)):
                continue
            steps, shape = self.steps, content.known_shape if isinstance(content, Array) else None
            if isinstance(content, Array) and steps is not None and shape and shape[0] == steps + 1:
                content = replace(rows_of(content, 0, steps), axis=TIME)
            elif isinstance(content, Video) and content.count - 1 == steps:
                content = replace(content, count=steps)
            found.append(Member(name, content))
        return found

    def _is_camera(self, path: str) -> bool:
        patterns = self._layout.cameras
        return patterns is None or any(pattern.fits(path.split("/")) for pattern in patterns)

    @once
    def _roles(self) -> dict[str, str]:
        """The roles of arrays by their paths."""
        found: dict[str, str] = {}
        for role, alternatives in self._layout.roles.items():
            matches = (self._joined(patterns) for patterns in alternatives)
            for path in next(filter(None, matches), ()):
                found.setdefault(path, role)
        return found

    def _joined(self, patterns: Sequence[Pattern]) -> list[str]:
        """Return the paths of the arrays that match, in the order of the patterns and then by name."""
        signals = sorted(path for path, one in self._arrays.items() if steps_of(one) is not None)
        return [path for pattern in patterns for path in signals if pattern.fits(path.split("/"))]

    def row(self, position: int | None, is_named: bool) -> dict[str, Any]:
        """Return the values of the columns; those of the layout are more than what follows from contents."""
        contents = self.recorded
        signals = {path_of(name): one for name, one in contents if isinstance(one, Array)}
        found = {
            "position": position,
            "episode_name": self._episode.group.key.decode("utf-8", "replace") if is_named else None,
            "num_frames": self.steps,
            "action_dim": self._width(signals, "action"),
            "state_dim": self._width(signals, "state"),
            "total_reward": self._total(signals),
            "channels": [path for path, one in signals.items() if steps_of(one) == self.steps],
            "cameras": list(dict.fromkeys(path_of(name) for name, one in contents if is_camera(one))),
        }
        values = {name: self.value(name, choices) for name, choices in self._layout.columns.items()}
        return found | {name: value for name, value in values.items() if value is not None or name not in found}

    def record(self, position: int | None, is_named: bool) -> dict[str, Any]:
        """Return all that is known of the episode: its row, further values of the layout, and its attributes."""
        found = self.row(position, is_named)
        more = {name: self.value(name, choices) for name, choices in self._layout.record.items()}
        with suppress(*LASTING):
            more |= self._episode.group.facts(None)
        return found | {name: value for name, value in more.items() if name not in found and value is not None}

    def report(self, is_named: bool) -> Iterator[str]:
        """Yield lines that say what the layout finds in this episode, and what it does not find."""
        if self.steps is None:
            yield f"steps: unknown, as no array is at {' or '.join(self._layout.count) or 'the paths of count'}"
        for role, alternatives in self._layout.roles.items():
            found = [path for path, one in self._roles.items() if one == role]
            wanted = " or ".join(pattern.text for patterns in alternatives for pattern in patterns)
            yield f"role {role}: {', '.join(found) or f'no signal is at {wanted}'}"
        row = self.row(0, is_named)
        for name, value in row.items():
            is_missing = name in self._layout.columns and value is None
            yield f"{name}: {'no alternative has a value' if is_missing else json.dumps(value)}"

    def _width(self, signals: Mapping[str, Array], role: str) -> int | None:
        shapes = [one.known_shape or () for path, one in signals.items() if self._roles.get(path) == role]
        return sum(shape[1] if len(shape) == 2 else 1 for shape in shapes) if shapes else None

    def _total(self, signals: Mapping[str, Array]) -> float | None:
        for path, one in signals.items():
            if self._roles.get(path) == "reward":
                values = items_of(one)
                total = None if values is None or values.dtype.kind not in "biuf" else float(values.sum(dtype="f8"))
                return total if total is not None and isfinite(total) else None
        return None

    def value(self, column: str, choices: Sequence[Choice]) -> Any:
        """Return the first value that fits the column, None if there is none."""
        for choice in choices:
            if choice.when is None or evaluate(choice.when, self) is True:
                found = _fitting(evaluate(choice.value, self), EPISODE_COLUMNS.get(column, ""))
                if found is not None:
                    return found
        return None

    def _rate(self) -> float:
        return self.value("fps", self._layout.columns.get("fps", ())) or 0.0

    def _group(self, level: int) -> Group | None:
        """Return the group at the level of a reference, None if there are not so many around the episode."""
        groups = self._episode.groups
        return groups[0] if level == ROOT else groups[-1 - level] if level < len(groups) else None

    def attribute(self, level: int, name: str) -> Any:
        group = self._group(level)
        with suppress(*LASTING):
            return None if group is None else group.facts((name,)).get(name)
        return None

    def content(self, level: int, path: str) -> Any:
        with suppress(*LASTING):
            if not level:
                found = {path_of(name): one for name, one in self._contents}.get(path)
            else:
                found = below(self._group(level), path.split("/"))
            return items_of(found) if isinstance(found, Array) else texts_of(found, MOST_TEXTS)
        return None

    def lists(self, pattern: str) -> list[str] | None:
        return self._lists(pattern, self._episode.group.key)


def flattened(group: Group, above: Name = ()) -> Iterator[Member]:
    """Yield the contents of a group, those of groups in it under longer names. Raises Damaged.

    A group in it that cannot be listed is omitted.
    """
    for name, content in group.members():
        longer = (*above, *name)
        if not isinstance(content, Group) or len(above) >= DEEPEST:
            yield Member(longer, content)
            continue
        try:
            yield from flattened(content, longer)
        except LASTING as error:
            yield Member(longer, Omitted(content.key, error.reason, is_damage=isinstance(error, Damaged)))


def child(group: Group, name: str) -> Content | None:
    """Return the first content of this name."""
    return next((content for path, content in group.members() if name_of(path) == [name]), None)


def below(found: Content | None, parts: Sequence[str]) -> Content | None:
    """Return the content at a path below another one, which itself has the empty path."""
    for part in parts:
        found = child(found, part) if isinstance(found, Group) else None
    return found


def name_of(name: Name) -> list[str]:
    return list(map(text, name))


def path_of(name: Name) -> str:
    return b"/".join(name).decode("utf-8", "replace")


def rows_of(found: Array, first: int, count: int) -> Array:
    """Return the rows ``[first, first + count)`` of an array as an array."""
    rows, *inner = found.resolved_shape
    row = found.data.size // rows
    return replace(
        found, data=Slice(found.data, first * row, count * row), shape=(count, *inner), as_stored=None, file=None,
    )


def items_of(found: Array) -> NDArray[Any] | None:
    """Return the items of an array, None if they are too many or cannot be read."""
    import numpy as np

    try:
        if found.data.size > 16 * PIECE or not isinstance(found.shape, tuple):
            return None
        return np.frombuffer(found.data.whole(), dtypes.parsed(found.dtype)).reshape(found.shape)
    except LASTING:
        return None


def texts_of(found: Content | None, most: int | None = None) -> str | list[Any] | None:
    """Return the text of a content, or its texts, at most so many, if it has one in each row. Raises Damaged."""
    if isinstance(found, Text):
        return found.data.read(0, min(found.data.size, PIECE)).decode("utf-8", "replace")
    if isinstance(found, Records):
        rows = (row for block in range(found.blocks) for row in found.block(block))
        return list(islice(rows, most))
    return None


def _fitting(value: Any, dtype: str) -> Any:
    """Return a value as one of a column's type, None if it is none."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if dtype == TEXTS:
        return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else None
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if dtype == TEXT:
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            value = " ".join(value)
        if not isinstance(value, str):
            return None
        stripped = value.strip()
        is_quoted = len(stripped) > 1 and stripped[0] == stripped[-1] == '"'  # instructions of LIBERO
        return (stripped[1:-1] if is_quoted else value) if stripped else None
    if dtype == "|b1":
        return bool(value) if isinstance(value, (bool, int, float)) and value in (0, 1) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    if dtype == "<f8":
        return float(value) if 0 < value < 1e6 else None
    return int(value) if value == int(value) else None
