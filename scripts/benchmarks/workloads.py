"""The workloads: who does what with which container, what is measured, and which goal it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks import recipes
from benchmarks.recipes import Recipe

COLD = "mount fresh and its cache cold, what it reads warm"
SMALL, LARGE = 512 << 20, 4 << 30


@dataclass(frozen=True)
class Goal:
    """glassfs needs at most ``factor`` times what ``reference`` needs in the same measure, plus ``extra``."""

    words: str
    factor: float = 0.0
    reference: str | None = None
    extra: float = 0.0


@dataclass(frozen=True)
class Measure:
    """A result of a recipe or of the daemon that served it. ``unit`` is ``s``, ``bytes`` or ``count``."""

    key: str
    title: str
    goals: tuple[Goal, ...] = ()
    unit: str = "s"
    state: str = COLD


@dataclass(frozen=True)
class Participant:
    """A recipe on a side; ``label`` is its name in the report."""

    label: str
    side: str
    recipe: Recipe


@dataclass(frozen=True)
class Workload:
    """What a row of measures needs: a container of ``data.CONTAINERS``, and all who work on it in turn."""

    name: str
    container: str
    participants: tuple[Participant, ...]
    measures: tuple[Measure, ...] = field(default=())
    memory: int = SMALL
    """Bytes of free memory that are made ready before each timing."""


def _mounts(recipe: Recipe, *names: str, **references: Recipe) -> tuple[Participant, ...]:
    """The sides of these names with the same recipe, and in-memory references by their labels."""
    sides = [Participant(name, name, recipe) for name in ("glassfs", *names)]
    memory = [Participant(label.replace("_", " "), "memory", reference) for label, reference in references.items()]
    return (*sides, *memory)


def _listing(name: str, recipe: Recipe, title: str) -> Workload:
    goals = (Goal("≤ 0.4 s", extra=0.4), Goal("≤ 0.2 × squashfuse_ll", 0.2, "squashfuse_ll"))
    return Workload(
        name, "pictures", _mounts(recipe, *ALL), (Measure("seconds", f"{title} of 20,000 frames, first time", goals),)
    )


ALL = ("plain", "squashfuse_ll", "ratarmount")
FAST = ("plain", "squashfuse_ll")


def _of_array() -> tuple[Workload, ...]:
    cat_goals = (Goal("≥ 1.0 × squashfuse_ll", 1.0, "squashfuse_ll"), Goal("≥ 4 × ratarmount", 1 / 4, "ratarmount"))
    readers = _mounts(recipes.cat("data.npy"), *ALL, cat_of_the_container=recipes.cat_container)
    array = Workload("array", "array", readers, memory=LARGE, measures=(
        Measure("first", "cat of a 1 GiB array, first read", cat_goals),
        Measure("second", "cat of a 1 GiB array, second read", (Goal("≥ 0.9 × plain", 1 / 0.9, "plain"),),
                state="mount's pages warm"),
    ))
    random = Workload("random", "array", _mounts(recipes.random_reads("data.npy"), *ALL), (
        Measure("p50", "10,000 random 4 KiB reads of numpy.load(mmap_mode='r'), first touch, p50",
                (Goal("≤ 1.5 × squashfuse_ll", 1.5, "squashfuse_ll"),)),
        Measure("p99", "the same random reads, p99"),
    ))
    return array, random


def _of_frames() -> tuple[Workload, ...]:
    pictures = Workload("cat-pictures", "pictures", _mounts(recipes.CAT_FRAMES, *ALL), (
        Measure("seconds", "cat of 20,000 stored pictures of 4 KiB, first time",
                (Goal("≤ 1.2 × squashfuse_ll", 1.2, "squashfuse_ll"),)),
    ))
    frames = Workload("cat-frames", "frames", _mounts(recipes.CAT_FRAMES, *FAST), (
        Measure("seconds", "cat of 20,000 raw frames of 4 KiB as PNG, first time",
                (Goal("≤ 2 × squashfuse_ll", 2.0, "squashfuse_ll"),)),
    ))
    raw = Workload("cat-large-frames", "raw", _mounts(recipes.CAT_FRAMES, *FAST), memory=LARGE, measures=(
        Measure("seconds", "cat of 1 GiB of raw 640 × 480 frames as PNG, first time"),
    ))
    return (
        _listing("ls", recipes.LIST_FRAMES, "ls -l"), _listing("find", recipes.FIND_FRAMES, "find -ls"),
        pictures, frames, raw,
    )


def _of_films() -> tuple[Workload, ...]:
    film = "signal/film.npy"
    start = Workload("zstd-start", "zstd", _mounts(recipes.first_bytes(film)), (
        Measure("seconds", "first 4 KiB of a 512 MiB zstd block", (Goal("≤ 50 ms", extra=0.05),)),
    ))
    whole = recipes.cat_once(film)
    readers = _mounts(whole, zstandard_in_memory=recipes.decompress("zstd"))
    zstd = Workload("zstd", "zstd", readers, memory=LARGE, measures=(
        Measure("first", "cat of a 512 MiB zstd block, first read",
                (Goal("≤ 1.3 × zstandard", 1.3, "zstandard in memory"),)),
    ))
    lz4 = Workload("lz4", "lz4", _mounts(whole, lz4_in_memory=recipes.decompress("lz4")), memory=LARGE, measures=(
        Measure("first", "cat of a 512 MiB lz4 block, first read"),
    ))
    stat = Workload("stat", "films", _mounts(recipes.stat_while_reading), memory=LARGE, measures=(
        Measure("p50", "stat while 4 readers decode, p50", (Goal("≤ 0.3 ms", extra=0.3e-3),)),
        Measure("p99", "stat while 4 readers decode, p99", (Goal("≤ 5 ms", extra=5e-3),)),
    ))
    together = (
        Participant("glassfs", "glassfs", recipes.readers(2)), Participant("one reader", "glassfs", recipes.readers(1)),
    )
    two = Workload("two-readers", "films", together, memory=LARGE, measures=(
        Measure("seconds", "two readers on two compressed films, time for each film",
                (Goal("≥ 1.7 × one reader's throughput", 1 / 1.7, "one reader"),)),
    ))
    verifying = (
        Participant("glassfs", "memory", recipes.verify),
        Participant("cat of the container", "memory", recipes.cat_container),
        Participant("cat of the mounted films", "glassfs", recipes.cat_files("signal/*.npy")),
    )
    verify = Workload("verify", "films", verifying, memory=LARGE, measures=(
        Measure("first", "glassfs verify of 1 GiB of films, stored in 328 MB", state="no mount, container warm"),
    ))
    return start, zstd, lz4, stat, two, verify


def _of_tables() -> tuple[Workload, ...]:
    label = "inflating in memory"
    readers = _mounts(recipes.cat_once("columns/Features.npy"), inflating_in_memory=recipes.inflate)
    whole = Workload("column", "wide", readers, (
        Measure("first", "IDV, 50,000 × 100 float32, whole column, first read",
                (Goal("≤ 1.5 × inflating", 1.5, label),)),
        Measure("cpu", "IDV, 50,000 × 100 float32, the daemon's processor time for that",
                (Goal("≤ 70 ms + inflating", 1.0, label, extra=0.07),)),
    ))
    rows = []
    for name, task, words in (("row", "positional_row", "pread"), ("mapped-row", "mapped_row", "numpy.load mapped")):
        goals = (Goal("one block decoded", extra=1),) if name == "row" else ()  # the header has another block
        sides = _mounts(recipes.row(task), block_on_disk=recipes.stored_block)
        rows.append(Workload(name, "long", sides, (
            Measure("seconds", f"IDV, 1,000,000 rows, one row by {words}"),
            Measure("blocks", f"the same by {words}, blocks decoded", goals, "count"),
            Measure("read", f"another row by {words}, bytes the daemon reads",
                    (Goal("≤ 1.1 × block on disk", 1.1, "block on disk"),) if goals else (), "bytes", "modules loaded"),
        )))
    return whole, *rows


def _of_stores() -> tuple[Workload, ...]:
    readers = _mounts(recipes.read("nodes/time.npy"), *FAST, "hdfuse", kastore_load=recipes.kastore_column)
    column = Workload("store", "store", readers, (
        Measure("seconds", "2.7 MB column of a 20 MB store, open to last byte",
                (Goal("≤ 3 × kastore.load", 3.0, "kastore load"),)),
    ))
    keys = [
        Workload(name, name, _mounts(recipes.ls("root"), *FAST), (
            Measure("seconds", f"ls -l of an iKv2 document with {count} keys, first time"),
        ))
        for name, count in (("few-keys", "2,000"), ("keys", "20,000"))
    ]
    return column, *keys


def _of_episodes() -> tuple[Workload, ...]:
    mount = Workload("mount", "episodes", _mounts(recipes.nothing, "squashfuse_ll"), (
        Measure("mount", "mount of 50,000 episodes, process start included", (Goal("≤ 0.4 s", extra=0.4),)),
        Measure("memory", "the daemon's memory after that mount", (Goal("≤ 100 MB", extra=100e6),), "bytes"),
    ))
    read = Workload("episodes", "episodes", _mounts(recipes.read_episodes, *FAST), (
        Measure("seconds", "reading all 50,000 episode.json",
                (Goal("≤ 1.5 × squashfuse_ll", 1.5, "squashfuse_ll"),)),
    ))
    return mount, read


def _of_changes() -> tuple[Workload, ...]:
    folder = Workload("folder", "folder", _mounts(recipes.walk), (
        Measure("seconds", "walking a folder of 10,000 containers and all that is in them, first time"),
        Measure("memory", "the daemon's memory after that", unit="bytes"),
        Measure("descriptors", "the daemon's descriptors after that", unit="count"),
    ))
    replaced = [
        Workload(name, container, _mounts(recipes.replaced(inside)), (
            Measure("seconds", f"from a replaced container {where} to its new bytes", (Goal("≤ 1 s", extra=1),),
                    state="the kernel has everything of the old one"),
        ))
        for name, container, inside, where in (
            ("replaced", "changing", "", "mounted by itself"),
            ("replaced-below", "changing-folder", "changing.kas", "in a mounted folder"),
        )
    ]
    return folder, *replaced


# Workloads of the same container stand together, so that its files can go when they are done.
WORKLOADS: tuple[Workload, ...] = (
    *_of_array(), *_of_frames(), *_of_films(), *_of_tables(), *_of_stores(), *_of_episodes(),
    *_of_changes(),
)

Samples = Mapping[str, Mapping[str, list[float]]]
"""The results of a workload by the label of the participant and the key of the measure, one for each run."""
