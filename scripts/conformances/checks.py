"""The list of checks, and what they share: trees, outcomes and system calls."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ARRAY, VIDEO = "big.kas/data.npy", "episode.wshard/signal/rgb.npy"
FOLDER, CHANGING = "robot.kdb/episodes/0", "changing"
SMALL, FRAMES = f"{FOLDER}/state.npy", f"{FOLDER}/images/front"
FILES = (ARRAY, VIDEO, f"{FRAMES}/000003.png", f"{FOLDER}/meta/episode.json", "plain.txt")
MIB = 1 << 20

LIBC = ctypes.CDLL(None, use_errno=True)


class Skipped(Exception):
    """Raised by a check that cannot be made here. The message says why."""


@dataclass(frozen=True)
class Tree:
    """Where a tree is mounted, the writable folder behind it, files with the expected bytes, and a tmpfs."""

    root: Path
    source: Path
    expected: Path
    scratch: Path
    reads: int

    def __truediv__(self, name: str) -> str:
        return f"{self.root}/{name}"


Call = Callable[[Tree], object]


@dataclass(frozen=True)
class Check:
    """A named function. Where a mount is to differ, ``here`` is its outcome and ``why`` says the reason."""

    group: str
    name: str
    call: Call
    here: str = ""
    why: str = ""


CHECKS: list[Check] = []


def check(group: str, name: str, here: str = "", why: str = "") -> Callable[[Call], Call]:
    """Add the decorated function to the checks."""

    def add(call: Call) -> Call:
        CHECKS.append(Check(group, name, call, here, why))
        return call

    return add


def outcome(call: Call, tree: Tree) -> str:
    """Return the result of a check as text: an errno name if it fails with one."""
    try:
        return str(call(tree))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    except Skipped as reason:
        return f"skipped: {reason}"


def system_call(name: str, *arguments: object) -> int:
    """Call a function of the C library. Integers are passed as 64 bits. Raises OSError if it returns -1."""
    function = getattr(LIBC, name)
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = int(function(*words))  # of 32 bits
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@contextmanager
def opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Yield a descriptor of the file."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def digest(data: bytes | memoryview) -> str:
    """Return eight hexadecimal digits that stand for the bytes."""
    return hashlib.sha256(data).hexdigest()[:8]
