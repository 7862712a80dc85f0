"""HDF5 files through a mount, fsspec, a bucket and commands: the same values everywhere, and errors in one line."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from tests.formats.hdf5_files import h5py, values, write_aloha, write_everything, write_links, write_robomimic
from tests.mount.conftest import Mounted
from tests.mount.mounts import glassfs
from tests.remote.conftest import Serving, serving  # noqa: F401
from tests.remote.s3 import Bucket
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_mounted_arrays_are_those_of_h5py(mounted: Mounted, tmp_path: Path) -> None:
    path = write_everything(tmp_path / "made.h5")
    with mounted(path) as mount, h5py.File(path) as file:
        for name in ("types/big_f4", "types/bool", "types/little_c16", "filters/gzip_all", "filters/lzf", "sparse",
                     "unallocated", "compact", "scalar", "empty", "filters/scaleoffset"):
            found = np.load(mount.path / f"{name}.npy", mmap_mode=None)
            assert np.array_equal(found, file[name][()]), name
        assert os.getxattr(mount.path / "filters/gzip_all.npy", "user.glassfs.filters").startswith(b"shuffle")
        assert (mount.path / "texts.jsonl").read_text(encoding="utf-8") == '"a"\n"bé"\n""\n'


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


def test_folder_of_episodes_has_joined_rows(mounted: Mounted, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_robomimic(folder / "lift.hdf5")
    write_aloha(folder / "episode_0.hdf5", is_compressed=True)
    (folder / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5_000))
    with mounted(folder, options=["views=all"]) as mount:
        rows = [json.loads(line) for line in (mount.path / "episodes.jsonl").read_text().splitlines()]
        assert [(row["container"], row["position"], row["num_frames"]) for row in rows] == [
            ("episode_0.hdf5", 0, 5), ("lift.hdf5", 0, 6), ("lift.hdf5", 1, 7), ("lift.hdf5", 2, 8),
        ]
        assert (mount.path / "lift.hdf5/episodes/1/index.html").stat().st_size > 100
        assert (mount.path / "episode_0.hdf5/observations/images/top/000000.jpg").read_bytes()[:2] == b"\xff\xd8"
        with pytest.raises(OSError, match=r"Stale|Not a directory"):
            os.listdir(mount.path / "bad.h5")
        wait_until((mount.path / "bad.h5").is_file)
        assert os.getxattr(mount.path / "bad.h5", "user.glassfs.error")


def test_copy_of_a_mount_is_an_export(mounted: Mounted, tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    done = glassfs("export", path, tmp_path / "exported", "--where", "position == 1")
    assert done.returncode == 0, done.stderr
    (one,) = [folder for folder in (tmp_path / "exported").iterdir() if folder.is_dir()]
    assert np.load(one / "actions.npy").shape == (7, 7)
    with mounted(path) as mount:
        shutil.copytree(mount.path / "data/demo_10", tmp_path / "copy")
    assert {file.name for file in (tmp_path / "copy").iterdir()} <= {file.name for file in one.iterdir()}


@pytest.mark.slow
def test_bucket_is_read_like_a_folder(serving: Serving, tmp_path: Path) -> None:  # noqa: F811
    import glassfs as library

    whole = write_everything(tmp_path / "made.h5").read_bytes()
    with serving(Bucket({"made.h5": whole})), library.open("s3://bucket/made.h5") as opened:
        assert np.array_equal(opened["filters/gzip_all"].numpy(), values((50, 33, 5)))
        assert opened["texts.jsonl"].bytes().startswith(b'"a"')


def test_verify_and_info_know_hdf5(tmp_path: Path) -> None:
    for number in range(6):
        write_everything(tmp_path / f"{number}.h5")
    damaged = bytearray((tmp_path / "5.h5").read_bytes())
    with h5py.File(tmp_path / "5.h5") as file:
        offset = file["filters/fletcher32"].id.get_chunk_info(0).byte_offset
    damaged[offset] ^= 1
    (tmp_path / "5.h5").write_bytes(damaged)
    done = glassfs("verify", "--jobs", "2", tmp_path)
    assert done.returncode != 0
    assert "5.h5: filters/fletcher32" in done.stdout + done.stderr
    assert "1 fault" in done.stdout + done.stderr
    info = glassfs("info", tmp_path / "0.h5")
    assert info.returncode == 0 and "hdf5" in info.stdout
