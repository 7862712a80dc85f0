"""Work with a mounted tree. Each recipe takes a ``Place`` and returns measured values by name, times in seconds."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import counting
from benchmarks.contents import (
    COLUMNS,
    FILM_FRAME,
    FILMS,
    FIRST_PART,
    LARGE_FRAME,
    ROWS_PER_BLOCK,
    Sample,
    dataset_names,
    demonstration_frames,
    part_size,
    samples,
    write_changing,
)
from benchmarks.counting import Results
from benchmarks.data import FRAMES, GLASSFS
from benchmarks.sides import SIDES, Place

Recipe = Callable[[Place], Results]

RANDOM_READS = 10_000
STATS = 4_000
EPOCH, EPOCHS = 10_000, 10
SHORT_EPOCH, SHORT_EPOCHS = 6_000, 2
READERS, CORES = 8, 2
DEMONSTRATION_FRAMES = 2_000
PART_SIZE, WHOLE = 64 << 10, 1 << 20  # a large frame is smaller than the latter
FIRST, AGAIN, KNOWN = "first", "again", "known"
VIEWS = ".glassfs/views"
CACHES = "XDG_CACHE_HOME"
FAILED = "select container, position from {} where success is not true and language_instruction like '%task 1%'"
LONGEST_WAIT = 10.0
SCRIPTS = Path(__file__).parent.parent


def command(*arguments: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> float:
    """Return the seconds that a command takes. Its output goes to /dev/null."""
    environment = {**(os.environ if environment is None else environment), "LC_ALL": "C"}
    start = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, cwd=cwd, env=environment)
    return time.perf_counter() - start


def child(task: str, **arguments: object) -> Results:
    """Return the results of one of ``tasks``, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tasks", task], input=json.dumps(arguments, default=str).encode(),
        check=True, stdout=subprocess.PIPE, cwd=SCRIPTS,
    )
    results: Results = json.loads(done.stdout)
    return results


def passes(work: Callable[[Place], float], items: Callable[[Place], int], *keys: str) -> Recipe:
    """Do some work once for each key, and count the requests for each of its items."""
    return lambda place: counting.passes(place.status, lambda: work(place), items(place), *keys)


def nothing(place: Place) -> Results:
    """Measure nothing but the mount itself."""
    return {}


def cat_container(place: Place) -> Results:
    seconds = command("cat", place.dataset.container)
    return {"first": seconds, "second": command("cat", place.dataset.container)}


def cat(path: str) -> Recipe:
    """Run ``cat`` of one file, twice."""
    return lambda place: {"first": command("cat", place.root / path), "second": command("cat", place.root / path)}


def cat_once(path: str) -> Recipe:
    return lambda place: {"first": command("cat", place.root / path)}


def cat_files(pattern: str) -> Recipe:
    return lambda place: {"first": command("sh", "-c", f"cat -- {pattern}", cwd=place.root)}


def cat_all(place: Place) -> float:
    """Run ``cat *`` in the folder of the frames."""
    return command("sh", "-c", "cat -- *", cwd=place.root / FRAMES)


def ls(path: str) -> Recipe:
    return lambda place: {"seconds": command("ls", "-l", place.root / path)}


def find(path: str) -> Recipe:
    return lambda place: {"seconds": command("find", place.root / path, "-ls")}


def count(place: Place) -> int:
    """Return the number of frames, episodes or keys."""
    return place.dataset.size


def large_frames(place: Place) -> int:
    return max(1, place.dataset.size // math.prod(LARGE_FRAME))


def containers(place: Place) -> int:
    """Return the number of containers in the first folder of the dataset."""
    return part_size(place.dataset.size)


def in_tree(task: str, path: str, **arguments: object) -> Recipe:
    """Run a task on a file of the tree."""
    return lambda place: child(task, path=place.root / path, **arguments)


def on_container(task: str, result: str = "seconds", **arguments: object) -> Recipe:
    """Run a task on the container itself; ``result`` names its seconds."""
    return lambda place: {result: child(task, path=place.dataset.container, **arguments)["seconds"]}


def random_pictures(place: Place) -> Results:
    """Read a random tenth of the frames."""
    number = max(1, place.dataset.size // 10)
    names = [f"{frame:06d}.png" for frame in random.Random(3).sample(range(place.dataset.size), number)]

    def work(place: Place) -> float:
        return child("read_many", folder=place.root / FRAMES, names=names)["seconds"]

    return passes(work, lambda _: number, "seconds")(place)


def read_episodes(step: int) -> Recipe:
    """Read the ``episode.json`` of every ``step``-th episode."""

    def work(place: Place) -> float:
        names = [f"episodes/{number}/meta/episode.json" for number in range(0, place.dataset.size, step)]
        return child("read_many", folder=place.root, names=names)["seconds"]

    return passes(work, lambda place: -(-place.dataset.size // step), "seconds")


def frame_parts(size: int) -> Recipe:
    """Read all large frames, so many bytes at a time."""

    def work(place: Place) -> float:
        names = [f"{number:06d}.png" for number in range(large_frames(place))]
        return child("read_parts", folder=place.root / FRAMES, names=names, size=size)["seconds"]

    return passes(work, large_frames, "seconds")


def read_samples(place: Place) -> Results:
    """Read four samples of each container in the first folder of the dataset, twice."""
    names = dataset_names(place.dataset.size)[: containers(place)]
    chosen = samples(names, 4 * len(names))

    def work(place: Place) -> float:
        return child("read_samples", folder=place.root, samples=chosen)["seconds"]

    return passes(work, lambda _: len(chosen), FIRST, AGAIN)(place)


def train(place: Place) -> Results:
    """Read two samples of each container of the dataset, twice."""
    chosen = samples(dataset_names(place.dataset.size), 2 * place.dataset.size)
    return child(
        "train", root=place.root, samples=chosen, processes=READERS, keys=[FIRST, AGAIN], status=place.status,
    )


def train_on_files(path: str) -> Recipe:
    """Load all files of a folder as DLIO does, two epochs in different orders."""
    return in_tree("train_on_files", path, processes=READERS, keys=[FIRST, AGAIN])


def epochs(processes: int, size: int, count: int, has_library: bool) -> Recipe:
    """Read ``count`` times ``size`` random samples of all containers, different ones each time, as training does.

    Then another program reads the first of them again.
    """

    def recipe(place: Place) -> Results:
        names = dataset_names(place.dataset.size)
        chosen = [samples(names, size, seed) for seed in range(count)]

        def program(chosen: list[list[Sample]], *keys: str) -> Results:
            return child(
                "epochs", root=place.root, samples=chosen, processes=processes, keys=keys, has_library=has_library,
            )

        forget_catalogue()
        return program(chosen, FIRST, AGAIN) | program(chosen[:1], KNOWN)

    return recipe


def selected_samples(where: str) -> Recipe:
    """Read 2,000 random samples of what a condition selects, in a program that finds all rows in the catalogue."""

    def recipe(place: Place) -> Results:
        chosen = samples(dataset_names(place.dataset.size), 2_000)
        child("selected_samples", path=place.root, samples=chosen[:1], where="num_frames > 0")
        return child("selected_samples", path=place.root, samples=chosen, where=where)

    return recipe


def from_catalogue(recipe: Recipe, part: str = "") -> Recipe:
    """Run a recipe on a mount with an empty catalogue, and then on another mount that finds what was kept there.

    What is FIRST on the latter is KNOWN. ``part`` is the part of a dataset where the work is done.
    """

    def twice(place: Place) -> Results:
        forget_catalogue()
        with SIDES["glassfs"].opened(place.dataset, part) as unknown:
            found = recipe(unknown)
        return found | {
            key.replace(FIRST, KNOWN): value for key, value in recipe(place).items() if key.startswith(FIRST)
        }

    return twice


def forget_catalogue() -> None:
    """Remove the catalogue, which mounts and processes open when they first need it."""
    shutil.rmtree(Path(os.environ[CACHES], "glassfs"), ignore_errors=True)


def stat_while_reading(place: Place) -> Results:
    """Stat frames while four readers decode four videos."""
    signal = place.root / "signal"
    films = [signal / f"film{number}.npy" for number in range(FILMS)]
    folders = [signal / f"film{number}" for number in range(FILMS)]
    frames = [number // FILMS for number in range(STATS)]
    names = [folders[number % FILMS] / f"{frame:06d}.png" for number, frame in enumerate(frames)]
    count = FILMS * (place.dataset.size // math.prod(FILM_FRAME))
    return child("stat_while_reading", films=films, names=names[:count])


def readers(count: int) -> Recipe:
    """Read ``count`` videos concurrently and return the seconds for each, so that less is better."""

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
    """List everything in the tree with its attributes."""
    results = child("walk", path=place.root)
    return results | {"descriptors": place.descriptors()}


def replaced(inside: str) -> Recipe:
    """Return the seconds from replacing a store to the first read of only new bytes.

    ``inside`` is the store's name in the mounted folder, empty if it is mounted by itself.
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
    """Return the bytes of the file, or None if it cannot be read now."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def play(place: Place) -> Results:
    """Read the video of the large frames completely and return the seconds for a frame."""
    return {"seconds": command("cat", place.root / VIEWS / f"{FRAMES}.mp4") / large_frames(place)}


def seek(place: Place) -> Results:
    """Decode the last frame of that video with ffmpeg."""
    words = ("-v", "error", "-nostdin", "-sseof", "-0.05", "-i", place.root / VIEWS / f"{FRAMES}.mp4")
    return {"seconds": command("ffmpeg", *words, "-frames:v", "1", "-f", "null", "-")}


def load_columns(place: Place) -> Results:
    return child("load_arrays", paths=[place.root / f"columns/{name}.npy" for name in COLUMNS])


def query_episodes(place: Place) -> Results:
    """Query all episodes of a task with DuckDB, with an empty and a full catalogue, each on a fresh mount."""
    forget_catalogue()

    def work(place: Place) -> float:
        return child("query", path=place.root / VIEWS / "episodes.parquet", statement=FAILED)["seconds"]

    first = work(place)
    with SIDES["glassfs"].opened(place.dataset) as fresh:
        return {FIRST: first, AGAIN: work(fresh)}


def verify(place: Place) -> Results:
    return {"first": command(GLASSFS, "verify", "--json", "--no-progress", place.dataset.container)}


def row(place: Place) -> Results:
    """Read one row of the table, and count the blocks that are decoded.

    Then read a row of another block, and count the bytes that are read: the daemon has loaded its modules by then. Both
    rows are the same in each run.
    """
    column = place.root / "columns/Features.npy"
    count = place.dataset.size
    chosen = random.Random(7).randrange(count)
    blocks = place.blocks_decoded()
    results = child("positional_row", path=column, row=chosen)
    blocks = place.blocks_decoded() - blocks
    read = place.bytes_read()
    child("positional_row", path=column, row=(chosen + count // 2) % count)
    return results | {"blocks": blocks, "read": place.bytes_read() - read}


def stored_block(place: Place) -> Results:
    """Return the stored size of a block."""
    return {"read": place.dataset.container.stat().st_size * ROWS_PER_BLOCK / place.dataset.size}


def inflate(place: Place) -> Results:
    blocks = -(-place.dataset.size // ROWS_PER_BLOCK)
    seconds = child("inflate_blocks", path=place.dataset.container, blocks=blocks)["seconds"]
    return {"first": seconds, "cpu": seconds}


def demonstrations(reader: str) -> Recipe:
    """Read random frames of all demonstrations with several processes; without a mount with an empty catalogue and
    again with what these have kept.
    """

    def recipe(place: Place) -> Results:
        chosen = demonstration_frames(place.dataset.size, DEMONSTRATION_FRAMES)
        found: Results = {}
        for key in (FIRST,) if reader == "files" else (FIRST, AGAIN):
            if key == FIRST and reader == "glassfs":
                forget_catalogue()
            read = child("demonstrations", root=place.root, chosen=chosen, processes=READERS, reader=reader)
            found[key] = read["seconds"]
        return found

    return recipe


FIND_FRAMES = find(FRAMES)
LIST_FRAMES = passes(lambda place: command("ls", "-l", place.root / FRAMES), count, FIRST, AGAIN)
CAT_FRAMES, CAT_LARGE_FRAMES = passes(cat_all, count, "seconds"), passes(cat_all, large_frames, "seconds")
LIST_CONTAINERS = passes(lambda place: command("ls", "-l", place.root / FIRST_PART), containers, FIRST)
FIND_CONTAINERS = passes(lambda place: command("find", place.root / FIRST_PART), containers, FIRST, AGAIN)
