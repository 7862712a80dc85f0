"""Damaged MCAP recordings: damage costs what needs the damaged bytes, and no wrong value is shown."""

from __future__ import annotations

import json
import logging
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from mutants import Seed, damaged
from writers.mcap import (
    CHANNEL,
    CHUNK,
    CHUNK_INDEX,
    DATA_END,
    FOOTER,
    MAGIC,
    MESSAGE,
    MESSAGE_INDEX,
    METADATA,
    METADATA_INDEX,
    SCHEMA,
    STATISTICS,
    record,
    text,
)

import glassfs
from glassfs.errors import Damaged, GlassfsError, Refused, TooLarge
from glassfs.tree import Directory, File
from tests.conftest import Scale
from tests.formats.exercise import peak_memory
from tests.formats.mcap_files import START, STORE, IndexType, Message, a_run, files, write
from tests.helpers import array_of, omitted_in, open_bytes
from tests.memory_store import MemoryStore
from tests.tree.trees import sources_of

Found = dict[str, bytes | GlassfsError]
Record = tuple[int, bytes]
Change = Callable[[list[Record]], list[Record]]
OPTIONS = {"attachments": {"a.txt": b"an attachment"}, "metadata": {"robot": {"k": "v"}}}


def sound(folder: Path, codec: str = "zstd") -> bytes:
    return write(folder / "sound.mcap", a_run(8), codec=codec, chunk=1200, **OPTIONS).read_bytes()  # type: ignore[arg-type]


def shown(path: Path) -> Found:
    with glassfs.open(path) as run:
        return dict(files(run))


def split(raw: bytes) -> list[Record]:
    found, position = [], len(MAGIC)
    while position < len(raw) - len(MAGIC):
        op, size = struct.unpack_from("<BQ", raw, position)
        found.append((op, raw[position + 9 : position + 9 + size]))
        position += 9 + size
    return found


def joined(records: list[Record]) -> bytes:
    """Return a file of records, whose footer leads to the summary and has its checksum."""
    found, start = MAGIC, 0
    for op, content in records:
        if op == FOOTER:
            content = struct.pack("<QQ", start if start < len(found) else 0, 0)
            content += struct.pack("<I", zlib.crc32(found[start:] + struct.pack("<BQ", FOOTER, 20) + content))
        found += record(op, content)
        start = len(found) if op == DATA_END else start
    return found + MAGIC


def changed(kind: int, change: Callable[[bytes], bytes], number: int = 0) -> Change:
    """Return what changes the content of one record of a kind."""
    def apply(records: list[Record]) -> list[Record]:
        place = [at for at, (op, _) in enumerate(records) if op == kind][number]
        return [*records[:place], (kind, change(records[place][1])), *records[place + 1 :]]

    return apply


def number_at(offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """Return what replaces a number in a content."""
    size = struct.calcsize(f"<{form}")
    return lambda raw: raw[:offset] + struct.pack(f"<{form}", value) + raw[offset + size :]


def more(offset: int, form: str, difference: int) -> Callable[[bytes], bytes]:
    """Return what adds to a number in a content."""
    return lambda raw: number_at(offset, form, struct.unpack_from(f"<{form}", raw, offset)[0] + difference)(raw)


def without(kind: int, number: int | None = None) -> Change:
    """Return what leaves out one or all records of a kind."""
    def apply(records: list[Record]) -> list[Record]:
        places = [at for at, (op, _) in enumerate(records) if op == kind]
        gone = places if number is None else [places[number]]
        return [one for at, one in enumerate(records) if at not in gone]

    return apply


def before(kind: int, *added: Record) -> Change:
    """Return what adds records before the first one of a kind."""
    def apply(records: list[Record]) -> list[Record]:
        place = [op for op, _ in records].index(kind)
        return [*records[:place], *added, *records[place:]]

    return apply


def twice(kind: int) -> Change:
    return lambda records: [copy for one in records for copy in ([one, one] if one[0] == kind else [one])]


def longer(*kinds: int) -> Change:
    """Return what adds bytes to all records of some kinds."""
    return lambda records: [(op, raw + b"12" * (op in kinds)) for op, raw in records]


OTHER_CHANNEL = struct.pack("<HH", 1, 0) + text("/other") + text("json") + bytes(4)
HARMLESS: dict[str, Change] = {
    "chunk index missing": without(CHUNK_INDEX, 1), "all chunk indexes missing": without(CHUNK_INDEX),
    "chunk index twice": twice(CHUNK_INDEX), "statistics twice": twice(STATISTICS),
    "chunk index leads to the next byte": changed(CHUNK_INDEX, more(16, "Q", 1)),
    "chunk index leads outside": changed(CHUNK_INDEX, number_at(16, "Q", 1 << 62)),
    "chunk index of no length": changed(CHUNK_INDEX, number_at(24, "Q", 0)),
    "chunk index of any length": changed(CHUNK_INDEX, number_at(24, "Q", (1 << 64) - 1)),
    "places of message indexes": changed(CHUNK_INDEX, more(38, "Q", 16)),
    "length of message indexes": changed(CHUNK_INDEX, lambda raw: raw.replace(raw[32:36], b"\0\0\0\0", 1)),
    "statistics of another count": changed(STATISTICS, more(0, "Q", 1)),
    "statistics of other channels": changed(STATISTICS, lambda raw: raw[:-1] + b"\x01"),
    "schemas only in chunks": without(SCHEMA), "channels only in chunks": without(CHANNEL),
    "message indexes missing": without(MESSAGE_INDEX), "a message index missing": without(MESSAGE_INDEX, 1),
    "other times in a message index": changed(MESSAGE_INDEX, more(6, "Q", 5)),
    "other offsets in a message index": changed(MESSAGE_INDEX, more(14, "Q", 5)),
    "unknown records": before(DATA_END, (0x70, b"abc"), (0xFF, b"")),
    "unknown records in the summary": before(FOOTER, (0x80, b"x")),
    "an invalid record in the summary": before(FOOTER, (0, b"x")),
    "a record of the data section in the summary": before(FOOTER, (CHUNK, b"x")),
    "longer records": longer(CHANNEL, CHUNK_INDEX, STATISTICS),
    "a channel defined otherwise": before(FOOTER, (CHANNEL, OTHER_CHANNEL)),
    "no data end": without(DATA_END),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_other_records_say_is_shown_all_the_same(tmp_path: Path, case: str) -> None:
    raw = sound(tmp_path)
    expected = shown(tmp_path / "sound.mcap")
    (tmp_path / "bad.mcap").write_bytes(joined(HARMLESS[case](split(raw))))
    found = shown(tmp_path / "bad.mcap")
    assert all(isinstance(one, bytes) for one in expected.values())
    assert {name: one for name, one in found.items() if name != "meta/file.json"} == {
        name: one for name, one in expected.items() if name != "meta/file.json"
    }
    facts = json.loads(found["meta/file.json"])  # type: ignore[arg-type]
    assert facts["message_count"] == 20 and facts["start_time"] == START


LAST = -1
COSTLY: dict[str, Change] = {
    "checksum": changed(CHUNK, more(24, "I", 1), LAST), "bytes": changed(CHUNK, lambda raw: raw[:-1] + b"\xa5", LAST),
    "compression": changed(CHUNK, lambda raw: raw.replace(b"zstd", b"lzma", 1), LAST),
    "other compression": changed(CHUNK, lambda raw: raw.replace(b"zstd", b"lz4\0", 1), LAST),
    "size": changed(CHUNK, more(16, "Q", 1), LAST), "smaller size": changed(CHUNK, more(16, "Q", -1), LAST),
    "size of a bomb": changed(CHUNK, number_at(16, "Q", 1 << 62), LAST),
    "greatest size": changed(CHUNK, number_at(16, "Q", (1 << 64) - 1), LAST),
    "no size": changed(CHUNK, number_at(16, "Q", 0), LAST),
    "length of the records": changed(CHUNK, more(36, "Q", 1 << 40), LAST),
    "no records": changed(CHUNK, number_at(36, "Q", 0), LAST),
}


@pytest.mark.parametrize("case", COSTLY)
@pytest.mark.parametrize("has_summary", [True, False])
def test_a_damaged_chunk_costs_what_needs_it(tmp_path: Path, case: str, has_summary: bool) -> None:
    raw = sound(tmp_path)
    expected = shown(tmp_path / "sound.mcap")
    records = COSTLY[case](split(raw))
    bad = joined(records)
    (tmp_path / "bad.mcap").write_bytes(bad if has_summary else bad[:-20])
    found = shown(tmp_path / "bad.mcap")
    failed = {name for name, one in found.items() if isinstance(one, GlassfsError)}
    assert "topics/joints/log_time.npy" in failed and "topics/joints/messages.jsonl" in failed
    readable = found.keys() - failed - {"meta/file.json"}
    assert all(found[name] == expected[name] for name in readable)
    images = {name for name in readable if "/images/" in name}
    assert images and readable >= {"attachments/a.txt", "metadata/robot.json"}


WITHOUT_END: dict[str, Change] = {
    "chunk becomes a footer": lambda records: [(FOOTER if op == CHUNK else op, raw) for op, raw in records],
    "chunk becomes the end": lambda records: [(DATA_END if op == CHUNK else op, raw) for op, raw in records],
    "a short footer before": before(CHUNK, (FOOTER, bytes(12))),
    "first chunk becomes unknown": lambda records: [
        (0xFF if at == [op for op, _ in records].index(CHUNK) else op, raw) for at, (op, raw) in enumerate(records)
    ],
    "all chunks become unknown": lambda records: [(0xFF if op == CHUNK else op, raw) for op, raw in records],
}


@pytest.mark.parametrize("case", WITHOUT_END)
def test_a_false_end_is_said(tmp_path: Path, case: str) -> None:
    records = WITHOUT_END[case](split(sound(tmp_path)))
    container = open_bytes(joined([one for one in records if one[0] not in (CHUNK_INDEX, STATISTICS)]))
    said = omitted_in(container.root).values()  # of channels that only the lost chunk defined, the later one
    assert any("not finished" in reason or "not defined" in reason for reason in said)


def test_message_indexes_of_any_length_take_no_memory(tmp_path: Path) -> None:
    """Of recordings without a summary they are all that is known without decoding."""
    raw = write(tmp_path / "run.mcap", a_run(8), codec="zstd", use_summary_offsets=False).read_bytes()
    records = changed(MESSAGE_INDEX, number_at(2, "I", (1 << 32) - 16))(split(raw))
    path = tmp_path / "bad.mcap"
    path.write_bytes(joined([one for one in records if one[0] not in (CHUNK_INDEX, STATISTICS)])[:-20])

    def read() -> None:
        with glassfs.open(path, cache_size=32 << 20) as run:
            for name, _ in files(run):
                assert name

    assert peak_memory(read) < 64 << 20


def test_more_messages_than_the_cache_has_room_for_are_refused(tmp_path: Path) -> None:
    """Their indexes may be a hole in the file."""
    head = MAGIC + record(1, text("") + text("")) + record(CHANNEL, struct.pack("<HH", 1, 0) + text("/a") + bytes(8))
    path = tmp_path / "bad.mcap"
    with path.open("wb") as file:
        file.write(head + record(CHUNK, bytes(28) + text("") + bytes(8)))
        file.write(struct.pack("<BQHI", MESSAGE_INDEX, 6 + (1 << 31), 1, 1 << 31))
        file.seek(1 << 31, 1)
        file.write(record(DATA_END, bytes(4)) + record(FOOTER, bytes(20)) + MAGIC)

    def read() -> None:
        with glassfs.open(path, cache_size=32 << 20) as run, pytest.raises(TooLarge, match="a larger cache_size"):
            run["topics/a/log_time.npy"].open().read(200)

    assert peak_memory(read) < 64 << 20


def test_listings_do_not_fail_where_lengths_are_unknown(tmp_path: Path) -> None:
    """Files whose size is said to be known have one, also those in sequences of structures."""
    types = STORE.types
    transform, pose = types["geometry_msgs/msg/TransformStamped"], types["geometry_msgs/msg/Transform"]
    moved = pose(types["geometry_msgs/msg/Vector3"](1, 2, 3), types["geometry_msgs/msg/Quaternion"](0, 0, 0, 1))
    stamp = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](1, 2), "base")
    messages = [
        Message("/tf", "tf2_msgs/msg/TFMessage", START + number, types["tf2_msgs/msg/TFMessage"](
            [transform(stamp, f"child {number}", moved)] * (number % 3),
        )) for number in range(9)
    ]
    raw = write(tmp_path / "run.mcap", messages, codec="none", chunk=300).read_bytes()
    tree = sources_of(MemoryStore({"run.mcap": raw.replace(b"child 4", b"child x")}), "run.mcap").tree
    found = tree.lookup("topics/tf/fields/transforms")
    assert isinstance(found, Directory)
    names = {node.name: node for node in found.listing()}
    assert names.keys() == {"offsets.npy", "child_frame_id.jsonl", "header", "transform"}
    offsets = names["offsets.npy"]
    assert isinstance(offsets, File) and offsets.data.is_sized and offsets.size == 128 + 8 * 10
    with pytest.raises(Damaged, match="checksum"):
        offsets.data.whole()


def test_the_data_section_has_a_checksum_that_is_verified(tmp_path: Path) -> None:
    raw = write(tmp_path / "run.mcap", a_run(3), enable_data_crcs=True, **OPTIONS).read_bytes()  # type: ignore[arg-type]
    assert not list(open_bytes(raw).check())
    (fault,) = open_bytes(raw.replace(b"robot", b"Robot", 1)).check()
    assert "checksum" in fault.reason


REFUSED: dict[str, Callable[[bytes], bytes]] = {
    "another version": lambda raw: raw.replace(b"MCAP0", b"MCAP1"), "no header": lambda raw: MAGIC + raw[40:],
    "magic only": lambda raw: MAGIC, "a header of any length": lambda raw: MAGIC + struct.pack("<BQ", 1, 1 << 62),
    "a short header": lambda raw: MAGIC + record(1, b"\5\0\0\0abc") + raw[-37:],
}


@pytest.mark.parametrize("case", REFUSED)
def test_recordings_without_a_header_are_refused(case: str, tmp_path: Path) -> None:
    with pytest.raises((GlassfsError, Refused)):
        open_bytes(REFUSED[case](sound(tmp_path)))


def test_a_damaged_metadata_record_is_omitted(tmp_path: Path) -> None:
    path = write(tmp_path / "run.mcap", a_run(2), metadata={"a": {"k": "v"}, "b": {"k": "v"}})
    records = split(path.read_bytes())
    path.write_bytes(joined(changed(METADATA, number_at(5, "I", 1 << 30))(records)))
    with glassfs.open(path) as run:
        assert list(run["metadata"]) == ["b.json"]
    assert any("metadata" in reason for reason in omitted_in(open_bytes(path.read_bytes()).root).values())


@pytest.mark.parametrize("has_summary", [True, False])
def test_a_chunk_that_cannot_be_counted_is_a_fault(tmp_path: Path, has_summary: bool) -> None:
    """Without message indexes it is unknown which messages it has: rows are missing, and that is said."""
    options = {"index_types": IndexType.ALL ^ IndexType.MESSAGE}
    raw = write(tmp_path / "sound.mcap", a_run(8), chunk=1200, **options).read_bytes()
    bad = joined(COSTLY["checksum"](split(raw)))
    container = open_bytes(bad if has_summary else bad[:-20])
    assert any("checksum" in reason for reason in omitted_in(container.root).values())
    assert 0 < len(array_of(container, "topics/joints/log_time")) < 8


LEGAL: dict[str, dict[str, Any]] = {
    "no attachment and metadata indexes": {"index_types": IndexType.CHUNK | IndexType.MESSAGE},
    "only message indexes": {"index_types": IndexType.MESSAGE}, "no indexes": {"index_types": IndexType.NONE},
    "no channels": {"repeat_channels": False}, "no schemas": {"repeat_schemas": False},
    "no chunks and statistics": {"use_chunking": False, "use_statistics": False},
}


@pytest.mark.parametrize("case", LEGAL)
def test_what_writers_may_leave_out_is_no_damage(tmp_path: Path, case: str) -> None:
    expected = shown(write(tmp_path / "sound.mcap", a_run(8), **OPTIONS))  # type: ignore[arg-type]
    path = write(tmp_path / "made.mcap", a_run(8), **OPTIONS, **LEGAL[case])  # type: ignore[arg-type]
    found, container = shown(path), open_bytes(path.read_bytes())
    facts = {name: json.loads(one.pop("meta/file.json")) for name, one in (("made", found), ("sound", expected))}
    assert found == expected and facts["made"] | {"chunks": 0} == facts["sound"] | {"chunks": 0}
    assert not list(container.check()) and not omitted_in(container.root)


def sparse(path: Path, *heads: bytes, hole: int) -> Path:
    """Write a recording without summary, whose last record ends with a hole."""
    with path.open("wb") as file:
        file.write(MAGIC + record(1, text("") + text("")) + b"".join(heads))
        file.truncate(file.tell() + hole)
    return path


HOLE = 1 << 30
JSON_CHANNEL = record(CHANNEL, struct.pack("<HH", 1, 0) + text("/a") + text("json") + bytes(4))
CDR_CHANNEL = record(CHANNEL, struct.pack("<HH", 1, 1) + text("/a") + text("cdr") + bytes(4))
BYTES, IMAGE = (
    record(SCHEMA, struct.pack("<H", 1) + text(name) + text("ros2msg") + text("uint8[] data")) + CDR_CHANNEL
    for name in ("a/Bytes", "sensor_msgs/msg/Image")
)
HUGE_MESSAGE = struct.pack("<BQHIQQ", MESSAGE, 22 + HOLE, 1, 0, 0, 0)
CHUNK_OF_A_HOLE = struct.pack("<BQQQQI", CHUNK, 49 + HOLE, 0, 0, HOLE + 9, 0) + text("") + struct.pack("<Q", HOLE + 9)
TINY = zstandard.compress(record(MESSAGE, struct.pack("<HIQQ", 1, 0, 0, 0)) * 1_000_000)
TINY_CHUNK = struct.pack("<QQQI", 0, 0, 31_000_000, 0) + text("zstd") + struct.pack("<Q", len(TINY)) + TINY
HUGE: dict[str, tuple[list[bytes], int]] = {
    "message of JSON": ([JSON_CHANNEL, HUGE_MESSAGE], HOLE), "message of bytes": ([BYTES, HUGE_MESSAGE], HOLE),
    "image": ([IMAGE, HUGE_MESSAGE], HOLE),
    "unknown record in a chunk": ([JSON_CHANNEL, CHUNK_OF_A_HOLE, struct.pack("<BQ", 200, HOLE)], HOLE),
    "tiny messages": ([JSON_CHANNEL, record(CHUNK, TINY_CHUNK)], 0),
}


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=pytest.mark.slow) if case == "tiny messages" else case for case in HUGE
])
def test_small_files_take_little_memory(tmp_path: Path, case: str) -> None:
    heads, hole = HUGE[case]
    path = sparse(tmp_path / "huge.mcap", *heads, hole=hole)

    def read() -> None:
        with glassfs.open(path, cache_size=32 << 20) as run:
            for _, found in files(run):
                assert found is not None

    assert peak_memory(read) < 100 << 20


def test_one_metadata_record_is_listed_once(tmp_path: Path) -> None:
    raw = write(tmp_path / "sound.mcap", a_run(2), metadata={"a": {"k": "v"}}).read_bytes()
    (tmp_path / "bad.mcap").write_bytes(joined(twice(METADATA_INDEX)(split(raw))))
    with glassfs.open(tmp_path / "bad.mcap") as run:
        assert list(run["metadata"]) == ["a.json"]


@pytest.mark.parametrize("kind", ["chunks", "records"])
def test_bombs_take_little_memory(tmp_path: Path, kind: str) -> None:
    if kind == "chunks":
        stored = zstandard.compress(bytes(300 << 20))
        head = struct.pack("<QQQI", 0, 0, len(stored), 0) + text("zstd") + struct.pack("<Q", len(stored))
        raw = MAGIC + record(1, text("") + text("")) + record(CHUNK, head + stored)
    else:
        raw = MAGIC + record(1, text("") + text("")) + b"".join(
            record(CHANNEL, struct.pack("<HH", number, 0) + text("/" * 50 + str(number)) + text("") + bytes(4))
            for number in range(1, 60_000)
        )
    path = tmp_path / "bomb.mcap"
    path.write_bytes(raw)

    def read() -> None:
        try:
            with glassfs.open(path, cache_size=32 << 20) as run:
                list(run["topics"])
        except GlassfsError:
            pass

    assert peak_memory(read) < 64 << 20


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
def test_no_wrong_value_is_shown(tmp_path: Path, codec: str, scale: Scale, caplog: pytest.LogCaptureFixture) -> None:
    """Chunks and the summary have checksums: what is shown of mutants is shown of the sound recording."""
    caplog.set_level(logging.CRITICAL)
    raw, path, chance = sound(tmp_path, codec), tmp_path / "mutant.mcap", random.Random(codec)
    expected = shown(tmp_path / "sound.mcap")
    lines = {line for one in expected.values() if isinstance(one, bytes) for line in one.split(b"\n")}
    images = {one for name, one in expected.items() if "/images/" in name}
    compared = 0
    for number in range(scale(40, 300, 1000)):
        path.write_bytes(damaged(raw, [Seed("sound", raw)], chance))
        try:
            found = shown(path)
        except GlassfsError:
            continue
        for name, one in found.items():
            if isinstance(one, GlassfsError):
                continue
            if name.endswith("messages.jsonl"):
                wrong = [line for line in one.split(b"\n") if line not in lines and b'"data": null' not in line]
                assert not wrong, (number, name, wrong[:1])
                compared += 1
            elif "/images/" in name:
                assert one in images, (number, name)
                compared += 1
    assert compared > 50
