"""What `-o` does, what is ignored because mount(8) and systemd pass it, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import glassfs, is_mounted, mountinfo
from tests.waiting import wait_until

NOBODY = 65534
CONTAINERS = 300
DESCRIPTORS = 140
"""Those of sources, 128, and some that are being opened."""


@pytest.fixture
def public_store(public_folder: Path, store: Path) -> Path:
    path = public_folder / store.name
    path.write_bytes(store.read_bytes())
    path.chmod(0o644)
    (public_folder / "mnt").mkdir()
    return path


def test_uid_gid_and_umask(mounted: Mounted, store: Path) -> None:
    store.chmod(0o644)
    with mounted(store, options=["uid=1234,gid=4321", "umask=037"]) as mount:
        for path, mode in ((".", 0o540), ("array.npy", 0o440)):
            status = (mount.path / path).stat()
            assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, mode), path


@pytest.mark.slow
@pytest.mark.parametrize("size", ["0", "1", "1M"])
def test_a_cache_of_next_to_nothing(mounted: Mounted, gallery: Gallery, size: str) -> None:
    """Everything goes through files, or alone: all bytes are right, for several readers at a time, and nobody hangs."""
    files = gallery.exact()
    with mounted(gallery.folder, options=[f"cache_size={size}"]) as mount, ThreadPoolExecutor(4) as threads:
        shown = threads.map(lambda path: (mount.path / path).read_bytes(), [*files, *reversed(files)])
        for path, data in zip([*files, *reversed(files)], shown, strict=True):
            assert data == files[path], path
        assert mount.status()["cache"]["budget"] == {"0": 0, "1": 1, "1M": 1 << 20}[size]
        assert mount.status()["errors"] == 0
        wait_until(lambda: mount.status()["cache"]["used"] <= mount.status()["cache"]["budget"])


def test_umask_never_adds_permissions(mounted: Mounted, store: Path) -> None:
    store.chmod(0o600)
    with mounted(store, options=["umask=0"]) as mount:
        assert stat.S_IMODE((mount.path / "array.npy").stat().st_mode) == 0o400


@pytest.mark.usefixtures("as_root")
def test_other_users_get_in_with_allow_other_only(mounted: Mounted, public_store: Path) -> None:
    at = public_store.parent / "mnt"

    def read_as_nobody() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["cat", at / "array.npy"], capture_output=True, check=False, user=NOBODY)

    with mounted(public_store, at=at):
        assert read_as_nobody().returncode != 0
    with mounted(public_store, at=at, options=["allow_other"]):
        assert read_as_nobody().stdout == (at / "array.npy").read_bytes()


@pytest.mark.usefixtures("as_root")
def test_modes_are_enforced_for_other_users(mounted: Mounted, public_store: Path) -> None:
    at = public_store.parent / "mnt"
    public_store.chmod(0o600)
    with mounted(public_store, at=at, options=["allow_other"]):
        for words in (["cat", str(at / "array.npy")], ["ls", str(at)]):
            done = subprocess.run(words, capture_output=True, text=True, check=False, user=NOBODY)
            assert done.returncode != 0 and "Permission denied" in done.stderr


def test_options_of_mount_and_systemd_are_ignored(mounted: Mounted, store: Path) -> None:
    ignored = "ro,noauto,defaults,nofail,_netdev,user,noatime,x-systemd.automount,x-systemd.idle-timeout=60,x-gvfs-show"
    with mounted(store, options=[ignored, "comment=mine"]) as mount:
        assert (mount.path / "array.npy").exists()


def test_mount_table_says_what_it_is(mounted: Mounted, store: Path) -> None:
    with mounted(store) as mount:
        (line,) = mountinfo(mount.path)
        options = line[5].split(",")
        file_system, source = line[line.index("-") + 1 :][:2]
        assert (file_system, source) == ("fuse.glassfs", str(store))
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(options)


@pytest.mark.usefixtures("as_root")
def test_read_ahead(mounted: Mounted, store: Path) -> None:
    for options, expected in (([], "1024"), (["read_ahead=256K"], "256")):
        with mounted(store, options=options) as mount:
            (line,) = mountinfo(mount.path)
            assert Path(f"/sys/class/bdi/{line[2]}/read_ahead_kb").read_text().strip() == expected


def test_nonempty(mounted: Mounted, store: Path, tmp_path: Path) -> None:
    at = tmp_path / "full"
    at.mkdir()
    (at / "mine.txt").write_text("mine")
    with mounted(store, at=at, options=["nonempty"]):
        assert sorted(os.listdir(at)) == [".glassfs", "array.npy"]
    assert os.listdir(at) == ["mine.txt"]


def test_spool_folder_is_used_and_left_empty(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    """A block that does not fit the cache goes through an unlinked file in the folder that was asked for."""
    spool = tmp_path / "spool, with a comma"
    spool.mkdir()
    option = str(spool).replace(",", "\\,")
    with mounted(gallery.folder / "episode.wshard", options=[f"cache_size=1M,spool={option}"]) as mount:
        with (mount.path / "signal/cloud.npy").open("rb") as file:
            assert file.read() == gallery.exact()["episode.wshard/signal/cloud.npy"]
            opened = [os.readlink(f"/proc/{mount.pid}/fd/{name}") for name in os.listdir(f"/proc/{mount.pid}/fd")]
            assert any(name.startswith(str(spool)) and name.endswith("(deleted)") for name in opened)
        assert os.listdir(spool) == []
        assert mount.status()["cache"]["used"] <= 1 << 20


def test_spool_folder_may_be_relative(fuse: str, gallery: Gallery, tmp_path: Path) -> None:
    """To where the command was given, which is not where the daemon is."""
    at = tmp_path / "mnt"
    at.mkdir()
    (tmp_path / "spool").mkdir()
    source = gallery.folder / "episode.wshard"
    done = glassfs("mount", "-o", "cache_size=1M,spool=spool", source, "mnt", generation=fuse, cwd=tmp_path)
    try:
        assert (done.returncode, done.stderr) == (0, "")
        data = (at / "signal/cloud.npy").read_bytes()
        assert data == gallery.exact()["episode.wshard/signal/cloud.npy"]
    finally:
        glassfs("umount", at)


def test_max_open_bounds_the_open_containers(mounted: Mounted, tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(CONTAINERS):
        (folder / f"{number}.kas").write_bytes(store.read_bytes())
    with mounted(folder, options=["max_open=5"]) as mount:
        for number in range(CONTAINERS):
            assert (mount.path / f"{number}.kas/array.npy").read_bytes()
        assert len(mount.status()["open_containers"]) == 5
        held = []
        for name in os.listdir(f"/proc/{mount.pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                held.append(os.readlink(f"/proc/{mount.pid}/fd/{name}"))
        assert sum(name.endswith(".kas") for name in held) <= DESCRIPTORS


@pytest.mark.slow
@pytest.mark.parametrize(("option", "said"), [
    ("colour=red", "unknown mount option 'colour=red'"),
    ("allow_others", "unknown mount option 'allow_others'"),
    ("rw", "read-only"),
    ("uid=me", "'me'"),
    ("umask=999", "'999'"),
    ("cache_size=lots", "'lots'"),
    ("cache_size", "cache_size"),
    ("max_open=0", "'0'"),
    ("spool=/does/not/exist", "/does/not/exist"),
    ("spool", "needs a folder"),
    ("allow_other=yes", "takes no value"),
    ("allow_other,allow_root", "only one of them"),
])
def test_wrong_options_are_refused(fuse: str, store: Path, tmp_path: Path, option: str, said: str) -> None:
    """As any other mistake in a command line: status 2."""
    at = tmp_path / "mnt"
    at.mkdir()
    done = glassfs("mount", "-o", f"ro,{option}", store, at, generation=fuse)
    try:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("glassfs: ") and done.stderr.count("\n") == 1
        assert said in done.stderr
        assert not is_mounted(at)
    finally:
        if is_mounted(at):
            glassfs("umount", at)
