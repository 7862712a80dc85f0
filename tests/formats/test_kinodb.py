"""KinoDB: what a container shows, and what is read when."""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from writers.kinodb import KinoWriter

from glassfs.content import Array, Image, Series, members_of
from glassfs.errors import Refused, Unrecognised
from glassfs.formats.kinodb import FORMAT, episode
from glassfs.tree import File, Node
from glassfs.tree.build import container_root
from glassfs.tree.containers.weight import weight_of
from tests.formats.kinodb_files import (
    document,
    faults,
    floats,
    image_group,
    images_of,
    one,
    patched,
    written,
)
from tests.helpers import (
    CountingSource,
    omitted_in,
    open_bytes,
    open_path,
    opening,
    read_in_parts,
    values_of,
    walk,
)
from tests.tree.trees import origin

DATA = Path(__file__).parents[1] / "data/kinodb"


def test_arrays(tmp_path: Path) -> None:
    state, action, reward = floats(5, 3), floats(5, 2) * 7, np.array([0, math.inf, -0.0, 1e-42, math.nan], "<f4")
    data = written(tmp_path, {
        "state": state, "action": action, "reward": reward, "is_terminal": [0, 1, 0, 255, 1], "embodiment": "odd",
    })
    for name, expected in (("state", state), ("action", action), ("reward", reward)):
        found = values_of(one(data, f"episodes/0/{name}"))
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    terminal = one(data, "episodes/0/is_terminal")
    assert isinstance(terminal, Array) and terminal.dtype == "|b1"
    assert terminal.data.whole() == b"\0\1\0\1\1"
    assert read_in_parts(one(data, "episodes/0/state").data, 7) == state.tobytes()


def test_documents(tmp_path: Path) -> None:
    data = written(
        tmp_path,
        {"state": floats(2, 3), "action": floats(2, 1), "embodiment": "widowx", "task": 'a "b"\n\0 ü',
         "fps": 29.97, "success": False, "total_reward": 0.1},
        {"state": floats(1, 1), "action": floats(1, 1), "fps": math.nan, "success": True, "total_reward": -math.inf},
        {"state": floats(1, 1), "action": floats(1, 1)},
        created=1_795_230_197,
    )
    assert list(document(data, "meta/file").items()) == [
        ("format", "kinodb"), ("version", "0.1"), ("num_episodes", 3), ("num_frames", 4), ("created", 1_795_230_197),
    ]
    assert list(document(patched(data, 0, episode_id=2**64 - 1), "episodes/0/meta/episode").items()) == [
        ("position", 0), ("episode_id", 2**64 - 1), ("embodiment", "widowx"),
        ("language_instruction", 'a "b"\n\0 ü'), ("fps", 29.97), ("success", False), ("total_reward", 0.1),
        ("num_frames", 2), ("state_dim", 3), ("action_dim", 1),
    ]
    second, third = (document(data, f"episodes/{position}/meta/episode") for position in (1, 2))
    assert math.isnan(second["fps"]) and second["success"] is True and second["total_reward"] == -math.inf
    assert third["success"] is None and third["total_reward"] is None and third["position"] == 2


@given(st.floats(width=32, allow_nan=False))
@settings(max_examples=300)
@example(float(np.float32(29.97)))
@example(float(np.float32(0.1)))
@example(float(np.float32(3.4028235e38)))
@example(float(np.float32(1e-45)))
@example(16777216.0)
def test_float32_with_the_fewest_digits(value: float) -> None:
    shown = episode.shortest(struct.pack("<f", value))
    expected = float(np.format_float_scientific(np.float32(value), unique=True)) if math.isfinite(value) else value
    assert np.float32(shown).tobytes() == struct.pack("<f", value)
    assert len(repr(shown)) <= len(repr(expected))


# Opening


@pytest.mark.parametrize(("change", "reason"), [
    (lambda data: data[:63], "is cut short"),
    (lambda data: data[: len(data) // 2], "index lies outside"),
    (lambda data: patched(data, major=1), "version 1.1"),
    (lambda data: patched(data, index_offset=len(data)), "index lies outside"),
    (lambda data: patched(data, index_offset=2**64 - 64), "index lies outside"),
    (lambda data: patched(data, index_length=256), "index lies outside"),
    (lambda data: patched(data, index_length=182), "not a multiple of 64"),
    (lambda data: bytes(64) + data[64:], "writer has not finished"),
    (lambda data: b"KIN0" + data[4:], "not a container"),
])
def test_what_is_refused(good: bytearray, change: Any, reason: str) -> None:
    with pytest.raises((Refused, Unrecognised), match=f"/made: .*{reason}") as caught:
        open_bytes(change(bytes(good)))
    assert "\n" not in str(caught.value)


def test_index_decides_not_the_header(good: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    for changed, count in ((patched(good, num_episodes=99), 3), (patched(good, index_length=128), 2)):
        with caplog.at_level(logging.WARNING):
            container = open_bytes(changed)
        assert "its header counts" in caplog.text
        caplog.clear()
        assert container.facts["num_episodes"] == count
        series = [member.content for member in members_of(container.root)][1]
        assert isinstance(series, Series) and (series.count, series.digits, series.has_groups) == (count, 1, True)
        assert any(fault.startswith("header: counts") for fault in faults(changed))
    assert document(patched(good, num_episodes=99), "meta/file")["num_episodes"] == 99  # as the header says


@pytest.mark.parametrize("created", [0, 1, 2**63, 2**64 - 1])
def test_any_time_stamp(good: bytearray, created: int) -> None:
    container = open_bytes(patched(good, created=created))
    assert json.dumps(container.facts)
    assert (container.facts["created"] is None) == (created == 0)
    assert document(patched(good, created=created), "meta/file")["created"] == created


# What is read when


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 frames of 8 KB in one episode, and 5,000 episodes behind it."""
    path = tmp_path_factory.mktemp("kinodb") / "large.kdb"
    shot = {"cam": np.zeros((64, 43, 3), np.uint8)}
    with KinoWriter(path) as writer:
        writer.add_episode(np.zeros((20_000, 1)), np.zeros((20_000, 1)), images=itertools.repeat(shot, 20_000))
        for _ in range(5_000):
            writer.add_episode(np.zeros((2, 1)), np.zeros((2, 1)), images=[shot])
    return path


def test_lookups_read_only_what_they_need(large: Path) -> None:
    """Nodes are made anew each time, from a directory and a number; of a section only what the scan found is kept."""
    source = CountingSource(large)
    root = container_root(FORMAT.open(opening(source)).root, origin())

    def looked_up(path: str) -> Node:
        node: Node = root
        for name in path.split("/"):
            _, node = node.found(name)
        return node

    looked_up("episodes/1")
    source.reads.clear()
    for position in range(1, 100):
        looked_up(f"episodes/{position}/meta/episode.json")
        looked_up(f"episodes/{position}/state.npy")
        looked_up(f"episodes/{position}/images")
    assert [size for _, size in source.reads] == [64 * 64]
    looked_up("episodes/0/images/cam")
    assert source.reads != []
    source.reads.clear()
    for number in random.Random(2).sample(range(20_000), 50):
        node = looked_up(f"episodes/0/images/cam/{number:06d}.png")
        assert isinstance(node, File) and node.size
    assert source.reads == []


def test_scanning_reads_heads_not_pixels(large: Path) -> None:
    source = CountingSource(large)
    group = image_group(FORMAT.open(opening(source)))
    before = source.bytes_read
    listed = images_of(group)
    assert len(listed) == 20_000 and not omitted_in(group)
    assert source.bytes_read - before < source.size / 10
    source.reads.clear()
    last = listed[-1].content
    assert isinstance(last, Image) and last.data.whole() == bytes(64 * 43 * 3)
    assert source.bytes_read == 64 * 43 * 3


@pytest.mark.parametrize("name", [
    "awkward_names", "cameras_vary", "cli_jpeg85", "cli_plain", "empty", "mixed_raw", "special_floats",
])
def test_samples_of_the_real_writer_have_no_faults(name: str) -> None:
    assert list(open_path(DATA / f"{name}.kdb").check()) == []


def test_weight_that_kinodb_declares_is_not_exceeded(tmp_path: Path) -> None:
    path = tmp_path / "made.kdb"
    with KinoWriter(path) as writer:
        for _ in range(100):
            zeros = np.zeros((40, 2), np.float32)
            writer.add_episode(zeros, zeros, images=40 * [{"cam": np.zeros((4, 4, 3), np.uint8)}])
    container = open_path(path)
    assert container.held is not None
    assert len(list(walk(container.root))) == 4501
    table = container.episodes()
    assert table is not None and len(table.columns()) > 5
    assert 1000 < weight_of(container, 1 << 30) <= container.held
