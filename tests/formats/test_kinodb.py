"""KinoDB: what a container shows, its table of episodes, and what is read when, of local files and in requests."""

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
from writers.kinodb import KinoWriter

from glassfs.cache import BlockCache
from glassfs.content import Array, Container, Image, Records, Series, Table, members_of
from glassfs.content.episodes import record_cost
from glassfs.errors import Damaged, Refused, Unrecognised
from glassfs.formats.kinodb import FORMAT, scan
from glassfs.formats.kinodb.episode import AT_ONCE, CAMERA_BYTES
from glassfs.formats.registry import Opening, open_container
from glassfs.tree import File, Node
from glassfs.tree.build import container_root
from glassfs.tree.containers.lease import CONTAINER_COST
from tests.formats import kinodb_files as kdb
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
from tests.memory_store import MemoryStore
from tests.security.bombs import write_episodes
from tests.tree.trees import origin
from tests.weights import weight_of

DATA = Path(__file__).parents[1] / "data/kinodb"


def test_arrays(tmp_path: Path) -> None:
    state, action = kdb.floats(5, 3), kdb.floats(5, 2) * 7
    reward = np.array([0, math.inf, -0.0, 1e-42, math.nan], "<f4")
    data = kdb.written(tmp_path, {
        "state": state, "action": action, "reward": reward, "is_terminal": [0, 1, 0, 255, 1], "embodiment": "odd",
    })
    for name, expected in (("state", state), ("action", action), ("reward", reward)):
        found = values_of(kdb.one(data, f"episodes/0/{name}"))
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    terminal = kdb.one(data, "episodes/0/is_terminal")
    assert isinstance(terminal, Array) and terminal.dtype == "|b1"
    assert terminal.data.whole() == b"\0\1\0\1\1"
    assert read_in_parts(kdb.one(data, "episodes/0/state").data, 7) == state.tobytes()


def test_documents(tmp_path: Path) -> None:
    one: dict[str, Any] = {"state": kdb.floats(1, 1), "action": kdb.floats(1, 1)}
    data = kdb.written(
        tmp_path,
        {"state": kdb.floats(2, 3), "action": kdb.floats(2, 1), "embodiment": "widowx", "task": 'a "b"\n\0 ü',
         "fps": 29.97, "success": False, "total_reward": 0.1},
        one | {"fps": math.nan, "success": True, "total_reward": -math.inf}, one | {"fps": 1e-45},
        created=1_795_230_197,
    )
    assert list(kdb.document(data, "meta/file").items()) == [
        ("format", "kinodb"), ("version", "0.1"), ("num_episodes", 3), ("num_frames", 4), ("created", 1_795_230_197),
    ]
    assert list(kdb.document(kdb.patched(data, 0, episode_id=2**64 - 1), "episodes/0/meta/episode").items()) == [
        ("position", 0), ("episode_id", 2**64 - 1), ("embodiment", "widowx"),
        ("language_instruction", 'a "b"\n\0 ü'), ("fps", 29.97), ("success", False), ("total_reward", 0.1),
        ("num_frames", 2), ("state_dim", 3), ("action_dim", 1),
    ]
    second, third = (kdb.document(data, f"episodes/{position}/meta/episode") for position in (1, 2))
    assert math.isnan(second["fps"]) and second["success"] is True and second["total_reward"] == -math.inf
    assert third["success"] is None and third["total_reward"] is None and third["position"] == 2
    assert third["fps"] == 1e-45  # subnormal: one digit distinguishes it from other float32


# Opening


@pytest.mark.parametrize(("change", "reason"), [
    (lambda data: data[:63], "is cut short"),
    (lambda data: data[: len(data) // 2], "index lies outside"),
    (lambda data: kdb.patched(data, major=1), "version 1.1"),
    (lambda data: kdb.patched(data, index_offset=len(data)), "index lies outside"),
    (lambda data: kdb.patched(data, index_offset=2**64 - 64), "index lies outside"),
    (lambda data: kdb.patched(data, index_length=256), "index lies outside"),
    (lambda data: kdb.patched(data, index_length=182), "not a multiple of 64"),
    (lambda data: bytes(64) + data[64:], "writer has not finished"),
    (lambda data: b"KIN0" + data[4:], "not a container"),
])
def test_what_is_refused(good: bytearray, change: Any, reason: str) -> None:
    with pytest.raises((Refused, Unrecognised), match=f"/made: .*{reason}") as caught:
        open_bytes(change(bytes(good)))
    assert "\n" not in str(caught.value)


def test_index_decides_not_the_header(good: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    for changed, count in ((kdb.patched(good, num_episodes=99), 3), (kdb.patched(good, index_length=128), 2)):
        with caplog.at_level(logging.WARNING):
            container = open_bytes(changed)
        assert "its header counts" in caplog.text
        caplog.clear()
        assert container.facts["num_episodes"] == count
        series = [member.content for member in members_of(container.root)][1]
        assert isinstance(series, Series) and series.has_groups
        assert (series.numbers, series.digits) == (range(count), 1)
        assert any(fault.startswith("header: counts") for fault in kdb.faults(changed))
    assert kdb.document(kdb.patched(good, num_episodes=99), "meta/file")["num_episodes"] == 99  # as the header says


@pytest.mark.parametrize("created", [0, 1, 2**63, 2**64 - 1])
def test_any_time_stamp(good: bytearray, created: int) -> None:
    container = open_bytes(kdb.patched(good, created=created))
    assert json.dumps(container.facts)
    assert (container.facts["created"] is None) == (created == 0)
    assert kdb.document(kdb.patched(good, created=created), "meta/file")["created"] == created


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
    group = kdb.image_group(FORMAT.open(opening(source)))
    before = source.bytes_read
    listed = kdb.images_of(group)
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
    assert len(list(walk(container.root))) == 4501
    table = container.episodes()
    assert table is not None and len(table.columns()) > 5
    assert 1000 < weight_of(container) <= CONTAINER_COST + container.held()


# The table of all episodes

def table_of(data: bytes | bytearray) -> tuple[Table, Records]:
    found = open_bytes(bytes(data)).episodes()
    assert found is not None and found.records is not None
    return found, found.records


def rows_of(records: Records) -> list[dict[str, Any]]:
    return [row for block in range(records.blocks) for row in records.block(block)]


def check_columns(table: Table, rows: list[dict[str, Any]]) -> None:
    for column in table.columns():
        if isinstance(column.content, Records):
            values = [value for block in range(column.content.blocks) for value in column.content.block(block)]
            assert values == [row[column.name.decode()] for row in rows]


@pytest.mark.parametrize("step", [0, 1, 7])
def test_rows_of_shared_and_overlapping_sections(tmp_path: Path, step: int) -> None:
    data = write_episodes(tmp_path / "a.kdb", 100, step).read_bytes()
    table, records = table_of(data)
    rows = rows_of(records)
    assert [row["position"] for row in rows] == list(range(100))
    assert rows[17] == kdb.document(data, "episodes/17/meta/episode") | {"cameras": []}
    assert all(records.cost(block) >= record_cost(1 << 16) for block in range(records.blocks))
    check_columns(table, rows)


def test_small_sections_are_read_together(tmp_path: Path) -> None:
    episodes = [
        {"state": kdb.floats(1, 1), "action": kdb.floats(1, 1), "task": f"task {number}", "success": number % 2 == 0}
        for number in range(AT_ONCE + 2)
    ]
    data = kdb.written(tmp_path, *episodes)
    (index,) = struct.unpack_from("<Q", data, 24)
    data[index + 64 * 5 + 48 : index + 64 * 6] = data[index + 48 : index + 64]  # 5 has the section of 0
    struct.pack_into("<Q", data, index + 64 * 6 + 48, len(data))  # that of 6 is outside of the file
    table, records = table_of(data)
    rows = rows_of(records)
    assert records.blocks == 2 and [row["language_instruction"] for row in rows[4:8]] == [
        "task 4", "task 0", None, "task 7",
    ]
    assert [row["success"] for row in rows[4:8]] == [True, True, None, False]
    assert rows[AT_ONCE + 1] == kdb.document(data, f"episodes/{AT_ONCE + 1}/meta/episode") | {"cameras": []}
    check_columns(table, rows)


def cameras_of(data: bytes | bytearray) -> list[list[str] | None]:
    table, records = table_of(data)
    rows = rows_of(records)
    check_columns(table, rows)
    return [row["cameras"] for row in rows]


def test_cameras_are_those_of_the_first_frame_with_images(tmp_path: Path) -> None:
    assert cameras_of(kdb.three_episodes(tmp_path)) == [["front", "wrist"], ["front"], []]
    assert cameras_of(kdb.with_images(tmp_path, [{}, {}, {"top/left": kdb.FRONT}, *kdb.frames(2)])) == [["top/left"]]
    assert cameras_of(kdb.with_images(tmp_path, kdb.frames(2), is_legacy=True)) == [["front", "wrist"]]
    assert cameras_of(kdb.with_images(tmp_path, [{}, {}])) == [[]]


def test_cameras_of_a_damaged_section_are_unknown(tmp_path: Path) -> None:
    data = kdb.three_episodes(tmp_path)
    assert cameras_of(kdb.patched(data, 1, images_offset=len(data) - 3)) == [["front", "wrist"], None, []]
    assert cameras_of(kdb.patched(data, 0, images_length=9)) == [None, ["front"], []]


def test_names_of_cameras_are_bounded(tmp_path: Path) -> None:
    many = {f"{number:03d}": kdb.WRIST for number in range(200)}
    (shown,) = cameras_of(kdb.with_images(tmp_path, [many]))
    assert shown is not None and 30 < len(shown) < 100 and shown == list(many)[: len(shown)]
    assert cameras_of(kdb.with_images(tmp_path, [{"a": kdb.WRIST, "x" * CAMERA_BYTES: kdb.WRIST}])) == [["a"]]
    data = kdb.with_images(tmp_path, [{"caf": kdb.WRIST}])
    place = kdb.index_entry(data, 0).images_offset + 4
    data[place : place + 3] = b"a\xff\0"
    assert cameras_of(data) == [["a\ufffd\0"]]


def test_cameras_cost_the_headers_of_one_frame(tmp_path: Path) -> None:
    large = {"front": np.zeros((200, 200, 3), np.uint8), "wrist": np.zeros((200, 200, 3), np.uint8)}
    data = bytes(kdb.with_images(tmp_path, [large] * 4))
    (tmp_path / "made.kdb").write_bytes(data)
    source = CountingSource(tmp_path / "made.kdb")
    found = open_container(opening(source)).episodes()
    assert found is not None and found.records is not None
    source.reads.clear()
    assert found.records.block(0)[0]["cameras"] == ["front", "wrist"]
    assert source.bytes_read < 4096


# Remote files, where each read is a request

SIDE = 64
FRAMES = 40


def raw(number: int) -> np.ndarray[Any, Any]:
    return np.full((SIDE, SIDE, 3), number, np.uint8)


@pytest.fixture(autouse=True)
def every_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict even in short sections of remote files, which are scanned otherwise."""
    monkeypatch.setattr(scan, "PREDICT_FROM_BYTES", 0)


@pytest.fixture
def regular(tmp_path: Path) -> bytearray:
    return kdb.with_images(tmp_path, [{"front": raw(t), "wrist": raw(t + 100)} for t in range(FRAMES)])


def opened(data: bytes | bytearray, is_remote: bool) -> tuple[MemoryStore, Container]:
    store = MemoryStore({"run.kdb": bytes(data)}, is_remote=is_remote)
    source = store.open(("run.kdb",))
    return store, open_container(Opening(source, BlockCache(), store, ("run.kdb",)))


def shown(data: bytes | bytearray, is_remote: bool) -> dict[bytes, bytes]:
    found = kdb.images_of(kdb.image_group(opened(data, is_remote)[1]))
    return {b"/".join(name): content.data.whole() for name, content in found}


@pytest.mark.parametrize(("is_remote", "is_small"), [(True, False), (False, False), (True, True)])
def test_only_large_remote_sections_are_predicted(
    regular: bytearray, is_remote: bool, is_small: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "PREDICT_FROM_BYTES", len(regular) if is_small else 0)
    store, container = opened(regular, is_remote)
    before = store.reads
    kdb.images_of(kdb.image_group(container))
    reads = store.reads - before
    assert reads > FRAMES if is_small or not is_remote else reads <= 6


def test_a_frame_that_differs_costs_itself(regular: bytearray) -> None:
    middle = regular.index(raw(7).tobytes())
    regular[middle - 6] ^= 1  # the channels of the image in frame 7
    damaged = []
    for name, content in kdb.images_of(kdb.image_group(opened(regular, True)[1])):
        data = content.data
        try:
            assert data.read(0, data.size) == bytes([data.read(0, 1)[0]]) * data.size
            data.read_into(memoryview(bytearray(5)), 3)
        except Damaged as error:
            assert "where one was expected" in error.reason
            damaged.append(b"/".join(name))
    assert damaged == [b"front/000007"]
    assert list(opened(regular, True)[1].check()) == list(opened(regular, False)[1].check()) != []


def test_images_in_another_order_are_found(tmp_path: Path) -> None:
    """In frames that are as long as the others, but have their images in another order."""
    shots: list[Any] = [{"front": raw(t), "wrist": raw(t + 100)} for t in range(FRAMES)]
    for frame in (7, FRAMES - 1):
        shots[frame] = {"wrist": raw(frame + 100), "front": raw(frame)}
    data = kdb.with_images(tmp_path, shots)
    expected = shown(data, False)
    for _ in range(2):
        assert shown(data, True) == expected


@pytest.mark.parametrize("first", [
    [{"front": raw(0), "wrist": raw(0)}, {"front": raw(1)}], [{"front": raw(0), "wrist": raw(0)}, None],
    [{"front": raw(0), "wrist": raw(0)}, {"wrist": raw(1), "front": raw(1)}], [{"front": raw(0)}, None],
])
def test_a_different_second_frame_prevents_prediction(tmp_path: Path, first: list[Any]) -> None:
    data = kdb.with_images(tmp_path, [*first, *(dict.fromkeys(first[0], raw(t)) for t in range(2, FRAMES))])
    assert shown(data, True) == shown(data, False)
