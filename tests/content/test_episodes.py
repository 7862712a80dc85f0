"""Episodes that a format describes with the public helpers: their table, steps, cameras, and what is shown of them."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pyarrow.parquet as pq
import pytest

from glassfs.cache import BlockCache
from glassfs.content import (
    Blob,
    Member,
    Memory,
    Recording,
    Table,
    episodes_table,
    with_recording,
)
from glassfs.content.episodes import EPISODE_COLUMNS
from glassfs.view.parquet import VIEW
from tests.view.views import array_column

STEPS = 4
ACTIONS = np.arange(8, dtype="<f4").reshape(STEPS, 2)
ROWS = [
    {"position": 0, "episode_name": "a", "success": True, "num_frames": STEPS, "cameras": ["obs/rgb"]},
    {"position": 1, "episode_name": "b", "fps": 20.0, "cameras": None},
]


def array(name: bytes, values: np.ndarray) -> Member:
    return Member(tuple(name.split(b"/")), array_column(name, values).content)


def members() -> Iterator[Member]:
    yield array(b"actions", ACTIONS)
    yield array(b"obs/rgb", np.zeros((STEPS, 2, 2, 3), "|u1"))
    yield array(b"obs/deep", np.zeros((STEPS, 2, 2), "<f4"))
    yield array(b"rewards", np.arange(STEPS, dtype="<f8"))
    yield array(b"other", np.arange(STEPS + 1, dtype="<f8"))
    yield Member((b"notes",), Blob(b"notes", Memory(b"x")))


def rows_of(table: Table) -> dict[str, list[object]]:
    """Return the columns as pyarrow reads them from the Parquet view."""
    (shown,) = VIEW.show(table, BlockCache(), (b"key",))
    return pq.read_table(io.BytesIO(shown.thing.whole())).to_pydict()


def test_a_row_for_each_episode_with_none_for_what_is_missing() -> None:
    table = episodes_table(2, lambda block: ROWS, directory=b"episodes")
    found = rows_of(table)
    assert list(found) == list(EPISODE_COLUMNS)
    assert found["episode_name"] == ["a", "b"] and found["success"] == [True, None]
    assert found["fps"] == [None, 20.0] and found["num_frames"] == [STEPS, None]
    assert found["cameras"] == [["obs/rgb"], None] and found["total_reward"] == [None, None]


def test_rows_come_in_blocks_and_columns_can_be_others() -> None:
    columns = {"position": "<i8", "seed": "<u4", "name": ""}
    table = episodes_table(3, lambda block: [{"position": block, "seed": block + 7}], 3, columns)
    assert rows_of(table) == {"position": [0, 1, 2], "seed": [7, 8, 9], "name": [None] * 3}


def test_an_episode_has_steps_and_cameras() -> None:
    *own, steps, whole = with_recording(members, lambda: {"episode_name": "a"})
    assert [member.name for member in own] == [member.name for member in members()]
    assert isinstance(steps.content, Table) and steps.content.rows == STEPS
    found = rows_of(steps.content)
    assert found["frame"] == list(range(STEPS)) and found["rewards"] == [0.0, 1.0, 2.0, 3.0]
    assert list(found) == ["frame", "actions.0", "actions.1", "rewards"]
    assert isinstance(whole.content, Recording)
    assert whole.content.record() == {"episode_name": "a"} and whole.content.steps is steps.content
    assert [member.name for member in whole.content.cameras()] == [(b"obs", b"rgb")]


@pytest.mark.parametrize(("steps", "columns"), [
    (None, ["frame", "actions", "rewards"]), (STEPS, ["frame", "actions", "rewards"]), (STEPS + 1, ["frame", "other"]),
])
def test_number_of_steps_decides_what_is_a_signal(steps: int | None, columns: list[str]) -> None:
    *_, table, _ = with_recording(members, dict, steps)
    assert isinstance(table.content, Table)
    assert [column.name.decode() for column in table.content.columns()] == columns


def test_without_signals_there_are_no_steps() -> None:
    found = list(with_recording(lambda: [Member((b"x",), Blob(b"x", Memory(b"")))], dict))
    assert [type(member.content) for member in found] == [Blob, Recording]
    assert list(with_recording(list, dict)) == []
