"""What meta/channels and meta/episode say about the blocks: dtype, shape, steps (formats/wshard.md §8, §9).

The JSON comes from an untrusted file: whatever in it has the wrong type is passed over and noted in ``faults``.
Immutable after it is made; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from glassfs.content import Data
from glassfs.errors import Damaged

LARGEST_JSON = 4 << 20
LARGEST = 1 << 63
MOST_AXES = 31

DTYPES = {
    "f64": ("<f8", 8), "f32": ("<f4", 4), "f16": ("<f2", 2), "bf16": ("<f4", 2),
    "i64": ("<i8", 8), "i32": ("<i4", 4), "i16": ("<i2", 2), "i8": ("|i1", 1),
    "u64": ("<u8", 8), "u32": ("<u4", 4), "u16": ("<u2", 2), "u8": ("|u1", 1), "bool": ("|b1", 1),
}
"""By WShard's word: the dtype to show, and the bytes of a stored item."""

_LONG_NAMES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u"}
_IMAGE_MODALITIES = ("rgb", "depth")


class Description(NamedTuple):
    """One step of a block. ``type_name`` is one of DTYPES."""

    type_name: str
    shape: tuple[int, ...]
    modality: str | None = None

    @property
    def step(self) -> int:
        """Stored bytes of a step."""
        return DTYPES[self.type_name][1] * prod(self.shape)


_CONVENTIONS = {
    b"reward": Description("f32", ()),
    b"done": Description("bool", ()),
    b"time/ticks": Description("i32", ()),
    b"time/timestamps_ns": Description("i64", ()),
}


def parse(data: Data, is_strict: bool = False) -> Any:
    """The JSON value in ``data``. Raises Damaged, if ``is_strict`` also for NaN and the infinities."""
    if data.size > LARGEST_JSON:
        raise Damaged(f"JSON of {data.size} bytes, at most {LARGEST_JSON} are read")
    try:
        return json.loads(data.whole().decode(), parse_constant=_refused if is_strict else float)
    except RecursionError:
        raise Damaged("JSON that is nested too deep") from None
    except ValueError as error:
        raise Damaged(f"not JSON: {error}") from error


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


class Metadata:
    """``channels`` and ``episode`` are the parsed blocks, or None where there is none."""

    def __init__(self, channels: Any, episode: Any) -> None:
        self.faults: list[tuple[str, str]] = []
        self.blocks: dict[bytes, list[Description]] = {}
        self._by_id: dict[bytes, list[Description]] = {}
        self._action_spaces: dict[bytes, list[Description]] = {}
        self.episode: dict[str, Any] = episode if isinstance(episode, dict) else {}
        if episode is not None and not isinstance(episode, dict):
            self._fault("meta/episode", "is not a JSON object")
        self.length = self._length()
        for name, identifier, channel in self._channels(channels):
            self._add(self.blocks, name, channel)
            if identifier is not None:
                self._add(self._by_id, identifier, channel)
        spaces = self.episode.get("action_spaces")
        for space in spaces if isinstance(spaces, list) else ():
            if isinstance(space, dict) and isinstance(space.get("name"), str):
                self._add(self._action_spaces, _name(space["name"]), space)

    def fit(self, name: bytes, size: int) -> tuple[Description, int] | None:
        """How ``size`` raw bytes of the block are to be read, and the steps they make; None: nobody knows.

        Of several descriptions the first that agrees with the episode's length counts, else the first that divides
        the size.
        """
        found = None
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
            # A description of another block of the same id is believed only if it agrees.
            if found is None and not (is_borrowed and self.length is not None):
                found = description, steps
        return found

    def width(self, channel: bytes) -> int | None:
        """Values of a channel in one step."""
        described = self.blocks.get(b"signal/" + channel) or self._by_id.get(channel)
        return prod(described[0].shape) if described else None

    def is_described(self, name: bytes) -> bool:
        """Whether the block is meant to be an array."""
        return name in self.blocks or bool(self._candidates(name)[0])

    def _candidates(self, name: bytes) -> tuple[list[Description], bool]:
        if name in self.blocks:
            return self.blocks[name], False
        if name.startswith(b"action/"):
            if name in self._action_spaces:
                return self._action_spaces[name], False
            return self._by_id.get(name.removeprefix(b"action/"), []), True
        return ([_CONVENTIONS[name]] if name in _CONVENTIONS else []), False

    def _length(self) -> int | None:
        length = self.episode.get("length_T", self.episode.get("length_t"))
        if length is None:
            return None
        if type(length) is not int or not 0 <= length < LARGEST:
            self._fault("meta/episode", "length_T is not a number of steps")
            return None
        return length

    def _channels(self, value: Any) -> Iterator[tuple[bytes, bytes | None, dict[str, Any]]]:
        """Name of the block, id and definition of each channel."""
        if value is None:
            return
        if not isinstance(value, dict):
            self._fault("meta/channels", "is not a JSON object")
            return
        channels = value.get("channels") if "channels" in value else _legacy(value)
        if channels is not None and not isinstance(channels, list):
            self._fault("meta/channels", "has no list of channels")
            return
        for channel in channels or ():
            identifier = channel.get("id") if isinstance(channel, dict) else None
            block = channel.get("signal_block") if isinstance(channel, dict) else None
            if isinstance(block, str) and block:
                yield _name(block), _name(identifier) if isinstance(identifier, str) else None, channel
            elif isinstance(identifier, str):
                yield _name(f"signal/{identifier}"), _name(identifier), channel
            else:
                self._fault("meta/channels", "has a channel without a name")

    def _add(self, found: dict[bytes, list[Description]], name: bytes, channel: dict[str, Any]) -> None:
        descriptions = found.setdefault(name, [])
        description = _description(channel)
        if description is not None:
            descriptions.append(description)

    def _fault(self, place: str, reason: str) -> None:
        if (place, reason) not in self.faults:
            self.faults.append((place, reason))


def _legacy(channels: dict[str, Any]) -> list[Any]:
    """The map from block to definition that only the Go reader knows, as a list."""
    return [
        {**channel, "signal_block": name} for name, channel in channels.items()
        if isinstance(channel, dict) and "dtype" in channel
    ]


def _description(channel: dict[str, Any]) -> Description | None:
    type_name, shape, modality = (channel.get(key) for key in ("dtype", "shape", "modality"))
    shape = [] if shape is None else shape
    if not isinstance(type_name, str) or not isinstance(shape, list) or len(shape) > MOST_AXES:
        return None
    type_name = type_name.lower()
    for long, short in _LONG_NAMES.items():
        bits = type_name.removeprefix(long)
        if bits != type_name and bits.isdigit():
            type_name = f"{short}{bits}"
    if type_name not in DTYPES or not all(type(axis) is int and 0 <= axis < LARGEST for axis in shape):
        return None
    if DTYPES[type_name][1] * prod(axis or 1 for axis in shape) >= LARGEST:
        return None
    return Description(type_name, tuple(shape), modality if modality in _IMAGE_MODALITIES else None)


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
