"""Each way to read bytes, compared by what it returns; and what other programs do with a read-only tree."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator

from conformances import uring
from conformances.checks import (
    ARRAY,
    FILES,
    FOLDER,
    FRAMES,
    LIBC,
    MIB,
    SMALL,
    VIDEO,
    Skipped,
    Tree,
    check,
    digest,
    opened,
    system_call,
)

READING, OTHERS = "reading", "other programs"
PAGE = mmap.PAGESIZE


def _whole(descriptor: int) -> bytes:
    return b"".join(iter(lambda: os.read(descriptor, MIB), b""))


for name in FILES:
    @check(READING, f"read of {name} to its end")
    def _read(tree: Tree, name: str = name) -> object:
        with opened(tree / name) as file:
            return digest(_whole(file)), os.read(file, 1)

    @check(READING, f"mmap of {name}: private, shared, the rest of the last page")
    def _mapped(tree: Tree, name: str = name) -> object:
        with opened(tree / name) as file:
            size = os.fstat(file).st_size
            found = []
            for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
                with mmap.mmap(file, size, flags, mmap.PROT_READ) as mapped:
                    found.append(digest(mapped[:]))
            with _pages(file, -(-size // PAGE) * PAGE) as address:
                return found, set(ctypes.string_at(address + size, -size % PAGE)) <= {0}


@contextlib.contextmanager
def _pages(file: int, size: int) -> Iterator[int]:
    """Map ``size`` bytes, which may be more than the file has, and yield the address."""
    LIBC.mmap.restype = ctypes.c_void_p
    address = LIBC.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file, ctypes.c_long(0))
    try:
        yield address
    finally:
        LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


@check(READING, "mmap: signal of a touch behind the last page")
def _behind(tree: Tree) -> object:
    with opened(tree / SMALL) as file, _pages(file, 8 * PAGE) as address:
        child = os.fork()
        if child == 0:
            ctypes.string_at(address + 7 * PAGE, 1)
            os._exit(0)
        return signal.Signals(os.WTERMSIG(os.waitpid(child, 0)[1])).name


@check(READING, "mmap MAP_PRIVATE to write: the copy changes, the file does not")
def _private(tree: Tree) -> object:
    access = mmap.PROT_READ | mmap.PROT_WRITE
    with opened(tree / SMALL) as file, mmap.mmap(file, 64, mmap.MAP_PRIVATE, access) as mapped:
        mapped[:4] = b"abcd"
        return bytes(mapped[:4]), os.pread(file, 4, 0)


@check(READING, "pread at, before and behind the end, negative offsets")
def _ends(tree: Tree) -> object:
    with opened(tree / ARRAY) as file:
        size = os.fstat(file).st_size
        found = [digest(os.pread(file, 100, size + step)) for step in (-100, -50, -1, 0, 1, 1 << 40)]
        return found, *(_failure(lambda offset=offset: os.pread(file, 1, offset)) for offset in (-1, (1 << 63) - 1))


def _failure(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except OSError as error:
        return os.strerror(error.errno or 0)


@check(READING, "preadv, preadv2 RWF_HIPRI")
def _vectors(tree: Tree) -> object:
    with opened(tree / ARRAY) as file:
        buffers = [bytearray(size) for size in (1, 4095, 0, 70_001)]
        found = [os.preadv(file, buffers, 12_345), digest(b"".join(buffers))]
        return *found, os.preadv(file, buffers[:2], 12_345, os.RWF_HIPRI)


@check(READING, "preadv2 RWF_NOWAIT of what was read", "ENOTSUP",
       "FUSE has no reads that never wait; programs then read without the flag")
def _never_waiting(tree: Tree) -> object:
    with opened(tree / ARRAY) as file:
        os.pread(file, 4096, 0)
        return os.preadv(file, [bytearray(4096)], 0, os.RWF_NOWAIT)


@check(READING, "O_DIRECT: aligned reads, and the last part")
def _direct(tree: Tree) -> object:
    with opened(tree / ARRAY, os.O_RDONLY | os.O_DIRECT) as file, mmap.mmap(-1, MIB) as buffer:
        size = os.fstat(file).st_size
        found = []
        for offset in (0, 4096, MIB, size // 4096 * 4096):
            given = os.preadv(file, [buffer], offset)
            found.append((given, digest(buffer[:given])))
        return found


@check(READING, "O_DIRECT: a read that is not aligned", "100", "FUSE does not require alignment, disks do")
def _unaligned(tree: Tree) -> object:
    with opened(tree / ARRAY, os.O_RDONLY | os.O_DIRECT) as file:
        return len(os.pread(file, 100, 3))


@check(READING, "lseek SEEK_DATA and SEEK_HOLE")
def _seeks(tree: Tree) -> object:
    with opened(tree / ARRAY) as file:
        size = os.fstat(file).st_size
        places = [(0, os.SEEK_DATA), (0, os.SEEK_HOLE), (size - 1, os.SEEK_DATA), (size - 1, os.SEEK_HOLE)]
        found = [os.lseek(file, *place) - size for place in places]
        return found, *(_failure(lambda w=w: os.lseek(file, size, w)) for w in (os.SEEK_DATA, os.SEEK_HOLE))


@check(READING, "lseek SEEK_SET, SEEK_CUR, SEEK_END, negative, far behind the end")
def _positions(tree: Tree) -> object:
    with opened(tree / ARRAY) as file:
        steps = (5, os.SEEK_SET), (7, os.SEEK_CUR), (-9, os.SEEK_END), (1 << 40, os.SEEK_SET), (-1, os.SEEK_SET), (0, 9)
        return [_failure(lambda step=step: os.lseek(file, *step)) for step in steps]


COPIES: dict[str, Callable[[int, int, int, int], int]] = {
    "copy_file_range to another file system": lambda file, to, at, left: os.copy_file_range(file, to, left, at, at),
    "sendfile": lambda file, to, at, left: os.sendfile(to, file, at, left),
    "splice": lambda file, to, at, _: _spliced(file, to, at),
}
for name in COPIES:
    @check(READING, f"{name}: all of {VIDEO}")
    def _copied(tree: Tree, name: str = name) -> object:
        with opened(tree / VIDEO) as file, opened(f"{tree.scratch}/{name}", os.O_RDWR | os.O_CREAT) as to:
            size, at = os.fstat(file).st_size, 0
            while at < size:
                at += COPIES[name](file, to, at, size - at)
            os.lseek(to, 0, os.SEEK_SET)
            return digest(_whole(to))


def _spliced(file: int, to: int, at: int) -> int:
    ends = os.pipe()
    try:
        return os.splice(ends[0], to, os.splice(file, ends[1], PAGE * 8, at), None, at)
    finally:
        for end in ends:
            os.close(end)


@check(READING, "io_uring: READ, READV and FIXED, 64 at a time")
def _ring(tree: Tree) -> object:
    with opened(tree / ARRAY) as file:
        return digest(uring.read(file, [(offset * 37_123, 4096 + offset) for offset in range(64)]))


@check(READING, "posix_fadvise and readahead")
def _advice(tree: Tree) -> object:
    with opened(tree / ARRAY) as file:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        return system_call("readahead", file, 0, MIB), digest(os.pread(file, MIB, 0))


@check(READING, "open O_PATH, O_NOATIME, O_NONBLOCK, O_SYNC, /proc/self/fd")
def _flags(tree: Tree) -> object:
    found = []
    for flags in (os.O_PATH, os.O_NOATIME, os.O_NONBLOCK, os.O_SYNC):
        with opened(tree / SMALL, flags) as file, opened(f"/proc/self/fd/{file}") as again:
            found.append((_failure(lambda file=file: digest(os.pread(file, 99, 0))), digest(os.pread(again, 99, 0))))
    return found


@check(OTHERS, "flock and fcntl locks, shared and exclusive, of two descriptors")
def _locks(tree: Tree) -> object:
    with opened(tree / SMALL) as one, opened(tree / SMALL) as two:
        found = []
        shared, exclusive = fcntl.LOCK_SH, fcntl.LOCK_EX
        for kind, other in ((shared, shared), (shared, exclusive), (exclusive, shared)):
            fcntl.flock(one, kind | fcntl.LOCK_NB)
            found.append(_failure(lambda other=other: fcntl.flock(two, other | fcntl.LOCK_NB)))
            fcntl.flock(two, fcntl.LOCK_UN)
        kinds = (kind | fcntl.LOCK_NB for kind in (shared, exclusive))
        return found, [_failure(lambda kind=kind: fcntl.lockf(one, kind)) for kind in kinds]


@check(OTHERS, "ioctl FIONREAD, TCGETS")
def _controls(tree: Tree) -> object:
    with opened(tree / SMALL) as file:
        return [_failure(lambda word=word: struct.unpack("=I", fcntl.ioctl(file, word, bytes(64))[:4]))
                for word in (0x541B, 0x5401)]


@check(OTHERS, "ioctl FS_IOC_GETFLAGS", "ENOTTY", "glassfs has no file flags (lsattr)")
def _file_flags(tree: Tree) -> object:
    with opened(tree / SMALL) as file:
        return len(fcntl.ioctl(file, 0x80086601, bytes(8)))


@check(OTHERS, "open_by_handle_at of a handle of name_to_handle_at")
def _handles(tree: Tree) -> object:
    handle, mount = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 136), ctypes.c_int()
    system_call("name_to_handle_at", -100, os.fsencode(tree / SMALL), handle, ctypes.byref(mount), 0)
    with opened(str(tree.root)) as root:
        file = system_call("open_by_handle_at", root, handle, os.O_RDONLY)
    try:
        return digest(_whole(file))
    finally:
        os.close(file)


@check(OTHERS, "overlayfs with it as lower layer: read, write, list")
def _overlay(tree: Tree) -> object:
    upper, work, merged = (tree.scratch / name for name in ("upper", "work", "merged"))
    for folder in (upper, work, merged):
        folder.mkdir(exist_ok=True)
    _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={tree.root},upperdir={upper},workdir={work}", merged)
    try:
        read = digest((merged / SMALL).read_bytes())
        with (merged / SMALL).open("ab") as file:
            file.write(b"more")
        (merged / FOLDER / "action.npy").unlink()
        return read, digest((merged / SMALL).read_bytes()), sorted(os.listdir(merged / FOLDER))
    finally:
        _run("umount", merged)


@check(OTHERS, "chroot into it, and a bind mount of a directory in it")
def _inside(tree: Tree) -> object:
    bound = tree.scratch / "bound"
    bound.mkdir(exist_ok=True)
    _run("mount", "--bind", tree / FRAMES, bound)
    try:
        names = sorted(os.listdir(bound))
    finally:
        _run("umount", bound)
    child = os.fork()
    if child == 0:
        os.chroot(tree.root)
        os._exit(os.listdir(f"/{FRAMES}") != sorted(names))
    return len(names), os.waitpid(child, 0)[1] in (0, 256)


@check(OTHERS, "find -inum, du --apparent-size of files, tar, cp --sparse=always, rsync -a, sha256sum")
def _programs(tree: Tree) -> object:
    if shutil.which("rsync") is None:
        raise Skipped("there is no rsync")
    folder, copies = tree / FOLDER, tree.scratch
    number = os.stat(tree / SMALL).st_ino
    lines = [_run("sh", "-c", 'cd "$1" && find . -inum "$2"', "-", folder, str(number))]
    lines += [_run("sh", "-c", 'cd "$1" && find . -type f -print0 | sort -z | du -b --files0-from=-', "-", folder)]
    _run("sh", "-c", 'tar -C "$1" -cf - . | tar -C "$2" -xf -', "-", folder, _new(copies / "tar"))
    _run("cp", "-r", "--sparse=always", "--reflink=auto", folder, copies / "cp")
    _run("rsync", "-rlt", "-X", f"{folder}/", copies / "rsync")
    for name in ("tar", "cp", "rsync"):
        lines.append(_run("sh", "-c", 'cd "$1" && find . -type f | sort | xargs sha256sum', "-", copies / name))
    return len(set(lines[2:])), digest("".join(lines).encode())


def _new(folder: os.PathLike[str]) -> os.PathLike[str]:
    os.mkdir(folder)
    return folder


def _run(*words: str | os.PathLike[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{words[0]}: {done.stderr.strip()}")
    return done.stdout
