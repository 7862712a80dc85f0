"""Episodes of robomimic, LIBERO and ALOHA (§9): which groups they are, and what is known of them. Any thread.

Nothing is read before it is needed. What cannot be read is unknown, and leaves the groups as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from glassfs.content import TIME, Array, Group, Link, Member, Recording, Records, Series, Table, Video
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.content.episodes import EPISODES_KEY, episodes_table, is_camera, recording_in, steps_of, with_recording
from glassfs.content.features import features_of
from glassfs.errors import LASTING, Damaged, NotInstalled
from glassfs.formats.hdf5.description import Object
from glassfs.once import once
from glassfs.sizes import PIECE

DATA, MASK = b"data", b"mask"
AT_ONCE = 16
"""Episodes in a block of the table."""
INSTRUCTION = "language_instruction"
_DEMO = re.compile(rb"demo_(\d{1,18})")
_NESTED = (b"obs", b"next_obs", b"observations", b"images")
"""Groups in an episode whose members belong to it."""

Path = tuple[bytes, ...]
Contents = Callable[[], Iterator[Member]]
_Described = tuple[dict[str, Any], str]
"""A row and the features of its episode."""


class Ancestor(NamedTuple):
    """A group on the path to another one. ``is_shared`` says that it has several names."""

    address: int
    is_shared: bool


class ObjectLister(Protocol):
    """A file as its groups are listed."""

    allowance: Allowance

    def objects(self, path: Path) -> Iterator[Object]: ...

    def attributes(self, path: Path) -> Any: ...

    def some_attributes(self, paths: Sequence[Path], names: Sequence[str]) -> Any: ...

    def ask_ahead(self, paths: Sequence[Path]) -> None: ...

    def kept(self, name: str) -> Any: ...

    def keep(self, name: str, answer: Any) -> None: ...

    def contents(self, path: Path, above: tuple[Ancestor, ...]) -> Iterator[Member]: ...


class Episodes:
    """The episodes of a file. Without ``may_have_some`` there are none, and nothing is listed to find that out."""

    def __init__(self, listed: ObjectLister, may_have_some: bool) -> None:
        self._listed = listed
        self._may_have_some = may_have_some
        self._faults = 0
        """How often something could not be read, which is not kept."""
        self._last: tuple[int, list[_Described]] = (-1, [])
        """The number of the block of the table that was described last, and its rows."""

    @once
    def kind(self) -> str:
        """``robomimic``, ``aloha``, or empty for other files."""
        if not self._may_have_some:
            return ""
        root = self._found(())
        data, action, observed = (root.get(name) for name in (DATA, b"action", b"observations"))
        if data is not None and data.kind == "group" and self.demos:
            return "robomimic"
        if action is None or action.dataset is None or observed is None or observed.kind != "group":
            return ""
        is_aloha = len(action.dataset.shape) == 2 and b"qpos" in self._found((b"observations",))
        return "aloha" if is_aloha else ""

    @once
    def demos(self) -> list[bytes]:
        """The names of the groups that are episodes, by their numbers."""
        found = {
            name: int(match[1]) for name, one in self._data.items()
            if one.kind == "group" and (match := _DEMO.fullmatch(name))
        }
        return sorted(found, key=lambda name: (found[name], name))

    @once
    def _data(self) -> dict[bytes, Object]:
        """What is in the group of all episodes."""
        return self._found((DATA,))

    def is_episode(self, path: Path) -> bool:
        """Return whether the group at ``path`` is an episode."""
        if not path:
            return self.kind == "aloha"
        return len(path) == 2 and path[0] == DATA and _DEMO.fullmatch(path[1]) is not None and bool(self.kind)

    def links(self) -> Iterator[Member]:
        """Yield what the root has beside its objects: the episodes by position, and their table."""
        if self.kind != "robomimic":
            return
        demos = self.demos
        links = Series(EPISODES_KEY, len(demos), lambda number: Link(b"%d" % number, (b"..", DATA, demos[number])))
        yield Member((EPISODES_KEY,), links)
        table = self.table()
        if table is not None:
            yield Member((EPISODES_KEY,), table)

    def table(self) -> Table | None:
        """Return the table of episodes, or None if the file has none."""
        if self.kind == "aloha":
            return episodes_table(
                1, lambda block: [self._record(())], cost=lambda block: 4 * PIECE,
                recording=lambda row: self._recording(()), features=lambda block: [self._features(())],
            )
        if self.kind != "robomimic":
            return None
        count = len(self.demos)

        def numbers(block: int) -> range:
            return range(block * AT_ONCE, min(count, (block + 1) * AT_ONCE))

        def path(number: int) -> Path:
            return DATA, self.demos[number]

        def rows(block: int) -> list[dict[str, Any]]:
            return [row for row, _ in self._described(block, list(map(path, numbers(block))))]

        def features(block: int) -> list[str]:
            return [text for _, text in self._described(block, list(map(path, numbers(block))))]

        return episodes_table(
            count, rows, -(-count // AT_ONCE), cost=lambda block: 4 * PIECE, directory=EPISODES_KEY,
            recording=lambda number: self._recording(path(number)), features=features,
        )

    def _described(self, block: int, paths: list[Path]) -> list[_Described]:
        """Return the rows of a block of the table with their features. They are kept if all of them could be read."""
        last, found = self._last
        if last == block:
            return found
        name, faults = f"rows {AT_ONCE} {block}", self._faults
        kept = self._listed.kept(name)
        if isinstance(kept, list) and len(kept) == len(paths) and all(map(_is_described, kept)):
            found = [(row, text) for row, text in kept]
        else:
            self._listed.ask_ahead(paths)
            attributes = self._instructions(paths)
            found = []
            for number, (path, own) in enumerate(zip(paths, attributes, strict=True), block * AT_ONCE):
                contents = list(self._contents_of(path))
                found.append((self._row(path, number, own, contents), features_of(contents, self._steps(path))))
            if self._faults == faults:
                self._listed.keep(name, found)
        self._last = block, found
        return found

    def _instructions(self, paths: list[Path]) -> list[dict[str, Any]]:
        """Return the attributes of episodes that have columns."""
        try:
            found = self._listed.some_attributes(paths, [INSTRUCTION])
        except Damaged:
            found = None
        if not isinstance(found, list) or len(found) != len(paths) or None in found:
            self._faults += 1
        return [one if isinstance(one, dict) else {} for one in found] if isinstance(found, list) else [{}] * len(paths)

    def _features(self, path: Path) -> str:
        return features_of(self._contents_of(path), self._steps(path))

    def _recording(self, path: Path) -> Recording:
        return recording_in(self.members(path, lambda: self._listed_contents(path)))

    def members(self, path: Path, contents: Contents) -> Iterator[Member]:
        """Yield the contents of an episode, the table of its steps, and the episode as a whole."""
        number = self.demos.index(path[1]) if path else None
        return with_recording(
            lambda: self._contents(path, contents), lambda: self._record(path, number), self._steps(path),
        )

    def _contents(self, path: Path, contents: Contents) -> Iterator[Member]:
        """Yield the contents of an episode, those of nested groups under longer names."""
        steps = self._steps(path)
        for name, content in _flat(contents(), ()):
            if isinstance(content, Array):
                shape = content.known_shape
                content.axis = TIME if shape and shape[0] == steps else ""
            if isinstance(content, (Array, Video)):
                content.fps = self._rate
            yield Member(name, content)

    def _contents_of(self, path: Path) -> Iterator[Member]:
        """Yield the contents of an episode that is not being listed."""
        return self._contents(path, lambda: self._listed_contents(path))

    def _listed_contents(self, path: Path) -> Iterator[Member]:
        above = [Ancestor(0, False)]
        if path:
            above += [Ancestor(0, False), Ancestor(self._data[path[1]].address, False)]
        return self._listed.contents(path, tuple(above))

    def _steps(self, path: Path) -> int | None:
        """Return the number of steps: the rows of the actions."""
        found = self._found(path).get(b"actions" if path else b"action")
        one = None if found is None else found.dataset
        return one.shape[0] if one is not None and one.shape else None

    def _record(self, path: Path, number: int | None = None) -> dict[str, Any]:
        """Return all that is known of an episode: its row, and what has no column."""
        own = self._attributes_of(path)
        found = self._row(path, number, own, list(self._contents_of(path)))
        more = {"env_name": self._environment.get("env_name"), **own}
        return found | {key: value for key, value in more.items() if key not in found and value is not None}

    def _row(
        self, path: Path, number: int | None, own: dict[str, Any], contents: Sequence[Member],
    ) -> dict[str, Any]:
        """Return what is known of an episode with these attributes and contents, by the names of columns."""
        robots = self._arguments.get("robots")
        arrays = {b"/".join(name): one for name, one in contents if isinstance(one, Array)}
        steps = self._steps(path)
        action = arrays.get(b"actions" if path else b"action")
        state = arrays.get(b"states" if path else b"observations/qpos")
        return {
            "position": number,
            "episode_name": path[1].decode("utf-8", "replace") if path else None,
            "embodiment": _text(robots),
            "language_instruction": _instruction(
                self._problem.get(INSTRUCTION) or self._environment.get(INSTRUCTION)
                or own.get(INSTRUCTION) or self._common.get(INSTRUCTION)
            ),
            "fps": self._rate() or None,
            "total_reward": self._total(arrays.get(b"rewards")),
            "num_frames": steps,
            "action_dim": _width(action),
            "state_dim": _width(state),
            "channels": [_name(name) for name, one in arrays.items() if steps_of(one) == steps],
            "cameras": _cameras(contents),
            "splits": None if self._splits is None or not path else list(self._splits.get(_name(path[1]), ())),
        }

    @once
    def _common(self) -> dict[str, Any]:
        """The attributes of the group of all episodes."""
        return self._attributes_of((DATA,)) if self.kind == "robomimic" else {}

    @once
    def _problem(self) -> dict[str, Any]:
        return _parsed(self._common.get("problem_info"))

    @once
    def _environment(self) -> dict[str, Any]:
        return _parsed(self._common.get("env_args"))

    @property
    def _arguments(self) -> dict[str, Any]:
        found = self._environment.get("env_kwargs")
        return found if isinstance(found, dict) else {}

    @once
    def _splits(self) -> dict[str, dict[str, None]] | None:
        """The names of the lists in ``mask/`` that have an episode, by its name. None if there are none to be read."""
        mask = self._found(()).get(MASK)
        if mask is None or mask.kind != "group":
            return None
        found: dict[str, dict[str, None]] = {}
        try:
            members = list(self._listed.contents((MASK,), (Ancestor(0, False), Ancestor(mask.address, False))))
            lists = [(_name(name[-1]), content) for name, content in members if isinstance(content, Records)]
            for name, content in lists:
                for block in range(content.blocks):
                    demos = content.block(block)
                    self._listed.allowance.take(2 * OBJECT * len(demos), "splits")
                    for demo in demos:
                        found.setdefault(demo, {})[name] = None
        except LASTING:
            self._faults += 1
            return None
        return found

    @once
    def _known_rate(self) -> float:
        if self.kind == "aloha":
            return 50.0
        rate = self._arguments.get("control_freq")
        is_rate = isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0 < rate < 1e6
        return float(rate) if is_rate and rate is not None else 0.0

    def _rate(self) -> float:
        return self._known_rate

    def _total(self, rewards: Array | None) -> float | None:
        """Return the sum of the rewards of an episode."""
        if rewards is None or rewards.dtype[1] not in "iuf" or not 0 < rewards.data.size <= PIECE:
            return None
        import numpy as np

        try:
            return float(np.frombuffer(rewards.data.whole(), rewards.dtype).sum(dtype="f8"))
        except (Damaged, NotInstalled):
            self._faults += 1
            return None

    def _attributes_of(self, path: Path) -> dict[str, Any]:
        try:
            found = self._listed.attributes(path)
        except Damaged:
            self._faults += 1
            return {}
        return found if isinstance(found, dict) else {}

    def _found(self, path: Path) -> dict[bytes, Object]:
        try:
            return {one.name: one for one in self._listed.objects(path)}
        except Damaged:
            self._faults += 1
            return {}


def _flat(members: Iterable[Member], above: Path) -> Iterator[Member]:
    for name, content in members:
        if isinstance(content, Group) and name[-1] in _NESTED and len(above) < 2:
            yield from _flat(content.members(), (*above, *name))
        else:
            yield Member((*above, *name), content)


def _parsed(value: Any) -> dict[str, Any]:
    """Return an object that an attribute has as JSON, empty if it has none."""
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) else None


def _instruction(value: Any) -> str | None:
    """Return an instruction, which LIBERO has as text, maybe in quotation marks, or as a list of words."""
    if isinstance(value, list) and all(isinstance(piece, str) for piece in value):
        value = " ".join(value)
    if not isinstance(value, str):
        return None
    stripped = value.strip()
    return stripped[1:-1] if len(stripped) > 1 and stripped[0] == stripped[-1] == '"' else value


def _width(array: Array | None) -> int | None:
    shape = None if array is None else array.known_shape
    return shape[1] if shape is not None and len(shape) == 2 else None


def _is_described(kept: Any) -> bool:
    """Return whether this is a row with its features."""
    return isinstance(kept, list) and len(kept) == 2 and isinstance(kept[0], dict) and isinstance(kept[1], str)


def _cameras(contents: Sequence[Member]) -> list[str]:
    found = dict.fromkeys(b"/".join(name) for name, one in contents if is_camera(one))
    return [_name(name) for name in found]


def _name(name: bytes) -> str:
    return name.decode("utf-8", "replace")
