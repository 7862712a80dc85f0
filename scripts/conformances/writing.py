"""Calls that would write: each has to fail as on any read-only file system, and nothing may change."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Callable

from conformances.checks import FILES, FOLDER, LIBC, SMALL, Call, Tree, check, opened, system_call

GROUP = "writing"
AT_FDCWD, RENAME_EXCHANGE, RENAME_NOREPLACE = -100, 2, 1
FICLONE = 0x40049409


def _on(name: str, call: Callable[[str], object]) -> Call:
    return lambda tree: call(tree / name)


def _by_descriptor(call: Callable[[int], object]) -> Call:
    def checked(tree: Tree) -> object:
        with opened(tree / SMALL) as descriptor:
            return call(descriptor)

    return checked


def _rename(flags: int) -> Callable[[str], int]:
    return lambda path: system_call(
        "renameat2", AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(os.path.dirname(path) + "/action.npy"), flags,
    )


ON_FILES: dict[str, Callable[[str], object]] = {
    "open O_WRONLY": lambda path: os.open(path, os.O_WRONLY),
    "open O_RDWR": lambda path: os.open(path, os.O_RDWR),
    "open O_RDONLY and O_TRUNC": lambda path: os.open(path, os.O_RDONLY | os.O_TRUNC),
    "open O_APPEND": lambda path: os.open(path, os.O_WRONLY | os.O_APPEND),
    "open O_CREAT of what exists": lambda path: os.close(os.open(path, os.O_RDONLY | os.O_CREAT)),
    "open O_CREAT and O_EXCL": lambda path: os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL),
    "open O_CREAT below a file": lambda path: os.open(f"{path}/new", os.O_WRONLY | os.O_CREAT),
    "mkdir of what exists": os.mkdir,
    "rmdir of a file": os.rmdir,
    "unlink": os.unlink,
    "rename": lambda path: os.rename(path, f"{path}2"),
    "rename to itself": lambda path: os.rename(path, path),
    "renameat2 RENAME_EXCHANGE": _rename(RENAME_EXCHANGE),
    "renameat2 RENAME_NOREPLACE": _rename(RENAME_NOREPLACE),
    "link": lambda path: os.link(path, f"{path}2"),
    "chmod": lambda path: os.chmod(path, 0o777),
    "chown": lambda path: os.chown(path, 1, 1),
    "chown -1 -1": lambda path: os.chown(path, -1, -1),
    "utimensat": lambda path: os.utime(path, (1, 1)),
    "utimensat now": os.utime,
    "truncate": lambda path: os.truncate(path, 0),
    "truncate to a negative size": lambda path: os.truncate(path, -1),
    "setxattr": lambda path: os.setxattr(path, "user.a", b"b"),
    "removexattr": lambda path: os.removexattr(path, "user.a"),
    "access W_OK": lambda path: system_call("access", os.fsencode(path), os.W_OK),
    "swapon": lambda path: system_call("swapon", os.fsencode(path), 0),
}
ON_FOLDERS: dict[str, Callable[[str], object]] = {
    "open O_CREAT": lambda path: os.open(f"{path}/new", os.O_RDONLY | os.O_CREAT),
    "open O_TMPFILE": lambda path: os.open(path, os.O_TMPFILE | os.O_RDWR),
    "open O_WRONLY of a directory": lambda path: os.open(path, os.O_WRONLY),
    "creat of a name with a slash behind": lambda path: os.open(f"{path}/new/", os.O_WRONLY | os.O_CREAT),
    "mkdir": lambda path: os.mkdir(f"{path}/new"),
    "rmdir": os.rmdir,
    "rmdir of .": lambda path: os.rmdir(f"{path}/."),
    "unlink of a directory": os.unlink,
    "unlink of a missing file": lambda path: os.unlink(f"{path}/new"),
    "rename of a directory": lambda path: os.rename(path, f"{path}2"),
    "rename out of the tree": lambda path: os.rename(path, "/tmp/moved-by-conformance"),
    "rename into itself": lambda path: os.rename(path, f"{path}/new"),
    "symlink": lambda path: os.symlink("target", f"{path}/new"),
    "mknod of a file": lambda path: os.mknod(f"{path}/new", stat.S_IFREG | 0o600),
    "mknod of a pipe": lambda path: os.mkfifo(f"{path}/new"),
    "mknod of a device": lambda path: os.mknod(f"{path}/new", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "chmod of a directory": lambda path: os.chmod(path, 0o777),
    "setxattr of a directory": lambda path: os.setxattr(path, "user.a", b"b"),
}
ON_DESCRIPTORS: dict[str, Callable[[int], object]] = {
    "fchmod": lambda descriptor: os.fchmod(descriptor, 0o777),
    "fchown": lambda descriptor: os.fchown(descriptor, 1, 1),
    "futimens": lambda descriptor: os.utime(descriptor, (1, 1)),
    "fsetxattr": lambda descriptor: os.setxattr(descriptor, "user.a", b"b"),
    "ftruncate": lambda descriptor: os.ftruncate(descriptor, 0),
    "fallocate": lambda descriptor: system_call("fallocate", descriptor, 0, 0, 4096),
    "fallocate, punching a hole": lambda descriptor: system_call("fallocate", descriptor, 3, 0, 4096),
    "write": lambda descriptor: os.write(descriptor, b"x"),
    "pwrite": lambda descriptor: os.pwrite(descriptor, b"x", 0),
    "copy_file_range into it": lambda descriptor: os.copy_file_range(descriptor, descriptor, 16, 0, 32),
    "splice into it": lambda descriptor: os.splice(os.pipe()[0], descriptor, 16),
    "sendfile into it": lambda descriptor: os.sendfile(descriptor, descriptor, 0, 16),
    "FICLONE into it": lambda descriptor: fcntl.ioctl(descriptor, FICLONE, descriptor),
    "mmap MAP_SHARED to write": lambda descriptor: mmap.mmap(descriptor, 64, mmap.MAP_SHARED, mmap.PROT_WRITE),
    "fsync": os.fsync,
    "fdatasync": os.fdatasync,
    "syncfs": LIBC.syncfs,
    "dup and reopen through /proc to write": lambda descriptor: os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY),
}
for name, call in ON_FILES.items():
    check(GROUP, name)(_on(SMALL, call))
for name, call in ON_FOLDERS.items():
    check(GROUP, name)(_on(FOLDER, call))
for name, call in ON_DESCRIPTORS.items():
    check(GROUP, name)(_by_descriptor(call))
check(GROUP, "lchown of a link")(_on("link", lambda path: os.lchown(path, 1, 1)))
check(GROUP, "unlink of a link")(_on("link", os.unlink))
check(GROUP, "truncate through a link")(_on("link", lambda path: os.truncate(path, 0)))
for name in FILES[:-1]:
    check(GROUP, f"open O_RDWR of {name}")(_on(name, lambda path: os.open(path, os.O_RDWR)))
