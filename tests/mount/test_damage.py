"""Damage costs the files that it hits: EIO there and one line in the log, and never a short or a wrong answer."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter

from tests.mount.conftest import Mounted
from tests.mount.gallery import npy
from tests.mount.mounts import Mount

STEPS = 20
CODECS = ("none", "zstd", "lz4")
GENERATOR = np.random.default_rng(5)
GOOD = GENERATOR.integers(0, 5, (STEPS, 1000)).astype("<f8")
BAD = GENERATOR.integers(0, 5, (STEPS, 1000)).astype("<i4")
REWARD = np.arange(STEPS, dtype="<f4")


def stored_place(container: bytearray, name: bytes) -> tuple[int, int]:
    """Offset and length of a WShard block, found in the index by its name."""
    count, names_offset = struct.unpack_from("<IQ", container, 12)
    for number in range(count):
        entry = 64 + 48 * number
        _, start, length, _, offset, stored = struct.unpack_from("<QIHHQQ", container, entry)
        if container[names_offset + start : names_offset + start + length] == name:
            return offset, stored
    raise KeyError(name)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A folder of WShard containers, one a codec, with one wrong bit in the block of signal/bad."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    for codec in CODECS:
        path = folder / f"{codec}.wshard"
        with WShardWriter(path, codec=codec) as writer:
            writer.add_channel("good", GOOD)
            writer.add_channel("bad", BAD)
            writer.add("reward", REWARD)
        container = bytearray(path.read_bytes())
        offset, stored = stored_place(container, b"signal/bad")
        container[offset + stored // 2] ^= 0x10
        path.write_bytes(container)
    return folder


def test_flipped_bit_costs_one_file_and_one_line_in_the_log(mounted: Mounted, damaged: Path) -> None:
    with mounted(damaged) as mount:
        before = len(mount.log_lines())
        for codec in CODECS:
            container = mount.path / f"{codec}.wshard"
            bad = container / "signal/bad.npy"
            assert bad.stat().st_size == len(npy(BAD))
            for _ in range(20):
                # The header of a .npy comes from the index; the array behind it must not.
                descriptor = os.open(bad, os.O_RDONLY)
                try:
                    with pytest.raises(OSError) as caught:
                        os.pread(descriptor, 1 << 20, 0)
                    assert caught.value.errno == errno.EIO
                finally:
                    os.close(descriptor)
            assert (container / "signal/good.npy").read_bytes() == npy(GOOD)
            assert (container / "reward.npy").read_bytes() == npy(REWARD)
            assert (container / "meta/wshard.json").read_bytes()
        new = mount.log_lines()[before:]
        assert len(new) == len(CODECS), new
        for codec, line in zip(CODECS, new, strict=True):
            assert f"{codec}.wshard" in line and "signal/bad" in line
        assert mount.status()["errors"] >= 20 * len(CODECS)
    counted = mount.log_lines()[before + len(CODECS) :]
    assert len(counted) == len(CODECS)
    assert all("signal/bad" in line and "times" in line for line in counted)


def test_container_cut_short_while_mounted(mounted: Mounted, tmp_path: Path) -> None:
    """A read that meets the new end is an error: a short answer would look like the end of the file to `cp`."""
    path = tmp_path / "cut.kas"
    with KastoreWriter(path) as store:
        store.add("early", np.arange(1000.0))
        store.add("late", np.arange(1 << 18, dtype=np.float64))
    with mounted(path) as mount:
        early, late = (os.open(mount.path / f"{name}.npy", os.O_RDONLY | os.O_DIRECT) for name in ("early", "late"))
        try:
            os.truncate(path, path.stat().st_size - 1000)
            size = len(npy(np.arange(1 << 18, dtype=np.float64)))
            for offset, length in ((size - 100, 100), (size - 2000, 2000), (size - (1 << 20), 1 << 20)):
                with pytest.raises(OSError) as caught:
                    os.pread(late, length, offset)
                assert caught.value.errno in (errno.EIO, errno.ESTALE)
            # What lies before the cut may be refused as well, since the file is no longer what was opened.
            try:
                assert os.pread(early, 8000, 128) == np.arange(1000.0).tobytes()
            except OSError as error:
                assert error.errno in (errno.EIO, errno.ESTALE)
        finally:
            os.close(early)
            os.close(late)


def test_bad_section_costs_its_files_only(mounted: Mounted, tmp_path: Path) -> None:
    """The image section of the second episode ends in the middle of a header."""
    path = tmp_path / "run.kdb"
    image = np.full((4, 5, 3), 7, np.uint8)
    with KinoWriter(path) as writer:
        for _ in range(3):
            writer.add_episode(np.ones((2, 2)), np.ones((2, 1)), images=[{"cam": image}] * 2)
    container = bytearray(path.read_bytes())
    entry = writer.entries[1]
    (index,) = struct.unpack_from("<Q", container, 24)
    struct.pack_into("<Q", container, index + 64 + 40, entry.images_length - 70)
    path.write_bytes(container)
    with mounted(path) as mount:
        for number in range(3):
            episode = mount.path / f"episodes/{number}"
            assert (episode / "state.npy").read_bytes() == npy(np.ones((2, 2), "<f4"))
            assert (episode / "meta/episode.json").read_bytes()
        for number in (0, 2):
            assert sorted(os.listdir(mount.path / f"episodes/{number}/images/cam")) == ["000000.png", "000001.png"]
        assert_damage_is_told(mount, mount.path / "episodes/1/images")


def assert_damage_is_told(mount: Mount, images: Path) -> None:
    """Either the section cannot be listed, or the files that it costs cannot be read or are missing with a reason."""
    try:
        names = sorted(os.listdir(images / "cam"))
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ENOENT)
        assert any("run.kdb" in line and "episode" in line for line in mount.log_lines())
        return
    failed = 0
    for name in names:
        try:
            (images / "cam" / name).read_bytes()
        except OSError as error:
            assert error.errno == errno.EIO
            failed += 1
    assert failed or "user.glassfs.error" in os.listxattr(images)


def test_lie_about_sizes_allocates_nothing(mounted: Mounted, tmp_path: Path) -> None:
    """The index says that a block of a few bytes unpacks to 8 TiB."""
    path = tmp_path / "liar.wshard"
    with WShardWriter(path, codec="zstd", checksum="none") as writer:
        writer.add_channel("good", GOOD)
        writer.add("extra/bomb", zlib.compress(b"x") * 50)
    container = bytearray(path.read_bytes())
    count, names_offset = struct.unpack_from("<IQ", container, 12)
    for number in range(count):
        entry = 64 + 48 * number
        _, start, length = struct.unpack_from("<QIH", container, entry)
        if container[names_offset + start : names_offset + start + length] == b"extra/bomb":
            struct.pack_into("<H", container, entry + 14, 1 | 2)
            struct.pack_into("<Q", container, entry + 32, 8 << 40)
    path.write_bytes(container)
    with mounted(tmp_path) as mount:
        before = mount.resident()
        shown = mount.path / "liar.wshard"
        if shown.is_dir():
            (bomb,) = (shown / "extra").iterdir()
            with pytest.raises(OSError) as caught:
                bomb.read_bytes()
            assert caught.value.errno == errno.EIO
            assert (shown / "signal/good.npy").read_bytes() == npy(GOOD)
        else:
            assert os.getxattr(shown, "user.glassfs.error")
        assert mount.resident() - before < 64 << 20
