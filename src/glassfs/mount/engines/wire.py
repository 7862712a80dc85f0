"""The messages between the kernel and a FUSE daemon (<linux/fuse.h>, protocol 7.31 and later).

Such kernels can do without OPEN and OPENDIR, and have parallel look-ups.

Pure functions and layouts in native byte order. Unlike struct stat and the structs of libfuse, they are the same on all
architectures and for all versions of libfuse.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache
from mmap import PAGESIZE
from typing import NamedTuple

from glassfs.mount.operations import BLOCK, LONGEST_NAME, Attributes

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
    GETXATTR = 22
    LISTXATTR = 23
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    ACCESS = 34
    INTERRUPT = 36
    IOCTL = 39
    BATCH_FORGET = 42
    READDIRPLUS = 44
    LSEEK = 46
    STATX = 52


LOOKUP, READ, INIT, INTERRUPT, IOCTL = Opcode.LOOKUP, Opcode.READ, Opcode.INIT, Opcode.INTERRUPT, Opcode.IOCTL
"""For code that runs for each request: before Python 3.12, getting one from the enumeration takes ten times as long."""


class Feature(IntFlag):
    """What the kernel offers in INIT, and the daemon accepts in its reply. Bits from 32 on are in ``flags2``."""

    ASYNC_READ = 1 << 0
    AUTO_INVAL_DATA = 1 << 12
    DO_READDIRPLUS = 1 << 13
    ASYNC_DIO = 1 << 15
    PARALLEL_DIROPS = 1 << 18
    ABORT_ERROR = 1 << 21
    MAX_PAGES = 1 << 22
    INIT_EXT = 1 << 30
    EXPIRE_ONLY = 1 << 35


ACCEPTED = (
    Feature.ASYNC_READ | Feature.AUTO_INVAL_DATA | Feature.DO_READDIRPLUS | Feature.ASYNC_DIO | Feature.PARALLEL_DIROPS
    | Feature.ABORT_ERROR | Feature.MAX_PAGES | Feature.INIT_EXT
)
"""AUTO_INVAL_DATA: cached listings are compared by mtime. READDIRPLUS_AUTO is left out: with it the kernel stops asking
for attributes midway. PARALLEL_DIROPS: a slow look-up does not delay others in its directory. ABORT_ERROR: an aborted
connection, whose mount is still there, ends with ECONNABORTED."""
PROTOCOL = 7, 45
EPOCH_MINOR, PRUNE_MINOR = 44, 45
"""The first protocols with FUSE_NOTIFY_INC_EPOCH and FUSE_NOTIFY_PRUNE."""


class Offer(NamedTuple):
    """What the kernel offers in INIT."""

    minor: int
    readahead: int
    features: int


# Requests
IN_HEADER = struct.Struct("=IIQQIIII")  # length, opcode, unique, node id, uid, gid, pid, padding
READ_IN = struct.Struct("=QQI")  # handle, offset, size; of both READ and READDIRPLUS
FORGET_IN = struct.Struct("=Q")
BATCH_FORGET_IN = struct.Struct("=II")
FORGET_ONE = struct.Struct("=QQ")
XATTR_IN = struct.Struct("=II")
INTERRUPT_IN = struct.Struct("=Q")
INIT_IN = struct.Struct("=4I")  # major, minor, read-ahead, flags; since 7.36 more follows
INIT_FLAGS2 = struct.Struct("=I")

# Replies
OUT_HEADER = struct.Struct("=IiQ")  # length, negative errno, unique
ENTRY_HEAD = "4Q2I3Q"  # of ENTRY_OUT: the fields that differ between the files of one directory
TAIL = struct.Struct("=3Q10I")  # the rest of struct fuse_attr: times and all that follows from the owner and the mode
ENTRY_TAIL = TAIL.size
ENTRY_OUT = struct.Struct(f"={ENTRY_HEAD}{ENTRY_TAIL}s")
ATTR_OUT = struct.Struct(f"=Q2I3Q{ENTRY_TAIL}s")
STATFS_OUT = struct.Struct("=5Q4I24x")
XATTR_OUT = struct.Struct("=II")
OPEN_OUT = struct.Struct("=QII")
INIT_OUT = struct.Struct("=4I2H2I2HI28x")
DIRENT = struct.Struct("=QQII")  # inode number, offset of the next, length of the name, type; the name follows
NO_ENTRY = bytes(ENTRY_OUT.size)
DOT = ENTRY_OUT.size + DIRENT.size + 8
"""Bytes of the entry "." or "..": NO_ENTRY, DIRENT and the name."""


# Notifications: replies to no request
INVAL_INODE = struct.Struct("=Qqq")
INVAL_ENTRY = struct.Struct("=QII")
PRUNE = struct.Struct("=I12x")
EXPIRE_ONLY = 1
ATTRIBUTES_ONLY = -1
"""An offset that leaves pages alone. With any other the kernel waits for pages that a pending READ has locked,
uninterruptibly; and for those of a listing that a process reads into memory that hangs."""

BLOCK_SIZE = 4096


def packed(error: int, unique: int, payload: bytes = b"") -> bytes:
    """Return a whole message: the reply to ``unique`` with an errno, 0 for success."""
    return OUT_HEADER.pack(OUT_HEADER.size + len(payload), -error, unique) + payload


def name_at(message: bytes, start: int = IN_HEADER.size) -> str:
    """Return the name that begins at ``start`` and ends with a NUL. Raises ValueError if there is none."""
    return message[start : message.index(0, start)].decode("utf-8", "surrogateescape")  # ``names.text``


@lru_cache(16)
def times(seconds: float) -> tuple[int, int]:
    """Split into whole seconds and nanoseconds."""
    whole = int(seconds)
    return whole, int((seconds - whole) * 10**9)


@lru_cache(1024)
def tail(mode: int, uid: int, gid: int, mtime_ns: int) -> bytes:
    """Return the part of attributes that most files of one container share."""
    mtime, mtime_ns = divmod(mtime_ns, 10**9)
    mtime &= (1 << 64) - 1  # two's complement in an unsigned field: it may be before 1970
    # One link: counting sub-directories would mean listing each directory.
    return TAIL.pack(mtime, mtime, mtime, mtime_ns, mtime_ns, mtime_ns, mode, 1, uid, gid, 0, BLOCK_SIZE, 0)


def entry_out(ident: int, generation: int, entry_timeout: float, timeout: float, found: Attributes) -> bytes:
    """Return a node's id and attributes, with timeouts in seconds.

    A file handle is the id and the generation, of which the kernel keeps 32 bits and compares all: it must fit.
    """
    seconds, nanoseconds = times(timeout)
    entry_seconds, entry_nanoseconds = times(entry_timeout)
    mode, ino, uid, gid, size, mtime_ns = found
    return ENTRY_OUT.pack(
        ident, generation, entry_seconds, seconds, entry_nanoseconds, nanoseconds, ino, size, -(-size // BLOCK),
        tail(mode, uid, gid, mtime_ns),
    )


def no_entry(timeout: float) -> bytes:
    """Return a reply that there is no such name for ``timeout`` seconds."""
    seconds, nanoseconds = times(timeout)
    return ENTRY_OUT.pack(0, 0, seconds, 0, nanoseconds, 0, 0, 0, 0, b"")


def attr_out(timeout: float, found: Attributes) -> bytes:
    """Return attributes, with a timeout in seconds."""
    seconds, nanoseconds = times(timeout)
    mode, ino, uid, gid, size, mtime_ns = found
    return ATTR_OUT.pack(seconds, nanoseconds, 0, ino, size, -(-size // BLOCK), tail(mode, uid, gid, mtime_ns))


def dots(ino: int, before: int) -> bytes:
    """Return the entries "." and ".." with attributes that the kernel ignores, after position ``before``.

    Of these two it uses nothing but the names.
    """
    first, second = (dirent(ino, before + len(name), stat.S_IFDIR, name) for name in (b".", b".."))
    return NO_ENTRY + first + NO_ENTRY + second


def dirent(ino: int, after: int, mode: int, name: bytes) -> bytes:
    """Return a directory entry; ``after`` is the next position, ``mode`` has the type as in st_mode."""
    return DIRENT.pack(ino, after, len(name), mode >> 12) + name + bytes(-len(name) % 8)


@lru_cache(LONGEST_NAME + 1)
def direntplus(length: int) -> struct.Struct:
    """Return the layout of an entry with attributes and a name of ``length`` bytes: ENTRY_HEAD, tail, DIRENT, name."""
    return struct.Struct(f"={ENTRY_HEAD}{ENTRY_TAIL}sQQII{length + -length % 8}s")


def offer_of(message: bytes) -> Offer:
    """Return what an INIT request offers."""
    _, minor, readahead, flags = INIT_IN.unpack_from(message, IN_HEADER.size)
    second = IN_HEADER.size + INIT_IN.size
    if len(message) >= second + INIT_FLAGS2.size:
        flags |= INIT_FLAGS2.unpack_from(message, second)[0] << 32
    return Offer(minor, readahead, flags)


def init_out(offer: Offer, longest: int, background: int) -> bytes:
    """Return the reply to INIT: requests of up to ``longest`` bytes, and ``background`` of them without a caller."""
    features = offer.features & ACCEPTED
    return INIT_OUT.pack(
        PROTOCOL[0], min(offer.minor, PROTOCOL[1]), offer.readahead, features & 0xFFFFFFFF, background,
        background * 3 // 4, longest, 1, max(1, longest // PAGESIZE), 0, features >> 32,
    )


def inval_inode(ident: int) -> bytes:
    """Return a notification that the attributes of a node are stale."""
    return packed(-2, 0, INVAL_INODE.pack(ident, ATTRIBUTES_ONLY, 0))  # FUSE_NOTIFY_INVAL_INODE


def inval_entry(parent: int, name: bytes, is_expired: bool) -> bytes:
    """Return a notification that a name in a directory is stale.

    If ``is_expired``, the next process that uses the name looks it up. Otherwise the kernel drops all below it now, and
    waits for pages that no process uses any more but that a pending READ has locked.
    """
    # FUSE_NOTIFY_INVAL_ENTRY
    return packed(-3, 0, INVAL_ENTRY.pack(parent, len(name), EXPIRE_ONLY * is_expired) + name + b"\0")


def inc_epoch() -> bytes:
    """Return a notification that all names are stale. The kernel takes no lock for it."""
    return packed(-8, 0)  # FUSE_NOTIFY_INC_EPOCH


def prune(idents: Sequence[int]) -> bytes:
    """Return a notification to drop these nodes if no process uses them. Children must come before their directory."""
    # FUSE_NOTIFY_PRUNE
    return packed(-9, 0, PRUNE.pack(len(idents)) + struct.pack(f"={len(idents)}Q", *idents))
