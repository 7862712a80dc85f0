"""Damage costs only the files that it hits: EIO and one line in the log, never short or wrong data."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter

from tests.formats.kinodb_files import patched
from tests.formats.wshard_files import entry_of, with_entry, with_flipped
from tests.mount.conftest import Mounted
from tests.mount.gallery import npy
from tests.mount.mounts import opened

STEPS = 20
CODECS = ("none", "zstd", "lz4")
GENERATOR = np.random.default_rng(5)
GOOD = GENERATOR.integers(0, 5, (STEPS, 1000)).astype("<f8")
BAD = GENERATOR.integers(0, 5, (STEPS, 1000)).astype("<i4")
REWARD = np.arange(STEPS, dtype="<f4")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A folder of WShard containers, one for each codec, with one wrong bit in the block of signal/bad."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    for codec in CODECS:
        path = folder / f"{codec}.wshard"
        with WShardWriter(path, codec=codec) as writer:
            writer.add_channel("good", GOOD)
            writer.add_channel("bad", BAD)
            writer.add("reward", REWARD)
        _, entry = entry_of(path.read_bytes(), "signal/bad")
        path.write_bytes(with_flipped(path.read_bytes(), "signal/bad", entry["stored"] // 2))
    return folder


def test_flipped_bit_costs_one_file_and_one_line_in_the_log(mounted: Mounted, damaged: Path) -> None:
    with mounted(damaged) as mount:
        before = len(mount.log_lines())
        for codec in CODECS:
            container = mount.path / f"{codec}.wshard"
            bad = container / "signal/bad.npy"
            assert bad.stat().st_size == len(npy(BAD))
            for _ in range(5):
                with opened(bad) as descriptor, pytest.raises(OSError) as caught:
                    os.pread(descriptor, 1 << 20, 0)
                assert caught.value.errno == errno.EIO
            assert (container / "signal/good.npy").read_bytes() == npy(GOOD)
            assert (container / "reward.npy").read_bytes() == npy(REWARD)
            assert (container / "meta/wshard.json").read_bytes()
        new = mount.log_lines()[before:]
        assert len(new) == len(CODECS), new
        for codec, line in zip(CODECS, new, strict=True):
            assert f"{codec}.wshard" in line and "signal/bad" in line
        assert mount.status()["errors"] >= 5 * len(CODECS)
    counted = mount.log_lines()[before + len(CODECS) :]
    assert len(counted) == len(CODECS)
    assert all("signal/bad" in line and "times" in line for line in counted)


def test_container_cut_short_while_mounted(mounted: Mounted, tmp_path: Path) -> None:
    """A read across the new end fails: to `cp` a short answer would look like the end of the file."""
    path = tmp_path / "cut.kas"
    with KastoreWriter(path) as store:
        store.add("early", np.arange(1000.0))
        store.add("late", np.arange(1 << 18, dtype=np.float64))
    with mounted(path) as mount:
        early_path, late_path = mount.path / "early.npy", mount.path / "late.npy"
        with opened(early_path, os.O_DIRECT) as early, opened(late_path, os.O_DIRECT) as late:
            os.truncate(path, path.stat().st_size - 1000)
            size = len(npy(np.arange(1 << 18, dtype=np.float64)))
            for offset, length in ((size - 100, 100), (size - 2000, 2000), (size - (1 << 20), 1 << 20)):
                with pytest.raises(OSError) as caught:
                    os.pread(late, length, offset)
                assert caught.value.errno in (errno.EIO, errno.ESTALE)
            # Bytes before the cut may be refused as well: the container is not the one that was opened.
            try:
                assert os.pread(early, 8000, 128) == np.arange(1000.0).tobytes()
            except OSError as error:
                assert error.errno in (errno.EIO, errno.ESTALE)


def test_bad_section_costs_its_files_only(mounted: Mounted, tmp_path: Path) -> None:
    """The image section of the second episode ends in the middle of a header."""
    path = tmp_path / "run.kdb"
    image = np.full((4, 5, 3), 7, np.uint8)
    with KinoWriter(path) as writer:
        for _ in range(3):
            writer.add_episode(np.ones((2, 2)), np.ones((2, 1)), images=[{"cam": image}] * 2)
    path.write_bytes(patched(path.read_bytes(), 1, images_length=writer.entries[1].images_length - 70))
    with mounted(path) as mount:
        for number, count in enumerate((2, 1, 2)):
            episode = mount.path / f"episodes/{number}"
            assert (episode / "state.npy").read_bytes() == npy(np.ones((2, 2), "<f4"))
            assert (episode / "meta/episode.json").read_bytes()
            names = sorted(os.listdir(episode / "images/cam"))
            assert names == ["000000.png", "000001.png"][:count]
            assert all((episode / "images/cam" / name).read_bytes() for name in names)
            assert ("user.glassfs.error" in os.listxattr(episode / "images")) == (count == 1)


def test_lie_about_sizes_allocates_nothing(mounted: Mounted, tmp_path: Path) -> None:
    """The index says that a block of a few bytes unpacks to 8 TiB."""
    path = tmp_path / "liar.wshard"
    with WShardWriter(path, codec="zstd", checksum="none") as writer:
        writer.add_channel("good", GOOD)
        writer.add("extra/bomb", zlib.compress(b"x") * 50)
    path.write_bytes(with_entry(path.read_bytes(), "extra/bomb", flags=1 | 2, original=8 << 40))
    with mounted(path) as mount:
        before = mount.resident()
        with pytest.raises(OSError) as caught:
            (mount.path / "extra/bomb.bin").read_bytes()
        assert caught.value.errno == errno.EIO
        assert (mount.path / "signal/good.npy").read_bytes() == npy(GOOD)
        assert mount.resident() - before < 64 << 20
