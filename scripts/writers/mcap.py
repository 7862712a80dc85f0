"""Writes MCAP recordings as ``ros2 bag record`` does: chunks with message indexes, and a summary.

    with McapWriter("run.mcap") as w:
        joints = w.add_channel("/joint_states", "sensor_msgs/msg/JointState", JOINT_STATE)
        w.add(joints, time, cdr)
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import zstandard

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX, CHUNK_INDEX, ATTACHMENT, ATTACHMENT_INDEX = range(1, 11)
STATISTICS, METADATA, METADATA_INDEX, SUMMARY_OFFSET, DATA_END = range(11, 16)
SEPARATOR = "=" * 80 + "\n"
STAMPED = f"""{SEPARATOR}MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
{SEPARATOR}MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
JOINT_STATE = f"""std_msgs/Header header
string[] name
float64[] position
float64[] velocity
float64[] effort
{STAMPED}"""
COMPRESSED_IMAGE = f"std_msgs/Header header\nstring format\nuint8[] data\n{STAMPED}"


class McapWriter:
    """One recording. ``codec`` is zstd or none; a chunk ends when it has ``chunk_size`` bytes."""

    def __init__(
        self, path: str | Path, *, codec: str = "zstd", chunk_size: int = 1 << 20, profile: str = "ros2",
    ) -> None:
        self._file = Path(path).open("wb")  # noqa: SIM115 - closed by __exit__
        self._codec, self._chunk_size = codec, chunk_size
        self._chunk = bytearray()
        self._index: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._counts: dict[int, int] = defaultdict(int)
        self._times: list[int] = []
        self._schemas: list[bytes] = []
        self._channels: list[bytes] = []
        self._indexes: dict[int, list[bytes]] = defaultdict(list)
        self._file.write(MAGIC + record(HEADER, text(profile) + text("glassfs samples")))

    def __enter__(self) -> McapWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._close()
        self._file.close()

    def add_channel(
        self, topic: str, schema: str, definition: str, *, schema_encoding: str = "ros2msg",
        message_encoding: str = "cdr", metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Add a topic with its schema, and return the number of the channel."""
        number = len(self._channels) + 1
        definition_bytes = definition.encode()
        self._schemas.append(record(
            SCHEMA, struct.pack("<H", number) + text(schema) + text(schema_encoding)
            + struct.pack("<I", len(definition_bytes)) + definition_bytes,
        ))
        pairs = b"".join(text(key) + text(value) for key, value in (metadata or {}).items())
        self._channels.append(record(
            CHANNEL, struct.pack("<HH", number, number) + text(topic) + text(message_encoding)
            + struct.pack("<I", len(pairs)) + pairs,
        ))
        return number

    def add(self, channel: int, log_time: int, data: bytes, *, publish_time: int | None = None) -> None:
        """Add a message; times are in nanoseconds."""
        if not self._chunk:
            self._chunk += b"".join(self._schemas + self._channels)
        self._index[channel].append((log_time, len(self._chunk)))
        publish_time = log_time if publish_time is None else publish_time
        fields = struct.pack("<HIQQ", channel, self._counts[channel], log_time, publish_time)
        self._chunk += record(MESSAGE, fields + data)
        self._counts[channel] += 1
        self._times.append(log_time)
        if len(self._chunk) >= self._chunk_size:
            self._end_chunk()

    def add_attachment(self, name: str, data: bytes, media_type: str = "", log_time: int = 0) -> None:
        self._end_chunk()
        start = self._file.tell()
        body = struct.pack("<QQ", log_time, 0) + text(name) + text(media_type) + struct.pack("<Q", len(data)) + data
        self._file.write(record(ATTACHMENT, body + struct.pack("<I", zlib.crc32(body))))
        self._indexes[ATTACHMENT_INDEX].append(record(
            ATTACHMENT_INDEX, struct.pack("<QQQQQ", start, self._file.tell() - start, log_time, 0, len(data))
            + text(name) + text(media_type),
        ))

    def add_metadata(self, name: str, values: Mapping[str, str]) -> None:
        self._end_chunk()
        start = self._file.tell()
        pairs = b"".join(text(key) + text(value) for key, value in values.items())
        self._file.write(record(METADATA, text(name) + struct.pack("<I", len(pairs)) + pairs))
        place = struct.pack("<QQ", start, self._file.tell() - start)
        self._indexes[METADATA_INDEX].append(record(METADATA_INDEX, place + text(name)))

    def _end_chunk(self) -> None:
        if not self._chunk:
            return
        raw = bytes(self._chunk)
        stored = zstandard.compress(raw) if self._codec == "zstd" else raw
        codec = text("zstd" if self._codec == "zstd" else "")
        times = [time for entries in self._index.values() for time, _ in entries]
        span = struct.pack("<QQ", min(times), max(times))
        start = self._file.tell()
        self._file.write(record(
            CHUNK,
            span + struct.pack("<QI", len(raw), zlib.crc32(raw)) + codec + struct.pack("<Q", len(stored)) + stored,
        ))
        end, places = self._file.tell(), b""
        for channel, entries in self._index.items():
            places += struct.pack("<HQ", channel, self._file.tell())
            packed = b"".join(struct.pack("<QQ", *entry) for entry in entries)
            self._file.write(record(MESSAGE_INDEX, struct.pack("<HI", channel, len(packed)) + packed))
        self._indexes[CHUNK_INDEX].append(record(
            CHUNK_INDEX, span + struct.pack("<QQI", start, end - start, len(places)) + places
            + struct.pack("<Q", self._file.tell() - end) + codec + struct.pack("<QQ", len(stored), len(raw)),
        ))
        self._chunk.clear()
        self._index.clear()

    def _close(self) -> None:
        self._end_chunk()
        self._file.write(record(DATA_END, bytes(4)))
        start = self._file.tell()
        counts = b"".join(struct.pack("<HQ", *pair) for pair in self._counts.items())
        found = {kind: len(self._indexes[kind]) for kind in (ATTACHMENT_INDEX, METADATA_INDEX, CHUNK_INDEX)}
        statistics = struct.pack(
            "<QHIIIIQQI", len(self._times), len(self._schemas), len(self._channels), found[ATTACHMENT_INDEX],
            found[METADATA_INDEX], found[CHUNK_INDEX], min(self._times, default=0), max(self._times, default=0),
            len(counts),
        )
        groups = [
            (SCHEMA, self._schemas), (CHANNEL, self._channels), (STATISTICS, [record(STATISTICS, statistics + counts)]),
            *self._indexes.items(),
        ]
        summary, offsets = b"", b""
        for kind, records in groups:
            if records:
                joined = b"".join(records)
                offsets += record(SUMMARY_OFFSET, struct.pack("<BQQ", kind, start + len(summary), len(joined)))
                summary += joined
        footer = struct.pack("<BQQQ", FOOTER, 20, start, start + len(summary))
        checksum = zlib.crc32(summary + offsets + footer)
        self._file.write(summary + offsets + footer + struct.pack("<I", checksum) + MAGIC)


def record(kind: int, content: bytes) -> bytes:
    return struct.pack("<BQ", kind, len(content)) + content


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<I", len(raw)) + raw


class Cdr(bytearray):
    """A message in little-endian CDR: ``put`` appends numbers, ``put_text`` a string, ``put_sequence`` a sequence."""

    def __init__(self) -> None:
        super().__init__(b"\0\1\0\0")

    def put(self, form: str, *values: float) -> Cdr:
        """Append numbers of one type, a format character of ``struct``, aligned to their size."""
        self += bytes(-(len(self) - 4) % struct.calcsize(form))
        self += struct.pack(f"<{len(values)}{form}", *values)
        return self

    def put_text(self, value: str) -> Cdr:
        raw = value.encode() + b"\0"
        self.put("I", len(raw))
        self += raw
        return self

    def put_sequence(self, form: str, values: list[float] | bytes) -> Cdr:
        self.put("I", len(values))
        return self.put(form, *values) if values else self


def joint_state(time: int, names: list[str], position: list[float]) -> bytes:
    """Return a message of sensor_msgs/JointState."""
    message = Cdr().put("i", time // 10**9).put("I", time % 10**9).put_text("base")
    message.put("I", len(names))
    for name in names:
        message.put_text(name)
    return bytes(message.put_sequence("d", position).put_sequence("d", []).put_sequence("d", []))


def compressed_image(time: int, image: bytes, kind: str = "jpeg") -> bytes:
    """Return a message of sensor_msgs/CompressedImage."""
    message = Cdr().put("i", time // 10**9).put("I", time % 10**9).put_text("camera").put_text(kind)
    return bytes(message.put("I", len(image)) + image)
