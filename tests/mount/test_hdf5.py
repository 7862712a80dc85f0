"""HDF5 files through a mount, fsspec, a bucket and commands: the same values everywhere, and errors in one line."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from tests.formats.hdf5_files import values, write_everything, write_links, write_referring
from tests.mount.conftest import Mounted
from tests.remote.conftest import Serving, serving  # noqa: F401
from tests.remote.s3 import Bucket
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_links_and_errors_are_seen_in_a_mount(mounted: Mounted, tmp_path: Path) -> None:
    with mounted(write_links(tmp_path / "links.h5")) as mount:
        assert os.readlink(mount.path / "twice.npy") == "a/soft.npy"
        assert np.load(mount.path / "twice.npy").tolist() == [0, 1, 2]
        assert os.readlink(mount.path / "a/b/up") == ".."
        assert (mount.path / "a/b/up").resolve() == (mount.path / "a").resolve()
        assert not (mount.path / "dangling").exists() and (mount.path / "dangling").is_symlink()
        omitted = os.getxattr(mount.path, "user.glassfs.omitted").decode()
        assert "outside: external link: " in omitted and "virtual: virtual dataset: " in omitted
        assert "user.glassfs.omitted" in os.listxattr(mount.path)
        os.listdir(mount.path)
        met = [json.loads(line) for line in (mount.path / ".glassfs/omitted.jsonl").read_text().splitlines()]
        assert {one["path"] for one in met} == {"/"}
        assert {one["name"] for one in met} == {"outside", "virtual", "external", "kind"}
        assert stat.S_IMODE((mount.path / ".glassfs/omitted.jsonl").stat().st_mode) == 0o400
        assert os.getxattr(mount.path / "a", "user.glassfs.omitted") == b""


def test_bucket_is_read_like_a_folder(serving: Serving, tmp_path: Path) -> None:  # noqa: F811
    import glassfs as library

    whole = write_everything(tmp_path / "made.h5").read_bytes()
    with serving(Bucket({"made.h5": whole})), library.open("s3://bucket/made.h5") as opened:
        assert np.array_equal(opened["filters/gzip_all"].numpy(), values((50, 33, 5)))
        assert opened["texts.jsonl"].bytes().startswith(b'"a"')


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
