"""Each system call that would change a mount fails with EROFS, on every kind of node."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from writers.kastore import KastoreWriter

from tests.mount.conftest import Mounted
from tests.mount.mounts import Mount, opened

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
FS_IOC_SETFLAGS = 0x40086602
RENAME_EXCHANGE = 2

Call = Callable[[str], object]


def libc(name: str, *arguments: object) -> None:
    """Call a function of libc that the os module lacks. Raises OSError."""
    encoded = [argument.encode() if isinstance(argument, str) else argument for argument in arguments]
    if getattr(LIBC, name)(*encoded) < 0:
        raise OSError(ctypes.get_errno(), f"{name} failed")


def with_descriptor(call: Callable[[int], object]) -> Call:
    """The call on a descriptor that is open for reading."""

    def calling(path: str) -> None:
        with opened(Path(path)) as descriptor:
            call(descriptor)

    return calling


def make_socket(path: str) -> None:
    """Bind a socket under a short path: those of sockets have at most 107 bytes."""
    with opened(Path(path).parent) as descriptor, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{descriptor}/{os.path.basename(path)}")


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
ALL = (*DIRECTORIES, *FILES, "link")

# On a missing name in each directory.
MAKE: dict[str, Call] = {
    "open O_CREAT": lambda path: os.open(path, os.O_WRONLY | os.O_CREAT),
    "open O_CREAT to read": lambda path: os.open(path, os.O_RDONLY | os.O_CREAT),
    "open O_EXCL": lambda path: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL),
    "mkdir": os.mkdir,
    "mknod": lambda path: os.mknod(path, stat.S_IFREG | 0o600),
    "mkfifo": os.mkfifo,
    "bind": make_socket,
    "symlink": lambda path: os.symlink("target", path),
}

# On a directory itself.
CHANGE_DIRECTORY: dict[str, Call] = {
    "rmdir": os.rmdir,
    "unlink": os.unlink,
    "rename to": lambda path: os.rename(path, path + "/new"),
    "O_TMPFILE": lambda path: os.open(path, os.O_TMPFILE | os.O_RDWR),
}

# On a file.
CHANGE_FILE: dict[str, Call] = {
    "open O_WRONLY": lambda path: os.open(path, os.O_WRONLY),
    "open O_RDWR": lambda path: os.open(path, os.O_RDWR),
    "open O_APPEND": lambda path: os.open(path, os.O_WRONLY | os.O_APPEND),
    "open O_TRUNC": lambda path: os.open(path, os.O_WRONLY | os.O_TRUNC),
    "open O_TRUNC to read": lambda path: os.open(path, os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda path: os.truncate(path, 0),
    "truncate to grow": lambda path: os.truncate(path, 1 << 40),
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "link": lambda path: os.link(path, path + "2"),
}

# On everything that is not a symbolic link; a link would be followed out of the mount.
CHANGE_ANY: dict[str, Call] = {
    "chmod": lambda path: os.chmod(path, 0o777),
    "chown": lambda path: os.chown(path, 1, 1),
    "utime": lambda path: os.utime(path, (1, 1)),
    "setxattr": lambda path: os.setxattr(path, "user.mine", b"value"),
    "setxattr of ours": lambda path: os.setxattr(path, "user.glassfs.key", b"value"),
    "removexattr": lambda path: os.removexattr(path, "user.glassfs.key"),
    "access": lambda path: libc("access", path, os.W_OK),
    "fchmod": with_descriptor(lambda fd: os.fchmod(fd, 0o777)),
    "fchown": with_descriptor(lambda fd: os.fchown(fd, 1, 1)),
    "futimens": with_descriptor(lambda fd: os.utime(fd, (1, 1))),
    "fsetxattr": with_descriptor(lambda fd: os.setxattr(fd, "user.mine", b"value")),
    "fremovexattr": with_descriptor(lambda fd: os.removexattr(fd, "user.mine")),
    "ioctl FS_IOC_SETFLAGS": with_descriptor(lambda fd: fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", 0))),
}

# On a name of any kind. That of the root belongs to another file system.
CHANGE_NAME: dict[str, Call] = {
    "rename": lambda path: os.rename(path, path + "2"),
    "rename over": lambda path: os.rename(path, os.path.join(os.path.dirname(path), "plain.txt")),
    "lchown": lambda path: os.chown(path, 1, 1, follow_symlinks=False),
    "lutime": lambda path: os.utime(path, (1, 1), follow_symlinks=False),
    "renameat2": lambda path: libc("renameat2", AT_FDCWD, path, AT_FDCWD, path + "2", RENAME_EXCHANGE),
}

CHANGE_LINK: dict[str, Call] = {
    "unlink": os.unlink,
    "link": lambda path: os.link(path, path + "2", follow_symlinks=False),
}


def cases(kinds: tuple[str, ...], calls: dict[str, Call]) -> list[tuple[str, str, Call]]:
    return [(kind, name, call) for kind in kinds for name, call in calls.items()]


CASES = [
    *cases(DIRECTORIES, MAKE), *cases(DIRECTORIES[1:], CHANGE_DIRECTORY), *cases(FILES, CHANGE_FILE),
    *cases(tuple(kind for kind in ALL if kind != "link"), CHANGE_ANY),
    *cases(tuple(kind for kind in ALL if kind != "root"), CHANGE_NAME),
    *cases(("link",), CHANGE_LINK),
]


@pytest.mark.parametrize(("kind", "name", "call"), CASES, ids=[f"{name}-{kind}" for kind, name, _ in CASES])
def test_refused(nodes: dict[str, Path], kind: str, name: str, call: Call) -> None:
    path = nodes[kind] / "new" if name in MAKE else nodes[kind]
    before = sorted(os.listdir(nodes["root"]))
    with pytest.raises(OSError) as caught:
        call(str(path))
    assert caught.value.errno == errno.EROFS, caught.value
    assert sorted(os.listdir(nodes["root"])) == before


def test_descriptors_cannot_be_written_to(nodes: dict[str, Path]) -> None:
    for kind in FILES:
        with opened(nodes[kind]) as descriptor:
            for call in (
                lambda fd: os.write(fd, b"x"), lambda fd: os.pwrite(fd, b"x", 0), lambda fd: os.ftruncate(fd, 0),
                lambda fd: os.posix_fallocate(fd, 0, 10), lambda fd: mmap.mmap(fd, 1, prot=mmap.PROT_WRITE),
            ):
                with pytest.raises(OSError) as caught:
                    call(descriptor)
                assert caught.value.errno in (errno.EBADF, errno.EINVAL, errno.EACCES, errno.EROFS)


def test_private_map_can_be_changed_in_memory_only(nodes: dict[str, Path]) -> None:
    before = nodes["plain file"].read_bytes()
    with nodes["plain file"].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[:2] = b"XX"
        assert mapped[:] == b"XX" + before[2:]
    assert nodes["plain file"].read_bytes() == before


def test_nothing_moves_into_the_mount(nodes: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    with pytest.raises(OSError) as caught:
        os.rename(tmp_path / "mine", nodes["group"] / "mine")
    assert caught.value.errno in (errno.EXDEV, errno.EROFS)
    assert (tmp_path / "mine").read_bytes() == b"mine"


@pytest.mark.usefixtures("as_root")
def test_remount_for_writing_permits_no_writes(mounted: Mounted, tmp_path: Path) -> None:
    """Root can clear the kernel's read-only flag; then the daemon refuses."""
    (tmp_path / "plain.txt").write_bytes(b"plain")
    with mounted(tmp_path) as mount:
        remount_for_writing(mount)
        for call in (
            lambda path: write_into(path, os.O_WRONLY), lambda path: write_into(path, os.O_RDWR),
            lambda path: write_into(path, os.O_WRONLY | os.O_TRUNC), os.unlink, lambda path: os.truncate(path, 0),
            lambda path: os.mkdir(path + "2"), lambda path: os.chmod(path, 0o777),
        ):
            # The error depends on libfuse, which has no callback for most of these calls.
            with pytest.raises(OSError):
                call(str(mount.path / "plain.txt"))
        assert sorted(os.listdir(mount.path)) == [".glassfs", "plain.txt"]
        assert (mount.path / "plain.txt").read_bytes() == b"plain"
    assert (tmp_path / "plain.txt").read_bytes() == b"plain"


def write_into(path: str, flags: int) -> None:
    """With libfuse 3 the kernel sends no request for opening, only for writing."""
    descriptor = os.open(path, flags)
    try:
        os.write(descriptor, b"other")
    finally:
        os.close(descriptor)


def remount_for_writing(mount: Mount) -> None:
    libc("mount", b"none", str(mount.path), None, 32, None)
    assert not os.statvfs(mount.path).f_flag & os.ST_RDONLY
