"""MCAP: recordings of messages, as ROS 2 and Foxglove write them (docs/formats/mcap.md, cited as §).

``recording`` finds what a file has, ``messages`` those of one topic, and this module shows topics, attachments and
metadata. ``definitions`` and ``protobuf`` decode messages, ``fields`` and ``pictures`` show what is
decoded. Any thread may use opened recordings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from glassfs.codec.checksum import CRC32, Checksum
from glassfs.codec.compression import NONE
from glassfs.content import (
    Array,
    Blob,
    Container,
    Decoded,
    Document,
    Extent,
    Fault,
    Group,
    Member,
    Memory,
    Nested,
    Omitted,
    Part,
    Records,
    Series,
    Slice,
    Summary,
    summary_of,
)
from glassfs.content.allowance import OBJECT
from glassfs.content.model import Name
from glassfs.errors import LASTING, Damaged, Refused
from glassfs.formats.mcap.fields import Decoding
from glassfs.formats.mcap.messages import TIMES, Messages
from glassfs.formats.mcap.recording import MAGIC, RECORD, Channel, Fields, Op, Recording, Schema
from glassfs.formats.registry import Format, Opening

ANY_VERSION = re.compile(rb"\x89MCAP.\r\n", re.DOTALL)
TOPICS = b"topics"
SUFFIXES = {
    "ros1msg": "msg", "ros2msg": "msg", "ros2idl": "idl", "omgidl": "idl", "jsonschema": "json", "protobuf": "binpb",
    "flatbuffer": "bfbs",
}
"""Suffixes of files with definitions, by the language of these."""
OWN_NAMES = {
    b"fields", b"images", b"points", b"messages", b"messages.jsonl", b"topic.json", b"log_time.npy",
    b"publish_time.npy", b"sequence.npy", *(f"schema.{suffix}".encode() for suffix in (*SUFFIXES.values(), "bin")),
}
"""Names in the directory of a topic, which topics below it do not take."""
ATTACHMENT_HEAD = 4096
"""Bytes of an attachment in which its name and media type are."""
RECORDING_COLUMNS = (
    ("profile", ""), ("start_time", "<i8"), ("duration", "<f8"), ("messages", "<i8"), ("topics", "list"),
)
"""Columns of the joined table ``recordings``: times in nanoseconds, the duration in seconds."""


class Topic(NamedTuple):
    """Channels of one topic whose messages are of one kind, and the path of their directory."""

    path: Name
    channels: dict[int, Channel]
    schema: Schema | None

    @property
    def channel(self) -> Channel:
        return next(iter(self.channels.values()))


class RecordingContents:
    """The contents of the recording in an ``opening``. Raises Damaged."""

    def __init__(self, opening: Opening) -> None:
        self.recording = Recording(opening)
        self._opening, self._source = opening, opening.source
        self.topics = list(self._topics())

    def members(self) -> Iterator[Member]:
        """Yield the contents of the root."""
        yield Member((b"meta", b"file"), Document(b"file", self.facts))
        if not self.recording.is_complete:
            yield Member((TOPICS,), Omitted(TOPICS, "recording: it was not finished, and shows what is whole"))
        for fault in self.recording.faults:
            yield Member((TOPICS,), Omitted(TOPICS, f"messages: {fault.at()}", is_damage=True))
        for name, op, places in (
            (b"metadata", Op.METADATA, self.recording.metadata),
            (b"attachments", Op.ATTACHMENT, self.recording.attachments),
        ):
            for start, size in places:
                try:
                    made = self._metadata(start) if op == Op.METADATA else self._attachment(start, size)
                    yield Member((name, *made.name), made.content)
                except LASTING as error:
                    key = b"%d" % start
                    yield Member((name, key), Omitted(key, f"{op.name.lower()}: {error.reason}", is_damage=True))
        for topic in self.topics:
            yield Member((TOPICS, *topic.path), self._topic(topic))

    def facts(self) -> dict[str, Any]:
        found = self.recording
        start, end = found.times()
        return {
            "profile": found.profile, "library": found.library, "complete": found.is_complete,
            "message_count": sum(sum(chunk.counts.values()) for chunk in found.chunks),
            "start_time": start, "end_time": end, "chunks": len(found.chunks),
            "topics": [topic.channel.topic for topic in self.topics],
        }

    def summary(self) -> Summary:
        """Return the row of the joined table ``recordings``."""
        def rows(block: int) -> list[dict[str, Any]]:
            facts = self.facts()
            start, end = facts["start_time"], facts["end_time"]
            names = [topic.decode("utf-8", "replace") for topic in dict.fromkeys(facts["topics"])]
            duration = None if start is None else (end - start) / 1e9
            return [{**facts, "duration": duration, "messages": facts["message_count"], "topics": names}]

        return summary_of("recordings", RECORDING_COLUMNS, 1, Records(b"recordings", 1, rows))

    def check(self) -> Iterator[Fault]:
        """Yield damage that reading all contents does not find."""
        recording, last = self.recording, RECORD.size + 4
        if recording.reason:
            yield Fault("file", recording.reason)
        if recording.data_end < last:
            return
        end = recording.data_end - last
        op, _, stored = Fields(self._source.read(end, last)).numbers("BQI")
        found = 0
        for piece in Extent(self._source, 0, end if op == Op.DATA_END and stored else 0).pieces():
            found = CRC32.update(piece, found)
        if op == Op.DATA_END and stored and found != stored:
            yield Fault("data section", "its checksum does not match")

    def _metadata(self, start: int) -> Member:
        fields = Fields(self.recording.record(start, Op.METADATA))
        name, values = fields.raw(), fields.texts()
        return Member((name,), Document(name, lambda: values))

    def _attachment(self, start: int, size: int) -> Member:
        fields = Fields(self._source.read(start, min(size, ATTACHMENT_HEAD)))
        op, _, _, _ = fields.numbers("BQQQ")
        name, _, (length,) = fields.raw(), fields.raw(), fields.numbers("Q")
        begin = fields.position
        if op != Op.ATTACHMENT or begin + length + 4 > size:
            raise Damaged("it is none, or longer than its record")
        (crc,) = Fields(self._source.read(start + begin + length, 4)).numbers("I")
        # The checksum is also that of the fields before the data.
        covered = Extent(self._source, start + RECORD.size, begin - RECORD.size + length)
        checked = Decoded(
            self._opening.cache, covered, NONE, covered.size, name.decode("utf-8", "replace"),
            Checksum(CRC32, crc) if crc else None, is_checked_at_end=True,
        )
        data = Slice(checked, begin - RECORD.size, length)
        return Member(tuple(name.split(b"/", 255)), Nested(name, data, self._source, f"{start}:{length}"))

    def _topics(self) -> Iterator[Topic]:
        """Yield topics in the order of their channels, those of different kinds under names of their own (§5)."""
        found: dict[bytes, dict[Any, dict[int, Channel]]] = {}
        for number, channel in self.recording.channels.items():
            self._opening.allowance.take(4 * OBJECT + 2 * len(channel.topic), "topics")
            schema = self.recording.schemas.get(channel.schema)
            if channel.schema and schema is None:
                self._opening.warn(f"schema {channel.schema} is not defined", channel.topic.decode("utf-8", "replace"))
            found.setdefault(channel.topic, {}).setdefault((channel.encoding, schema), {})[number] = channel
        paths = {topic: tuple(topic.removeprefix(b"/").split(b"/", 200)) for topic in found}
        taken = set[Name]()
        for topic, kinds in found.items():
            path = paths[topic]
            for depth in range(1, len(path)):
                if path[depth] in OWN_NAMES and path[:depth] in paths.values():
                    path = (*path[:depth], path[depth] + b"~2", *path[depth + 1 :])
            for (_, schema), channels in kinds.items():
                number, own = 1, path
                while own in taken:
                    number += 1
                    own = (*path[:-1], path[-1] + b"~%d" % number)
                taken.add(own)
                yield Topic(own, channels, schema)

    def _topic(self, topic: Topic) -> Group:
        """Return the directory of a topic."""
        messages = Messages(self.recording, self._opening.cache, topic.channels)
        channel, schema, count = topic.channel, topic.schema, messages.count
        decoding = partial(Decoding, messages, channel.encoding, schema, self._opening)
        facts = {
            "topic": channel.topic, "message_encoding": channel.encoding, "message_count": count,
            "channels": [{"id": number, "metadata": one.metadata} for number, one in topic.channels.items()],
            "schema": schema and schema.name, "schema_encoding": schema and schema.encoding,
        }

        def members() -> Iterator[Member]:
            yield Member((b"topic",), Document(b"topic", lambda: facts))
            if schema is not None and (schema.data or schema.encoding):
                name = f"schema.{SUFFIXES.get(schema.encoding, 'bin')}".encode()
                yield Member((name,), Part(name, Memory(schema.data)))
            for field, dtype in TIMES:
                key = field.encode()
                yield Member((key,), Array(key, messages.column(field), dtype, (count,)))
            try:
                yield from decoding().members()
            except LASTING as error:
                reason = f"decoded messages: {error.reason}"
                yield Member((b"fields",), Omitted(b"fields", reason, isinstance(error, Damaged)))
                yield Member((b"messages",), Series(
                    b"messages", range(count), lambda number: Blob(b"%d" % number, messages.payload(number)), digits=6,
                ))

        def meanings() -> Iterator[Member]:
            with suppress(*LASTING):  # the listing says why
                yield from decoding().meanings()

        return Group(channel.topic, members, meanings)


def open_mcap(opening: Opening) -> Container:
    """Open a recording. Raises Damaged if it has no header, and Refused for another version of the format."""
    magic = opening.source.read(0, len(MAGIC))
    if magic != MAGIC:
        raise Refused(f"has version {magic[5:6]!r} of MCAP, and glassfs reads version 0")
    contents = RecordingContents(opening)
    root = Group(b"", contents.members)
    facts = {"profile": contents.recording.profile, "library": contents.recording.library}
    return Container(
        "mcap", "0", root, [opening.source], facts, check=contents.check, summaries={"recordings": contents.summary},
        is_generic=True,
    )


FORMAT = Format("mcap", lambda head: bool(ANY_VERSION.match(head)), open_mcap)
