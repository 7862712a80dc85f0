"""Random reads by many threads against expected bytes, and fio."""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformances import uring
from conformances.checks import FILES, SMALL, Skipped, Tree, check, opened

LOAD = "random reads"
THREADS, LARGEST = 16, 200_000
NPY_HEADER, FIO_SIZE = 128, 16 << 20
PATTERN = (
    "--name=conformance", "--bs=4k", f"--offset={NPY_HEADER}", f"--size={FIO_SIZE}", "--verify=crc32c",
    "--verify_state_save=0",
)

UNVERIFIED = ("--verify=0", "--offset=0")  # offsets that these can read at are not those of the pattern


@check(LOAD, f"{THREADS} threads, each file, by read, pread, preadv, mmap, splice")
def _threads(tree: Tree) -> object:
    expected = {name: (tree.expected / name).read_bytes() for name in (*FILES, SMALL)}
    with ThreadPoolExecutor(THREADS) as pool:
        shares = [(tree, expected, seed, tree.reads // THREADS) for seed in range(THREADS)]
        wrong = [line for lines in pool.map(_reader, shares) for line in lines]
    return wrong[0] if wrong else "all bytes as expected"


def _reader(share: tuple[Tree, dict[str, bytes], int, int]) -> list[str]:
    """Read parts of random files, sizes and offsets in random ways; return what differs."""
    tree, expected, seed, count = share
    chance = random.Random(seed)
    wrong = []
    for _ in range(count):
        name, way = chance.choice(list(expected)), chance.choice(list(WAYS))
        offset = chance.randrange(len(expected[name]) + 10)
        size = min(chance.randrange(1, LARGEST), max(1, len(expected[name]) - offset + chance.randrange(3)))
        with opened(tree / name) as file:
            if WAYS[way](file, offset, size) != expected[name][offset : offset + size]:
                wrong.append(f"{way} of {size} bytes of {name} at {offset} with seed {seed} differs")
    return wrong


def _read(file: int, offset: int, size: int) -> bytes:
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, size)


def _vector(file: int, offset: int, size: int) -> bytes:
    buffers = [bytearray(size // 3), bytearray(size - size // 3)]
    given = os.preadv(file, buffers, offset)
    return b"".join(buffers)[:given]


def _mapped(file: int, offset: int, size: int) -> bytes:
    with mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        return mapped[offset : offset + size]


def _splice(file: int, offset: int, size: int) -> bytes:
    ends, found = os.pipe(), []
    try:
        while size and (given := os.splice(file, ends[1], min(size, 1 << 14), offset)):
            found.append(os.read(ends[0], given))
            offset, size = offset + given, size - given
        return b"".join(found)
    finally:
        for end in ends:
            os.close(end)


WAYS = {
    "read": _read, "pread": lambda file, offset, size: os.pread(file, size, offset), "preadv": _vector, "mmap": _mapped,
    "splice": _splice,
}


def write_pattern(path: Path) -> bytes:
    """Write what fio can verify, and return it without its first bytes, in whose place the header of an array goes."""
    if shutil.which("fio"):
        _fio("--rw=write", f"--filename={path}", "--do_verify=0")
    else:
        path.write_bytes(bytes(NPY_HEADER + FIO_SIZE))
    data = path.read_bytes()[NPY_HEADER : NPY_HEADER + FIO_SIZE]
    path.unlink()
    return data


def _fio(*words: str) -> dict[str, int]:
    command = "fio", "--output-format=json", *PATTERN, *words
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    start = done.stdout.find("{")
    if start < 0 or done.returncode:
        raise OSError(f"fio: {(done.stderr or done.stdout).strip()[:200]}")
    job = json.loads(done.stdout[start:])["jobs"][0]
    return {"error": job["error"], "read": job["read"]["io_bytes"]}


DEEP = ("--iodepth=16",)
for engine, more in (
    *((engine, ()) for engine in "psync sync pvsync2 splice".split()),  # noqa: SIM905 - no quoted word is like sync(8)
    ("libaio", DEEP), ("io_uring", DEEP),
    ("psync", ("--numjobs=4",)), ("mmap", UNVERIFIED), ("libaio", ("--direct=1", *UNVERIFIED)),
):
    @check(LOAD, f"fio, randread, {' '.join((engine, *more))}")
    def _engine(tree: Tree, engine: str = engine, more: tuple[str, ...] = more) -> object:
        if shutil.which("fio") is None or not tree.reads > 1000:
            raise Skipped("there is no fio" if shutil.which("fio") is None else "--quick")
        if engine == "io_uring":
            with opened(tree / SMALL) as file:
                uring.read(file, [(0, 16)])
        path = tree / "fio.kas/data.npy"
        return _fio("--readonly", "--rw=randread", f"--ioengine={engine}", f"--filename={path}", *more)
