"""MCAP recordings beside others and in other forms: folders, CSV, pages, containers inside, commands."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np

import glassfs
from tests.cli.glassfs_command import glassfs as command
from tests.formats.mcap_files import START, a_run, write
from tests.formats.npz_files import saved


def test_csv_has_a_line_for_each_message(tmp_path: Path) -> None:
    path = write(tmp_path / "run.mcap", a_run(5))
    with glassfs.open(path, views="csv") as run:
        first, *rows = csv.reader(io.StringIO(run["topics/joints/topic.csv"].text()))
        assert first == ["log_time", "publish_time", "sequence", "header.stamp", "header.frame_id", "name", "position",
                         "velocity", "effort"]
        assert [int(row[0]) for row in rows] == run["topics/joints/log_time"].numpy().tolist()
        assert [json.loads(row[6]) for row in rows] == run["topics/joints/fields/position"].numpy().tolist()
        assert "topic.csv" in run["topics/camera/front"] and "topic.csv" not in run["topics/notes"]


def test_pages_name_topics_and_recordings(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"{number}.mcap", a_run(5 * number))
    (tmp_path / "none.mcap").write_bytes(b"\x89MCAP0\r\r" + bytes(100))
    with glassfs.open(tmp_path, views="html+jsonl") as folder:
        assert {"1.mcap", "2.mcap", "none.mcap", "recordings.html", "recordings.jsonl"} <= set(folder)
        assert not folder["none.mcap"].is_dir()
        assert "/camera/front" in folder["recordings.html"].text()
        rows = [json.loads(line) for line in folder["recordings.jsonl"].text().splitlines()]
        assert [(row["container"], row["profile"], row["messages"], row["start_time"]) for row in rows] == [
            (f"{number}.mcap", "ros2", count, START) for number, count in ((1, 13), (2, 25))
        ]


def test_containers_in_attachments_are_directories(tmp_path: Path) -> None:
    archive = saved({"k": np.arange(6.0)})
    path = write(tmp_path / "run.mcap", a_run(1), attachments={"calib/left.npz": archive, "b.npz": b"no archive"})
    with glassfs.open(path) as run:
        assert run["attachments/calib/left.npz/k"].numpy().tolist() == list(range(6))
        assert run["attachments/b.npz"].bytes() == b"no archive"


def test_recordings_of_other_compression_have_equal_messages(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{codec}.mcap", a_run(6), codec=codec, chunk=900) for codec in ("zstd", "lz4", "none")]
    found = []
    for path in paths:
        with glassfs.open(path) as run:
            found.append([
                run[f"topics/{topic}/messages.jsonl"].text() for topic in ("joints", "notes", "camera/front")
            ])
    assert found[0] == found[1] == found[2]
    done = command("verify", *paths)
    assert done.status == 0 and "0 faults" in (done.lines + done.errors)[-1]


def test_verify_names_the_damaged_chunk(tmp_path: Path) -> None:
    path = write(tmp_path / "run.mcap", a_run(6), codec="none")
    path.write_bytes(path.read_bytes().replace(b"frame 3", b"frame x", 1))
    done = command("verify", path)
    assert done.status == 1
    assert any("chunk at" in line and "its checksum does not match" in line for line in done.lines + done.errors)
