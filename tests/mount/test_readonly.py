"""Each system call that would change a mount fails with EROFS, on every kind of node."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from writers.kastore import KastoreWriter

from tests.mount.conftest import Mounted
from tests.mount.mounts import opened

MS_REMOUNT = 32

Call = Callable[[str], object]


@pytest.fixture(scope="module")
def nodes(mounted: Mounted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A node of each kind, in one mount."""
    folder = tmp_path_factory.mktemp("readonly")
    (folder / "sub").mkdir()
    (folder / "plain.txt").write_bytes(b"plain")
    (folder / "link").symlink_to("/nowhere/outside")
    with KastoreWriter(folder / "store.kas") as store:
        store.add("nodes/time", [1.0])
    with mounted(folder) as mount:
        root = mount.path
        yield {
            "root": root, "folder": root / "sub", "container": root / "store.kas", "group": root / "store.kas/nodes",
            "content": root / "store.kas/nodes/time.npy", "plain file": root / "plain.txt", "link": root / "link",
            "status": root / ".glassfs/status.json", "own directory": root / ".glassfs",
        }


DIRECTORIES = ("root", "folder", "container", "group", "own directory")
FILES = ("content", "plain file", "status")
# A symbolic link is left out where it would be followed out of the mount.
CALLS: dict[str, tuple[tuple[str, ...], Call]] = {
    "open O_CREAT": (DIRECTORIES, lambda path: os.open(f"{path}/new", os.O_RDONLY | os.O_CREAT)),
    "mkdir": (DIRECTORIES, lambda path: os.mkdir(f"{path}/new")),
    "mknod": (DIRECTORIES, lambda path: os.mknod(f"{path}/new", stat.S_IFREG | 0o600)),
    "symlink": (DIRECTORIES, lambda path: os.symlink("target", f"{path}/new")),
    "O_TMPFILE": (DIRECTORIES[1:], lambda path: os.open(path, os.O_TMPFILE | os.O_RDWR)),
    "rmdir": (DIRECTORIES[1:], os.rmdir),
    "open O_WRONLY": (FILES, lambda path: os.open(path, os.O_WRONLY)),
    "open O_RDWR": (FILES, lambda path: os.open(path, os.O_RDWR)),
    "open O_TRUNC to read": (FILES, lambda path: os.open(path, os.O_RDONLY | os.O_TRUNC)),
    "truncate": (FILES, lambda path: os.truncate(path, 0)),
    "link": (FILES, lambda path: os.link(path, f"{path}2")),
    "unlink": ((*FILES, "link"), os.unlink),
    "rename": ((*DIRECTORIES[1:], "link"), lambda path: os.rename(path, f"{path}2")),
    "lutime": ((*DIRECTORIES, *FILES, "link"), lambda path: os.utime(path, (1, 1), follow_symlinks=False)),
    "chmod": ((*DIRECTORIES, *FILES), lambda path: os.chmod(path, 0o777)),
    "chown": ((*DIRECTORIES, *FILES), lambda path: os.chown(path, 1, 1)),
    "setxattr": ((*DIRECTORIES, *FILES), lambda path: os.setxattr(path, "user.mine", b"value")),
    "removexattr": ((*DIRECTORIES, *FILES), lambda path: os.removexattr(path, "user.glassfs.key")),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused(nodes: dict[str, Path], name: str) -> None:
    kinds, call = CALLS[name]
    before = sorted(os.listdir(nodes["root"]))
    for kind in kinds:
        with pytest.raises(OSError) as caught:
            call(str(nodes[kind]))
        assert caught.value.errno == errno.EROFS, (kind, caught.value)
    assert sorted(os.listdir(nodes["root"])) == before


def write_into(path: str, flags: int) -> None:
    """The kernel sends no request for opening, only for writing."""
    with opened(Path(path), flags) as descriptor:
        os.write(descriptor, b"other")


@pytest.mark.usefixtures("as_root")
def test_remount_for_writing_permits_no_writes(mounted: Mounted, tmp_path: Path) -> None:
    """Root can clear the kernel's read-only flag; then the daemon refuses."""
    (tmp_path / "plain.txt").write_bytes(b"plain")
    with mounted(tmp_path) as mount:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(b"none", bytes(mount.path), None, MS_REMOUNT, None) == 0, ctypes.get_errno()
        assert not os.statvfs(mount.path).f_flag & os.ST_RDONLY
        for call in (
            lambda path: write_into(path, os.O_WRONLY), lambda path: write_into(path, os.O_RDWR),
            lambda path: write_into(path, os.O_WRONLY | os.O_TRUNC), os.unlink, lambda path: os.truncate(path, 0),
            lambda path: os.mkdir(path + "2"), lambda path: os.chmod(path, 0o777),
        ):
            with pytest.raises(OSError):
                call(str(mount.path / "plain.txt"))
        assert sorted(os.listdir(mount.path)) == [".glassfs", "plain.txt"]
        assert (mount.path / "plain.txt").read_bytes() == b"plain"
    assert (tmp_path / "plain.txt").read_bytes() == b"plain"
