"""Episodes that a format describes with the public helpers: their table, steps, cameras, and what is shown of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import glassfs
from glassfs.cache import BlockCache
from glassfs.content import (
    Array,
    Blob,
    Container,
    Group,
    Member,
    Memory,
    Recording,
    Series,
    Table,
    episodes_table,
    with_recording,
)
from glassfs.content.episodes import EPISODE_COLUMNS
from glassfs.content.summary import COLUMNS
from glassfs.formats import registry
from glassfs.formats.registry import Format, Opening
from glassfs.view.parquet import VIEW

STEPS = 4
ACTIONS = np.arange(8, dtype="<f4").reshape(STEPS, 2)
ROWS = [
    {"position": 0, "episode_name": "a", "success": True, "num_frames": STEPS, "cameras": ["obs/rgb"]},
    {"position": 1, "episode_name": "b", "fps": 20.0, "cameras": None},
]


def array(name: bytes, values: np.ndarray) -> Member:
    dtype = values.dtype.descr[0][1]
    return Member(tuple(name.split(b"/")), Array(name, Memory(values.tobytes()), dtype, values.shape))


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


def test_columns_are_those_of_joined_tables() -> None:
    assert list(COLUMNS) == ["container", *EPISODE_COLUMNS]


def test_a_row_for_each_episode_with_none_for_what_is_missing() -> None:
    table = episodes_table(2, lambda block: ROWS, directory=b"episodes")
    found = rows_of(table)
    assert list(found) == list(EPISODE_COLUMNS)
    assert found["episode_name"] == ["a", "b"]
    assert found["success"] == [True, None]
    assert found["fps"] == [None, 20.0]
    assert found["cameras"] == [["obs/rgb"], None]
    assert found["total_reward"] == [None, None]
    assert table.records is not None
    assert [row["num_frames"] for row in table.records.block(0)] == [STEPS, None]


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


def open_episodes(opening: Opening) -> Container:
    def episode(number: int) -> Group:
        return Group(b"%d" % number, lambda: with_recording(members, lambda: dict(ROWS[number])))

    def table() -> Table:
        return episodes_table(len(ROWS), lambda block: ROWS, directory=b"episodes")

    def top() -> list[Member]:
        episodes = Series(b"episodes", range(len(ROWS)), episode, has_groups=True)
        return [Member((b"episodes",), episodes), Member((b"episodes",), table())]

    return Container("several", "1", Group(b"", top), [opening.source], episodes=table)


def test_a_format_of_episodes_has_all_that_episodes_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library lists the episodes, joins them with others, and views show videos and pages."""
    several = Format("several", lambda head: head.startswith(b"SEVERAL"), open_episodes)
    monkeypatch.setattr(registry, "installed", lambda: (several,))
    (tmp_path / "a.several").write_bytes(b"SEVERAL")
    (tmp_path / "b.several").write_bytes(b"SEVERAL")
    with glassfs.open(tmp_path / "a.several", views="all") as container:
        assert [row["episode_name"] for row in container.episodes()] == ["a", "b"]
        assert {"episodes.parquet", "episodes.jsonl", "by-success", "index.html"} <= set(container)
        assert {"actions.npy", "steps.parquet", "index.html", "poster"} <= set(container["episodes/0"])
        assert "rgb.mp4" in container["episodes/0/obs"]
        assert np.array_equal(container["episodes/1/actions"].numpy(), ACTIONS)
    with glassfs.open(tmp_path) as folder:
        joined = list(folder.episodes())
        assert [(row["container"], row["position"], row["episode_name"]) for row in joined] == [
            ("a.several", 0, "a"), ("a.several", 1, "b"), ("b.several", 0, "a"), ("b.several", 1, "b"),
        ]
