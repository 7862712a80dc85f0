"""Names, links, directories and attributes."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections import Counter
from collections.abc import Iterator

from conformances.checks import CHANGING, FILES, FOLDER, FRAMES, SMALL, Tree, check, opened, system_call

NAMES, LISTINGS, ATTRIBUTES = "names", "directories", "attributes"
NAME_MAX, PATH_MAX = 255, 4096
ENTRY = struct.Struct("=QqHB")
STATX_ALL, STATX_BASIC, STATX_BTIME, STATX_MNT_ID = 0xFFF, 0x7FF, 0x800, 0x1000
INODE_SIZES = "directories have no size and one link, as on Btrfs; `find` then checks each entry itself"


def _lookup(name: str) -> None:
    check(NAMES, f"stat {name!a}")(lambda tree: stat.filemode(os.stat(tree / name).st_mode)[0])


for missing in (
    "none", "none/none", "plain.txt/", "plain.txt/none", f"{SMALL}/.", f"{SMALL}/..", f"{FOLDER}/", f"{FOLDER}/.",
    f"{FOLDER}/none.npy", f"{FRAMES}/000099.png", f"{FRAMES}/3.png", f"{FRAMES}/000003.PNG", "link", "loop",
    "loop/none", "dangling", "robot.kdb//episodes", "\udcff", f"{FOLDER}/\udcff\udcfe", f"{FOLDER}/é",
):
    _lookup(missing)
for place in ("", f"{FOLDER}/", f"{FRAMES}/"):
    for length in (NAME_MAX, NAME_MAX + 1, 1024, 1025):
        check(NAMES, f"stat of a name of {length} bytes in /{place}")(
            lambda tree, place=place, length=length: os.stat(tree / (place + "n" * length)))
    check(NAMES, f"mkdir of a name of {NAME_MAX + 1} bytes in /{place}")(
        lambda tree, place=place: os.mkdir(tree / (place + "n" * (NAME_MAX + 1))))
check(NAMES, "stat of a path of PATH_MAX - 1 bytes")(lambda tree: _long_path(tree, PATH_MAX - 1))
check(NAMES, "stat of a path of PATH_MAX bytes")(lambda tree: _long_path(tree, PATH_MAX))
check(NAMES, "pathconf: NAME_MAX, PATH_MAX")(
    lambda tree: [os.pathconf(tree / FOLDER, name) for name in ("PC_NAME_MAX", "PC_PATH_MAX")])
check(NAMES, "open of a directory to read, and read")(lambda tree: _read_folder(tree))
check(NAMES, "open O_DIRECTORY of a file")(lambda tree: os.open(tree / SMALL, os.O_DIRECTORY))
check(NAMES, "open O_NOFOLLOW of a link")(lambda tree: os.open(tree / "link", os.O_NOFOLLOW))
check(NAMES, "listdir of a file")(lambda tree: os.listdir(tree / SMALL))
check(NAMES, "readlink")(lambda tree: os.readlink(tree / "link"))
check(NAMES, "readlink of a file")(lambda tree: os.readlink(tree / SMALL))
check(NAMES, "chdir into a file")(lambda tree: os.chdir(tree / SMALL))
check(NAMES, "execve")(lambda tree: os.execv(tree / "plain.txt", ["x"]))


def _long_path(tree: Tree, size: int) -> str:
    path = os.fsencode(tree / FOLDER)
    return stat.filemode(os.stat(path + b"/" * (size - len(path) - 1) + b".").st_mode)[0]


def _read_folder(tree: Tree) -> None:
    with opened(tree / FOLDER) as folder:
        os.read(folder, 1)


def _entries(folder: int, size: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, inode number, offset of the next entry and type, with a buffer of ``size`` bytes for each call."""
    buffer = ctypes.create_string_buffer(size)
    while given := system_call("getdents64", folder, buffer, size):
        at = 0
        while at < given:
            number, offset, length, kind = ENTRY.unpack_from(buffer, at)
            yield os.fsdecode(buffer.raw[at + ENTRY.size : at + length].split(b"\0", 1)[0]), number, offset, kind
            at += length


for each in ("", FOLDER, FRAMES, CHANGING):
    @check(LISTINGS, f"names in /{each} with large and small buffers, each once")
    def _all_names(tree: Tree, each: str = each) -> object:
        with opened(tree / each) as first, opened(tree / each) as second:
            large = [entry[0] for entry in _entries(first, 1 << 16)]
            small = [entry[0] for entry in _entries(second, 64)]
        return sorted(large) == sorted(small), len(set(large)) == len(large), len(set(large) - {".glassfs"})

    @check(LISTINGS, f"d_ino and d_type in /{each} equal stat, without ..")
    def _types(tree: Tree, each: str = each) -> object:
        with opened(tree / each) as folder:
            wrong = []
            for name, number, _, kind in _entries(folder, 1 << 12):
                found = os.lstat(f"{tree / each}/{name}")
                if name != ".." and (found.st_ino, stat.S_IFMT(found.st_mode) >> 12) != (number, kind):
                    wrong.append(name)
        return wrong or "equal"


@check(LISTINGS, "d_ino of .. equals stat", "False", "glassfs gives .. the number of the directory itself")
def _above(tree: Tree) -> object:
    with opened(tree / FRAMES) as folder:
        return dict(entry[:2] for entry in _entries(folder, 1 << 12))[".."] == os.stat(tree / f"{FRAMES}/..").st_ino


@check(LISTINGS, "seekdir to each position that telldir gave")
def _seek(tree: Tree) -> object:
    with opened(tree / FRAMES) as folder:
        entries = list(_entries(folder, 256))
        for position, (_, _, offset, _) in reversed(list(enumerate(entries))):
            os.lseek(folder, offset, os.SEEK_SET)
            if [entry[0] for entry in _entries(folder, 512)] != [entry[0] for entry in entries[position + 1 :]]:
                return f"differs at {position}"
        os.lseek(folder, 0, os.SEEK_SET)
        return [entry[0] for entry in _entries(folder, 512)] == [entry[0] for entry in entries]


@check(LISTINGS, "getdents with a buffer too small for one entry")
def _too_small(tree: Tree) -> object:
    with opened(tree / FRAMES) as folder:
        return next(_entries(folder, 8))


@check(LISTINGS, "a directory that changes while it is read: what stays is listed once")
def _changing(tree: Tree) -> object:
    source = tree.source / CHANGING
    with opened(tree / CHANGING) as folder:
        names: list[str] = []
        for step, (name, *_) in enumerate(_entries(folder, 128)):
            names.append(name)
            if step % 8 == 0:
                (source / f"{step % 200:03d}-added").write_bytes(b"")
                (source / f"gone-{step % 200:03d}").unlink(missing_ok=True)
    counts = Counter(name for name in names if name.startswith("stays"))
    return len(counts), set(counts.values())


def _stat(name: str) -> object:
    def values(tree: Tree) -> object:
        found = os.lstat(tree / name)
        size = found.st_size if not stat.S_ISDIR(found.st_mode) else "-"
        return stat.filemode(found.st_mode)[0], size, found.st_uid, found.st_gid, found.st_rdev

    return values


for name in (*FILES, FOLDER, "link"):
    check(ATTRIBUTES, f"type, size, owner of {name}")(_stat(name))  # type: ignore[arg-type]
check(ATTRIBUTES, "st_nlink of files")(lambda tree: {os.stat(tree / name).st_nlink for name in FILES})
check(ATTRIBUTES, "st_nlink of a directory", "1", INODE_SIZES)(lambda tree: os.stat(tree / FOLDER).st_nlink)
check(ATTRIBUTES, "st_size of a directory", "0", INODE_SIZES)(lambda tree: os.stat(tree / FOLDER).st_size)
check(ATTRIBUTES, "mode of a file", "-r--r--r--", "modes are those of the container without write permission")(
    lambda tree: stat.filemode(os.stat(tree / SMALL).st_mode))


@check(ATTRIBUTES, "st_blocks cover st_size")
def _blocks(tree: Tree) -> object:
    found = {name: os.stat(tree / name) for name in FILES}
    return [name for name, one in found.items() if not 0 <= one.st_blocks * 512 - one.st_size < 1 << 16]


@check(ATTRIBUTES, "times: the same in stat, fstat, statx and again, and after a read")
def _times(tree: Tree) -> object:
    def times(target: str | int) -> tuple[int, int, int]:
        found = os.stat(target)
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino

    for name in FILES:
        with opened(tree / name) as file:
            before = times(tree / name)
            os.read(file, 100)
            if not before == times(file) == times(tree / name):
                return f"{name} changed"
            block = _statx(tree / name, STATX_ALL)
            seconds, nanoseconds = struct.unpack_from("=qI", block, 0x70)
            if seconds * 10**9 + nanoseconds != before[0]:
                return f"{name} differs in statx"
    return "stable"


@check(ATTRIBUTES, "times have nanoseconds")
def _nanoseconds(tree: Tree) -> object:
    return any(os.stat(tree / name).st_mtime_ns % 1000 for name in FILES)


def _statx(path: str, mask: int) -> bytes:
    block = ctypes.create_string_buffer(256)
    system_call("statx", -100, os.fsencode(path), 0x100, mask, block)
    return block.raw


check(ATTRIBUTES, "statx: basic mask is complete, mnt_id is there")(
    lambda tree: [bool(struct.unpack_from("=I", _statx(tree / SMALL, STATX_ALL | STATX_MNT_ID))[0] & bit)
                  for bit in (STATX_BASIC, STATX_MNT_ID)])
check(ATTRIBUTES, "statx: btime", "False", "containers do not say when their parts were created")(
    lambda tree: bool(struct.unpack_from("=I", _statx(tree / SMALL, STATX_ALL))[0] & STATX_BTIME))
check(ATTRIBUTES, "statfs: read-only, NAME_MAX")(
    lambda tree: (bool(os.statvfs(tree.root).f_flag & os.ST_RDONLY), os.statvfs(tree.root).f_namemax))
check(ATTRIBUTES, "getxattr of a missing name")(lambda tree: os.getxattr(tree / SMALL, "user.none"))
check(ATTRIBUTES, "getxattr of security.capability", "ENOTSUP",
      "only attributes of `user.` are there; ENODATA would cost `ls -l` a request for each file")(
    lambda tree: os.getxattr(tree / SMALL, "security.capability"))
check(ATTRIBUTES, "getxattr of system.posix_acl_access", "ENOTSUP", "glassfs has no ACLs")(
    lambda tree: os.getxattr(tree / SMALL, "system.posix_acl_access"))
check(ATTRIBUTES, "listxattr: prefixes", "{'user.glassfs.'}", "attributes of glassfs describe the content")(
    lambda tree: {name[:13] for name in os.listxattr(tree / SMALL)})
