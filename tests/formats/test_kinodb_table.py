"""The table of all episodes of a KinoDB."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassfs.content import Records, Table
from glassfs.formats.kinodb.episode import AT_ONCE, CAMERA_BYTES, metadata_cost
from glassfs.formats.registry import open_container
from tests.formats.kinodb_files import (
    FRONT,
    WRIST,
    document,
    floats,
    frames,
    index_entry,
    patched,
    three_episodes,
    with_images,
    written,
)
from tests.helpers import CountingSource, open_bytes, opening
from tests.security.bombs import write_episodes


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
    assert rows[17] == document(data, "episodes/17/meta/episode") | {"cameras": []}
    assert all(records.cost(block) >= metadata_cost(1 << 16) for block in range(records.blocks))
    check_columns(table, rows)


def test_small_sections_are_read_together(tmp_path: Path) -> None:
    episodes = [
        {"state": floats(1, 1), "action": floats(1, 1), "task": f"task {number}", "success": number % 2 == 0}
        for number in range(AT_ONCE + 2)
    ]
    data = written(tmp_path, *episodes)
    (index,) = struct.unpack_from("<Q", data, 24)
    data[index + 64 * 5 + 48 : index + 64 * 6] = data[index + 48 : index + 64]  # 5 has the section of 0
    struct.pack_into("<Q", data, index + 64 * 6 + 48, len(data))  # that of 6 is outside of the file
    table, records = table_of(data)
    rows = rows_of(records)
    assert records.blocks == 2 and [row["language_instruction"] for row in rows[4:8]] == [
        "task 4", "task 0", None, "task 7",
    ]
    assert [row["success"] for row in rows[4:8]] == [True, True, None, False]
    assert rows[AT_ONCE + 1] == document(data, f"episodes/{AT_ONCE + 1}/meta/episode") | {"cameras": []}
    check_columns(table, rows)


def cameras_of(data: bytes | bytearray) -> list[list[str] | None]:
    table, records = table_of(data)
    rows = rows_of(records)
    check_columns(table, rows)
    return [row["cameras"] for row in rows]


def test_cameras_are_those_of_the_first_frame_with_images(tmp_path: Path) -> None:
    assert cameras_of(three_episodes(tmp_path)) == [["front", "wrist"], ["front"], []]
    assert cameras_of(with_images(tmp_path, [{}, {}, {"top/left": FRONT}, *frames(2)])) == [["top/left"]]
    assert cameras_of(with_images(tmp_path, frames(2), is_legacy=True)) == [["front", "wrist"]]
    assert cameras_of(with_images(tmp_path, [{}, {}])) == [[]]


def test_cameras_of_a_damaged_section_are_unknown(tmp_path: Path) -> None:
    data = three_episodes(tmp_path)
    assert cameras_of(patched(data, 1, images_offset=len(data) - 3)) == [["front", "wrist"], None, []]
    assert cameras_of(patched(data, 0, images_length=9)) == [None, ["front"], []]


def test_names_of_cameras_are_bounded(tmp_path: Path) -> None:
    many = {f"{number:03d}": WRIST for number in range(200)}
    (shown,) = cameras_of(with_images(tmp_path, [many]))
    assert shown is not None and 30 < len(shown) < 100 and shown == list(many)[: len(shown)]
    assert cameras_of(with_images(tmp_path, [{"a": WRIST, "x" * CAMERA_BYTES: WRIST}])) == [["a"]]
    data = with_images(tmp_path, [{"caf": WRIST}])
    place = index_entry(data, 0).images_offset + 4
    data[place : place + 3] = b"a\xff\0"
    assert cameras_of(data) == [["a\ufffd\0"]]


def test_cameras_cost_the_headers_of_one_frame(tmp_path: Path) -> None:
    large = {"front": np.zeros((200, 200, 3), np.uint8), "wrist": np.zeros((200, 200, 3), np.uint8)}
    data = bytes(with_images(tmp_path, [large] * 4))
    (tmp_path / "made.kdb").write_bytes(data)
    source = CountingSource(tmp_path / "made.kdb")
    found = open_container(opening(source)).episodes()
    assert found is not None and found.records is not None
    source.reads.clear()
    assert found.records.block(0)[0]["cameras"] == ["front", "wrist"]
    assert source.bytes_read < 4096
