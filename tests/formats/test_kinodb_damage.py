"""KinoDB: the effects of damage, and what `check` finds."""

from __future__ import annotations

import logging
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writers.kinodb import Frame, KinoWriter, Stored, jpeg

from glassfs.content.allowance import Allowance
from glassfs.errors import Damaged
from glassfs.formats.kinodb.scan import WINDOW, Scan
from glassfs.formats.registry import open_container
from glassfs.tree import File, Tree
from glassfs.tree.build import container_root
from tests.formats import kinodb_files as kdb
from tests.formats.exercise import exercise
from tests.helpers import CountingSource, local, omitted_in, open_bytes, open_path, opening, values_of
from tests.tree.trees import origin


def damaged(data: bytes | bytearray) -> set[str]:
    """The names of all contents that cannot be read, and of groups that cannot be listed, in all three episodes."""
    root = container_root(open_bytes(bytes(data)).root, origin())
    found = set()
    for place, node in Tree(lambda: root).walk(on_error=lambda place, error: found.add(f"{place}/")):
        if isinstance(node, File):
            try:
                node.read(0, min(node.size, 1 << 20))
            except Damaged as error:
                assert error.source.endswith("/made") and error.part and "made" not in error.reason
                found.add(place.partition(".")[0])
    return {place.lstrip("/") for place in found}


def all_of(*names: str, position: int = 0) -> set[str]:
    return {f"episodes/{position}/{name}" for name in names}


FAR_AWAY = 2**64 - 8


@pytest.mark.parametrize(("fields", "expected"), [
    *(({f"images_{field}": value}, all_of("images/", position=1))
      for field, value in (("offset", 1 << 20), ("offset", FAR_AWAY), ("length", 0))),
    ({"images_length": FAR_AWAY}, set()),
    *(({f"actions_{field}": value}, all_of(*kdb.ARRAYS, position=1))
      for field, value in (("offset", 1 << 20), ("offset", FAR_AWAY), ("length", FAR_AWAY))),
    *(({f"meta_{field}": value}, all_of("meta/episode", position=1))
      for field, value in (("offset", 1 << 20), ("offset", FAR_AWAY), ("length", 9), ("length", FAR_AWAY))),
    ({"num_frames": 2**32 - 1}, all_of(*kdb.ARRAYS, position=1)),
    ({"state_dim": 5}, all_of(*kdb.ARRAYS, position=1)),
    ({"state_dim": 1}, all_of(*kdb.ARRAYS, position=1)),
    ({"state_dim": 65_535, "action_dim": 65_535}, all_of(*kdb.ARRAYS, position=1)),
    ({"num_frames": 2}, set()),
    ({"num_frames": 0}, set()),
])
def test_a_bad_entry_costs_only_what_it_describes(good: bytearray, fields: dict[str, int], expected: set[str]) -> None:
    assert damaged(good) == set()
    assert damaged(kdb.patched(good, 1, **fields)) == expected
    assert kdb.faults(kdb.patched(good, 1, **fields))


def test_surplus_of_the_state_action_section(good: bytearray) -> None:
    """Whole floats are what states of other lengths leave; anything else is ignored."""
    length = kdb.index_entry(good, 0).actions_length
    for surplus in (1, 2, 3, 7, 50):
        changed = kdb.patched(good, 0, actions_length=length + surplus)
        assert values_of(kdb.one(changed, "episodes/0/state")).tolist() == kdb.floats(4, 2).tolist()
        assert any("undescribed bytes" in fault for fault in kdb.faults(changed))
    for surplus in (4, 28):
        assert damaged(kdb.patched(good, 0, actions_length=length + surplus)) == all_of(*kdb.ARRAYS)
    assert damaged(kdb.patched(good, 0, actions_length=length - 1)) == all_of(*kdb.ARRAYS)


def test_text_that_is_not_utf8_or_longer_than_its_length_field(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"state": kdb.floats(2, 1), "action": kdb.floats(2, 1)}
    for task, reward in ((b"a\xff", None), ("x" * 70_000, None), ("x" * 65_536, 1.0), ("\1" * 70_000, None)):
        assert damaged(kdb.written(tmp_path, rows | {"task": task, "total_reward": reward})) == all_of("meta/episode")
    data = kdb.written(tmp_path, rows | {"task": "x" * 65_535})
    assert damaged(data) == set()


def test_metadata_oddities_that_are_accepted(good: bytearray) -> None:
    entry = kdb.index_entry(good, 0)
    success = entry.meta_offset + entry.meta_length - 6
    assert good[success : success + 2] == b"\0\1"
    good[success : success + 2] = b"\7\2"
    shown = kdb.document(good, "episodes/0/meta/episode")
    assert shown["success"] is None and shown["total_reward"] is None
    found = " ".join(kdb.faults(good))
    assert "success is 7" in found and "reward flag is 2" in found and "4 bytes follow the last field" in found


def test_a_cut_image_section_shows_the_whole_images(good: bytearray) -> None:
    """Cut at every byte: what is listed is a beginning of what was there, and its bytes are right."""
    whole = [(name, content.data.whole()) for name, content in kdb.image_contents(good).items()]
    entry = kdb.index_entry(good, 0)
    ends = []
    position = entry.images_offset
    for name, pixels in whole:
        position += 16 + len(name.split("/")[0]) + len(pixels) + (2 if name.startswith("front") else 0)
        ends.append(position - entry.images_offset)
    assert ends[-1] == entry.images_length
    for length in range(entry.images_length):
        if length == 2 * kdb.FRAME_COUNT:
            continue  # there is no group then: the section looks like four empty frames
        group = kdb.image_group(open_bytes(kdb.patched(good, 0, images_length=length)))
        count = sum(end <= length for end in ends)
        if not count:
            with pytest.raises(Damaged, match="breaks off"):
                group.members()
            continue
        found = [(b"/".join(m.name).decode(), m.content.data.whole()) for m in kdb.images_of(group)]
        assert found == whole[:count]
        assert "breaks off in frame" in omitted_in(group)[""]


@pytest.mark.parametrize(("offset", "layout", "value"), [
    (-7, "<H", 65_535),  # the length of the name "front"
    (10, "<I", 2**32 - 1),  # the length of the data
    (10, "<I", 71),
])
def test_a_bad_image_head_fails_the_images(good: bytearray, offset: int, layout: str, value: int) -> None:
    struct.pack_into(layout, good, good.index(b"\5\0front") + 7 + offset, value)
    assert damaged(good) == all_of("images/")


def test_too_many_cameras_show_only_confirmed_images(good: bytearray) -> None:
    struct.pack_into("<H", good, kdb.index_entry(good, 0).images_offset, 65_535)
    group = kdb.image_group(open_bytes(bytes(good)))
    shown = {b"/".join(member.name): member.content for member in kdb.images_of(group)}
    assert set(shown) == {b"front/000000", b"wrist/000000"}
    assert omitted_in(group)


def test_a_break_is_logged_once_with_the_reason(good: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    length = kdb.index_entry(good, 0).images_length
    group = kdb.image_group(open_bytes(kdb.patched(good, 0, images_length=length - 30)))
    with caplog.at_level(logging.WARNING):
        group.members()
        group.members()
    (record,) = caplog.records
    assert record.getMessage().endswith("/made: episodes/0/images: the image section breaks off in frame 3 of 4")


def test_names_are_bounded(tmp_path: Path) -> None:
    """Names that differ everywhere, each of them thousands of directories deep."""
    shots: list[Frame] = [[(b"/" * (65_535 - t), Stored(b"", 0, 0))] for t in range(100)]
    group = kdb.image_group(open_bytes(bytes(kdb.with_images(tmp_path, shots))))
    assert 0 < len(kdb.images_of(group)) < 10
    assert "of memory or more for names of cameras" in omitted_in(group)[""]


def test_images_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "made.kdb").write_bytes(kdb.with_images(tmp_path, kdb.frames()))
    source = local(tmp_path / "made.kdb")
    entry = kdb.index_entry(kdb.with_images(tmp_path, kdb.frames()), 0)
    end = entry.images_offset + entry.images_length
    shown = Scan.of(source, entry.images_offset, end, entry.num_frames, True, Allowance(700))
    assert 0 < len(shown.frames) < 8 and shown.is_limited
    assert shown.error is not None and "of memory or more for" in shown.error


# check


@pytest.mark.parametrize(("change", "reason"), [
    (lambda data: data + b"tail", "4 bytes at .* after the index, belong to nothing"),
    (lambda data: kdb.patched(data, num_frames=12), "header: counts 12 frames, but the index has 9"),
    (lambda data: kdb.patched(data, 1, episode_id=0), "episodes/1: its id 0 comes after 0"),
    (lambda data: kdb.patched(data, 1, meta_offset=64), "used twice"),
    (lambda data: kdb.patched(data, 2, num_frames=0), "episodes/2: has no frames"),
    (lambda data: data[:50] + b"x" + data[51:], "reserved"),
    (lambda data: kdb.patched(data, 0, num_frames=3), "episodes/0/images: .* follow the last frame"),
    (lambda data: data.replace(b"front", b"\xffront", 1), "name is not UTF-8"),
])
def test_faults(good: bytearray, change: Any, reason: str) -> None:
    found = kdb.faults(change(bytes(good)))
    assert any(re.search(reason, fault) for fault in found), found


def test_faults_of_images(tmp_path: Path) -> None:
    photo = jpeg(kdb.FRONT)
    shot = {
        "short": Stored(bytes(71), 6, 4), "size": Stored(photo, 5, 4), "cut": Stored(photo[:-30], 6, 4),
        "what": Stored(b"????", 6, 4, format=1), "fine": Stored(photo, 6, 4), "seven": Stored(bytes(7), 1, 1, 7),
    }
    found = kdb.faults(kdb.with_images(tmp_path, [shot]))
    assert [fault.split(":")[0] for fault in found] == [
        f"episodes/0/images/{camera}/000000" for camera in ("short", "size", "cut", "what")
    ]


def test_a_gap_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "hole.kdb"
    with KinoWriter(path) as writer:
        writer.add_episode(kdb.floats(2, 2), kdb.floats(2, 2))
        writer.write_hole(33)
        writer.add_episode(kdb.floats(2, 2), kdb.floats(2, 2))
    (fault,) = open_path(path).check()
    assert "33 bytes" in fault.reason and "episode 0" in fault.reason


# No bytes bring it down


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1))
@settings(max_examples=250)
def test_random_image_sections(section: bytes, num_frames: int) -> None:
    index = struct.pack("<QIHHQQQQQQ", 0, num_frames, 0, 0, 0, 0, 64, len(section), 0, 64)
    header = struct.pack("<4sHHQQQQQ16x", b"KINO", 0, 1, 1, num_frames, 64 + len(section), 64, 0)
    exercise(header + section + index)


@pytest.mark.slow
def test_empty_frames_are_skipped_in_large_steps(tmp_path: Path) -> None:
    path = tmp_path / "sparse.kdb"
    length = 1 << 28
    index = struct.pack("<QIHHQQQQQQ", 0, 2**32 - 1, 0, 0, 64, 0, 64, length, 64, 0)
    with open(path, "wb") as sparse:
        sparse.write(struct.pack("<4sHHQQQQQ16x", b"KINO", 0, 1, 1, 0, 64 + length, 64, 0))
        sparse.seek(64 + length)
        sparse.write(index)
    source = CountingSource(path)
    with pytest.raises(Damaged, match="breaks off"):
        kdb.image_group(open_container(opening(source))).members()
    assert len(source.reads) < 2 * length // WINDOW + 100
