"""The files of a disk cache: a folder that is only this user's, and blocks in it that say whose they are.

A block's file has a header before its data. Its name, and the folder of 256 that it is in, are a hash of whose block it
is and of its number. Nothing of a file is believed because it is there: it has to be this user's own, of the length
that is wanted, and to have the header that belongs to its data. Any thread and several processes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import xxhash

from glassfs.errors import Refused

TOUCH = 60 * 10**9
"""Nanoseconds after which another use of a block is noted."""
UNIT = 4096
"""What files take is counted in these."""
NEW = ".new-"
TAG = "CACHEDIR.TAG"
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Blocks of remote objects, kept by glassfs: may be deleted.\n"
MAGIC = b"glassfs\x01"
CHECKSUM = 16
HEADER = struct.Struct(f"<8s32sQQ{CHECKSUM}s")
"""Magic with a version, whose block it is, its number, its length, and a checksum of all of that and the data."""
NAME = 16
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Data = bytes | bytearray | memoryview


def owner_of(object_key: str, validator: str) -> bytes:
    """Whose a block is: a hash that nobody can find another object for."""
    key, told = (text.encode("utf-8", "surrogatepass") for text in (object_key, validator))
    return hashlib.blake2b(struct.pack("<Q", len(key)) + key + told, digest_size=32).digest()


def name_of(owner: bytes, number: int) -> bytes:
    return hashlib.blake2b(owner + struct.pack("<Q", number), digest_size=NAME).digest()


def header_of(owner: bytes, number: int, data: Data) -> bytes:
    told = HEADER.pack(MAGIC, owner, number, len(data), b"")[:-CHECKSUM]
    checksum = xxhash.xxh3_128(told)
    checksum.update(data)
    return told + bytes(checksum.digest())


def taken_by(size: int) -> int:
    """What a file of that size takes."""
    return -(-size // UNIT) * UNIT


def is_own_file(status: os.stat_result) -> bool:
    """Whether it is a file of this user, which nobody else can have open for writing or under another name."""
    is_only = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_only and status.st_uid == os.geteuid() and not status.st_mode & 0o077


class Files:
    """The folder, opened once, and the files in it, which nobody else can have made.

    Raises Refused where that is not sure, and OSError.
    """

    def __init__(self, folder: str) -> None:
        self._number = -1
        status = os.lstat(folder)
        if stat.S_ISLNK(status.st_mode):
            raise Refused("is a link, and cannot be the folder of a disk cache", folder)
        self._number = os.open(folder, _ROOT)
        status = os.fstat(self._number)
        if status.st_uid != os.geteuid():
            raise Refused("belongs to somebody else, and cannot be the folder of a disk cache", folder)
        if status.st_mode & 0o077:
            raise Refused("is open to others (chmod 700), and cannot be the folder of a disk cache", folder)

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)

    def tag(self) -> None:
        """Tells programs that make backups to leave this out."""
        with suppress(FileExistsError):
            number = os.open(TAG, _CREATE, 0o600, dir_fd=self._number)
            try:
                os.write(number, _TAG)
            finally:
                os.close(number)

    def sweep(self) -> None:
        """Removes what processes were writing that are not there any more: they have no lock on it."""
        for name in os.listdir(self._number):
            if name.startswith(NEW):
                with suppress(OSError):
                    number = os.open(name, _READ, dir_fd=self._number)
                    try:
                        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.unlink(name, dir_fd=self._number)
                    finally:
                        os.close(number)

    def read(self, name: bytes, owner: bytes, number: int, size: int) -> bytes | None:
        """The data of a block; None if it is not that. Raises FileNotFoundError and other errors of the system."""
        try:
            with self._inner(name) as folder:
                file = os.open(name.hex(), _READ, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                return None
            raise
        try:
            status = os.fstat(file)
            if not is_own_file(status) or status.st_size != HEADER.size + size:
                return None
            header = os.read(file, HEADER.size)
            data = os.read(file, size)
            if header != header_of(owner, number, data) or len(data) != size:
                return None
            now = time.time_ns()
            if not 0 <= now - status.st_mtime_ns < TOUCH:
                with suppress(OSError):  # reading goes on where nothing is written
                    os.utime(file, ns=(now, now))
            return data
        finally:
            os.close(file)

    @contextmanager
    def written(self, header: bytes, data: Data, now: int) -> Iterator[Callable[[bytes], None]]:
        """Writes a block; what is given puts it into its place. Raises OSError."""
        new, file = self._created()
        try:
            rest = memoryview(data)
            done = os.writev(file, (header, rest)) - len(header)
            while 0 <= done < len(rest):
                rest = rest[done:]
                done = os.write(file, rest)
            os.utime(file, ns=(now, now))
            yield lambda name: self._rename(new, name)
        finally:
            with suppress(OSError):
                os.unlink(new, dir_fd=self._number)
            os.close(file)

    def _created(self) -> tuple[str, int]:
        """A file to be written, locked, so that ``sweep`` leaves it. Raises OSError."""
        while True:
            new = f"{NEW}{secrets.token_hex(8)}"
            file = os.open(new, _CREATE, 0o600, dir_fd=self._number)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file).st_nlink:
                    return new, file
            except BlockingIOError:  # somebody sweeps just now
                pass
            except OSError:  # a file system without locks
                return new, file
            os.close(file)

    def has(self, name: bytes, size: int) -> bool:
        """Whether there is a file for that block, of that size with its header."""
        try:
            with self._inner(name) as folder:
                return os.stat(name.hex(), dir_fd=folder, follow_symlinks=False).st_size == size
        except OSError:
            return False

    def used(self, name: bytes) -> int | None:
        """When a block was last used, in nanoseconds; None where it is not there."""
        try:
            with self._inner(name) as folder:
                return os.stat(name.hex(), dir_fd=folder, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            return None

    def unlink(self, name: bytes) -> None:
        """Also of one that is not there."""
        with suppress(FileNotFoundError, IsADirectoryError), self._inner(name) as folder:
            os.unlink(name.hex(), dir_fd=folder)

    def all(self) -> Iterator[tuple[bytes, int, int]]:
        """The names of all blocks, what each takes, and when it was last used."""
        for inner in os.listdir(self._number):
            if len(inner) != 2 or not _is_hex(inner):
                continue
            with suppress(NotADirectoryError, FileNotFoundError):
                folder = os.open(inner, _ROOT, dir_fd=self._number)
                try:
                    for name in os.listdir(folder):
                        if len(name) == 2 * NAME and name.startswith(inner) and _is_hex(name):
                            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                            if not stat.S_ISDIR(status.st_mode):
                                yield bytes.fromhex(name), taken_by(status.st_size), status.st_mtime_ns
                finally:
                    os.close(folder)

    def _rename(self, new: str, name: bytes) -> None:
        try:
            with self._inner(name) as folder:
                os.rename(new, name.hex(), src_dir_fd=self._number, dst_dir_fd=folder)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkdir(_inner_name(name), 0o700, dir_fd=self._number)
            with self._inner(name) as folder:
                os.rename(new, name.hex(), src_dir_fd=self._number, dst_dir_fd=folder)

    @contextmanager
    def _inner(self, name: bytes) -> Iterator[int]:
        """The folder of a block. Raises FileNotFoundError also where a link is there."""
        try:
            number = os.open(_inner_name(name), _FOLDER, dir_fd=self._number)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                with suppress(OSError):
                    os.unlink(_inner_name(name), dir_fd=self._number)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
            raise
        try:
            yield number
        finally:
            os.close(number)


def _inner_name(name: bytes) -> str:
    return name[:1].hex()


def _is_hex(name: str) -> bool:
    return not name.strip("0123456789abcdef")
