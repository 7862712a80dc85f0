"""Damaged MCAP recordings against the official readers: what both read is shown, and nothing that neither finds."""

from __future__ import annotations

import io
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from mcap.reader import McapReader, NonSeekingReader, SeekingReader
from mutants import Seed, damaged

from glassfs.errors import GlassfsError
from glassfs.formats.mcap import RecordingContents
from glassfs.formats.mcap.messages import Messages
from tests.conftest import Scale
from tests.formats.mcap_files import IndexType, a_run, write
from tests.helpers import opening

Message = tuple[str, int, int, int, bytes]
"""Topic, log time, publish time, sequence and data."""


class Reading(NamedTuple):
    """What a reader found, up to its error if it raised one or says that something is missing."""

    messages: list[Message]
    error: Exception | str | None

    @property
    def is_whole(self) -> bool:
        return self.error is None


def by_official(reader: Callable[[io.BytesIO], McapReader], raw: bytes) -> Reading:
    found: list[Message] = []
    try:
        for _, channel, message in reader(io.BytesIO(raw)).iter_messages(log_time_order=False):
            found.append((channel.topic, message.log_time, message.publish_time, message.sequence, message.data))
    except Exception as error:  # also those of struct, zstandard and lz4
        return Reading(found, error)
    return Reading(found, None)


def by_glassfs(path: Path) -> Reading:
    found: list[Message] = []
    errors: list[Exception | str] = []
    try:
        opened = opening(path)
        contents = RecordingContents(opened)
        recording = contents.recording
        errors += [fault.reason for fault in recording.faults]
        errors += [] if recording.is_complete else ["is not complete"]
        for topic in contents.topics:
            messages = Messages(recording, opened.cache, topic.channels)
            name = topic.channel.topic.decode("utf-8", "replace")
            found += readable(messages, name, errors)
    except GlassfsError as error:
        errors.append(error)
    return Reading(found, errors[0] if errors else None)


def readable(messages: Messages, topic: str, errors: list[Exception | str]) -> Iterator[Message]:
    try:
        rows = messages.rows(0, messages.count)
    except GlassfsError as error:
        errors.append(error)
        return
    for number, row in enumerate(rows):
        try:
            data = bytes(messages.payload(number).whole())
            yield topic, int(row["log_time"]), int(row["publish_time"]), int(row["sequence"]), data
        except GlassfsError as error:
            errors.append(error)


CODECS = {"zstd": {}, "lz4": {}, "none": {}, "lz4 without message indexes": {"index_types": ~IndexType.MESSAGE}}
READERS = [
    partial(reader, validate_crcs=True, record_size_limit=1 << 28) for reader in (SeekingReader, NonSeekingReader)
]


@pytest.mark.parametrize("case", CODECS)
def test_mutants_show_what_the_official_readers_read(
    tmp_path: Path, case: str, scale: Scale, caplog: pytest.LogCaptureFixture,
) -> None:
    """All chunks have checksums. Messages that the official readers do not find either may be missing without a word:
    those of a record that has become one of an unknown kind are skipped, as the specification demands.
    """
    caplog.set_level(logging.CRITICAL)
    path, chance = tmp_path / "run.mcap", random.Random(case)
    sound = write(path, a_run(8), codec=case.split()[0], chunk=1200, **CODECS[case]).read_bytes()
    whole = sorted(by_glassfs(path).messages)
    assert len(whole) == 20 and all(sorted(by_official(reader, sound).messages) == whole for reader in READERS)
    agreed = 0
    for number in range(scale(60, 600, 10_000)):
        raw = damaged(sound, [Seed("sound", sound)], chance)
        path.write_bytes(raw)
        found, readings = by_glassfs(path), [by_official(reader, raw) for reader in READERS]
        known = {*whole, *(message for reading in readings for message in reading.messages)}
        assert known.issuperset(found.messages), number
        if found.is_whole:
            assert len(found.messages) >= max(len(reading.messages) for reading in readings), number
        if all(reading.is_whole and sorted(reading.messages) == whole for reading in readings):
            assert sorted(found.messages) == whole or not found.is_whole, number
            agreed += 1
    assert agreed > 1
