"""Write, patch and inspect KinoDB files for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from writers.kinodb import Entry, Frame, KinoWriter

from glassfs.content import Container, Content, Document, Fields, Group, Member, Omitted, Series, Video, members_of
from tests.helpers import contents_of, open_bytes

HEADER = {"major": (4, "<H"), "num_episodes": (8, "<Q"), "num_frames": (16, "<Q"), "index_offset": (24, "<Q"),
          "index_length": (32, "<Q"), "created": (40, "<Q")}
ENTRY = {"episode_id": (0, "<Q"), "num_frames": (8, "<I"), "action_dim": (12, "<H"), "state_dim": (14, "<H"),
         "actions_offset": (16, "<Q"), "actions_length": (24, "<Q"), "images_offset": (32, "<Q"),
         "images_length": (40, "<Q"), "meta_offset": (48, "<Q"), "meta_length": (56, "<Q")}
FRONT = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
WRIST = np.arange(100, 115, dtype=np.uint8).reshape(3, 5)
ARRAYS = ("state", "action", "reward", "is_terminal")
FRAME_COUNT = 4


def frames(count: int = FRAME_COUNT) -> list[Frame]:
    return [{"front": FRONT + t, "wrist": WRIST + t} for t in range(count)]


def three_episodes(folder: Path) -> bytearray:
    """4 frames with two cameras, 3 frames with one, 2 without."""
    return written(
        folder,
        {"state": floats(4, 2), "action": floats(4, 3), "images": frames(), "task": "first", "total_reward": 1.0},
        {"state": floats(3, 2), "action": floats(3, 3), "images": [{"front": FRONT}] * 3, "success": True},
        {"state": floats(2, 0), "action": floats(2, 2)},
    )


def floats(rows: int, columns: int) -> np.ndarray:
    return (np.arange(rows * columns, dtype="<f4") / 8 - 3).reshape(rows, columns)


def written(folder: Path, *episodes: dict[str, Any], **options: Any) -> bytearray:
    path = folder / "written.kdb"
    with KinoWriter(path, **options) as writer:
        for fields in episodes:
            writer.add_episode(**fields)
    return bytearray(path.read_bytes())


def with_images(folder: Path, shots: Sequence[Frame], **fields: Any) -> bytearray:
    legacy = {"is_legacy": fields.pop("is_legacy", False)}
    return written(folder, {
        "state": floats(len(shots), 1), "action": floats(len(shots), 1), "images": shots, **fields,
    }, **legacy)


def index_entry(data: bytes | bytearray, position: int) -> Entry:
    (offset,) = struct.unpack_from("<Q", data, 24)
    return Entry(*struct.unpack_from("<QIHHQQQQQQ", data, offset + 64 * position))


def patched(data: bytes | bytearray, position: int | None = None, **fields: int) -> bytes:
    """With other values in the header, or in the index entry at `position`."""
    changed = bytearray(data)
    start = 0 if position is None else struct.unpack_from("<Q", data, 24)[0] + 64 * position
    for name, value in fields.items():
        offset, layout = (HEADER if position is None else ENTRY)[name]
        struct.pack_into(layout, changed, start + offset, value)
    return bytes(changed)


def one(data: bytes | bytearray, name: bytes | str) -> Content:
    (found,) = contents_of(open_bytes(bytes(data)).root)[name.encode() if isinstance(name, str) else name]
    return found


def document(data: bytes | bytearray, place: str) -> dict[str, Any]:
    found = one(data, place)
    assert isinstance(found, Document)
    value = found.value()
    assert isinstance(value, dict)
    return value


def image_group(container: Container, position: int = 0) -> Group:
    series = next(member.content for member in members_of(container.root) if member.name == (b"episodes",))
    assert isinstance(series, Series)
    fields = series.item(position)
    assert isinstance(fields, Fields)
    found = fields.item(b"images")
    assert isinstance(found, Group)
    return found


def images_of(group: Group) -> list[Member]:
    """Return every image of an episode, in stored order."""
    found = []
    for member in group.members():
        content = member.content
        if isinstance(content, Series):
            digits = content.digits
            numbered = [((*member.name, b"%0*d" % (digits, n)), content.item(n)) for n in content.numbers]
            found += [Member(*pair) for pair in numbered]
        elif not isinstance(content, (Video, Omitted)):
            found.append(member)
    return sorted(found, key=lambda member: member.content.data.location().offset)


def image_contents(data: bytes | bytearray, position: int = 0) -> dict[str, Content]:
    """The images of an episode that has no two of one name."""
    listed = [(b"/".join(name), content) for name, content in images_of(image_group(open_bytes(bytes(data)), position))]
    assert len(dict(listed)) == len(listed)
    return {name.decode(): content for name, content in listed}


def faults(data: bytes | bytearray) -> list[str]:
    return [f"{place}: {reason}" for place, reason in open_bytes(bytes(data)).check()]
