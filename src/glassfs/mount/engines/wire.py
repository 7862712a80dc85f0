"""The messages between the kernel and a FUSE daemon (<linux/fuse.h>, protocol 7.31 and later).

Pure functions and layouts in native byte order. Unlike struct stat and the structs of libfuse, they are the same on all
architectures and for all versions of libfuse.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache

from glassfs.mount.operations import LONGEST_NAME, Attributes
from glassfs.names import text

LEAST_READ = 8192
"""The smallest buffer that the kernel accepts for requests, beside the longest write."""


class Opcode(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    READLINK = 5
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    GETXATTR = 22
    LISTXATTR = 23
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    ACCESS = 34
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    BATCH_FORGET = 42
    READDIRPLUS = 44
    LSEEK = 46
    STATX = 52


# Requests
IN_HEADER = struct.Struct("=IIQQIIII")  # length, opcode, unique, node id, uid, gid, pid, padding
READ_IN = struct.Struct("=QQI")  # handle, offset, size; of both READ and READDIR
FORGET_IN = struct.Struct("=Q")
BATCH_FORGET_IN = struct.Struct("=II")
FORGET_ONE = struct.Struct("=QQ")
XATTR_IN = struct.Struct("=II")
INTERRUPT_IN = struct.Struct("=Q")

# Replies
OUT_HEADER = struct.Struct("=IiQ")  # length, negative errno, unique
ATTRIBUTES = "6Q10I"  # struct fuse_attr
ENTRY_OUT = struct.Struct(f"=4Q2I{ATTRIBUTES}")
ATTR_OUT = struct.Struct(f"=Q2I{ATTRIBUTES}")
ENTRY_HEAD = "4Q2I3Q"  # of ENTRY_OUT: the fields that differ between the files of one directory
ENTRY_TAIL = ENTRY_OUT.size - struct.calcsize(f"={ENTRY_HEAD}")
STATFS_OUT = struct.Struct("=5Q4I24x")
XATTR_OUT = struct.Struct("=II")
OPEN_OUT = struct.Struct("=QII")
DIRENT = struct.Struct("=QQII")  # inode number, offset of the next, length of the name, type; the name follows
NO_ENTRY = bytes(ENTRY_OUT.size)

FOPEN_KEEP_CACHE, FOPEN_CACHE_DIR = 1 << 1, 1 << 3

# Notifications: replies to no request
NOTIFY_INVAL_INODE, NOTIFY_INVAL_ENTRY = 2, 3
INVAL_INODE = struct.Struct("=Qqq")
INVAL_ENTRY = struct.Struct("=QII")

BLOCK_SIZE = 4096
U64 = (1 << 64) - 1
"""Times before 1970 are sent as two's complement in an unsigned field."""


def packed(error: int, unique: int, payload: bytes = b"") -> bytes:
    """Return a whole message: the reply to ``unique`` with an errno, 0 for success."""
    return OUT_HEADER.pack(OUT_HEADER.size + len(payload), -error, unique) + payload


def name_at(message: bytes, start: int = IN_HEADER.size) -> str:
    """Return the name that begins at ``start`` and ends with a NUL. Raises ValueError if there is none."""
    return text(message[start : message.index(0, start)])


def times(seconds: float) -> tuple[int, int]:
    """Split into whole seconds and nanoseconds."""
    whole = int(seconds)
    return whole, int((seconds - whole) * 10**9)


def entry_out(ident: int, entry_timeout: float, timeout: float, found: Attributes) -> bytes:
    """Return a node's id and attributes, with timeouts in seconds. The generation is 0, as no id is reused."""
    entry_seconds, entry_nanoseconds = times(entry_timeout)
    seconds, nanoseconds = times(timeout)
    mtime, mtime_ns = divmod(found.mtime_ns, 10**9)
    mtime &= U64
    return ENTRY_OUT.pack(
        ident, 0, entry_seconds, seconds, entry_nanoseconds, nanoseconds,
        found.ino, found.size, found.blocks, mtime, mtime, mtime, mtime_ns, mtime_ns, mtime_ns,
        found.mode, found.nlink, found.uid, found.gid, 0, BLOCK_SIZE, 0,
    )


def no_entry(timeout: float) -> bytes:
    """Return a reply that there is no such name for ``timeout`` seconds."""
    seconds, nanoseconds = times(timeout)
    return ENTRY_OUT.pack(0, 0, seconds, 0, nanoseconds, *[0] * 17)


def attr_out(timeout: float, found: Attributes) -> bytes:
    seconds, nanoseconds = times(timeout)
    mtime, mtime_ns = divmod(found.mtime_ns, 10**9)
    mtime &= U64
    return ATTR_OUT.pack(
        seconds, nanoseconds, 0,
        found.ino, found.size, found.blocks, mtime, mtime, mtime, mtime_ns, mtime_ns, mtime_ns,
        found.mode, found.nlink, found.uid, found.gid, 0, BLOCK_SIZE, 0,
    )


def dirent(ino: int, after: int, mode: int, name: bytes) -> bytes:
    """Return a directory entry; ``after`` is the next position, ``mode`` has the type as in st_mode."""
    return DIRENT.pack(ino, after, len(name), mode >> 12) + name + bytes(-len(name) % 8)


@lru_cache(LONGEST_NAME + 1)
def direntplus(length: int) -> struct.Struct:
    """Return the layout of an entry with attributes and a name of ``length`` bytes: ENTRY_HEAD, tail, DIRENT, name."""
    return struct.Struct(f"={ENTRY_HEAD}{ENTRY_TAIL}sQQII{length + -length % 8}s")


def tail_of(attributes: Attributes) -> bytes:
    """Return the part that entries share whose attributes differ in inode number and size only."""
    return entry_out(0, 0, 0, attributes)[-ENTRY_TAIL:]


def inval_inode(ident: int) -> bytes:
    """Return a notification that attributes and pages of a node are stale."""
    return packed(-NOTIFY_INVAL_INODE, 0, INVAL_INODE.pack(ident, 0, 0))


def inval_entry(parent: int, name: bytes) -> bytes:
    """Return a notification that a name in a directory, and all below it, is stale."""
    return packed(-NOTIFY_INVAL_ENTRY, 0, INVAL_ENTRY.pack(parent, len(name), 0) + name + b"\0")
