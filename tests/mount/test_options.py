"""Options of `-o` in real mounts."""

from __future__ import annotations

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import mountinfo
from tests.waiting import wait_until

NOBODY = 65534
CONTAINERS = 150
DESCRIPTORS = 140
"""Limit of a daemon: 128 of sources, and some that are being opened."""


def test_options_together(mounted: Mounted, store: Path, tmp_path: Path) -> None:
    """Owner, modes, a nonempty mount point, and options of mount(8) and systemd, which are ignored."""
    store.chmod(0o644)
    at = tmp_path / "full"
    at.mkdir()
    (at / "mine.txt").write_text("mine")
    ignored = "ro,noauto,defaults,nofail,_netdev,user,noatime,x-systemd.automount,x-systemd.idle-timeout=60,x-gvfs-show"
    options = ["uid=1234,gid=4321", "umask=037", ignored, "comment=mine", "nonempty"]
    with mounted(store, at=at, options=options) as mount:
        assert sorted(os.listdir(at)) == [".glassfs", "array.npy"]
        for path, mode in ((".", 0o540), ("array.npy", 0o440)):
            status = (mount.path / path).stat()
            assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, mode), path
        status = (mount.path / ".glassfs/status.json").stat()  # has names that the owners may not see
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o400)
        (line,) = mountinfo(mount.path)
        file_system, source = line[line.index("-") + 1 :][:2]
        assert (file_system, source) == ("fuse.glassfs", str(store))
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(line[5].split(","))
    assert os.listdir(at) == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["0", "1M"])
def test_tiny_cache_serves_all_files(mounted: Mounted, gallery: Gallery, size: str) -> None:
    """Blocks pass through spool files, for four readers at a time."""
    files = gallery.files
    with mounted(gallery.folder, options=[f"cache_size={size}"]) as mount, ThreadPoolExecutor(4) as threads:
        shown = threads.map(lambda path: (mount.path / path).read_bytes(), [*files, *reversed(files)])
        for path, data in zip([*files, *reversed(files)], shown, strict=True):
            assert data == files[path], path
        assert mount.status()["cache"]["budget"] == {"0": 0, "1M": 1 << 20}[size]
        assert mount.status()["errors"] == 0
        wait_until(lambda: mount.status()["cache"]["used"] <= mount.status()["cache"]["budget"])


@pytest.mark.usefixtures("as_root")
def test_other_users_need_allow_other_and_modes(mounted: Mounted, public_folder: Path, store: Path) -> None:
    path, at = public_folder / store.name, public_folder / "mnt"
    path.write_bytes(store.read_bytes())
    path.chmod(0o644)
    at.mkdir()

    def read_as_nobody() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["cat", at / "array.npy"], capture_output=True, check=False, user=NOBODY)

    with mounted(path, at=at):
        assert read_as_nobody().returncode != 0
    with mounted(path, at=at, options=["allow_other"]):
        assert read_as_nobody().stdout == (at / "array.npy").read_bytes()
        path.chmod(0o600)
        wait_until(lambda: read_as_nobody().stderr.endswith(b"Permission denied\n"))
        done = subprocess.run(["ls", at], capture_output=True, text=True, check=False, user=NOBODY)
        assert done.returncode != 0 and "Permission denied" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("as_root")
def test_read_ahead(mounted: Mounted, store: Path) -> None:
    for options, expected in (([], "1024"), (["read_ahead=256K"], "256")):
        with mounted(store, options=options) as mount:
            (line,) = mountinfo(mount.path)
            assert Path(f"/sys/class/bdi/{line[2]}/read_ahead_kb").read_text().strip() == expected


@pytest.mark.slow
def test_spool_folder_is_used_and_left_empty(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    """A block that exceeds the cache is written to an unlinked file in the spool folder."""
    spool = tmp_path / "spool, with a comma"
    spool.mkdir()
    option = str(spool).replace(",", "\\,")
    with mounted(gallery.folder / "episode.wshard", options=[f"cache_size=1M,spool={option}"]) as mount:
        with (mount.path / "signal/cloud.npy").open("rb") as file:
            assert file.read() == gallery.files["episode.wshard/signal/cloud.npy"]
            assert any(name.startswith(str(spool)) and name.endswith("(deleted)") for name in mount.open_files())
        assert os.listdir(spool) == []
        assert mount.status()["cache"]["used"] <= 1 << 20


def test_max_open_bounds_the_open_containers(mounted: Mounted, tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(CONTAINERS):
        (folder / f"{number}.kas").write_bytes(store.read_bytes())
    with mounted(folder, options=["max_open=5"]) as mount:
        for number in range(CONTAINERS):
            assert (mount.path / f"{number}.kas/array.npy").read_bytes()
        assert len(mount.status()["open_containers"]) == 5
        assert sum(name.endswith(".kas") for name in mount.open_files()) <= DESCRIPTORS
