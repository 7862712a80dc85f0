"""A5: memory stays within the budget, however much a few stored kilobytes expand to and however many clients read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.security import bombs
from tests.security.conftest import Shared
from tests.security.daemons import Daemon
from tests.security.users import Child
from tests.waiting import wait_until

MIB = 1 << 20
PEAK, SETTLED = 200 * MIB, 60 * MIB
HEADER = 128
TABLE = (16, 4, 1 << 20)  # columns, blocks in each, rows in each block of 8 MiB
WIDE = (8, 1, 15 << 19)  # the same for blocks of 60 MiB
BLOCKS, BLOCK = 64, 48 * MIB
CHUNKS, CHUNK = 2, 48 * MIB  # the library decodes what is too large for the cache of 64 MiB

Reader = Callable[[Path], bool]


def zeros_between(path: Path, begin: int, end: int) -> bool:
    """Return whether that range of a file is all zeros. Reads bypass the kernel's page cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        while begin < end:
            data = os.pread(descriptor, min(MIB, end - begin), begin)
            if not data or data.count(0) != len(data):
                return False
            begin += len(data)
        return True
    finally:
        os.close(descriptor)


def column_reader(number: int) -> Reader:
    """Read a column from one block into the next one. Readers start in different blocks."""
    _, blocks, rows = TABLE
    first = (number // TABLE[0]) % (blocks - 1)
    return lambda path: zeros_between(path, HEADER + first * rows * 8, HEADER + (first + 2) * rows * 8)


def wide_reader(number: int) -> Reader:
    """Read distant pieces of a column, which is one block. Together the readers want more blocks than fit."""
    end = WIDE[2] * 8 - MIB
    places = [HEADER + (number % 8 * MIB + end * third // 3) % end for third in range(4)]
    return lambda path: all(zeros_between(path, begin, begin + MIB) for begin in places)


def ends_reader(*ends: tuple[int, int]) -> Callable[[int], Reader]:
    """Read the end of a block first, which takes decoding all of it, or its beginning first."""
    return lambda number: lambda path: all(zeros_between(path, *ends[(number + turn) % 2]) for turn in range(2))


def read_image(path: Path) -> bool:
    with Image.open(path) as image:
        return image.getextrema() == ((0, 0),) * 3


def outcome(read: Reader, path: Path) -> bool | str:
    """Return whether the bytes were correct, or the error message instead."""
    try:
        return read(path)
    except OSError as error:
        return error.strerror or str(error)


block_reader = ends_reader((BLOCK - 64 * 1024, BLOCK), (0, 64 * 1024))
chunk_reader = ends_reader((CHUNKS * CHUNK, CHUNKS * CHUNK + HEADER), (4096, 1 << 16))
KINDS: dict[str, tuple[Callable[[Path], list[str]], Callable[[int], Reader]]] = {
    "idv": (lambda path: bombs.write_table(path, *TABLE), column_reader),
    "idv of large blocks": (lambda path: bombs.write_table(path, *WIDE), wide_reader),
    "zstd": (lambda path: bombs.write_blocks(path, "zstd", BLOCKS, BLOCK), block_reader),
    "lz4": (lambda path: bombs.write_blocks(path, "lz4", BLOCKS, BLOCK), block_reader),
    "png": (lambda path: bombs.write_video(path, BLOCKS, 2048), lambda number: read_image),
    "hdf5": (lambda path: bombs.write_chunks(path, 4, CHUNKS, CHUNK), chunk_reader),
}


def check_memory(daemon: Daemon, cache: int) -> None:
    peak = daemon.resident("VmHWM")
    assert peak <= cache * MIB + PEAK, f"{peak // MIB} MiB"
    wait_until(lambda: daemon.resident("VmRSS") <= cache * MIB + SETTLED, what="memory within the budget afterwards")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "readers", "cache"),
    [
        ("idv of large blocks", 8, 256), ("idv", 64, 256), ("idv", 64, 64), ("idv of large blocks", 64, 64),
        ("zstd", 64, 64), ("zstd", 64, 256), ("lz4", 64, 64), ("png", 64, 64),
        ("hdf5", 8, 64), ("hdf5", 8, 256),
    ],
)
def test_memory_stays_within_the_budget(
    shared: Shared, source: Path, kind: str, readers: int, cache: int, record_property: Callable[[str, object], None],
) -> None:
    """Each reader gets correct bytes or an error. The daemon neither exceeds the budget nor stays large."""
    write, reader = KINDS[kind]
    files = write(source / "bomb")
    daemon = shared(source / "bomb", options=[f"cache_size={cache}M"])
    children = [
        Child(outcome, reader(number), daemon.path / files[number % len(files)]) for number in range(readers)
    ]
    seen = [child.result(300) for child in children]
    record_property("peak, MiB", daemon.resident("VmHWM") // MIB)
    assert False not in seen, "wrong bytes"
    assert seen.count(True) > 0, seen
    check_memory(daemon, cache)


@pytest.mark.slow
def test_listing_files_that_describe_much_stays_within_the_budget(
    shared: Shared, source: Path, record_property: Callable[[str, object], None],
) -> None:
    """What is known of containers belongs to them: their number does not add up in caches of modules."""
    bombs.write_headers(source, 20)
    daemon = shared(source, options=["cache_size=64M"])
    for path in sorted(source.iterdir()):
        assert len([name for name in os.listdir(daemon.path / path.name) if name.endswith(".npy")]) in (2, 40)
    record_property("peak, MiB", daemon.resident("VmHWM") // MIB)
    check_memory(daemon, 64)
