"""WShard episodes as a whole: record, steps, cameras, and the table that lists them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from writers.wshard import WShardWriter, write_chunked

from glassfs.cache import BlockCache
from glassfs.content import Array, Container, Group, Recording, Table, members_of
from glassfs.content.episodes import MOST_CAMERAS
from glassfs.view.parquet import VIEW
from tests.formats.wshard_files import made, with_flipped
from tests.helpers import open_bytes, open_path

STEPS = 6
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
