"""One episode of a generic container as its layout describes it: contents, steps, roles, and its row. Any thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite
from typing import Any, NamedTuple

from glassfs.content import (
    TIME,
    Array,
    Chosen,
    Content,
    Group,
    Member,
    Omitted,
    Records,
    Slice,
    Table,
    Text,
    Video,
    dtypes,
    members_of,
)
from glassfs.content.allowance import OBJECT, Allowance, held
from glassfs.content.episodes import EPISODE_COLUMNS, TEXT, TEXTS, is_camera, signal_of, states_of, steps_of
from glassfs.content.model import Name
from glassfs.errors import LASTING, Damaged
from glassfs.layouts.expressions import ROOT, within
from glassfs.layouts.form import Choice, Layout, Pattern
from glassfs.lazy import NDArray, np
from glassfs.names import text
from glassfs.once import once
from glassfs.sizes import PIECE

DEEPEST = 8
"""Groups below an episode whose contents belong to it under longer names."""
MOST_TEXTS = 1_000
"""Texts of a list that is the value of a column."""


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


@dataclass
class Shared:
    """What the episodes of a container share.

    ``lists`` returns for a pattern of lists the names of those that have an episode, by its name; None if unreadable.
    """

    lists: Callable[[str], dict[str, list[str]] | None]
    around: dict[tuple[int, str, tuple[str, ...]], Any] = field(default_factory=dict)
    """Short values in attributes of the groups around the episodes, as references of the layout name them."""


@dataclass
class EpisodeContents:
    """An episode and a layout. Its contents take from the allowance. A value that cannot be read is unknown."""

    _layout: Layout
    _episode: EpisodePlace
    _shared: Shared
    _allowance: Allowance
    is_whole: bool = True
    """Whether all that was asked for could be read."""
    _items: dict[str, Any] = field(default_factory=dict)
    """The items of arrays that were read, by path."""

    def _all(self, omit: Sequence[Pattern] = ()) -> Iterator[Member]:
        """Yield all contents, those of groups under longer names; of flat ones, the arrays that have the steps.

        Raises Damaged if the group cannot be listed, and TooLarge.
        """
        flat = self._episode.flat
        for name, content in flattened(self._episode.group, omit=omit):
            if flat is not None and len(flat) < self._episode.rows:
                shape = content.known_shape if isinstance(content, Array) else None
                if not isinstance(content, Array) or not shape or shape[0] != self._episode.rows:
                    continue
                content = rows_of(content, flat.start, len(flat))
            self._allowance.take(3 * OBJECT, "the contents of an episode")
            yield Member(name, content)

    @once
    def _contents(self) -> list[Member]:
        """The contents that the layout does not omit."""
        found = list(self._all(self._layout.omit))
        return aligned(found, self._layout) if self._layout.base else found

    @once
    def _by_path(self) -> dict[str, Content]:
        return {path_of(name): one for name, one in self._contents}

    @once
    def _arrays(self) -> dict[str, Array]:
        return {path: one for path, one in self._by_path.items() if isinstance(one, Array)}

    @once
    def steps(self) -> int | None:
        """The number of steps, None if nothing counts them."""
        if self._episode.flat is not None:
            return len(self._episode.flat)
        shapes = (self._arrays[path].known_shape for path in self._layout.count if path in self._arrays)
        return next((shape[0] for shape in shapes if shape), None)

    def shown(self) -> Iterator[Member]:
        """Yield the contents that have files."""
        for name, content in self._all():
            yield Member(name, self._dressed(path_of(name), content))

    def _dressed(self, path: str, content: Content, count: int | None = None) -> Content:
        """Return a content with what the layout says of it, and of its rows or frames only the first ``count``."""
        is_camera = self._is_camera(path)
        title = self._layout.camera_name(path) if is_camera else ""
        if isinstance(content, Video):
            return replace(content, fps=self._rate, title=title, count=content.count if count is None else count)
        if not isinstance(content, Array):
            return content
        if count is not None:
            content = rows_of(content, 0, count)
        shape, is_image = content.known_shape, is_camera and self._layout.cameras is not None
        return replace(
            content, axis=TIME if shape and shape[0] == self.steps else "", role=self._roles.get(path, ""),
            modality="rgb" if is_image else content.modality, fps=self._rate, title=title,
        )

    @once
    def recorded(self) -> list[Member]:
        """What belongs to the recording: with one more row than there are steps, arrays lose the last one."""
        found = []
        for name, content in self._contents:
            path = path_of(name)
            shape = content.known_shape if isinstance(content, Array) else None
            rows = content.count if isinstance(content, Video) else shape[0] if shape else 0
            has_more = self.steps is not None and rows == self.steps + 1
            content = self._dressed(path, content, self.steps if has_more else None)
            if (self._is_camera(path) or not is_camera(content)) and not isinstance(content, Table):
                found.append(Member(name, content))
        return found

    def _is_camera(self, path: str) -> bool:
        patterns = self._layout.cameras
        return patterns is None or fits(path, patterns)

    @once
    def _roles(self) -> dict[str, str]:
        """The roles of arrays by their paths."""
        found: dict[str, str] = {}
        signals = sorted(path for path, one in self._arrays.items() if steps_of(one) is not None)
        for role, alternatives in self._layout.roles.items():
            # Arrays of an alternative are joined in the order of its patterns, and then by name.
            matches = (
                [path for pattern in patterns for path in signals if pattern.fits(path.split("/"))]
                for patterns in alternatives
            )
            for path in next(filter(None, matches), ()):
                found.setdefault(path, role)
        return found

    def row(self, position: int | None) -> dict[str, Any]:
        """Return the values of the columns; those of the layout are more than what follows from contents."""
        contents, groups = self.recorded, self._episode.groups
        signals = {path_of(name): one for name, one in contents if isinstance(one, Array)}
        steps = [signal_of(path, one) for path, one in signals.items() if steps_of(one) == self.steps is not None]
        actions = [one for one in steps if one.role == "action"]
        states = states_of(steps)  # what LeRobot has as observation.state
        found = {
            "position": position,
            "episode_name": groups[-1].key.decode("utf-8", "replace") if len(groups) > 1 else None,
            "fps": self._measured_rate,
            "num_frames": self.steps,
            "action_dim": sum(one.length or 1 for one in actions) if actions else None,
            "state_dim": sum(one.length or 1 for one in states) if states else None,
            "total_reward": self._total(signals),
            "channels": [one.name for one in steps],
            "cameras": list(dict.fromkeys(path_of(name) for name, one in contents if is_camera(one))),
        }
        values = {name: self.value(name, choices) for name, choices in self._layout.columns.items()}
        return found | {name: value for name, value in values.items() if value is not None or name not in found}

    def record(self, position: int | None) -> dict[str, Any]:
        """Return all that is known of the episode: its row, and its attributes."""
        found = self.row(position)
        with suppress(*LASTING):
            for name, value in self._episode.group.facts(None).items():
                if value is not None:
                    found.setdefault(name, value)
        return found

    def tried(self) -> Iterator[str]:
        """Yield what the layout finds in this episode, its roles and its row, and what it does not find and why."""
        if self.steps is None:
            yield f"steps: no array is at {' or '.join(self._layout.count) or 'the paths of count'}"
        for role, alternatives in self._layout.roles.items():
            paths = [path for path, one in self._roles.items() if one == role]
            wanted = " or ".join(pattern.text for patterns in alternatives for pattern in patterns)
            yield f"role {role}: {json.dumps(paths) if paths else f'no signal is at {wanted}'}"
        for name, value in self.row(0).items():
            is_missing = value is None and name in self._layout.columns
            yield f"{name}: {'no alternative has a value' if is_missing else json.dumps(value)}"

    def _total(self, signals: Mapping[str, Array]) -> float | None:
        path = next((path for path in signals if self._roles.get(path) == "reward"), None)
        values = None if path is None else self.content(0, path)
        if values is None or values.dtype.kind not in "biuf":
            return None
        total = float(values[: self.steps].sum(dtype="f8"))
        return total if isfinite(total) else None

    def value(self, column: str, choices: Sequence[Choice]) -> Any:
        """Return the first value that fits the column, None if there is none."""
        for choice in choices:
            if choice.when is None or choice.when.value(self) is True:
                found = _fitting(choice.value.value(self), EPISODE_COLUMNS.get(column, ""))
                if found is not None:
                    return found
        return None

    def _rate(self) -> float:
        return self.value("fps", self._layout.columns.get("fps", ())) or self._measured_rate or 0.0

    @once
    def _measured_rate(self) -> float | None:
        """The rate of the times with which all is aligned."""
        base = self._arrays.get(self._layout.base)
        return self._known(lambda: rate_of(base)) if base is not None else None

    def _group(self, level: int) -> Group | None:
        """Return the group at the level of a reference, None if there are not so many around the episode."""
        groups = self._episode.groups
        return groups[0] if level == ROOT else groups[-1 - level] if level < len(groups) else None

    def _known(self, read: Callable[[], Any]) -> Any:
        """Return a value, None if it cannot be read."""
        try:
            return read()
        except LASTING:
            self.is_whole = False
            return None

    def attribute(self, level: int, name: str, keys: tuple[str, ...]) -> Any:
        known, group = self._shared.around, self._group(level)
        if group is None or (level, name, keys) in known:
            return known.get((level, name, keys))
        found = self._known(lambda: within(group.facts((name,)).get(name), keys))
        if level and self.is_whole and held(found) <= OBJECT:
            known[level, name, keys] = found
        return found

    def content(self, level: int, path: str) -> Any:
        def read() -> Any:
            found = self._by_path.get(path) if not level else below(self._group(level), path.split("/"))
            return items_of(found) if isinstance(found, Array) else texts_of(found, MOST_TEXTS)

        if level:
            return self._known(read)
        if path not in self._items:
            self._items[path] = self._known(read)
        return self._items[path]

    def lists(self, pattern: str) -> list[str] | None:
        known = self._shared.lists(pattern)
        return None if known is None else known.get(text(self._episode.group.key), [])


def flattened(group: Group, above: Name = (), omit: Sequence[Pattern] = ()) -> Iterator[Member]:
    """Yield the contents of a group, those of groups in it under longer names, except for what is to be omitted.

    A group in it that cannot be listed is omitted. Raises Damaged.
    """
    for name, content in members_of(group):
        longer = (*above, *name)
        if omit and any(pattern.covers(name_of(longer)) for pattern in omit):
            continue
        if not isinstance(content, Group) or len(above) >= DEEPEST:
            yield Member(longer, content)
            continue
        try:
            yield from flattened(content, longer, omit)
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


def rows_of(found: Array, first: int, count: int) -> Array:
    """Return the rows ``[first, first + count)`` of an array as an array."""
    rows, *inner = found.resolved_shape
    row = found.data.size // rows
    return replace(
        found, data=Slice(found.data, first * row, count * row), shape=(count, *inner), as_stored=None, file=None,
    )


def texts_of(found: Content | None, most: int | None = None) -> str | list[Any] | None:
    """Return the text of a content, or its texts, at most so many, if it has one in each row. Raises Damaged."""
    if isinstance(found, Text):
        return found.data.read(0, min(found.data.size, PIECE)).decode("utf-8", "replace")
    if isinstance(found, Records):
        return list(islice((row for block in range(found.blocks) for row in found.block(block)), most))
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


# Steps at the times of one array, for recordings whose signals and cameras have times of their own. It is called the
# same everywhere: of a signal, it is the one in its group, or in the next one around it. Times are integers of
# nanoseconds, or floats of seconds, and must not fall.


def aligned(members: Sequence[Member], layout: Layout) -> list[Member]:
    """Return the contents of an episode, of arrays and videos with times the rows or frames that belong to the steps.

    The steps are the times of the layout's ``base``, from the first one at which all signals with a role and all
    cameras that the layout names have a value. Arrays without times are left out: nothing says what their rows belong
    to. Without a base there are no steps. Raises Damaged.
    """
    arrays = {path_of(name): one for name, one in members if isinstance(one, Array)}
    above, _, clock = layout.base.rpartition("/")
    clocks = {
        path.rpartition("/")[0]: times for path, one in arrays.items()
        if path.rpartition("/")[2] == clock and (times := _times(one)) is not None
    }
    if above not in clocks:
        return [member for member in members if not isinstance(member.content, Array)]

    def times_of(path: str) -> NDArray[Any] | None:
        while path and path not in clocks:
            path = path.rpartition("/")[0]
        return clocks.get(path)

    steps = clocks[above]
    if not layout.is_nearest:
        roles = (pattern for alternatives in layout.roles.values() for patterns in alternatives for pattern in patterns)
        wanted = [*roles, *(layout.cameras or ())]
        needed = {path for path in map(path_of, (name for name, _ in members)) if fits(path, wanted)}
        first = (times[0] for times in map(times_of, needed) if times is not None and len(times))
        steps = steps[np.searchsorted(steps, max(first, default=0)) :]
    found = []
    for name, content in members:
        times = times_of(path_of(name))
        if times is not None and len(times):
            chosen = _chosen(content, times, _rows(times, steps, layout.is_nearest))
            if chosen is not None:
                found.append(Member(name, chosen))
        elif not isinstance(content, (Array, Video)):
            found.append(Member(name, content))
    return found


def rate_of(array: Array) -> float | None:
    """Return the mean rate of times in rows a second, None if there are none. Raises Damaged."""
    times = _times(array)
    if times is None or len(times) < 2 or times[-1] == times[0]:
        return None
    return float((len(times) - 1) / (times[-1] - times[0])) * (1e9 if times.dtype.kind == "i" else 1)


def items_of(found: Array) -> NDArray[Any] | None:
    """Return the items of an array, None if they are too many. Raises Damaged."""
    if found.data.size > 16 * PIECE or not isinstance(found.shape, tuple):
        return None
    return np.frombuffer(found.data.whole(), dtypes.parsed(found.dtype)).reshape(found.shape)


def _times(array: Array) -> NDArray[Any] | None:
    """Return the times in an array, None if it has others values than times."""
    items = items_of(array) if len(array.known_shape or ()) == 1 else None
    if items is None or items.dtype.kind not in "iuf" or (items[1:] < items[:-1]).any() or (items != items).any():
        return None
    return items if items.dtype.kind == "f" else items.astype(np.int64)


def _rows(times: NDArray[Any], steps: NDArray[Any], is_nearest: bool) -> NDArray[Any]:
    """Return the row for each step: the last one that is not later, or the nearest one."""
    before = np.clip(np.searchsorted(times, steps, "right") - 1, 0, len(times) - 1)
    if not is_nearest:
        return before
    after = np.minimum(before + 1, len(times) - 1)
    return np.where(times[after] - steps < steps - times[before], after, before)


def _chosen(content: Content, times: NDArray[Any], rows: NDArray[Any]) -> Content | None:
    """Return rows of an array or frames of a video, other contents unchanged; None if it has not these times."""
    if isinstance(content, Video):
        frame, frames = content.frame, content.present
        if content.count != len(times):
            return None
        present = None if frames is None else np.flatnonzero(np.isin(rows, frames)).tolist()
        return replace(content, count=len(rows), frame=lambda step: frame(int(rows[step])), present=present)
    if not isinstance(content, Array):
        return content
    shape = content.known_shape
    if not shape or shape[0] != len(times):
        return None
    data = Chosen(content.data, content.data.size // len(times), rows)
    return replace(content, data=data, shape=(len(rows), *shape[1:]), as_stored=None, file=None)


def fits(path: str, patterns: Sequence[Pattern]) -> bool:
    return any(pattern.fits(path.split("/")) for pattern in patterns)


def path_of(name: Sequence[bytes]) -> str:
    return b"/".join(name).decode("utf-8", "replace")
