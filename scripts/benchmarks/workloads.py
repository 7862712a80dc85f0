"""The workloads: recipes, containers, participants, measures and goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks import reaching, recipes
from benchmarks.contents import FIRST_PART, TRAINED
from benchmarks.counting import REQUESTS
from benchmarks.data import FRAMES
from benchmarks.goals import RATE, SPEED, Goal, Measure, at_least, at_most
from benchmarks.reaching import OTHERS, SHARE
from benchmarks.recipes import AGAIN, FIRST, KNOWN, RANDOM_READS, READERS, VIEWS, Recipe, in_tree, on_container
from benchmarks.server import LIST, SENT

KEPT = "the same mount once more, the kernel's caches kept"
FILLED = "another fresh mount, with the catalogue that the first one has filled"
REMOTE = "mount fresh and its cache cold, a server with 50 ms a request and 100 MB/s"
SMALL, LARGE = 512 << 20, 4 << 30


@dataclass(frozen=True)
class Participant:
    """A recipe on a side; ``label`` is its name in the report."""

    label: str
    side: str
    recipe: Recipe


@dataclass(frozen=True)
class Workload:
    """A container of ``data.CONTAINERS`` and the participants that work on it in turn."""

    name: str
    container: str
    participants: tuple[Participant, ...]
    measures: tuple[Measure, ...] = field(default=())
    memory: int = SMALL
    """Bytes of free memory to touch before each timing."""
    part: str = ""
    """The path in a dataset where the work is done."""


def _mounts(recipe: Recipe, *names: str, **references: Recipe) -> tuple[Participant, ...]:
    """Return the sides of these names with one recipe, and in-memory references by their labels."""
    sides = [Participant(name, name, recipe) for name in ("glassfs", *names)]
    memory = [Participant(label.replace("_", " "), "memory", reference) for label, reference in references.items()]
    return (*sides, *memory)


SQUASH = "squashfuse_ll"
ALL = ("plain", SQUASH, "ratarmount")
FAST = ("plain", SQUASH)
FLOOR = "C server"


def _of_array() -> tuple[Workload, ...]:
    cat_goals = (at_least(1.5, SQUASH), at_least(4, "ratarmount"))
    cats = _mounts(recipes.cat("data.npy"), *ALL, FLOOR, cat_of_the_container=recipes.cat_container)
    array = Workload("array", "array", cats, memory=LARGE, measures=(
        Measure("first", "cat of a 1 GiB array, first read", cat_goals),
        Measure("second", "cat of a 1 GiB array, second read", (at_least(0.95, SQUASH),),
                state="mount's pages warm"),
    ))
    mapped = in_tree("random_reads", "data.npy", count=RANDOM_READS)
    random = Workload("random", "array", _mounts(mapped, *ALL), (
        Measure("p50", "10,000 random 4 KiB reads of numpy.load(mmap_mode='r'), first touch, p50",
                (at_most(1.5, SQUASH),)),
        Measure("p99", "the same random reads, p99"),
    ))
    by_many = in_tree("random_readers", "data.npy", readers=READERS, count=RANDOM_READS)
    readers = Workload("random-readers", "array", _mounts(by_many, *ALL, FLOOR), (
        Measure("p50", "8 readers, 10,000 random reads of 4 KiB, first touch, p50", (at_most(0.6, SQUASH),)),
        Measure("p99", "the same of 8 readers, p99"),
    ))
    return array, random, readers


def _of_frames() -> tuple[Workload, ...]:
    listing = Workload("ls", "pictures", _mounts(recipes.LIST_FRAMES, *ALL, FLOOR), (
        Measure(FIRST, "ls -l of 20,000 frames, first time", (Goal("≤ 0.2 s", extra=0.2), at_most(0.1, SQUASH)),
                each="frame"),
        Measure(AGAIN, "ls -l of 20,000 frames, again", (Goal("≤ 0.1 s", extra=0.1),), state=KEPT, each="frame"),
    ))
    finding = Workload("find", "pictures", _mounts(recipes.FIND_FRAMES, *ALL), (
        Measure("seconds", "find -ls of 20,000 frames, first time",
                (Goal("≤ 0.4 s", extra=0.4), at_most(0.2, SQUASH))),
    ))
    pictures = Workload("cat-pictures", "pictures", _mounts(recipes.CAT_FRAMES, *ALL), (
        Measure("seconds", "cat of 20,000 stored pictures of 4 KiB, first time", (at_most(0.6, SQUASH),), each="file"),
        Measure(f"seconds {REQUESTS}", "the same, requests for each file", (Goal("≤ 1.05", extra=1.05),), "count",
                may_lack=True),
    ))
    random = Workload("random-pictures", "pictures", _mounts(recipes.random_pictures, *ALL, FLOOR), (
        Measure("seconds", "2,000 random pictures out of 20,000, first time",
                (at_most(0.75, SQUASH), at_most(0.5, "ratarmount")), each="file"),
    ))
    frames = Workload("cat-frames", "frames", _mounts(recipes.CAT_FRAMES, *FAST), (
        Measure("seconds", "cat of 20,000 raw frames of 4 KiB as PNG, first time", (at_most(2, SQUASH),), each="file"),
    ))
    raw = Workload("cat-large-frames", "raw", _mounts(recipes.CAT_LARGE_FRAMES, *FAST, FLOOR), memory=LARGE, measures=(
        Measure("seconds", "cat of 1 GiB of raw 640 × 480 frames as PNG, first time", (at_most(0.95, SQUASH),),
                each="file"),
    ))
    in_parts = (
        *_mounts(recipes.frame_parts(recipes.PART_SIZE), *FAST),
        Participant("whole files", "glassfs", recipes.frame_parts(recipes.WHOLE)),
    )
    parts = Workload("frame-parts", "raw", in_parts, memory=LARGE, measures=(
        Measure("seconds", "1 GiB of raw frames as PNG, 64 KiB at a time, opened anew for each",
                (at_most(1.5, "whole files"),), each="file"),
    ))
    return listing, finding, pictures, random, frames, raw, parts


def _of_films() -> tuple[Workload, ...]:
    film = "signal/film.npy"
    start = Workload("zstd-start", "zstd", _mounts(in_tree("read", film, size=4096)), (
        Measure("seconds", "first 4 KiB of a 512 MiB zstd block", (Goal("≤ 50 ms", extra=0.05),)),
    ))
    whole = recipes.cat_once(film)
    readers = _mounts(whole, zstandard_in_memory=on_container("decompress_block", "first", codec="zstd"))
    zstd = Workload("zstd", "zstd", readers, memory=LARGE, measures=(
        Measure("first", "cat of a 512 MiB zstd block, first read",
                (at_most(1.3, "zstandard in memory"),)),
    ))
    readers = _mounts(whole, lz4_in_memory=on_container("decompress_block", "first", codec="lz4"))
    lz4 = Workload("lz4", "lz4", readers, memory=LARGE, measures=(
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
                (at_least(1.7, "one reader", "'s throughput"),)),
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
                (at_most(0.95, label),)),
        Measure("cpu", "IDV, 50,000 × 100 float32, the daemon's processor time for that",
                (Goal("≤ 70 ms + inflating", 1.0, label, extra=0.07),)),
    ))
    row = Workload("row", "long", _mounts(recipes.row, block_on_disk=recipes.stored_block), (
        Measure("seconds", "IDV, 1,000,000 rows, one row by pread"),
        Measure("blocks", "the same by pread, blocks decoded", (Goal("one block decoded", extra=1),), "count"),
        Measure("read", "another row by pread, bytes the daemon reads",
                (Goal("≤ 1.1 × block on disk", 1.1, "block on disk"),), "bytes", "modules loaded"),
    ))
    return whole, row


def _of_stores() -> tuple[Workload, ...]:
    load = on_container("kastore_column", key="nodes/time")
    readers = _mounts(in_tree("read", "nodes/time.npy"), *FAST, kastore_load=load)
    column = Workload("store", "store", readers, (
        Measure("seconds", "2.7 MB column of a 20 MB store, open to last byte",
                (at_most(3, "kastore load"),)),
    ))
    keys = Workload("keys", "keys", _mounts(recipes.ls("root"), *FAST), (
        Measure("seconds", "ls -l of an iKv2 document with 20,000 keys, first time"),
    ))
    return column, keys


def _of_npz() -> tuple[Workload, ...]:
    stored = Workload("npz", "npz", _mounts(recipes.cat_once("data.npy"), SQUASH), (
        Measure("first", "NPZ, stored member of 1 GB, cat, first read", (at_most(1.0, SQUASH),)),
    ))
    mapped = Workload("npz-mapped", "npz", (
        Participant("glassfs", "memory", on_container("sum_mapped", share=0.01)),
        Participant("numpy.load", "memory", on_container("sum_by_numpy", share=0.01)),
    ), (
        Measure("seconds", "NPZ, stored member of 1 GB, sum of 1 % in Python", (at_most(0.1, "numpy.load"),)),
    ))
    label = "numpy load"
    readers = _mounts(recipes.cat_once("data.npy"), numpy_load=on_container("sum_by_numpy", "first", share=0))
    deflated = Workload("npz-deflated", "npz-deflated", readers, (
        Measure("first", "NPZ, deflated member of 512 MB, cat, first read", (at_most(1.0, label),)),
    ))
    return stored, mapped, deflated


def _of_hdf5() -> tuple[Workload, ...]:
    by_h5py = Participant("h5py", "memory", on_container("whole_by_h5py", "first"))
    cat = Workload("hdf5", "hdf5", (Participant("glassfs", "glassfs", recipes.cat_once("data.npy")), by_h5py), (
        Measure("first", "HDF5, 1 GB in chunks, gzip and shuffle, cat, first read", (at_most(0.7, "h5py"),)),
    ))
    by_glassfs = Participant("glassfs", "memory", on_container("whole_by_glassfs", "first"))
    whole = Workload("hdf5-library", "hdf5", (by_glassfs, by_h5py), (
        Measure("first", "HDF5, the same array by .numpy()", (at_most(0.7, "h5py"),)),
    ))
    frames = Workload("hdf5-frames", "demonstrations", (
        Participant("glassfs", "glassfs", recipes.demonstrations("files")),
        Participant("h5py", "memory", recipes.demonstrations("h5py")),
    ), (
        Measure("first", "8 processes, 2,000 random frames of 20 robomimic files, through a mount",
                (at_least(1, "h5py"),), RATE),
    ))
    library = Workload("hdf5-frames-library", "demonstrations", (
        Participant("glassfs", "memory", recipes.demonstrations("glassfs")),
        Participant("h5py", "memory", recipes.demonstrations("h5py")),
    ), (
        Measure("first", "8 processes, 2,000 random frames of 20 robomimic files, through the library, first",
                (at_least(1.5, "h5py"),), RATE),
        Measure("again", "the same by other processes, from the catalogue", (at_least(1.5, "h5py"),), RATE),
    ))
    return cat, whole, frames, library


def _of_recordings() -> tuple[Workload, ...]:
    positions = Workload("mcap", "recording", (
        Participant("glassfs", "memory", on_container("positions_by_glassfs", "first")),
        Participant("rosbags", "memory", on_container("positions_by_rosbags", "first")),
    ), (
        Measure("first", "MCAP, position.npy of 1,000,000 joint states by the library, first read",
                (at_most(1.3, "rosbags"),)),
    ))
    images = Workload("mcap-images", "recording", (
        Participant("glassfs", "memory", on_container("recorded_images_by_glassfs", "first", count=300)),
        Participant("mcap", "memory", on_container("recorded_images_by_mcap", "first", count=300)),
    ), (
        Measure("first", "MCAP, 300 random images of the same recording by the library, first", (), RATE),
    ))
    return positions, images


def _of_training() -> tuple[Workload, ...]:
    """Return the loops of DLIO's readers: whole files, loaded in random order by several processes, in epochs."""
    return tuple(
        Workload(f"dlio-{form}", "trained", _mounts(recipes.train_on_files(path), *FAST, FLOOR), (
            Measure(FIRST, f"{READERS} processes load 2,000 {form} of 224 × 224 as DLIO does, first epoch", (),
                    RATE),
            Measure(AGAIN, "the same, second epoch", (), RATE, KEPT),
        ))
        for form, path in zip(TRAINED, ("npy.kas", f"png.kdb/{FRAMES}", f"jpeg.kdb/{FRAMES}"), strict=True)
    )


def _of_episodes() -> tuple[Workload, ...]:
    mount = Workload("mount", "episodes", _mounts(recipes.nothing, SQUASH), (
        Measure("mount", "mount of 50,000 episodes, process start included", (Goal("≤ 0.2 s", extra=0.2),)),
        Measure("memory", "the daemon's memory after that mount", (Goal("≤ 30 MB", extra=30e6),), "bytes"),
    ))
    read = Workload("episodes", "episodes", _mounts(recipes.read_episodes(1), *FAST, FLOOR), (
        Measure("seconds", "reading all 50,000 episode.json", (at_most(0.8, SQUASH),), each="file"),
    ))
    some = Workload("some-episodes", "episodes", _mounts(recipes.read_episodes(10), *FAST, FLOOR), (
        Measure("seconds", "reading every tenth of 50,000 episode.json", (at_most(1.1, SQUASH),), each="file"),
    ))
    return mount, read, some


def _with_catalogue(recipe: Recipe, *names: str, part: str = "") -> tuple[Participant, ...]:
    """Return the sides of these names with one recipe, and glassfs with an empty and a full catalogue."""
    ours, *others = _mounts(recipe, *names)
    return replace(ours, recipe=recipes.from_catalogue(recipe, part)), *others


def _of_dataset() -> tuple[Workload, ...]:
    samplers = _with_catalogue(recipes.read_samples, *ALL, FLOOR, part=FIRST_PART)
    read = Workload("dataset-samples", "dataset", samplers, part=FIRST_PART, measures=(
        Measure(FIRST, "one of 2,000 random samples over 500 containers, first time",
                (at_most(1.3, SQUASH), at_most(0.5, "ratarmount")), each="sample"),
        Measure(KNOWN, "the same on another fresh mount, from the catalogue",
                (at_most(1.05, SQUASH, "'s first", FIRST),), state=FILLED, each="sample"),
        Measure(AGAIN, "one of 2,000 random samples over 500 containers, again", (at_most(2, "plain"),), state=KEPT,
                each="sample"),
    ))
    train = Workload("dataset-loader", "dataset", _with_catalogue(recipes.train, *ALL, FLOOR), measures=(
        Measure(FIRST, "8 workers, 6,000 random samples over 3,000 containers, first pass",
                (at_least(0.8, SQUASH),), RATE, each="sample"),
        Measure(KNOWN, "the same on another fresh mount, from the catalogue", (), RATE, FILLED, each="sample"),
        Measure(AGAIN, "8 workers, second pass over the same samples", (at_least(0.95, FLOOR),), RATE, KEPT,
                each="sample"),
    ))
    library = _of_library("dataset-library", READERS, recipes.EPOCH, recipes.EPOCHS, first=0.45, known=0.7, last=1)
    spawned = _of_library(
        "dataset-cores", recipes.CORES, recipes.SHORT_EPOCH, recipes.SHORT_EPOCHS, first=0.65, known=0.85, last=0.95,
    )
    query = Workload("dataset-query", "dataset", _mounts(recipes.query_episodes), (
        Measure(FIRST, "all failed episodes of one task in 3,000 containers, by DuckDB, first time ever",
                (Goal("≤ 5 s", extra=5),)),
        Measure(AGAIN, "the same on another fresh mount", (Goal("≤ 0.5 s", extra=0.5),),
                state="the catalogue knows them"),
    ))
    finders = _mounts(recipes.FIND_CONTAINERS, *ALL, FLOOR)
    finding = Workload("dataset-find", "dataset", finders, part=FIRST_PART, measures=(
        Measure(FIRST, "find over 500 containers (107,000 entries), first time",
                (at_most(1, SQUASH), at_most(0.5, "ratarmount")), each="container"),
        Measure(AGAIN, "find over 500 containers, again", (at_most(0.5, SQUASH, "'s first", FIRST),), state=KEPT,
                each="container"),
    ))
    listing = Workload("dataset-ls", "dataset", _mounts(recipes.LIST_CONTAINERS, *ALL), part=FIRST_PART, measures=(
        Measure(FIRST, "ls -l of a folder of 500 containers, first time", (Goal("≤ 0.1 s", extra=0.1),),
                each="container"),
    ))
    return read, train, library, spawned, query, finding, listing, _of_selection()


def _of_selection() -> Workload:
    sides = (("glassfs", "num_frames > 0"), ("whole", ""))
    readers = tuple(Participant(name, "memory", recipes.selected_samples(where)) for name, where in sides)
    return Workload("selection", "dataset", readers, (
        Measure(FIRST, "opening a selection of 9,000 known episodes in 3,000 containers", (Goal("≤ 1 s", extra=1),)),
        Measure(AGAIN, "one of 2,000 random samples through it, again", (at_most(1.05, "whole"),), each="sample"),
    ))


def _of_library(
    name: str, processes: int, size: int, count: int, first: float, known: float, last: float,
) -> Workload:
    """Return ``count`` epochs of ``size`` samples, read by spawned processes, with goals relative to plain files."""
    loaders = (
        Participant("glassfs", "memory", recipes.epochs(processes, size, count, has_library=True)),
        Participant("plain", "plain", recipes.epochs(processes, size, count, has_library=False)),
    )
    state = "no mount, containers and files warm"
    title = f"glassfs.open in {processes} spawned workers, {size:,} random samples over 3,000 containers"
    return Workload(name, "dataset", loaders, measures=(
        Measure(FIRST, f"{title}, first epoch", (at_least(first, "plain"),), RATE, f"{state}, an empty catalogue"),
        Measure(KNOWN, f"the same of {processes}, first epoch of another program", (at_least(known, "plain"),), RATE,
                f"{state}, the first program's catalogue"),
        Measure(AGAIN, f"the same of {processes}, epoch {count} of the first program", (at_least(last, "plain"),), RATE,
                "the workers go on"),
    ))


def _of_views() -> tuple[Workload, ...]:
    film = Workload("mp4", "raw", _mounts(recipes.play), memory=LARGE, measures=(
        Measure("seconds", "mp4 of raw 640 × 480 frames, first read, frames a second",
                (Goal("≥ 200 a second", extra=1 / 200),), RATE),
    ))
    seeking = Workload("mp4-seek", "sparse", _mounts(recipes.seek), (
        Measure("seconds", "the last frame of a sparse film of 5 GB, by ffmpeg", (Goal("≤ 0.5 s", extra=0.5),)),
    ))
    tables = (
        Participant("glassfs", "glassfs", in_tree("read_table", f"{VIEWS}/columns.parquet")),
        Participant("as .npy", "glassfs", recipes.load_columns),
    )
    columns = Workload("parquet", "columns", tables, (
        Measure("seconds", "two IDV columns of 1,000,000 rows as columns.parquet, by pyarrow",
                (at_most(1.5, "as .npy"),)),
    ))
    bed = recipes.cat_once(f"{VIEWS}/plink/genotypes.bed")
    genotypes = Workload("plink", "genotypes", _mounts(bed, tskit_and_NumPy=on_container("write_bed", "first")), (
        Measure("first", "1,001 individuals at 129,000 sites as .bed, cat", (at_least(0.7, "tskit and NumPy"),)),
    ))
    return film, seeking, columns, genotypes


def _of_changes() -> tuple[Workload, ...]:
    folder = Workload("folder", "folder", _mounts(recipes.walk), (
        Measure("seconds", "walking a folder of 10,000 containers and all that is in them, first time"),
        Measure("memory", "the daemon's memory after that", (Goal("≤ 100 MB", extra=100e6),), "bytes"),
        Measure("descriptors", "the daemon's descriptors after that", (Goal("≤ 256", extra=256),), "count"),
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


def _of_remote() -> tuple[Workload, ...]:
    """Return a workload on a slow server."""

    def ours(recipe: Recipe) -> Participant:
        return Participant("glassfs", "remote glassfs", recipe)

    def peers(recipe: Recipe, *sides: str) -> tuple[Participant, ...]:
        return tuple(Participant(side, side, recipe) for side in sides)

    roots = (
        ("kastore", "store", 2), ("KinoDB", "pictures", 2), ("WShard", "shard", 3), ("iKv", "many-keys", 4),
        ("IDV", "wide", 4),
    )
    opened = tuple(
        Workload(f"remote-{name.lower()}", container, (ours(reaching.list_root),), (
            Measure("seconds", f"mount and ls -l of the root, {name}", state=REMOTE),
            Measure(REQUESTS, f"the same, {name}, requests", (Goal(f"≤ {most}", extra=most),), "count", REMOTE),
        ))
        for name, container, most in roots
    )
    pictures = tuple(
        Workload(name, data, (ours(reaching.first_picture),), (
            Measure("seconds", f"mount and first picture of a sparse .kdb of 10 GB, {words}", state=REMOTE),
            Measure(REQUESTS, f"the same, {words}, requests", (Goal("≤ 6", extra=6),), "count", REMOTE),
            Measure(SENT, f"the same, {words}, bytes", (Goal("≤ 2 MB", extra=2e6),), "bytes", REMOTE),
        ))
        for name, data, words in (
            ("remote-picture", "huge", "256 × 256 raw"), ("remote-large-picture", "huge-large", "640 × 480 raw"),
        )
    )
    both, container = ("rclone", "rclone, full cache"), "column.kas"
    ratarmount = Participant("ratarmount", "remote ratarmount", reaching.cat("data.npy"))
    readers = (ours(reaching.cat("data.npy")), *peers(reaching.cat(container), *both), ratarmount)
    cat = Workload("remote-cat", "column", (*readers, Participant("curl", "served", reaching.stream)), (
        Measure("seconds", "cat of 256 MB", (Goal("≥ 70 MB/s", extra=1 / 70),), SPEED, REMOTE),
        Measure(SHARE, "the same, times its bytes that are sent", (Goal("≤ 1.1", extra=1.1),), "count", REMOTE),
        Measure(REQUESTS, "the same, requests", (), "count", REMOTE),
    ), LARGE)
    parts = Workload("remote-random", "column", (
        ours(reaching.random_parts("data.npy")), *peers(reaching.random_parts(container), *both),
        Participant("ratarmount", "remote ratarmount", reaching.random_parts("data.npy")),
    ), (
        Measure("p50", "100 random reads of 4 KiB out of 256 MB, p50", state=REMOTE),
        Measure("p99", "the same, p99", state=REMOTE),
        Measure(REQUESTS, "the same, requests", (Goal("≤ 100", extra=100),), "count", REMOTE),
        Measure(SENT, "the same, bytes", (Goal("≤ 512 KiB each", extra=100 * 512 << 10),), "bytes", REMOTE),
    ))
    twice = Workload("remote-disk", "column", (Participant("glassfs", "served", reaching.cat_twice("data.npy")),), (
        Measure(FIRST, "cat of 256 MB with disk_cache, first mount", (), SPEED, REMOTE),
        Measure(AGAIN, "the same, second mount", (), SPEED, "a fresh mount with the disk cache of another one"),
        Measure(f"{AGAIN}: {REQUESTS}", "the same, second mount, requests", (Goal("≤ 1", extra=1),), "count", REMOTE),
        Measure(f"{AGAIN}: {SENT}", "the same, second mount, bytes", (), "bytes", REMOTE),
    ), LARGE)
    folder = Workload("remote-folder", "objects", (
        ours(reaching.list_root), *peers(reaching.list_below("objects"), "rclone"),
    ), (
        Measure("seconds", "mount and ls -l of a folder of 10,000 objects", state=REMOTE),
        Measure(LIST, "the same, requests for lists", (Goal("≤ 10", extra=10),), "count", REMOTE),
        Measure(OTHERS, "the same, other requests", (Goal("none"),), "count", REMOTE),
    ))
    command = Workload("remote-command", "store", (
        Participant("glassfs", "served", reaching.list_by_command),
        Participant("of a local file", "memory", reaching.list_here),
    ), (
        Measure("seconds", "glassfs ls s3://… of a store of 20 MB, process start included", state=REMOTE),
        Measure(REQUESTS, "the same, requests", (), "count", REMOTE),
    ))
    train = Workload("remote-samples", "takes", (ours(reaching.train),), (
        Measure(FIRST, "8 workers, 2,000 random samples over 500 containers, first pass", (), RATE, REMOTE),
        Measure("each", "the same, requests for each container", (), "count", REMOTE),
        Measure(SHARE, "the same, times the containers' bytes that are sent", (), "count", REMOTE),
    ))
    return command, *opened, *pictures, cat, parts, twice, folder, train


# Workloads of the same container stand together, so that its files can go when they are done.
WORKLOADS: tuple[Workload, ...] = (
    *_of_array(), *_of_frames(), *_of_films(), *_of_tables(), *_of_stores(), *_of_npz(), *_of_hdf5(),
    *_of_recordings(), *_of_training(), *_of_episodes(),
    *_of_dataset(), *_of_views(), *_of_changes(), *_of_remote(),
)

Samples = Mapping[str, Mapping[str, list[float]]]
"""Results of a workload by the participant's label and the measure's key, one for each run."""
