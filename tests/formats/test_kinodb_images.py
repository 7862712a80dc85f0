"""KinoDB: which images an episode shows, and what they are taken for."""

from __future__ import annotations

import gc
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL.PngImagePlugin import PngImageFile
from writers.kinodb import Frame, Stored, jpeg, png

from glassfs.cache import BlockCache
from glassfs.content import Blob, Content, EncodedImage, Image, Memory, Series, Video, members_of
from glassfs.content.allowance import Allowance
from glassfs.errors import Unavailable
from glassfs.formats.kinodb import scan
from glassfs.formats.kinodb.images import Images, decoded_size
from glassfs.formats.kinodb.scan import Scan
from glassfs.library import open_tree
from glassfs.tree import File
from tests.formats import kinodb_files as kdb
from tests.helpers import CountingSource, open_bytes


def test_cameras_that_come_go_change_and_repeat(tmp_path: Path) -> None:
    shots: list[Frame] = [
        None,
        [("a", kdb.FRONT), ("b/c", kdb.WRIST), ("a", kdb.FRONT + 1), ("a", kdb.WRIST)],
        {"": kdb.WRIST, "..": kdb.FRONT},
        None,
        [("a", kdb.WRIST), (b"\xff/", kdb.FRONT)],
    ]
    group = kdb.image_group(open_bytes(bytes(kdb.with_images(tmp_path, shots))))
    found = [(name, content.key) for name, content in kdb.images_of(group)]
    assert found == [
        ((b"a", b"000001"), b"a"), ((b"b", b"c", b"000001"), b"b/c"), ((b"a", b"000001~2"), b"a"),
        ((b"a", b"000001~3"), b"a"), ((b"", b"000002"), b""), ((b"..", b"000002"), b".."), ((b"a", b"000004"), b"a"),
        ((b"\xff", b"", b"000004"), b"\xff/"),
    ]


def test_regular_cameras_are_numbered_and_the_others_listed(tmp_path: Path) -> None:
    """One image of one kind in each frame needs no list; anything else does, and shows the same."""
    shots: list[Frame] = [
        {"each": kdb.FRONT, "often": kdb.WRIST, "up": kdb.FRONT, "up/down": kdb.FRONT, "mixed": kdb.FRONT},
        {"each": kdb.FRONT + 1, "up": kdb.FRONT, "up/down": kdb.FRONT, "mixed": Stored(png(kdb.FRONT), 6, 4)},
        {"each": kdb.FRONT + 2, "often": kdb.WRIST, "up": kdb.FRONT, "up/down": kdb.FRONT, "mixed": kdb.FRONT},
    ]
    group = kdb.image_group(open_bytes(bytes(kdb.with_images(tmp_path, shots))))
    numbered = {member.name: member.content for member in group.members() if isinstance(member.content, Series)}
    assert list(numbered) == [(b"each",)]
    assert numbered[b"each",].numbers == range(3)
    found = {b"/".join(member.name): member.content for member in kdb.images_of(group)}
    assert len(found) == 3 + 2 + 3 + 3 + 3
    for number in range(3):
        shown = found[b"each/%06d" % number]
        assert isinstance(shown, Image) and shown.data.whole() == (kdb.FRONT + number).tobytes()
    assert isinstance(found[b"mixed/000001"], EncodedImage)


def test_videos_classify_frames_like_the_tree(tmp_path: Path) -> None:
    """Raw pixels that begin like a signature are raw; an encoded image as long as its pixels is encoded."""
    photo = jpeg(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8))
    shots: list[Frame] = [
        {"c": Stored((b"\xff\xd8\xff" + bytes(range(72)))[:72], 6, 4)}, {"c": kdb.FRONT},
        {"c": Stored((b"\x89PNG\r\n\x1a\n" + bytes(range(72)))[:72], 6, 4)}, {"c": Stored(png(kdb.FRONT), 6, 4)},
        {"c": Stored(photo, len(photo), 1, 1)}, {"c": Stored(photo[:60], 60, 1, 1)}, {"c": Stored(photo[:70], 6, 4)},
    ]
    count = len(shots)
    group = kdb.image_group(open_bytes(bytes(kdb.with_images(tmp_path, shots))))
    (video,) = [member.content for member in group.meanings() if isinstance(member.content, Video)]
    shown = [(type(member.content), member.content.key) for member in kdb.images_of(group)]
    assert [kind for kind, _ in shown] == [Image, Image, Image, EncodedImage, EncodedImage, Image, EncodedImage]
    assert [(type(video.frame(number)), video.frame(number).key) for number in range(count)] == shown


def test_signatures_end_with_the_data(tmp_path: Path) -> None:
    """The length of the name behind them would complete the signature."""
    shots: list[Frame] = [[("c", Stored(b"\x89PN", 6, 4, format=1)), (b"n" * ord("G"), kdb.WRIST)]]
    shown = kdb.image_contents(kdb.with_images(tmp_path, shots))
    assert isinstance(shown["c/000000"], Blob)


def test_decompression_bombs_are_not_decoded(tmp_path: Path) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def flat(side: int) -> bytes:
        rows = zlib.compress((b"\0" + bytes(side)) * side, 9)
        head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")

    bomb, large = flat(12_000), flat(4_000)
    shot = {f"{number}": Stored(data, len(data), 1, 1) for number, data in enumerate([bomb] * 40 + [large] * 40)}
    shown = kdb.image_contents(kdb.with_images(tmp_path, [shot]))
    assert all(isinstance(content, EncodedImage) for content in shown.values())


def test_decoding_reserves_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may have many pixels, of which a listing decodes several at once."""
    stored, cache = png(np.zeros((2000, 2000, 3), np.uint8)), BlockCache()
    load, reserved = PngImageFile.load, []

    def watched(picture: PngImageFile) -> Any:
        reserved.append(cache.used)
        return load(picture)

    monkeypatch.setattr(PngImageFile, "load", watched)
    assert decoded_size(Memory(stored), "png", cache) == (2000, 2000)
    assert len(reserved) == 1 and reserved[0] > 3 * 2000 * 2000 > 10 * len(stored)


def test_text_chunks_in_images_are_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text may need more memory than the pixels, and damaged text does not damage the image."""
    picture = png(kdb.FRONT)
    text = b"zTXtnote\0\0" + zlib.compress(bytes(1 << 20))
    for crc in (zlib.crc32(text), 0):
        chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", crc)
        monkeypatch.setattr("PIL.PngImagePlugin._safe_zlib_decompress", lambda data: pytest.fail("it is unpacked"))
        assert decoded_size(Memory(picture[:33] + chunk + picture[33:]), "png", BlockCache()) == (6, 4)


def test_lack_of_memory_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(picture: object) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)
    with pytest.raises(Unavailable):
        decoded_size(Memory(png(kdb.FRONT)), "png", BlockCache())


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
    (Stored(jpeg(kdb.FRONT), 6, 4), EncodedImage),
    (Stored(jpeg(kdb.FRONT), 6, 4, format=9), EncodedImage),
    (Stored(png(kdb.FRONT), 1, 1), EncodedImage),
])
def test_kinds_of_stored_images(tmp_path: Path, stored: Stored, kind: type[Content]) -> None:
    shots: list[Frame] = [[("c", stored), ("next", kdb.WRIST)]]
    shown = kdb.image_contents(kdb.with_images(tmp_path, shots))
    found = shown["c/000000"]
    assert type(found) is kind
    assert found.data.whole() == stored.data
    assert not isinstance(found, EncodedImage) or found.media == ("png" if stored.data[1:4] == b"PNG" else "jpeg")
    assert shown["next/000000"].data.whole() == kdb.WRIST.tobytes()


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
            if is_legacy:  # distinguishable for certain only if pixels have the right length
                stored = stored or b"\0"
            shape = (len(stored), 1, 1) if is_legacy else (7, 9, 3)
            cameras.append((name, Stored(stored, *shape, format=code)))
            expected.append((name, len(made), stored))
        made.append(cameras)
    file_bytes = kdb.with_images(tmp_path, [*made, None], is_legacy=is_legacy)
    if not expected:
        return
    found = kdb.images_of(kdb.image_group(open_bytes(bytes(file_bytes))))
    assert [(m.content.key, int(m.name[-1][:6]), m.content.data.whole()) for m in found] == expected
    assert not any(isinstance(member.content, EncodedImage) for member in found if is_legacy)


# The older layout


def test_files_without_the_format_byte(tmp_path: Path, good: bytearray) -> None:
    older = kdb.with_images(tmp_path, kdb.frames(), is_legacy=True)
    assert len(older) < len(good)
    expected, found = kdb.image_contents(good), kdb.image_contents(older)
    assert list(found) == list(expected)
    for name, content in expected.items():
        assert found[name].data.whole() == content.data.whole()
    assert kdb.faults(older) == []
    length = kdb.index_entry(older, 0).images_length
    shown = kdb.image_contents(kdb.patched(older, 0, images_length=length - 30))
    assert list(shown) == list(expected)[:7]
    assert all(isinstance(content, Image) for content in shown.values())


def test_a_section_that_both_layouts_explain(tmp_path: Path) -> None:
    """One black pixel without the format byte: with it, the length would be marked as compressed data of no bytes."""
    shots: list[Frame] = [{"c": np.zeros((1, 1), np.uint8)}]
    for is_legacy in (True, False):
        found = kdb.image_contents(kdb.with_images(tmp_path, shots, is_legacy=is_legacy))["c/000000"]
        assert isinstance(found, Image) and found.data.whole() == b"\0"


def test_images_that_were_listed_are_freed_without_the_collector(good: bytearray) -> None:
    """In a mount it looks at objects that have lasted for a while only after millions of others."""
    gc.collect()
    gc.disable()
    try:
        opened = open_bytes(good)
        before = sum(isinstance(one, (Images, Scan)) for one in gc.get_objects())
        group = kdb.image_group(opened)
        assert list(members_of(group)) and list(group.meanings())
        del group
        assert sum(isinstance(one, (Images, Scan)) for one in gc.get_objects()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("shots", [
    kdb.frames(), [None, None], [{"a": kdb.FRONT, "b/c": kdb.WRIST}, None, {"a": kdb.WRIST}], [],
])
def test_packed_scan_is_the_same_and_damage_of_it_is_noticed(tmp_path: Path, shots: list[Frame]) -> None:
    data = bytes(kdb.with_images(tmp_path, shots))
    entry = kdb.index_entry(data, 0)
    (tmp_path / "packed.kdb").write_bytes(data)
    start, end = entry.images_offset, entry.images_offset + entry.images_length
    source = CountingSource(tmp_path / "packed.kdb")
    whole_scan = Scan.of(source, start, end, entry.num_frames, True, Allowance(1 << 20))
    packed = whole_scan.packed()
    again = Scan.unpacked(packed, start, end)
    assert again is not None and again.packed() == packed
    for column in ("types", "type_of", "frames", "sizes", "starts", "media", "position", "is_exact"):
        assert getattr(again, column) == getattr(whole_scan, column)
    assert [Scan.unpacked(packed[:size], start, end) for size in range(len(packed))] == [None] * len(packed)
    assert Scan.unpacked(packed, start, end - 1) is None
    assert Scan.unpacked(packed, end + 1, end + 1) is None
    if whole_scan.frames:
        assert Scan.unpacked(packed, whole_scan.starts[0] + 1, end) is None


def test_a_scan_is_the_same_whatever_was_scanned_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are expected to be like those of the previous section, and need not be."""
    shot: list[tuple[str, Any]] = [("a", kdb.FRONT), ("b", kdb.WRIST)]
    recordings: list[list[Frame]] = [
        [shot] * 4, [shot[:1]] * 3, [shot, None, shot[::-1], shot, shot], [None], [[*shot, ("a", kdb.FRONT)]] * 3,
        [[("a", Stored(jpeg(kdb.FRONT), 6, 4)), ("b", kdb.WRIST)]] * 3, [[("a", kdb.FRONT[:2]), ("b", kdb.WRIST)]] * 3,
    ]
    sections = []
    for number, shots in enumerate(recordings):
        data = bytes(kdb.with_images(tmp_path, shots))
        path = tmp_path / f"{number}.kdb"
        path.write_bytes(data)
        sections += [(path, kdb.index_entry(data, 0), has_format) for has_format in (True, False)]

    def scanned(path: Path, entry: Any, has_format: bool, cut: int) -> tuple[bytes, str | None]:
        start, end = entry.images_offset, entry.images_offset + entry.images_length - cut
        found = Scan.of(CountingSource(path), start, end, entry.num_frames, has_format, Allowance(1 << 20))
        return found.packed(), found.error

    for cut in (0, 1):
        alone = []
        for section in sections:
            monkeypatch.setattr(scan._remembered, "shape", None)
            alone.append(scanned(*section, cut))
        for before in sections:
            for section, expected in zip(sections, alone, strict=True):
                scanned(*before, 0)
                assert scanned(*section, cut) == expected


def test_images_are_found_by_a_later_process_without_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "containers"
    folder.mkdir()
    path = folder / "made.kdb"
    path.write_bytes(bytes(kdb.with_images(tmp_path, kdb.frames())))
    os.utime(path, (1, 1))

    def shown(is_known: bool) -> dict[str, bytes]:
        scans: list[int] = []
        run = scan._Pass.run
        with monkeypatch.context() as patch:
            patch.setattr(scan._Pass, "run", lambda one, *rest: scans.append(1) or run(one, *rest))
            with open_tree(path) as tree:
                found = {at: node.read(0, node.size) for at, node in tree.walk() if isinstance(node, File)}
        assert bool(scans) is not is_known
        return found

    before = shown(is_known=False)
    assert any(at.endswith("front/000003.png") for at in before)
    assert shown(is_known=True) == before
    os.utime(path, (2, 2))  # as after a change
    assert shown(is_known=False) == before
