"""Reads through io_uring by its three system calls, without liburing."""

from __future__ import annotations

import ctypes
import errno
import mmap
import struct
from collections.abc import Sequence

from conformances.checks import LIBC, Skipped, system_call

SETUP, ENTER, REGISTER = 425, 426, 427
SQ_RING, CQ_RING, ENTRIES = 0, 0x8000000, 0x10000000
GET_EVENTS, REGISTER_BUFFERS = 1, 0
READV, READ_FIXED, READ = 1, 4, 22
PARAMETERS = struct.Struct("=7I3I10I10I")
SUBMISSION, COMPLETION = struct.Struct("=BBHiQQIIQHHIQQ"), struct.Struct("=QiI")
VECTOR = struct.Struct("=QQ")


def read(file: int, places: Sequence[tuple[int, int]]) -> bytes:
    """Read ``size`` bytes at each ``(offset, size)``, a third each by READ, READV and READ_FIXED; return all in order.

    The reads are submitted together. Raises Skipped if the kernel has or allows no io_uring, OSError if a read fails.
    """
    count = 1 << (len(places) - 1).bit_length()
    parameters = ctypes.create_string_buffer(PARAMETERS.size + 40)
    try:
        ring = system_call("syscall", SETUP, count, parameters)
    except OSError as error:
        raise Skipped(f"io_uring_setup: {errno.errorcode[error.errno or 0]}") from None
    (entries, completions, *_), sq, cq = *[PARAMETERS.unpack_from(parameters)[:7]], *_offsets(parameters)
    submitted = mmap.mmap(ring, sq["array"] + 4 * entries, offset=SQ_RING)
    completed = mmap.mmap(ring, cq["cqes"] + COMPLETION.size * completions, offset=CQ_RING)
    table = mmap.mmap(ring, SUBMISSION.size * entries, offset=ENTRIES)
    size = sum(size for _, size in places)
    buffer, vectors = ctypes.create_string_buffer(size), ctypes.create_string_buffer(VECTOR.size * len(places))
    whole = ctypes.create_string_buffer(VECTOR.pack(ctypes.addressof(buffer), size))
    system_call("syscall", REGISTER, ring, REGISTER_BUFFERS, whole, 1)
    address = ctypes.addressof(buffer)
    for number, (offset, length) in enumerate(places):
        code = (READ, READV, READ_FIXED)[number % 3]
        target, amount = address, length
        if code == READV:
            VECTOR.pack_into(vectors, VECTOR.size * number, address, length)
            target, amount = ctypes.addressof(vectors) + VECTOR.size * number, 1
        SUBMISSION.pack_into(
            table, SUBMISSION.size * number, code, 0, 0, file, offset, target, amount, 0, number, 0, 0, 0, 0, 0)
        struct.pack_into("=I", submitted, sq["array"] + 4 * number, number)
        address += length
    struct.pack_into("=I", submitted, sq["tail"], len(places))
    system_call("syscall", ENTER, ring, len(places), len(places), GET_EVENTS, None, 0)
    results = dict(
        COMPLETION.unpack_from(completed, cq["cqes"] + COMPLETION.size * number)[:2] for number in range(len(places)))
    LIBC.close(ring)
    for number, (_, length) in enumerate(places):
        if results[number] != length:
            raise OSError(max(0, -results[number]), f"read {number} of {length} bytes returned {results[number]}")
    return buffer.raw[:size]


def _offsets(parameters: ctypes.Array[ctypes.c_char]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the offsets of the submission and of the completion ring by name."""
    numbers = PARAMETERS.unpack_from(parameters)[10:]
    return (
        dict(zip(("head", "tail", "mask", "entries", "flags", "dropped", "array"), numbers, strict=False)),
        dict(zip(("head", "tail", "mask", "entries", "overflow", "cqes"), numbers[10:], strict=False)),
    )
