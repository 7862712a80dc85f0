"""KinoDB: what a container shows, and what is read when."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import math
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage
from writers.kinodb import Frame, KinoWriter, Stored, jpeg, png

from glassfs.cache import BlockCache
from glassfs.content import Array, Blob, Content, Document, Group, Image, Picture, Series
from glassfs.errors import Refused
from glassfs.formats.kinodb import FORMAT, episode, file
from tests.formats.kinodb_files import (
    ARRAYS,
    FRONT,
    WRIST,
    array_of,
    document,
    faults,
    floats,
    frames,
    image_group,
    index_entry,
    one,
    patched,
    pictures,
    three_episodes,
    written,
)
from tests.helpers import CountingSource, contents_of, open_bytes, open_path, read_in_parts, walk


@pytest.fixture
def good(tmp_path: Path) -> bytearray:
    return three_episodes(tmp_path)


def test_names_and_kinds(good: bytearray) -> None:
    shown = contents_of(open_bytes(bytes(good)).root)
    expected = {b"meta/file"}
    for position in range(3):
        expected |= {b"episodes/%d/%s" % (position, name.encode()) for name in ("meta/episode", *ARRAYS)}
    expected |= {b"episodes/0/images/%s/%06d" % pair for pair in itertools.product((b"front", b"wrist"), range(4))}
    expected |= {b"episodes/1/images/front/%06d" % t for t in range(3)}
    assert set(shown) == expected


def test_arrays(tmp_path: Path) -> None:
    state, action, reward = floats(5, 3), floats(5, 2) * 7, np.array([0, math.inf, -0.0, 1e-42, math.nan], "<f4")
    data = written(tmp_path, {
        "state": state, "action": action, "reward": reward, "is_terminal": [0, 1, 0, 255, 1], "embodiment": "odd",
    })
    for name, expected in (("state", state), ("action", action), ("reward", reward)):
        found = array_of(data, f"episodes/0/{name}")
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    terminal = one(data, "episodes/0/is_terminal")
    assert isinstance(terminal, Array) and terminal.dtype == "|b1"
    assert terminal.data.whole() == b"\0\1\0\1\1"
    assert read_in_parts(one(data, "episodes/0/state").data, 7) == state.tobytes()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("state_dim", "action_dim"), [(0, 2), (2, 0), (0, 0)])
def test_arrays_without_columns(tmp_path: Path, state_dim: int, action_dim: int) -> None:
    data = written(tmp_path, {"state": floats(3, state_dim), "action": floats(3, action_dim), "reward": [1, 2, 3]})
    assert array_of(data, "episodes/0/state").shape == (3, state_dim)
    assert array_of(data, "episodes/0/action").tolist() == floats(3, action_dim).tolist()
    assert array_of(data, "episodes/0/reward").tolist() == [1, 2, 3]


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
def test_float32_with_the_fewest_digits(value: float) -> None:
    shown = episode.shortest(struct.pack("<f", value))
    expected = float(np.format_float_scientific(np.float32(value), unique=True)) if math.isfinite(value) else value
    assert np.float32(shown).tobytes() == struct.pack("<f", value)
    assert len(repr(shown)) <= len(repr(expected))


@pytest.mark.parametrize("value", [29.97, 0.1, 3.4028235e38, 1e-45, 16777216.0, 1 / 3])
def test_float32_of_known_digits(value: float) -> None:
    shown = episode.shortest(struct.pack("<f", value))
    assert np.float32(shown) == np.float32(value)
    assert repr(shown) == repr(float(str(np.float32(value))))


def test_images_are_raw_pixels_by_camera_and_frame(good: bytearray) -> None:
    shown = pictures(good)
    assert list(shown)[:3] == ["front/000000", "wrist/000000", "front/000001"]
    for t in range(4):
        front, wrist = shown[f"front/{t:06d}"], shown[f"wrist/{t:06d}"]
        assert isinstance(front, Image) and isinstance(wrist, Image)
        assert (front.width, front.height, front.channels, front.key) == (6, 4, 3, b"front")
        assert (wrist.width, wrist.height, wrist.channels, wrist.key) == (5, 3, 1, b"wrist")
        assert front.data.whole() == (FRONT + t).tobytes() and wrist.data.whole() == (WRIST + t).tobytes()


def test_cameras_that_come_go_change_and_repeat(tmp_path: Path) -> None:
    shots: list[Frame] = [
        None,
        [("a", FRONT), ("b/c", WRIST), ("a", FRONT + 1), ("a", WRIST)],
        {"": WRIST, "..": FRONT},
        None,
        [("a", WRIST), (b"\xff/", FRONT)],
    ]
    data = written(tmp_path, {"state": floats(6, 1), "action": floats(6, 1), "images": shots})
    found = [(name, content.key) for name, content in image_group(open_bytes(bytes(data))).members()]
    assert found == [
        ((b"a", b"000001"), b"a"), ((b"b", b"c", b"000001"), b"b/c"), ((b"a", b"000001~2"), b"a"),
        ((b"a", b"000001~3"), b"a"), ((b"", b"000002"), b""), ((b"..", b"000002"), b".."), ((b"a", b"000004"), b"a"),
        ((b"\xff", b"", b"000004"), b"\xff/"),
    ]


def test_stored_pictures_keep_their_bytes(tmp_path: Path) -> None:
    photo, drawing = jpeg(FRONT), png(FRONT)
    shot = {"j": Stored(photo, 6, 4), "p": Stored(drawing, 1, 1), "nine": Stored(photo, 6, 4, format=9)}
    shown = pictures(written(tmp_path, {"state": floats(1, 1), "action": floats(1, 1), "images": [shot]}))
    for name, media, stored in (("j", "jpeg", photo), ("p", "png", drawing), ("nine", "jpeg", photo)):
        found = shown[f"{name}/000000"]
        assert isinstance(found, Picture)
        assert (found.media, found.data.size, found.data.whole()) == (media, len(stored), stored)


def test_compressing_writer(tmp_path: Path) -> None:
    shots: list[Frame] = [{"rgb": np.full((8, 8, 3), 40 * t, np.uint8), "grey": WRIST} for t in range(3)]
    data = written(tmp_path, {"state": floats(3, 1), "action": floats(3, 1), "images": shots}, quality=90)
    shown = pictures(data)
    for t in range(3):
        photo = shown[f"rgb/{t:06d}"]
        assert isinstance(photo, Picture) and isinstance(shown[f"grey/{t:06d}"], Image)
        decoded = np.asarray(PillowImage.open(io.BytesIO(photo.data.whole())))
        assert np.abs(decoded.astype(int) - 40 * t).max() <= 2
    assert faults(data) == []


@pytest.mark.parametrize("start", [b"\xff\xd8\xff", b"\x89PNG", b"\x89PNG\r\n\x1a\n"])
def test_raw_pixels_that_begin_like_a_signature(tmp_path: Path, start: bytes) -> None:
    pixels = (start + bytes(range(72)))[:72]
    data = written(tmp_path, {
        "state": floats(1, 1), "action": floats(1, 1), "images": [{"c": Stored(pixels, 6, 4)}],
    })
    found = pictures(data)["c/000000"]
    assert isinstance(found, Image) and found.data.whole() == pixels
    assert "which KinoDB leaves out" in "".join(faults(data))


def test_picture_as_long_as_its_raw_pixels(tmp_path: Path) -> None:
    photo = jpeg(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8))
    shot = {
        "whole": Stored(photo, len(photo), 1, 1), "head cut": Stored(photo[:60], 60, 1, 1),
        "pixels cut": Stored(photo[:2000], 2000, 1, 1), "elsewhere": Stored(photo[:2000], 3, 3, 3),
    }
    shown = pictures(written(tmp_path, {"state": floats(1, 1), "action": floats(1, 1), "images": [shot]}))
    assert isinstance(shown["whole/000000"], Picture)
    assert isinstance(shown["head cut/000000"], Image)
    assert isinstance(shown["pixels cut/000000"], Image)
    assert isinstance(shown["elsewhere/000000"], Picture)  # cut as well, but no raw pixels either: as stored


def test_signatures_end_with_the_data(tmp_path: Path) -> None:
    """The length of the name behind them would complete the signature."""
    shots: list[Frame] = [[("c", Stored(b"\x89PN", 6, 4, format=1)), (b"n" * ord("G"), WRIST)]]
    shown = pictures(written(tmp_path, {"state": floats(1, 1), "action": floats(1, 1), "images": shots}))
    assert isinstance(shown["c/000000"], Blob)


def test_heads_across_the_end_of_a_window(tmp_path: Path) -> None:
    """After a large image a small window is read; the head of a long name behind it ends at every place around that."""
    photo = jpeg(FRONT)
    shots: list[Frame] = []
    for size in range(200, 260):
        shots.append([("far", Stored(bytes(70_000), 1, 1))])
        shots.append([("a" * size, Stored(b"", 0, 0)), ("b" * 250, Stored(photo, 6, 4))])
    data = written(tmp_path, {"state": floats(120, 0), "action": floats(120, 0), "images": shots})
    shown = [content for name, content in pictures(data).items() if name.startswith("b")]
    assert len(shown) == 60
    assert all(isinstance(content, Picture) and content.data.whole() == photo for content in shown)


def test_decompression_bombs_are_not_decoded(tmp_path: Path) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def flat(side: int) -> bytes:
        rows = zlib.compress((b"\0" + bytes(side)) * side, 9)
        head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")

    bomb, large = flat(12_000), flat(4_000)
    shot = {f"{number}": Stored(data, len(data), 1, 1) for number, data in enumerate([bomb] * 40 + [large] * 40)}
    data = written(tmp_path, {"state": floats(1, 1), "action": floats(1, 1), "images": [shot]})
    start = time.perf_counter()
    shown = pictures(data)
    assert time.perf_counter() - start < 5
    assert all(isinstance(content, Picture) for content in shown.values())


@pytest.mark.parametrize(("stored", "kind"), [
    (Stored(bytes(72), 6, 4), Image),
    (Stored(bytes(71), 6, 4), Blob),
    (Stored(bytes(48), 6, 4, 2), Image),
    (Stored(bytes(96), 6, 4, 4), Image),
    (Stored(bytes(120), 6, 4, 5), Blob),
    (Stored(b"", 6, 4, 0), Blob),
    (Stored(b"", 0, 0), Blob),
    (Stored(bytes(72), 2**32 - 1, 2**32 - 1, 255), Blob),
    (Stored(b"RIFF\0\0\0\0WEBP", 6, 4), Blob),
    (Stored(bytes(72), 6, 4, format=9), Image),
    (Stored(bytes(70), 6, 4, format=1), Blob),
    (Stored(b"\xff\xd8", 6, 4, format=1), Blob),
    (Stored(b"\x89PNG", 6, 4, format=0), Blob),
])
def test_what_makes_a_picture(tmp_path: Path, stored: Stored, kind: type[Content]) -> None:
    shots: list[Frame] = [[("c", stored), ("next", WRIST)]]
    shown = pictures(written(tmp_path, {"state": floats(1, 1), "action": floats(1, 1), "images": shots}))
    found = shown["c/000000"]
    assert type(found) is kind
    assert found.data.whole() == stored.data  # type: ignore[attr-defined]
    assert shown["next/000000"].data.whole() == WRIST.tobytes()  # type: ignore[attr-defined]


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scan_finds_every_image(tmp_path: Path, data: st.DataObject) -> None:
    """Sizes and names around the windows that the scan reads."""
    sizes = st.sampled_from([0, 1, 2, 3, 4, 5, 250, 500, 512, 4095, 4096, 4097, 65_500, 65_536, 70_000])
    names = st.sampled_from([b"", b"c", b"n" * 240, b"n" * 250, b"n" * 300, b"n" * 65_535])
    image = st.tuples(names, sizes, st.integers(0, 1))
    # Episodes with stretches of empty frames, whose counts are skipped together.
    shots = data.draw(st.lists(st.one_of(st.just([]), st.just([]), st.lists(image, max_size=3)), max_size=12))
    gaps = data.draw(st.lists(st.sampled_from([0, 1, 40, 33_000]), min_size=len(shots), max_size=len(shots)))
    is_legacy = data.draw(st.booleans())
    made: list[Frame] = []
    expected: list[tuple[bytes, int, bytes]] = []
    for gap, shot in zip(gaps, shots, strict=True):
        made += [None] * gap
        cameras = []
        for name, size, code in shot:
            stored = bytes((len(expected) + step) % 251 for step in range(min(size, 300))) + bytes(max(0, size - 300))
            stored = b"\xff\xd8\xff" + stored if code else stored
            if is_legacy:  # told apart for certain only where the pixels have the right length
                stored = stored or b"\0"
            shape = (len(stored), 1, 1) if is_legacy else (7, 9, 3)
            cameras.append((name, Stored(stored, *shape, format=code)))
            expected.append((name, len(made), stored))
        made.append(cameras)
    file_bytes = written(tmp_path, {
        "state": np.zeros((len(made) + 1, 0)), "action": np.zeros((len(made) + 1, 0)), "images": made,
    }, is_legacy=is_legacy)
    if not expected:
        return
    found = list(image_group(open_bytes(bytes(file_bytes))).members())
    assert [(m.content.key, int(m.name[-1][:6]), m.content.data.whole()) for m in found] == expected  # type: ignore[attr-defined]
    assert not any(isinstance(member.content, Picture) for member in found if is_legacy)


# The older layout


def test_files_without_the_format_byte(tmp_path: Path, good: bytearray) -> None:
    older = written(tmp_path, {"state": floats(4, 2), "action": floats(4, 3), "images": frames()}, is_legacy=True)
    assert len(older) < len(good)
    expected, found = pictures(good), pictures(older)
    assert list(found) == list(expected)
    for name, content in expected.items():
        assert found[name].data.whole() == content.data.whole()  # type: ignore[attr-defined]
    assert faults(older) == []


def test_a_section_that_both_layouts_explain(tmp_path: Path) -> None:
    """One black pixel without the format byte: with it, the length would be marked as compressed data of no bytes."""
    shots: list[Frame] = [{"c": np.zeros((1, 1), np.uint8)}]
    fields = {"state": floats(1, 1), "action": floats(1, 1), "images": shots}
    for data in (written(tmp_path, fields, is_legacy=True), written(tmp_path, fields)):
        found = pictures(data)["c/000000"]
        assert isinstance(found, Image) and found.data.whole() == b"\0"


def test_a_cut_file_without_the_format_byte(tmp_path: Path) -> None:
    older = written(tmp_path, {"state": floats(4, 2), "action": floats(4, 3), "images": frames()}, is_legacy=True)
    length = index_entry(older, 0).images_length
    shown = pictures(patched(older, 0, images_length=length - 30))
    assert list(shown) == [f"{camera}/{t:06d}" for t in range(4) for camera in ("front", "wrist")][:7]
    assert all(isinstance(content, Image) for content in shown.values())


# Opening


@pytest.mark.parametrize(("change", "reason"), [
    (lambda data: data[:63], "is cut"),
    (lambda data: data[: len(data) // 2], "index lies outside"),
    (lambda data: patched(data, major=1), "version 1.1"),
    (lambda data: patched(data, index_offset=len(data)), "index lies outside"),
    (lambda data: patched(data, index_offset=2**64 - 64), "index lies outside"),
    (lambda data: patched(data, index_length=256), "index lies outside"),
    (lambda data: patched(data, index_length=182), "no multiple of 64"),
    (lambda data: bytes(64) + data[64:], "writer did not finish"),
])
def test_what_is_refused(good: bytearray, change: Any, reason: str) -> None:
    with pytest.raises(Refused, match=f"^made: .*{reason}") as caught:
        open_bytes(change(bytes(good)))
    assert "\n" not in str(caught.value)


def test_recognised_by_magic_alone(good: bytearray) -> None:
    assert FORMAT.name == "kinodb"
    assert FORMAT.recognises(bytes(good[:4])) and not FORMAT.recognises(b"KIN0" + bytes(60))


def test_index_decides_not_the_header(good: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    for changed, count in ((patched(good, num_episodes=99), 3), (patched(good, index_length=128), 2)):
        with caplog.at_level(logging.WARNING):
            container = open_bytes(changed)
        assert "its header counts" in caplog.text
        caplog.clear()
        assert container.facts["num_episodes"] == count
        series = [member.content for member in container.root.members()][1]
        assert isinstance(series, Series) and (series.count, series.digits, series.has_groups) == (count, 1, True)
        assert any(fault.startswith("header: counts") for fault in faults(changed))
    assert document(patched(good, num_episodes=99), "meta/file")["num_episodes"] == 99  # as the header says


@pytest.mark.parametrize("created", [0, 1, 2**63, 2**64 - 1])
def test_any_time_stamp(good: bytearray, created: int) -> None:
    container = open_bytes(patched(good, created=created))
    assert json.dumps(container.facts)
    assert (container.facts["created"] is None) == (created == 0)
    assert document(patched(good, created=created), "meta/file")["created"] == created


def test_subgroups_are_known_beforehand(good: bytearray) -> None:
    series = [member.content for member in open_bytes(bytes(good)).root.members()][1]
    assert isinstance(series, Series)
    for position, expected in enumerate((2, 2, 1)):
        group = series.item(position)
        assert isinstance(group, Group) and group.subgroups == expected
        directories = {m.name[0] for m in group.members() if len(m.name) > 1 or isinstance(m.content, Group)}
        assert len(directories) == expected


def test_index_too_long_to_keep(good: bytearray, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: len(found) for name, found in contents_of(open_bytes(bytes(good)).root).items()}
    monkeypatch.setattr(file, "KEPT_INDEX", 0)
    assert {name: len(found) for name, found in contents_of(open_bytes(bytes(good)).root).items()} == kept
    assert faults(good) == []


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


def test_opening_and_listing_read_header_and_index_only(large: Path) -> None:
    source = CountingSource(large)
    container = FORMAT.open(source, BlockCache())
    assert source.bytes_read == 64 + 64 * 5_001
    source.reads.clear()
    series = [member.content for member in container.root.members()][1]
    assert isinstance(series, Series)
    for position in range(series.count):
        group = series.item(position)
        assert isinstance(group, Group)
        for member in group.members():
            if isinstance(member.content, Array):
                assert member.content.data.size
    assert source.reads == []


def test_scanning_reads_heads_not_pixels(large: Path) -> None:
    source = CountingSource(large)
    group = image_group(FORMAT.open(source, BlockCache()))
    before = source.bytes_read
    start = time.perf_counter()
    listed = list(group.members())
    took = time.perf_counter() - start
    assert len(listed) == 20_000 and group.error is None
    assert source.bytes_read - before < source.size / 10
    assert took < 2  # about 0.1 s
    source.reads.clear()
    last = listed[-1].content
    assert isinstance(last, Image) and last.data.whole() == bytes(64 * 43 * 3)
    assert source.bytes_read == 64 * 43 * 3


def test_a_record_is_read_without_the_rest(large: Path) -> None:
    source = CountingSource(large)
    container = FORMAT.open(source, BlockCache())
    (state,) = (content for name, content in walk(container.root) if name == b"episodes/0/state")
    source.reads.clear()
    assert isinstance(state, Array) and state.data.read(40_000, 4) == bytes(4)
    assert source.bytes_read < 64


# Samples of the real writer


def sample_names() -> list[str]:
    from tests.conftest import SHARED

    return sorted(path.name for path in (SHARED / "samples/kinodb").glob("*.kdb"))


@pytest.mark.parametrize("name", sample_names())
def test_samples(samples: Path, name: str) -> None:
    path = samples / "kinodb" / name
    expected = json.loads(path.with_name(f"{name}.expected.json").read_bytes())
    container = open_path(path)
    shown = contents_of(container.root)
    raw = path.read_bytes()
    count = 1
    for wanted in expected["episodes"]:
        place = b"episodes/%d/" % wanted["position"]
        for array, field in (("state", "states"), ("action", "actions"), ("reward", "rewards")):
            (found,) = shown[place + array.encode()]
            assert isinstance(found, Array) and list(found.shape) == wanted[field]["shape"]  # type: ignore[arg-type]
            assert digest(found.data.whole()) == wanted[field]["sha256"]
        (terminal,) = shown[place + b"is_terminal"]
        assert isinstance(terminal, Array)
        assert np.flatnonzero(np.frombuffer(terminal.data.whole(), bool)).tolist() == wanted["is_terminal"]["true_at"]
        (meta,) = shown[place + b"meta/episode"]
        assert isinstance(meta, Document)
        value = meta.value()
        assert value["language_instruction"] == wanted["meta"]["task"] and value["success"] == wanted["meta"]["success"]
        assert struct.pack("<f", value["fps"]).hex() == wanted["meta"]["fps_f32_hex"]
        count += 5
        if isinstance(wanted["frames"], list):
            stored = [
                (image["camera"].encode(), frame["t"], image["data_sha256"],
                 expected_kind(image, raw[image["data_offset"] : image["data_offset"] + image["data_len"]]))
                for frame in wanted["frames"] for image in frame["images"]
            ]
            listed = list(image_group(container, wanted["position"]).members()) if stored else []
            assert [
                (m.content.key, int(m.name[-1][:6]), digest(m.content.data.whole()), type(m.content))  # type: ignore[attr-defined]
                for m in listed
            ] == stored
            count += len(stored)
    assert sum(map(len, shown.values())) == count


def expected_kind(image: dict[str, Any], stored: bytes) -> type[Content]:
    is_raw_sized = len(stored) == image["width"] * image["height"] * image["channels"]
    if image["format"] and stored.startswith((b"\xff\xd8\xff", b"\x89PNG")):
        return Image if is_raw_sized and not image["decoded"]["ok"] else Picture
    return Image if is_raw_sized and stored and image["channels"] <= 4 else Blob


def digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


SOUND = {"awkward_names.kdb", "cameras_vary.kdb", "cli_images.kdb", "cli_jpeg85.kdb", "cli_plain.kdb", "empty.kdb",
         "long_episode.kdb", "many_episodes.kdb", "mixed_raw.kdb", "special_floats.kdb"}


@pytest.mark.parametrize("name", sorted(SOUND))
def test_sound_samples_have_no_faults(samples: Path, name: str) -> None:
    assert list(open_path(samples / "kinodb" / name).check()) == []


def test_sample_without_the_format_byte(samples: Path) -> None:
    folder = samples / "kinodb/malformed"
    names = ("_good.kdb", "legacy_no_format_byte.kdb")
    expected, found = (contents_of(open_path(folder / name).root) for name in names)
    assert list(found) == list(expected)
    for name, (content,) in expected.items():
        if not isinstance(content, Document):
            assert found[name][0].data.whole() == content.data.whole(), name  # type: ignore[attr-defined]
