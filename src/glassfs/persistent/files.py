"""The files of a persistent cache: a folder of this user only, and blocks that say whose they are.

The file of a block has a header before its data. Its name, and the one of 256 folders that it is in, are a hash of the
block's owner and number. A file is trusted only if it belongs to this user, has the expected length, and has the header
that belongs to its data. Any thread and several processes.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeAlias

import xxhash

from glassfs.errors import Refused
from glassfs.persistent import private

TOUCH_NS = 60 * 10**9
"""Nanoseconds after which another use of a block updates its mtime."""
UNIT = 4096
"""Sizes of files are counted in multiples of this many bytes."""
TAG = "CACHEDIR.TAG"
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Cache of glassfs: may be deleted.\n"
MAGIC = b"glassfs\x01"
CHECKSUM = 16
HEADER = struct.Struct(f"<8s32sQQ{CHECKSUM}s")
"""Magic with a version, owner, block number, data length, and a checksum of all of that and the data."""
NAME = 16
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Data: TypeAlias = bytes | bytearray | memoryview


def name_of(owner: bytes, number: int) -> bytes:
    from hashlib import blake2b  # loads OpenSSL, which a cache of values does not need

    return blake2b(owner + struct.pack("<Q", number), digest_size=NAME).digest()


def header_of(owner: bytes, number: int, data: Data) -> bytes:
    fields = HEADER.pack(MAGIC, owner, number, len(data), b"")[:-CHECKSUM]
    checksum = xxhash.xxh3_128(fields)
    checksum.update(data)
    return fields + bytes(checksum.digest())


def write(file: BinaryIO, header: bytes, data: Data, now: int) -> None:
    """Write a block that is used at ``now`` (nanoseconds since 1970), and close its file. Raises OSError."""
    with file:
        if os.writev(file.fileno(), (header, data)) != len(header) + len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.utime(file.fileno(), ns=(now, now))


def disk_size(size: int) -> int:
    """Return the bytes that a file of ``size`` bytes counts for."""
    return -(-size // UNIT) * UNIT


def is_own_file(status: os.stat_result) -> bool:
    """Return whether it is a regular file of this user that no other user can write to, with no second name."""
    is_only = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_only and status.st_uid == os.geteuid() and not status.st_mode & 0o077


class Files:
    """The folder, opened once, and its files.

    Of the last ``made`` components of its path, the missing ones are made. Raises as ``private.opened`` does.
    """

    def __init__(self, folder: str, made: int = 0) -> None:
        self._descriptor = -1
        self._descriptor = private.opened(folder, made)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def tag(self, index: str) -> None:
        """Mark the folder as a cache, also for backup programs, which then leave it out; ``index`` names its index.

        Raises Refused if it has no mark, but files with names of a cache, which would be replaced or removed.
        """
        with suppress(FileNotFoundError), open(os.open(TAG, _READ, dir_fd=self._descriptor), "rb") as file:
            if _TAG.startswith(file.read(len(_TAG) + 1)):  # another process may be writing it
                return
        for name in os.listdir(self._descriptor):
            if name in (TAG, index) or (len(name) == 2 and _is_hex(name)):
                raise Refused(f"it is no cache of glassfs, and has {name} of another program")
        with suppress(FileExistsError), open(os.open(TAG, _CREATE, 0o600, dir_fd=self._descriptor), "wb") as file:
            file.write(_TAG)

    def read(self, name: bytes, owner: bytes, number: int, size: int) -> bytes | None:
        """Return the data of a block; None if the file is not that block. Raises OSError, such as FileNotFoundError."""
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
            if not 0 <= now - status.st_mtime_ns < TOUCH_NS:
                with suppress(OSError):  # a read-only disk can still be read
                    os.utime(file, ns=(now, now))
            return data
        finally:
            os.close(file)

    def create(self, name: bytes) -> BinaryIO:
        """Create the file of a block that has none. Raises OSError."""
        with suppress(FileExistsError):
            os.mkdir(_inner_name(name), 0o700, dir_fd=self._descriptor)
        with self._inner(name) as folder:
            return open(os.open(name.hex(), _CREATE, 0o600, dir_fd=folder), "wb", buffering=0)

    def _status(self, name: bytes) -> os.stat_result:
        with self._inner(name) as folder:
            return os.stat(name.hex(), dir_fd=folder, follow_symlinks=False)

    def has(self, name: bytes, size: int) -> bool:
        """Return whether there is a file for that block with that size, header included."""
        try:
            return self._status(name).st_size == size
        except OSError:
            return False

    def used(self, name: bytes) -> int | None:
        """Return when a block was last used, in nanoseconds since 1970; None if it has no file."""
        try:
            return self._status(name).st_mtime_ns
        except FileNotFoundError:
            return None

    def unlink(self, name: bytes) -> None:
        """Remove the file of a block, if it has one."""
        with suppress(FileNotFoundError, IsADirectoryError), self._inner(name) as folder:
            os.unlink(name.hex(), dir_fd=folder)

    def all(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield name, disk size and time of last use (nanoseconds) of all blocks."""
        for inner in os.listdir(self._descriptor):
            if len(inner) != 2 or not _is_hex(inner):
                continue
            with suppress(NotADirectoryError, FileNotFoundError):
                folder = os.open(inner, _ROOT, dir_fd=self._descriptor)
                try:
                    for name in os.listdir(folder):
                        if len(name) == 2 * NAME and name.startswith(inner) and _is_hex(name):
                            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                            if not stat.S_ISDIR(status.st_mode):
                                yield bytes.fromhex(name), disk_size(status.st_size), status.st_mtime_ns
                finally:
                    os.close(folder)

    @contextmanager
    def _inner(self, name: bytes) -> Iterator[int]:
        """Open the folder of a block. Raises FileNotFoundError also after removing a link in its place."""
        try:
            folder = os.open(_inner_name(name), _FOLDER, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                with suppress(OSError):
                    os.unlink(_inner_name(name), dir_fd=self._descriptor)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
            raise
        try:
            yield folder
        finally:
            os.close(folder)


def _inner_name(name: bytes) -> str:
    return name[:1].hex()


def _is_hex(name: str) -> bool:
    return not name.strip("0123456789abcdef")
