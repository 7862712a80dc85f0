"""Files that an HDF5 file names, through a mount."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from tests.formats.hdf5_files import values, write_referring
from tests.mount.conftest import Mounted
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_file_that_another_one_names_decides_about_its_rights(mounted: Mounted, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_referring(folder / "main.h5")
    for name in ("main.h5", "one.h5"):
        (folder / name).chmod(0o644)
    with mounted(folder) as mount:
        shown = mount.path / "main.h5"
        assert np.array_equal(np.load(shown / "far.npy"), values((6, 5), "<f8"))
        assert stat.S_IMODE((shown / "own0.npy").stat().st_mode) == 0o444
        (folder / "one.h5").chmod(0o600)
        wait_until(lambda: stat.S_IMODE((shown / "own0.npy").stat().st_mode) == 0o400)
        (folder / "one.h5").chmod(0o644)
        wait_until(lambda: stat.S_IMODE((shown / "own0.npy").stat().st_mode) == 0o444)
        (folder / "one.h5").rename(folder / "other.h5")
        wait_until(lambda: b"one.h5" in os.getxattr(shown, "user.glassfs.omitted"))
        assert not (shown / "far.npy").exists() and np.load(shown / "own0.npy").shape == (6, 5)
