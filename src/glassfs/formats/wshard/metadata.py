"""Block descriptions in meta/channels and meta/episode: dtype, shape, steps (docs/formats/wshard.md §8, §9).

The JSON is untrusted: values of the wrong type are ignored and noted in ``faults``. Any thread may use metadata.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any, NamedTuple

from glassfs.content import Data, Fault
from glassfs.content.allowance import EXPANSION, OBJECT, Allowance
from glassfs.content.rows import refuse_constant
from glassfs.errors import Damaged

LARGEST = 1 << 63  # of a size or a count, which have 63 bits in NumPy and in file systems

DTYPES = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<f4", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "|i1",
    "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "|u1", "bool": "|b1",
}
"""The dtype to show, by WShard's type name."""

_LONG_NAMES = ("float", "f"), ("uint", "u"), ("int", "i")
_IMAGE_MODALITIES = ("rgb", "depth")


class StepShape(NamedTuple):
    """One step of a block. ``type_name`` is one of DTYPES."""

    type_name: str
    shape: tuple[int, ...]
    modality: str | None = None

    @property
    def step(self) -> int:
        """The stored bytes of a step."""
        return _item_size(self.type_name) * prod(self.shape)


def _item_size(type_name: str) -> int:
    """Return the bytes of a stored item."""
    return 2 if type_name == "bf16" else int(DTYPES[type_name][2:])


_CONVENTIONS = {
    b"reward": [StepShape("f32", ())],
    b"done": [StepShape("bool", ())],
    b"time/ticks": [StepShape("i32", ())],
    b"time/timestamps_ns": [StepShape("i64", ())],
}


def parse(data: Data, allowance: Allowance, is_strict: bool = False) -> Any:
    """Return the JSON value in ``data``. Raises Damaged, with ``is_strict`` also for NaN and the infinities.

    Raises TooLarge if its values may take more than the allowance.
    """
    allowance.take(EXPANSION * data.size, "JSON")
    try:
        return json.loads(data.whole().decode(), parse_constant=refuse_constant if is_strict else float)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"is not valid JSON: {error}") from error


class BlockShapes:
    """What is kept of the parsed blocks ``channels`` and ``episode``, within an allowance; either may be None.

    ``names`` are the names of the episode and its environment, ``chunk_index`` is the part's own number, and ``rate``
    is in steps per second, None if not given.
    """

    def __init__(self, channels: Any, episode: Any, allowance: Allowance) -> None:
        self.faults: dict[Fault, None] = {}
        self.blocks: dict[bytes, list[StepShape]] = {}
        self._borrowed: dict[bytes, list[StepShape]] = {}
        """By the action that has the id of a channel: descriptions of the channel."""
        self._action_spaces: dict[bytes, list[StepShape]] = {}
        if episode is not None and not isinstance(episode, dict):
            self._fault("meta/episode", "is not a JSON object")
        described: dict[str, Any] = episode if isinstance(episode, dict) else {}
        named = {"episode_id": described.get("episode_id", described.get("id")), "env_id": described.get("env_id")}
        self.names = {key: text(value) for key, value in named.items() if isinstance(value, str)}
        number = described.get("chunk_index")
        self.chunk_index: int | str | None = number if number is None or _is_count(number) else repr(number)[:40]
        length = described.get("length_T", described.get("length_t"))
        if length is not None and not _is_count(length):
            self._fault("meta/episode", "length_T is not a number of steps")
        self.length: int | None = length if _is_count(length) else None
        self.rate = rate(described)
        listed, spaces = self._channels(channels), described.get("action_spaces")
        spaces = spaces if isinstance(spaces, list) else []
        allowance.take(4 * OBJECT * (len(listed) + len(spaces)), "descriptions of channels")
        for channel in listed:
            self._add_channel(channel if isinstance(channel, dict) else {})
        for space in spaces:
            if isinstance(space, dict) and isinstance(space.get("name"), str):
                _add(self._action_spaces, space["name"], space)

    def fit(self, name: bytes, size: int) -> tuple[StepShape, int] | None:
        """Return the description that fits a block of ``size`` raw bytes, and its steps; None if there is none.

        Of several descriptions, the first that agrees with the episode's length wins, else the first that divides the
        size.
        """
        fitting = None
        # Several definitions may name one block, as writers differ in what they describe. The size of the block and the
        # length of the episode show which of them is meant.
        described, is_borrowed = self._candidates(name)
        for description in described:
            if description.step:
                steps, rest = divmod(size, description.step)
            else:
                steps, rest = self.length or 0, size
            if rest:
                continue
            if steps == self.length:
                return description, steps
            # A description of another block with the same id must agree with the length.
            if fitting is None and not (is_borrowed and self.length is not None):
                fitting = description, steps
        return fitting

    def width(self, channel: bytes) -> int | None:
        """Return the values per step of a channel, or None."""
        described = self.blocks.get(b"signal/" + channel) or self._borrowed.get(b"action/" + channel)
        return prod(described[0].shape) if described else None

    def is_described(self, name: bytes) -> bool:
        """Return whether the metadata describe the block as an array."""
        return name in self.blocks or bool(self._candidates(name)[0])

    def _candidates(self, name: bytes) -> tuple[list[StepShape], bool]:
        for known in (self.blocks, self._action_spaces, _CONVENTIONS):
            if name in known:
                return known[name], False
        return self._borrowed.get(name, []), True

    def _channels(self, value: Any) -> list[Any]:
        """Return the definitions of channels."""
        listed: Any = []
        if isinstance(value, dict):
            # Only the Go reader supports a map from block to definition.
            listed = value.get("channels") if "channels" in value else [
                {**channel, "signal_block": name} for name, channel in value.items()
                if isinstance(channel, dict) and "dtype" in channel
            ]
            if listed is not None and not isinstance(listed, list):
                self._fault("meta/channels", "has no list of channels")
        elif value is not None:
            self._fault("meta/channels", "is not a JSON object")
        return listed if isinstance(listed, list) else []

    def _add_channel(self, channel: dict[str, Any]) -> None:
        identifier, block = channel.get("id"), channel.get("signal_block")
        if isinstance(block, str) and block:
            _add(self.blocks, block, channel)
        elif isinstance(identifier, str):
            _add(self.blocks, f"signal/{identifier}", channel)
        else:
            self._fault("meta/channels", "has a channel without a name")
        if isinstance(identifier, str):
            _add(self._borrowed, f"action/{identifier}", channel)

    def _fault(self, place: str, reason: str) -> None:
        self.faults[Fault(place, reason)] = None


def rate(block: Any) -> float | None:
    """Return steps per second by the ``timebase`` of a metadata block (§10), or None."""
    timebase = block.get("timebase") if isinstance(block, dict) else None
    if not isinstance(timebase, dict):
        return None
    hertz, nanoseconds = _positive(timebase.get("tick_hz")), _positive(timebase.get("dt_ns"))
    if hertz is None and nanoseconds is not None:
        return 1e9 / nanoseconds
    return hertz


def _positive(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < LARGEST else None


def _add(found: dict[bytes, list[StepShape]], name: str, channel: dict[str, Any]) -> None:
    """Add the description of a channel, if it has a usable one, to those of ``name``."""
    descriptions = found.setdefault(name.encode("utf-8", "surrogatepass"), [])
    description = _description(channel)
    if description is not None:
        descriptions.append(description)


def _description(channel: dict[str, Any]) -> StepShape | None:
    type_name, shape, modality = (channel.get(key) for key in ("dtype", "shape", "modality"))
    shape = [] if shape is None else shape
    # With that of the steps, an array has at most the 32 axes of older versions of NumPy.
    if not isinstance(type_name, str) or not isinstance(shape, list) or len(shape) > 31:
        return None
    for long, short in _LONG_NAMES:
        type_name = type_name.lower().replace(long, short)
    if type_name not in DTYPES or not all(type(axis) is int and 0 <= axis < LARGEST for axis in shape):
        return None
    if _item_size(type_name) * prod(axis or 1 for axis in shape) >= LARGEST:
        return None
    return StepShape(type_name, tuple(shape), modality if modality in _IMAGE_MODALITIES else None)


def text(value: str) -> str:
    """Return a JSON string truncated, as it is shown among the facts, and made encodable."""
    return value[:1000].encode("utf-8", "backslashreplace").decode()


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST
