"""MCAP recordings, against the official reader and rosbags."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writers.mcap import COMPRESSED_IMAGE, JOINT_STATE, McapWriter, compressed_image, joint_state

import glassfs
from glassfs.errors import Damaged, Refused
from glassfs.formats.mcap import FORMAT
from glassfs.formats.mcap.recording import Recording
from glassfs.testing import FormatTests
from tests.formats import mcap_files
from tests.formats.mcap_files import (
    JOINTS,
    SECOND,
    START,
    STORE,
    IndexType,
    Message,
    a_run,
    files,
    joints,
    official,
    write,
)
from tests.helpers import CountingSource, opening

KINDS: dict[str, dict[str, Any]] = {
    "zstd": {}, "lz4": {"codec": "lz4"}, "none": {"codec": "none"}, "one chunk": {"chunk": 1 << 20},
    "no chunks": {"use_chunking": False}, "no statistics": {"use_statistics": False},
    "no message index": {"index_types": IndexType.ALL ^ IndexType.MESSAGE},
    "no chunk index": {"index_types": IndexType.ALL ^ IndexType.CHUNK},
    "no summary": {
        "index_types": IndexType.NONE, "use_statistics": False, "repeat_channels": False, "repeat_schemas": False,
        "use_summary_offsets": False,
    },
    "no checksums": {"enable_crcs": False}, "checksum of data": {"enable_data_crcs": True},
}


class TestConformance(FormatTests):
    format = FORMAT

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def containers(self) -> Iterable[Path | bytes]:
        attached = {"a/b.txt": b"text"}
        yield write(self.folder / "run.mcap", a_run(4), attachments=attached, metadata={"robot": {"a": "b"}})
        yield write(self.folder / "loose.mcap", a_run(3), use_chunking=False)

    def damaged(self) -> Iterable[Path | bytes]:
        whole = write(self.folder / "whole.mcap", a_run(3)).read_bytes()
        yield whole[: len(whole) // 2]
        yield whole.replace(b"float64[] position", b"float64[] posit\xff\xffn")


@pytest.mark.parametrize("kind", KINDS)
def test_all_values_are_those_of_the_official_reader(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "run.mcap", a_run(), **KINDS[kind])
    expected, cameras = official(path, "/joints"), official(path, "/camera/front")
    decoded = [STORE.deserialize_cdr(message.data, JOINTS) for message in expected]
    with glassfs.open(path) as run:
        topic = run["topics/joints"]
        assert topic["log_time"].numpy().tolist() == [message.log_time for message in expected]
        assert topic["publish_time"].numpy().tolist() == [message.publish_time for message in expected]
        assert topic["sequence"].numpy().tolist() == [message.sequence for message in expected]
        for name in ("position", "velocity", "effort"):
            assert np.array_equal(topic[f"fields/{name}"].numpy(), np.stack([getattr(one, name) for one in decoded]))
        assert topic["fields/header/stamp"].numpy().tolist() == [number * SECOND + 5 for number in range(12)]
        assert [json.loads(line) for line in topic["fields/name.jsonl"].text().splitlines()] == [
            one.name for one in decoded
        ]
        lines = [json.loads(line) for line in topic["messages.jsonl"].text().splitlines()]
        assert [line["data"]["position"] for line in lines] == [one.position.tolist() for one in decoded]
        images = run["topics/camera/front/images"]
        assert list(images) == [f"{number:06d}.jpg" for number in range(len(cameras))]
        assert [one.bytes() for one in images.values()] == [
            bytes(STORE.deserialize_cdr(one.data, "sensor_msgs/msg/CompressedImage").data) for one in cameras
        ]
        notes = [json.loads(line) for line in run["topics/notes/messages.jsonl"].text().splitlines()]
        assert [note["data"]["number"] for note in notes] == list(range(12))
        facts = run["meta/file.json"].json()
        assert facts["complete"] and facts["message_count"] == 30 and facts["start_time"] == START


@pytest.mark.parametrize("kind", ["zstd", "none", "no chunks"])
def test_messages_out_of_order_are_sorted_by_time_and_place(tmp_path: Path, kind: str) -> None:
    times = [5, 1, 9, 9, 2, 0, 7, 7, 3, 3, 8, 4]
    messages = [Message("/joints", JOINTS, START + time, joints(number)) for number, time in enumerate(times)]
    path = write(tmp_path / "run.mcap", messages, **{**KINDS[kind], "chunk": 700})
    with glassfs.open(path) as run:
        found = run["topics/joints/fields/position"].numpy()[:, 0]
        assert found.tolist() == sorted(range(12), key=lambda number: (times[number], number))


@given(
    st.lists(st.tuples(st.sampled_from(["/a", "/b", "/a/c"]), st.integers(0, 9)), max_size=30),
    st.sampled_from(sorted(KINDS)), st.integers(1, 400),
)
def test_any_order_of_messages_is_that_of_the_official_reader(
    sent: list[tuple[str, int]], kind: str, chunk: int,
) -> None:
    messages = [
        Message(topic, "note", START + time, json.dumps(number).encode(), "json")
        for number, (topic, time) in enumerate(sent)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "run.mcap", messages, **{"chunk": chunk, **KINDS[kind]})
        with glassfs.open(path) as run:
            for topic in {topic for topic, _ in sent}:
                lines = [json.loads(line) for line in run[f"topics{topic}/messages.jsonl"].text().splitlines()]
                assert [tuple(line.values()) for line in lines] == [
                    (one.log_time, one.publish_time, one.sequence, json.loads(one.data))
                    for one in official(path, topic)
                ]


def test_opening_reads_the_end_and_no_chunk(tmp_path: Path) -> None:
    path = write(tmp_path / "run.mcap", a_run(200), chunk=400)
    source = CountingSource(path)
    recording = Recording(opening(source))
    assert len(recording.chunks) > 50 and len(source.reads) <= 4


def test_sequences_of_other_lengths_have_offsets(tmp_path: Path) -> None:
    counts = [3, 0, 5, 1]
    messages = [Message("/j", JOINTS, START + number, joints(number, count)) for number, count in enumerate(counts)]
    with glassfs.open(write(tmp_path / "run.mcap", messages), views="parquet") as run:
        fields = run["topics/j/fields"]
        assert fields["position/offsets"].numpy().tolist() == [0, 3, 3, 8, 9]
        assert fields["position/values"].numpy().tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 3]
        table = pq.read_table(io.BytesIO(run["topics/j/topic.parquet"].bytes()))
        assert table["position"].to_pylist() == [[0, 1, 2], [], [2, 3, 4, 5, 6], [3]]
        assert table["log_time"].to_pylist() == [START + number for number in range(4)]
        assert table["header.frame_id"].to_pylist() == [f"frame {number}" for number in range(4)]


def test_many_messages_are_decoded_in_batches(tmp_path: Path) -> None:
    """More than one batch, one of which has rows of another length."""
    with McapWriter(tmp_path / "run.mcap", chunk_size=50_000) as writer:
        channel = writer.add_channel("/j", JOINTS, JOINT_STATE)
        lengths = [2 + (number == 2500) for number in range(3000)]
        for number, length in enumerate(lengths):
            writer.add(channel, number, joint_state(number, ["a"] * length, [number + 0.5] * length))
    with glassfs.open(tmp_path / "run.mcap") as run:
        fields = run["topics/j/fields"]
        assert fields["position/offsets"].numpy()[-1] == 6001
        assert fields["position/values"].numpy().tolist() == [
            number + 0.5 for number, length in enumerate(lengths) for _ in range(length)
        ]
        assert fields["header/stamp"].numpy().tolist() == list(range(3000))
        assert len(fields["name.jsonl"].text().splitlines()) == 3000


def test_a_recording_that_goes_on_is_a_new_version(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.mcap", a_run()).read_bytes()
    path = tmp_path / "run.mcap"
    counts = []
    for share in (0.3, 0.6, 1.0):
        path.write_bytes(whole[: int(share * len(whole))])
        with glassfs.open(path) as run:
            counts.append((run["meta/file.json"].json()["message_count"], run["meta/file.json"].json()["complete"]))
    assert 0 < counts[0][0] < counts[1][0] < counts[2][0] == 30
    assert [complete for _, complete in counts] == [False, False, True]


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_every_cut_shows_a_beginning_of_the_messages(tmp_path: Path, codec: str) -> None:
    whole = write(tmp_path / "whole.mcap", a_run(3), codec=codec, chunk=600).read_bytes()
    with glassfs.open(tmp_path / "whole.mcap") as run:
        expected = dict(files(run))["topics/notes/messages.jsonl"]
    assert isinstance(expected, bytes)
    for end in range(0, len(whole), 7):
        (tmp_path / "cut.mcap").write_bytes(whole[:end])
        try:
            found = Recording(opening(tmp_path / "cut.mcap"))
        except Damaged:
            assert end < 100
            continue
        if end % 35 == 0 and not found.is_complete:
            with glassfs.open(tmp_path / "cut.mcap") as run:
                lines = dict(files(run)).get("topics/notes/messages.jsonl", b"")
            assert isinstance(lines, bytes) and expected.startswith(lines)


def test_a_damaged_chunk_costs_only_its_own_messages(tmp_path: Path) -> None:
    path = write(tmp_path / "run.mcap", a_run(), codec="none")
    with glassfs.open(path) as run:
        expected = dict(files(run))
    chunk = Recording(opening(path)).chunks[1]
    raw = bytearray(path.read_bytes())
    raw[chunk.start + chunk.size - 3] ^= 0xFF
    path.write_bytes(raw)
    with glassfs.open(path) as run:
        found = dict(files(run))
    failed = {name for name, value in found.items() if isinstance(value, Exception)}
    assert failed and all(found[name] == expected[name] for name in found.keys() & expected.keys() - failed)
    images = [isinstance(value, bytes) for name, value in found.items() if "/images/" in name]
    assert True in images and False in images


def test_attachments_and_metadata_have_their_names(tmp_path: Path) -> None:
    attached = {"calib/left.yaml": b"fx: 1", "../x": b"x", "": b"empty name", "e.bin": b""}
    path = write(tmp_path / "run.mcap", a_run(2), attachments=attached, metadata={"a/b": {"k": "v", "": "e"}})
    with glassfs.open(path) as run:
        folder = run["attachments"]
        assert {name: folder[name].bytes() for name in ("calib/left.yaml", "%2E%2E/x", "%", "e.bin")} == {
            "calib/left.yaml": b"fx: 1", "%2E%2E/x": b"x", "%": b"empty name", "e.bin": b"",
        }
        assert run["metadata/a%2Fb.json"].json() == {"k": "v", "": "e"}


def test_a_wrong_attachment_fails(tmp_path: Path) -> None:
    path = write(tmp_path / "run.mcap", a_run(2), attachments={"a.txt": b"a text of some length"})
    path.write_bytes(path.read_bytes().replace(b"a text of", b"A text of"))
    with glassfs.open(path) as run, pytest.raises(Damaged, match="checksum"):
        run["attachments/a.txt"].bytes()


def test_topics_are_directories_under_distinct_names(tmp_path: Path) -> None:
    topics = ["/a", "/a/b", "a", "/a/fields", "//x", "/", "/a/../c"]
    messages = [Message(topic, JOINTS, START, joints(number)) for number, topic in enumerate(topics)]
    messages.append(Message("/a", "sensor_msgs/msg/CompressedImage", START, mcap_files.compressed(1, b"no image")))
    with glassfs.open(write(tmp_path / "run.mcap", messages)) as run:
        places = ["a", "a/b", "a~3", "a/fields~2", "%/x", "%", "a/%2E%2E/c"]
        found = [int(run[f"topics/{place}/fields/position"].numpy()[0, 0]) for place in places]
        assert found == list(range(7))
        assert run["topics/a~2/images/000000.bin"].bytes() == b"no image"


def test_other_versions_are_refused(tmp_path: Path) -> None:
    raw = write(tmp_path / "run.mcap", a_run(1)).read_bytes()
    (tmp_path / "run.mcap").write_bytes(raw.replace(b"\x89MCAP0", b"\x89MCAP1"))
    with pytest.raises(Refused, match="version"):
        glassfs.open(tmp_path / "run.mcap")


def test_tables_of_recordings_and_episodes_by_layout(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for number in range(2):
        with McapWriter(tmp_path / f"runs/{number}.mcap") as writer:
            camera = writer.add_channel("/camera", "sensor_msgs/msg/CompressedImage", COMPRESSED_IMAGE)
            arm = writer.add_channel("/arm", JOINTS, JOINT_STATE)
            for step in range(10):
                image = mcap_files.picture(step)
                writer.add(camera, START + step * SECOND // 10, compressed_image(0, image))
                for part in range(5):
                    time = START + step * SECOND // 10 + part * SECOND // 50
                    writer.add(arm, time, joint_state(time, ["a"], [5.0 * step + part]))
    layout = tmp_path / "mine.toml"
    layout.write_text(
        'name = "mine"\nmatch = ["topics/camera/log_time"]\n[episodes]\nwhole = true\n[steps]\n'
        'base = "topics/camera/log_time"\n[roles]\nstate = "topics/arm/fields/position"\n'
    )
    with glassfs.open(tmp_path / "runs", layout=str(layout), views="jsonl+lerobot") as runs:
        rows = [json.loads(line) for line in runs["recordings.jsonl"].text().splitlines()]
        assert [(row["container"], row["messages"], row["topics"]) for row in rows] == [
            (f"{number}.mcap", 60, ["/camera", "/arm"]) for number in range(2)
        ]
        assert rows[0]["duration"] == pytest.approx(0.98)
        episodes = list(runs.episodes())
        assert [(row["num_frames"], row["fps"], row["cameras"]) for row in episodes] == [
            (10, pytest.approx(10), ["topics/camera/images"])
        ] * 2
        (name,) = runs["lerobot"]
        table = pq.read_table(io.BytesIO(runs[f"lerobot/{name}/data/chunk-000/file-000.parquet"].bytes()))
        assert np.ravel(table["observation.state"].to_pylist()).tolist() == [5.0 * step for step in range(10)] * 2
