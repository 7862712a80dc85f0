"""Recordings for tests, by the official writer, with messages that rosbags serializes; and readers to compare with."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mcap.reader import make_reader
from mcap.writer import CompressionType, IndexType, Writer
from PIL import Image
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from glassfs.errors import GlassfsError
from glassfs.library.entry import Entry

STORE = get_typestore(Stores.ROS2_HUMBLE)
STORE1 = get_typestore(Stores.ROS1_NOETIC)
SECOND = 10**9
START = 1_700_000_000 * SECOND
JOINTS = "sensor_msgs/msg/JointState"


class Message(NamedTuple):
    """A message on a topic: its type, and the message of rosbags or bytes of another encoding."""

    topic: str
    kind: str
    log_time: int
    value: Any
    encoding: str = "cdr"
    schema: tuple[str, bytes] | None = None


def joints(number: int, count: int = 7) -> Any:
    """Return a message of joints, whose positions begin with the number."""
    types = STORE.types
    stamp = types["builtin_interfaces/msg/Time"](number, 5)
    header = types["std_msgs/msg/Header"](stamp, f"frame {number}")
    position = np.arange(number, number + count, dtype="f8")
    return types[JOINTS](header, [f"joint_{joint}" for joint in range(count)], position, -position, position[:0])


def picture(number: int, form: str = "JPEG") -> bytes:
    """Return a small encoded image."""
    stored = io.BytesIO()
    Image.fromarray(np.full((8, 10, 3), 20 * number % 256, np.uint8)).save(stored, form)
    return stored.getvalue()


def compressed(number: int, stored: bytes, form: str = "jpeg") -> Any:
    types = STORE.types
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](number, 0), "camera")
    return types["sensor_msgs/msg/CompressedImage"](header, form, np.frombuffer(stored, np.uint8))


def a_run(count: int = 12) -> list[Message]:
    """Return messages of joints, a camera and JSON, in the order of their times."""
    found = []
    for number in range(count):
        time = START + number * SECOND // 10
        found.append(Message("/joints", JOINTS, time, joints(number)))
        found.append(Message("/notes", "note", time + 1, json.dumps({"number": number}).encode(), "json"))
        if number % 2 == 0:
            image = compressed(number, picture(number))
            found.append(Message("/camera/front", "sensor_msgs/msg/CompressedImage", time + 2, image))
    return found


def write(
    path: Path, messages: list[Message], *, codec: str = "zstd", chunk: int = 1500,
    attachments: Mapping[str, bytes] | None = None, metadata: Mapping[str, dict[str, str]] | None = None,
    **options: Any,
) -> Path:
    """Write a recording by the official writer; ``options`` are its own."""
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=chunk, compression=CompressionType[codec.upper()], **options)
        writer.start("ros2", "tests")
        channels: dict[tuple[str, str], int] = {}
        for number, (topic, kind, time, value, encoding, schema) in enumerate(messages):
            if (topic, kind) not in channels:
                schema_id = 0
                if encoding in ("cdr", "ros1"):
                    store = STORE if encoding == "cdr" else STORE1
                    definition = store.generate_msgdef(kind, ros_version=2 if encoding == "cdr" else 1)[0]
                    schema = "ros2msg" if encoding == "cdr" else "ros1msg", definition.encode()
                if schema is not None:
                    schema_id = writer.register_schema(kind, *schema)
                channels[topic, kind] = writer.register_channel(topic, encoding, schema_id)
            data = value
            if encoding in ("cdr", "ros1"):
                store = STORE if encoding == "cdr" else STORE1
                data = bytes((store.serialize_cdr if encoding == "cdr" else store.serialize_ros1)(value, kind))
            writer.add_message(channels[topic, kind], time, data, time - 7, number)
        for name, attached in (attachments or {}).items():
            writer.add_attachment(START, 0, name, "", attached)
        for name, values in (metadata or {}).items():
            writer.add_metadata(name, values)
        writer.finish()
    return path


def official(path: Path, topic: str) -> list[Any]:
    """Return the messages of a topic as the official reader has them."""
    with path.open("rb") as file:
        return [message for _, _, message in make_reader(file).iter_messages([topic])]


def files(entry: Entry) -> Iterator[tuple[str, bytes | GlassfsError]]:
    """Yield the files of a tree, below ``topics`` and others, with their bytes or why they cannot be read."""
    for name, child in entry.items():
        if child.is_dir():
            for path, found in files(child):
                yield f"{name}/{path}", found
        else:
            try:
                yield name, child.bytes()
            except GlassfsError as error:
                yield name, error


__all__ = ["IndexType", "get_types_from_msg"]
