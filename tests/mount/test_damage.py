"""Damage costs only the files that it hits: EIO and one line in the log, never short or wrong data."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from writers.wshard import WShardWriter

from tests.formats.wshard_files import entry_of, with_flipped
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
    (end,) = mount.log_lines()[before + len(CODECS) :]
    assert "is no longer mounted" in end
