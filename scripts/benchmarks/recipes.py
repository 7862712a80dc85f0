"""Ways to work with a mounted tree. Each takes a place and gives what it measured by name, times in seconds."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.contents import FILM_FRAME, FILMS, ROWS_PER_BLOCK, write_changing
from benchmarks.data import FRAMES, GLASSFS
from benchmarks.sides import Place
from benchmarks.tasks import Results

Recipe = Callable[[Place], Results]

RANDOM_READS = 10_000
STATS = 4_000
LONGEST_WAIT = 10.0
SCRIPTS = Path(__file__).parent.parent


def command(*arguments: str | Path, cwd: Path | None = None) -> float:
    """How long a command takes. Its output goes to /dev/null."""
    start = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, cwd=cwd, env=os.environ | {"LC_ALL": "C"})
    return time.perf_counter() - start


def child(task: str, **arguments: object) -> Results:
    """What one of ``tasks`` measures in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tasks", task], input=json.dumps(arguments, default=str).encode(),
        check=True, stdout=subprocess.PIPE, cwd=SCRIPTS,
    )
    results: Results = json.loads(done.stdout)
    return results


def nothing(place: Place) -> Results:
    """For what the mount itself shows."""
    return {}


def cat_container(place: Place) -> Results:
    seconds = command("cat", place.dataset.container)
    return {"first": seconds, "second": command("cat", place.dataset.container)}


def cat(path: str) -> Recipe:
    """``cat`` of one file, twice."""
    return lambda place: {"first": command("cat", place.root / path), "second": command("cat", place.root / path)}


def cat_once(path: str) -> Recipe:
    return lambda place: {"first": command("cat", place.root / path)}


def cat_files(pattern: str) -> Recipe:
    return lambda place: {"first": command("sh", "-c", f"cat -- {pattern}", cwd=place.root)}


def cat_folder(path: str) -> Recipe:
    """``cat *`` in a folder."""
    return lambda place: {"seconds": command("sh", "-c", "cat -- *", cwd=place.root / path)}


def ls(path: str) -> Recipe:
    return lambda place: {"seconds": command("ls", "-l", place.root / path)}


def find(path: str) -> Recipe:
    return lambda place: {"seconds": command("find", place.root / path, "-ls")}


def first_bytes(path: str) -> Recipe:
    return lambda place: child("read", path=place.root / path, size=4096)


def read(path: str) -> Recipe:
    """A whole file, from ``open`` to its last byte."""
    return lambda place: child("read", path=place.root / path)


def random_reads(path: str) -> Recipe:
    return lambda place: child("random_reads", path=place.root / path, count=RANDOM_READS)


def read_episodes(place: Place) -> Results:
    pattern = "episodes/{}/meta/episode.json"
    return child("read_many", folder=place.root, pattern=pattern, count=place.dataset.size)


def stat_while_reading(place: Place) -> Results:
    """Four readers of four films, and meanwhile ``stat`` of their frames."""
    signal = place.root / "signal"
    films = [signal / f"film{number}.npy" for number in range(FILMS)]
    folders = [signal / f"film{number}" for number in range(FILMS)]
    frames = [number // FILMS for number in range(STATS)]
    names = [folders[number % FILMS] / f"{frame:06d}.png" for number, frame in enumerate(frames)]
    count = FILMS * (place.dataset.size // math.prod(FILM_FRAME))
    return child("stat_while_reading", films=films, names=names[:count])


def readers(count: int) -> Recipe:
    """``count`` films read at the same time; the seconds for each film, so that less is more throughput."""

    def recipe(place: Place) -> Results:
        films = [place.root / f"signal/film{number}.npy" for number in range(count)]
        start = time.perf_counter()
        running = [subprocess.Popen(["cat", film], stdout=subprocess.DEVNULL) for film in films]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise OSError("cat failed")
        return {"seconds": (time.perf_counter() - start) / count}

    return recipe


def walk(place: Place) -> Results:
    """Everything in the tree is listed and its attributes are asked for."""
    results = child("walk", path=place.root)
    return results | {"descriptors": place.descriptors()}


def replaced(inside: str) -> Recipe:
    """From the moment when another store takes the place of one to the first reader who sees only its bytes.

    ``inside`` is the store's name in the mounted folder, empty where it is mounted by itself.
    """

    def recipe(place: Place) -> Results:
        container, shown = place.dataset.container / inside, place.root / inside / "data.npy"
        before = shown.read_bytes()
        version = before[-1] % 250 + 1
        beside = place.dataset.container.with_name("beside")
        write_changing(beside, place.dataset.size, version)
        expected = before[: -place.dataset.size] + bytes([version]) * place.dataset.size
        start = time.perf_counter()
        beside.replace(container)
        while _bytes_of(shown) != expected:
            if time.perf_counter() - start > LONGEST_WAIT:
                raise OSError(f"{shown}: still shows the old bytes")
            time.sleep(0.001)
        return {"seconds": time.perf_counter() - start}

    return recipe


def _bytes_of(path: Path) -> bytes | None:
    """What is in the file, or None where it cannot be read just now."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def verify(place: Place) -> Results:
    return {"first": command(GLASSFS, "verify", "--json", "--no-progress", place.dataset.container)}


def row(task: str) -> Recipe:
    """One row of the table, and how many blocks that decodes.

    Then one of another block, and how many bytes are read for that: all modules that the daemon needs are loaded by
    now. Both rows are the same every time.
    """

    def recipe(place: Place) -> Results:
        column = place.root / "columns/Features.npy"
        count = place.dataset.size
        chosen = random.Random(7).randrange(count)
        blocks = place.blocks_decoded()
        results = child(task, path=column, row=chosen)
        blocks = place.blocks_decoded() - blocks
        read = place.bytes_read()
        child(task, path=column, row=(chosen + count // 2) % count)
        return results | {"blocks": blocks, "read": place.bytes_read() - read}

    return recipe


def stored_block(place: Place) -> Results:
    """The size of a block on the disk."""
    return {"read": place.dataset.container.stat().st_size * ROWS_PER_BLOCK / place.dataset.size}


def decompress(codec: str) -> Recipe:
    """The block of a film in memory."""
    return lambda place: {"first": child("decompress_block", path=place.dataset.container, codec=codec)["seconds"]}


def inflate(place: Place) -> Results:
    blocks = -(-place.dataset.size // ROWS_PER_BLOCK)
    seconds = child("inflate_blocks", path=place.dataset.container, blocks=blocks)["seconds"]
    return {"first": seconds, "cpu": seconds}


def kastore_column(place: Place) -> Results:
    return child("kastore_column", path=place.dataset.container, key="nodes/time")


LIST_FRAMES, FIND_FRAMES, CAT_FRAMES = ls(FRAMES), find(FRAMES), cat_folder(FRAMES)
