"""WShard episodes as a whole: record, cameras, the table that lists them, films as MP4, and steps as rows."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest
from writers.wshard import WShardWriter, write_chunked, write_manifest

from glassfs.cache import BlockCache
from glassfs.content import Array, Container, Group, Recording, Table, members_of, table
from glassfs.content.episodes import MOST_CAMERAS
from glassfs.errors import Damaged
from glassfs.library import open_tree
from glassfs.tree import File
from glassfs.view.parquet import VIEW
from tests.formats.derived import BUDGET, shown_in, whole
from tests.formats.exercise import peak_memory
from tests.formats.wshard_files import blocks_of, made, with_entry, with_flipped
from tests.helpers import attributes_of, open_bytes, open_path
from tests.view.videos import boxes

STEPS = 6
RNG = np.random.default_rng(11)
COLOURS = RNG.integers(0, 256, (STEPS, 3)).astype(np.uint8)
VIDEO = np.broadcast_to(COLOURS[:, None, None], (STEPS, 20, 36, 3)).copy()
"""Of one colour a frame."""
MOST_TRACED = 96 << 20


def rate_of(file: bytes) -> float:
    found = boxes(file)
    (second,) = struct.unpack_from(">I", found[b"mdhd"], 4 + 16)
    _, _, _, frame = struct.unpack(">4I", found[b"stts"])
    return float(second / frame)


@pytest.mark.parametrize(("episode", "world", "expected"), [
    ({"type": "ticks", "tick_hz": 20, "dt_ns": 33333333}, None, 20),
    ({"type": "ticks", "dt_ns": 33333333}, None, 30),
    ({"type": "timestamps_ns", "tick_hz": 59.94}, {"tick_hz": 5}, 59.94),
    (None, {"type": "ticks", "tick_hz": 5}, 5),
    ("ticks", {"type": "ticks", "tick_hz": 5}, 5),
    ("ticks", "ticks", 10),
    ({"tick_hz": "20", "dt_ns": True}, None, 10),
    ({"tick_hz": 0, "dt_ns": -1}, [], 10),
    ({"tick_hz": float("nan")}, {"dt_ns": float("inf")}, 10),
    ({"tick_hz": 10**30}, None, 10),
    (None, None, 10),
])
def test_the_rate_is_that_of_the_time_base(episode: Any, world: Any, expected: float) -> None:
    def fill(writer: WShardWriter) -> None:
        writer.add_channel("film", VIDEO)
        writer.add_json("meta/wshard", {"timebase": world})

    data = made(fill, episode={"timebase": episode})
    assert rate_of(whole(shown_in(data)["/signal/film.mp4"])) == pytest.approx(expected, rel=1e-6)


def fill_steps(writer: WShardWriter) -> None:
    writer.add_channel("film", VIDEO)
    for name, array in vectors().items():
        kind, _, channel = name.partition("/")
        if channel:
            writer.add_channel(channel, array, kind=kind)
        else:
            writer.add(name, array)
    writer.add_channel("later", np.zeros((STEPS + 1, 2), "<f4"))
    writer.add_channel("cube", np.zeros((STEPS, 2, 2), "<f4"))
    writer.add_channel("nothing", np.zeros((STEPS, 0), "<f4"))
    writer.add("notes", b"undescribed")


def vectors() -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(5)
    return {
        "signal/state": chance.random((STEPS, 3)).astype("<f4"), "signal/arm/force": chance.random(STEPS),
        "signal/long": chance.random((STEPS, 70)).astype("<f4"), "signal/frame": np.arange(STEPS, dtype="<u8"),
        "action/ctrl": chance.integers(-9, 9, (STEPS, 2)).astype("<i2"), "reward": chance.random(STEPS).astype("<f4"),
        "done": np.arange(STEPS) == STEPS - 1,
    }


def columns_of(file: File) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pq.read_table(io.BytesIO(whole(file))).to_pydict()
    return found


def expected_columns(arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, list[Any]]:
    rows = len(next(iter(arrays.values())))
    found: dict[str, list[Any]] = {"frame": list(range(rows))}
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] <= 64:
            found |= {f"{name}.{number}": array[:, number].tolist() for number in range(array.shape[1])}
        else:
            found[name] = array.tolist()
    return found


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_each_step_is_a_row(codec: str) -> None:
    files = shown_in(made(fill_steps, codec=codec, episode={"length_T": STEPS}))
    found = columns_of(files["/steps.parquet"])
    expected = expected_columns(vectors())
    assert list(found) == list(expected)
    assert found == expected


def test_without_a_length_the_first_signal_gives_it() -> None:
    blocks = {"reward": np.arange(4, dtype="<f4"), "done": np.zeros(5, bool), "time/ticks": np.arange(4, dtype="<i4")}
    found = columns_of(shown_in(made(blocks_of(blocks), has_metadata=False))["/steps.parquet"])
    assert found == {"frame": [0, 1, 2, 3], "reward": [0, 1, 2, 3], "time/ticks": [0, 1, 2, 3]}


def test_without_signals_there_is_no_table_of_steps() -> None:
    for length in (STEPS + 5, (1 << 62)):
        assert "/steps.parquet" not in shown_in(made(fill_steps, episode={"length_T": length}))
    with patch.object(table, "WIDEST", len(vectors())):
        assert "/steps.parquet" not in shown_in(made(fill_steps, episode={"length_T": STEPS}))


def test_joined_videos_have_the_rate_of_their_parts(tmp_path: Path) -> None:
    with WShardWriter(tmp_path / "part", episode={"timebase": {"type": "ticks", "tick_hz": 25}}) as writer:
        writer.add_channel("film", VIDEO)
    chunk = {"chunk_index": 0, "uri": "part", "timestep_range": [0, STEPS - 1], "length_T": STEPS}
    files = shown_in(write_manifest(tmp_path / "whole.wshard", {"chunks": [chunk]}))
    assert rate_of(whole(files["/signal/film.mp4"])) == 25


def test_impossible_lengths_cost_no_memory(tmp_path: Path) -> None:
    """Index and metadata agree on a video of billions of frames and a reward of billions of steps."""
    length = 5 << 30

    def fill(writer: WShardWriter) -> None:
        writer.add_channel("film", np.zeros((STEPS, 1, 1, 1), np.uint8))
        writer.add("reward", np.zeros(STEPS, "<f4"))

    data = made(fill, episode={"length_T": length})
    data = with_entry(data, "signal/film", stored=length, original=length)
    path = tmp_path / "long.wshard"
    path.write_bytes(with_entry(data, "reward", stored=4 * length, original=4 * length))

    def look() -> None:
        with open_tree(path, views="all", cache_size=BUDGET) as tree:
            assert "film.mp4" not in {node.name for node in tree.directory("/signal").listing()}
            assert "too long for an MP4" in attributes_of(tree.directory("/signal"))["omitted"]
            table = tree.file("/steps.parquet")
            assert table.size > 12 * length
            with pytest.raises(Damaged):
                for place in range(61):
                    table.read(place * table.size // 61, 4096)

    assert peak_memory(look) < MOST_TRACED


EPISODE = {
    "episode_id": "pick_017", "env_id": "Bench-v0", "length_T": STEPS, "timebase": {"type": "ticks", "tick_hz": 20},
    "metadata": {"task": "pick the red cube", "success": False, "total_reward": 2, "embodiment": "arm"},
}
NOTHING_KNOWN = dict.fromkeys((
    "position", "episode_name", "embodiment", "env_name", "language_instruction", "fps", "success", "total_reward",
    "num_frames", "state_dim", "action_dim",
)) | {"channels": [], "cameras": []}


def fill(writer: WShardWriter) -> None:
    writer.add_channel("camera/rgb", np.zeros((STEPS, 4, 5, 3), np.uint8))
    writer.add_channel("depth", np.zeros((STEPS, 4, 5), "<u2"), modality="depth")
    writer.add_channel("heat", np.zeros((STEPS, 4, 5), "<f4"))
    writer.add_channel("state", np.zeros((STEPS, 3), "<f4"))
    writer.add_channel("state", np.zeros((STEPS, 2), "<f4"), kind="action")
    writer.add("reward", np.zeros(STEPS, "<f4"))


def recording_of(container: Container) -> Recording:
    (found,) = [content for _, content in members_of(container.root) if isinstance(content, Recording)]
    return found


def table_of(container: Container) -> Table:
    table = container.episodes()
    assert table is not None and table.rows == 1 and table.directory == b""
    assert table not in [content for _, content in members_of(container.root)]
    return table


def row_of(container: Container) -> dict[str, Any]:
    records = table_of(container).records
    assert records is not None and records.blocks == 1
    (row,) = records.block(0)
    assert isinstance(row, dict)
    return row


def read_by_pyarrow(table: Table) -> list[dict[str, Any]]:
    (shown,) = VIEW.show(table, BlockCache(1 << 20), ())
    file: Any = shown.thing
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(file.read(0, file.size))).to_pylist()
    return found


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_episode_is_a_row_and_a_recording(codec: str) -> None:
    container = open_bytes(made(fill, codec=codec, episode=EPISODE))
    row = row_of(container)
    assert row == NOTHING_KNOWN | {
        "episode_name": "pick_017", "embodiment": "arm", "env_name": "Bench-v0",
        "language_instruction": "pick the red cube", "fps": 20.0, "success": False, "total_reward": 2.0,
        "num_frames": STEPS,
        "channels": ["signal/camera/rgb", "signal/depth", "signal/heat", "signal/state", "action/state"],
        "cameras": ["signal/camera/rgb", "signal/depth"],
    }
    assert read_by_pyarrow(table_of(container)) == [row]
    recording = recording_of(container)
    said = recording.record()
    assert row.items() <= said.items() and said["timebase"] == EPISODE["timebase"]
    assert "length_T" not in said and "episode_id" not in said
    assert recording.steps.rows == STEPS
    steps = [column.name for column in recording.steps.columns()]
    assert steps == [b"frame", b"signal/state", b"action/state", b"reward"]
    cameras = recording.cameras()
    assert [name for name, _ in cameras] == [(b"signal", b"camera", b"rgb"), (b"signal", b"depth")]
    assert all(isinstance(content, Array) for _, content in cameras)


@pytest.mark.parametrize("wrong", [
    {"episode_id": 7, "success": "yes", "total_reward": "much", "language_instruction": ["pick"], "metadata": "none"},
    {"total_reward": float("nan"), "metadata": {"total_reward": float("inf"), "success": 1}},
    {"total_reward": 10**400, "metadata": [], "embodiment": None},
    [], None,
])
def test_what_is_of_another_type_is_not_known(wrong: Any) -> None:
    def blocks(writer: WShardWriter) -> None:
        writer.add_json("meta/episode", wrong)
        writer.add("reward", np.zeros(STEPS, "<f4"))

    container = open_bytes(made(blocks, has_metadata=False))
    assert row_of(container) == NOTHING_KNOWN
    assert read_by_pyarrow(table_of(container)) == [NOTHING_KNOWN]
    assert recording_of(container).steps.rows == STEPS


def test_text_of_halves_of_characters_can_be_written() -> None:
    container = open_bytes(made(fill, episode={"task": "a\ud800\udc80b\udfff", "env_id": "</script>\0\u202e"}))
    row = row_of(container)
    assert row["language_instruction"] == "a\U00010080b\ufffd" and row["env_name"] == "</script>\0\u202e"
    assert read_by_pyarrow(table_of(container)) == [row]


def test_damaged_metadata_leave_the_rest_known() -> None:
    container = open_bytes(with_flipped(made(fill, episode=EPISODE), "meta/episode"))
    row = row_of(container)
    assert row["episode_name"] is None and row["channels"][0] == "signal/camera/rgb"
    assert recording_of(container).record()["success"] is None


def test_recordings_need_blocks_and_steps_need_signals() -> None:
    container = open_bytes(made(lambda writer: None, has_metadata=False))
    assert list(members_of(container.root)) == [] and row_of(container) == NOTHING_KNOWN
    container = open_bytes(made(lambda writer: writer.add("notes", b"?"), episode={"length_T": STEPS}))
    steps = recording_of(container).steps
    assert (steps.rows, [column.name for column in steps.columns()]) == (STEPS, [b"frame"])
    assert not any(isinstance(content, Table) for _, content in members_of(container.root))


def test_the_number_of_cameras_is_limited() -> None:
    def many(writer: WShardWriter) -> None:
        for number in range(MOST_CAMERAS + 5):
            writer.add_channel(f"c{number}", np.zeros((2, 1, 1, 3), np.uint8))

    names = [name for name, _ in recording_of(open_bytes(made(many))).cameras()]
    assert names == [(b"signal", b"c%d" % number) for number in range(MOST_CAMERAS)]


def test_an_episode_in_parts_is_one_and_each_part_is_one(tmp_path: Path) -> None:
    video, state = np.zeros((STEPS, 4, 5, 3), np.uint8), np.arange(STEPS, dtype="<f4")
    path = write_chunked(tmp_path, "pick", {"signal/rgb": video, "reward": state, "action/a": state}, 4)
    container = open_path(path)
    row = row_of(container)
    assert row["episode_name"] == "pick" and row["num_frames"] == STEPS
    assert row["channels"] == ["signal/rgb", "action/a"]
    whole = recording_of(container)
    parts = [content for _, content in members_of(container.root) if isinstance(content, Group)]
    recordings = [one for part in parts for _, one in members_of(part) if isinstance(one, Recording)]
    assert [(one.record()["chunk_index"], one.steps.rows) for one in recordings] == [(0, 4), (1, 2)]
    assert whole.steps.rows == STEPS and [name for name, _ in whole.cameras()] == [(b"signal", b"rgb")]
    assert not whole.record().keys() & {"chunks", "chunk_index", "timestep_range"}
