"""A5: memory keeps to the budget, whatever a container makes of a few kilobytes and however many read it at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.security import bombs
from tests.security.conftest import Shared
from tests.security.daemons import Daemon
from tests.security.places import make_folder
from tests.security.users import Child

MIB = 1 << 20
PEAK, SETTLED = 200 * MIB, 60 * MIB
SETTLING = 10.0
PIECE = 1 << 20
HEADER = 128
TABLE = (16, 4, 1 << 20)  # columns, blocks in each, rows in each block of 8 MiB
WIDE = (8, 1, 15 << 19)  # the same for blocks of 60 MiB
BLOCKS, BLOCK = 64, 48 * MIB

Reader = Callable[[Path], bool]


def zeros_between(path: Path, begin: int, end: int) -> bool:
    """Whether that range of a file is zeros, read past the kernel's cache, as others' readers would be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        while begin < end:
            data = os.pread(descriptor, min(PIECE, end - begin), begin)
            if not data or data.count(0) != len(data):
                return False
            begin += len(data)
        return True
    finally:
        os.close(descriptor)


def column_reader(number: int) -> Callable[[Path], bool]:
    """The columns in turn, each reader in another block and on into the next one."""
    _, blocks, rows = TABLE
    first = (number // TABLE[0]) % (blocks - 1)
    return lambda path: zeros_between(path, HEADER + first * rows * 8, HEADER + (first + 2) * rows * 8)


def wide_reader(number: int) -> Callable[[Path], bool]:
    """A column, which is one block, in pieces far from each other: more blocks are wanted at once than fit."""
    end = WIDE[2] * 8 - PIECE
    places = [HEADER + (number % 8 * PIECE + end * third // 3) % end for third in range(4)]
    return lambda path: all(zeros_between(path, begin, begin + PIECE) for begin in places)


def block_reader(number: int) -> Callable[[Path], bool]:
    """The end first, so that nothing can be given before all is decoded, or the beginning first."""
    ends = [(BLOCK - 64 * 1024, BLOCK), (0, 64 * 1024)]
    return lambda path: all(zeros_between(path, *ends[(number + turn) % 2]) for turn in range(2))


def image_reader(number: int) -> Callable[[Path], bool]:
    def read(path: Path) -> bool:
        with Image.open(path) as image:
            return image.getextrema() == ((0, 0),) * 3

    return read


def outcome(read: Reader, path: Path) -> bool | str:
    """Whether the bytes were right, or the error in place of them."""
    try:
        return read(path)
    except OSError as error:
        return error.strerror or str(error)


KINDS: dict[str, tuple[Callable[[Path], list[str]], Callable[[int], Reader]]] = {
    "idv": (lambda path: bombs.write_table(path, *TABLE), column_reader),
    "idv of large blocks": (lambda path: bombs.write_table(path, *WIDE), wide_reader),
    "zstd": (lambda path: bombs.write_blocks(path, "zstd", BLOCKS, BLOCK), block_reader),
    "lz4": (lambda path: bombs.write_blocks(path, "lz4", BLOCKS, BLOCK), block_reader),
    "png": (lambda path: bombs.write_video(path, BLOCKS, 2048), image_reader),
}


def is_settled(daemon: Daemon, limit: int) -> bool:
    end = time.monotonic() + SETTLING
    while daemon.memory() > limit and time.monotonic() < end:
        time.sleep(0.2)
    return daemon.memory() <= limit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "readers", "cache"),
    [
        ("idv of large blocks", 8, 256), ("idv", 8, 256), ("idv", 64, 256), ("idv", 64, 64),
        ("idv of large blocks", 64, 256), ("idv of large blocks", 64, 64), ("zstd", 64, 64), ("zstd", 64, 256),
        ("lz4", 64, 64), ("lz4", 64, 256), ("png", 64, 64), ("png", 64, 256),
    ],
)
def test_bombs_keep_to_the_budget(
    shared: Shared, place: Path, kind: str, readers: int, cache: int, record_property: Callable[[str, object], None],
) -> None:
    """Each reader gets right bytes or an error, and the daemon neither grows beyond the budget nor stays large."""
    write, reader = KINDS[kind]
    container = make_folder(place / "source") / "bomb"
    files = write(container)
    daemon = shared(container, options=[f"cache_size={cache}M"])
    children = [
        Child(outcome, reader(number), daemon.path / files[number % len(files)]) for number in range(readers)
    ]
    seen = [child.result(250) for child in children]
    peak = daemon.memory("VmHWM")
    settled = is_settled(daemon, cache * MIB + SETTLED)
    record_property("peak and settled, MiB", (peak // MIB, daemon.memory() // MIB))
    assert False not in seen, "wrong bytes"
    assert seen.count(True) > 0, seen
    assert peak <= cache * MIB + PEAK, f"{peak // MIB} MiB at most, {daemon.memory() // MIB} MiB later"
    assert settled, f"{daemon.memory() // MIB} MiB after {SETTLING:g} s"
