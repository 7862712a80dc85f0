"""WShard through the derived views: films of arrays as MP4, and what belongs to one step as a row of a table."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest
from writers.wshard import WShardWriter, write_manifest

from glassfs.content import table
from glassfs.errors import Damaged
from glassfs.library import open_tree
from glassfs.tree import File
from tests.formats.derived import BUDGET, shown_in, whole
from tests.formats.exercise import peak_memory
from tests.formats.wshard_files import blocks_of, made, with_entry
from tests.helpers import attributes_of
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
