"""Tasks that run in a process of their own: ``python -m benchmarks.tasks NAME`` prints results as JSON.

Imports come before the clock starts, so that only the work is timed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import workers
from benchmarks.contents import (
    ACTION,
    NARROW,
    RECORDED_CAMERA,
    RECORDED_JOINTS,
    STATE,
    STATE_TIME,
    STATES_AN_IMAGE,
    Sample,
)
from benchmarks.counting import Results, passes
from benchmarks.workers import PAGE

PAUSE = 0.0005
IDV_HEADER, NPY_HEADER = 256, 128
ROW_SIZE = 4 * NARROW
SAMPLED = (("state", 4 * STATE), ("action", 4 * ACTION))
CHUNK = 1 << 17
PICTURES = (".npy", ".png", ".jpg")


@contextmanager
def timed() -> Iterator[Results]:
    """Yield results that have the seconds of the ``with`` block when it has ended."""
    results: Results = {}
    start = time.perf_counter()
    yield results
    results["seconds"] = time.perf_counter() - start


def read(path: str, size: int = -1) -> Results:
    """Open a file and read ``size`` bytes, or all of them."""
    with timed() as results, open(path, "rb", buffering=0) as file:
        file.read(size)
    return results


def read_many(folder: str, names: Sequence[str]) -> Results:
    """Open and read files."""
    os.chdir(folder)
    with timed() as results:
        for name in names:
            _read_file(name)
    return results


def read_parts(folder: str, names: Sequence[str], size: int) -> Results:
    """Read files ``size`` bytes at a time, opening the file for each piece."""
    os.chdir(folder)
    with timed() as results:
        for name in names:
            offset = 0
            while _part(name, size, offset) == size:
                offset += size
    return results


def read_samples(folder: str, samples: Sequence[Sample]) -> Results:
    """Read a row of each of two arrays and an image for each sample; return the seconds for one."""
    os.chdir(folder)
    start = time.perf_counter()
    for episode, frame, camera in samples:
        for name, size in SAMPLED:
            _part(f"{episode}/{name}.npy", size, NPY_HEADER + frame * size)
        _read_file(f"{episode}/images/{camera}/{frame:06d}.jpg")
    return {"seconds": (time.perf_counter() - start) / len(samples)}


def train(root: str, samples: Sequence[Sample], processes: int, keys: Sequence[str], status: str | None) -> Results:
    """Read all samples with so many processes, once for each key; return the seconds for one."""
    with workers.spawned(processes) as pool:
        return passes(status, lambda: workers.load_all(pool, root, samples), len(samples), *keys)


def epochs(
    root: str, samples: Sequence[Sequence[Sample]], processes: int, keys: Sequence[str], has_library: bool,
) -> Results:
    """Read several lists of samples with so many processes; return the seconds for one of the first and of the last.

    If there is one key, only for one of the first.
    """
    with workers.spawned(processes) as pool:
        seconds = [workers.load_all(pool, root, some, has_library) for some in samples]
    return dict(zip(keys, (seconds[0], seconds[-1]), strict=False))


def train_on_files(path: str, processes: int, keys: Sequence[str]) -> Results:
    """Load all files of a folder in random order with so many processes, once for each key; return the seconds for one.

    Names are listed before the clock starts.
    """
    names = sorted(entry.path for entry in os.scandir(path) if entry.name.endswith(PICTURES))
    chance = random.Random(11)
    with workers.spawned(processes) as pool:
        return {key: workers.load_files(pool, chance.sample(names, len(names))) for key in keys}


def demonstrations(root: str, chosen: Sequence[Sequence[int]], processes: int, reader: str) -> Results:
    """Read frames with so many processes by one of ``workers.READERS``; return the seconds for one."""
    with workers.spawned(processes) as pool:
        return {"seconds": workers.read_demonstrations(pool, root, chosen, processes, reader)}


def whole_by_h5py(path: str) -> Results:
    """Read the dataset ``data`` of an HDF5 file."""
    import h5py

    with timed() as results, h5py.File(path) as file:
        file["data"][()]
    return results


def whole_by_glassfs(path: str) -> Results:
    """Read the array ``data`` of a container through the library."""
    import numpy as np  # noqa: F401

    import glassfs

    with timed() as results, glassfs.open(path) as opened:
        opened["data"].numpy()
    return results


def positions_by_glassfs(path: str) -> Results:
    """Read the positions of all joint states of a recording as one array."""
    import numpy as np  # noqa: F401

    import glassfs

    with timed() as results, glassfs.open(path) as opened:
        opened[f"topics{RECORDED_JOINTS}/fields/position"].numpy()
    return results


def positions_by_rosbags(path: str) -> Results:
    """Read the same in a loop over the messages of the official reader, decoded by rosbags."""
    import numpy as np
    from mcap.reader import make_reader
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    with timed() as results, open(path, "rb") as file:
        messages = make_reader(file).iter_messages(topics=[RECORDED_JOINTS])
        np.stack([
            store.deserialize_cdr(message.data, "sensor_msgs/msg/JointState").position for _, _, message in messages
        ])
    return results


def recorded_images_by_glassfs(path: str, count: int) -> Results:
    """Read random images of a recording; return the seconds for one."""
    import glassfs

    with timed() as results, glassfs.open(path) as opened:
        images = opened[f"topics{RECORDED_CAMERA}/images"]
        names = list(images)
        for name in random.Random(12).choices(names, k=count):
            images[name].bytes()
    return {"seconds": results["seconds"] / count}


def selected_samples(path: str, samples: list[Sample], where: str) -> Results:
    """Open and list containers, of which a condition selects episodes, and read samples twice.

    Return the seconds of opening, and those of one sample of the second pass.
    """
    import glassfs

    with timed() as opened:
        data = glassfs.open(path, where=where)
        list(data)
    for _ in range(2):
        with timed() as read:
            for episode, step, _ in samples:
                data[f"{episode}/state"][step]
    data.close()
    return {"first": opened["seconds"], "again": read["seconds"] / len(samples)}


def recorded_images_by_mcap(path: str, count: int) -> Results:
    """Read as many at the times of images by the official reader, without decoding them; return the seconds for one."""
    from mcap.reader import make_reader

    with timed() as results, open(path, "rb") as file:
        reader = make_reader(file)
        images = reader.get_summary().statistics.message_count // (STATES_AN_IMAGE + 1)
        for number in random.Random(12).choices(range(images), k=count):
            time = number * STATES_AN_IMAGE * STATE_TIME
            next(iter(reader.iter_messages([RECORDED_CAMERA], starting_at=time, ending_before=time + 1)))
    return {"seconds": results["seconds"] / count}


def random_readers(path: str, readers: int, count: int) -> Results:
    """Read ``count`` random pages of a file with ``readers`` processes."""
    with workers.spawned(readers) as pool:
        return _quantiles(workers.read_pages(pool, path, readers, count))


def walk(path: str) -> Results:
    """List every directory below ``path`` and stat every file."""
    with timed() as results:
        for folder, _, names in os.walk(path):
            for name in names:
                os.stat(os.path.join(folder, name))
    return results


def random_reads(path: str, count: int) -> Results:
    """Copy ``count`` random pages of a mapped array."""
    import numpy as np

    array = np.load(path, mmap_mode="r")
    starts = random.Random(1).sample(range(array.size // PAGE), min(count, array.size // PAGE))
    times = []
    for start in starts:
        begin = time.perf_counter()
        array[start * PAGE : (start + 1) * PAGE].tobytes()
        times.append(time.perf_counter() - begin)
    return _quantiles(times)


def positional_row(path: str, row: int) -> Results:
    """Read one row and nothing else through ``pread``: the header of the array is in another block."""
    with timed() as results, open(path, "rb", buffering=0) as file:
        os.pread(file.fileno(), ROW_SIZE, NPY_HEADER + row * ROW_SIZE)
    return results


def stat_while_reading(films: list[str], names: list[str]) -> Results:
    """Return latencies of ``stat`` on names that were not looked up before, while every video has a reader."""
    for folder in {os.path.dirname(name) for name in names}:
        os.stat(folder)
    readers = [subprocess.Popen(["cat", film], stdout=subprocess.DEVNULL) for film in films]
    times = []
    for name in names:
        start = time.perf_counter()
        os.stat(name)
        times.append(time.perf_counter() - start)
        if any(reader.poll() is not None for reader in readers):
            break
        time.sleep(PAUSE)
    for reader in readers:
        reader.kill()
        reader.wait()
    return _quantiles(times)


def load_arrays(paths: Sequence[str]) -> Results:
    """Load each file with ``numpy.load``."""
    import numpy as np

    with timed() as results:
        for path in paths:
            np.load(path)
    return results


def read_table(path: str) -> Results:
    """Read all columns of a Parquet file."""
    from pyarrow import parquet

    with timed() as results:
        parquet.ParquetFile(path).read()
    return results


def query(path: str, statement: str) -> Results:
    """Query a Parquet file with DuckDB; ``{}`` in the statement stands for its name."""
    import duckdb

    with timed() as results:
        duckdb.sql(statement.format(f"'{path}'")).fetchall()
    return results


def kastore_column(path: str, key: str) -> Results:
    """Load a store with ``kastore.load`` and copy one column."""
    import kastore

    with timed() as results:
        kastore.load(path)[key].tobytes()
    return results


def write_bed(path: str) -> Results:
    """Write the genotypes of a tree sequence with tskit and NumPy as the file ``.bed`` of PLINK, site by site."""
    import numpy as np
    import tskit

    codes = np.array([3, 2, 0], np.uint8)
    with timed() as results, open(f"{path}.bed", "wb") as bed:
        bed.write(b"\x6c\x1b\x01")
        for variant in tskit.load(path).variants():
            if variant.num_alleles == 2:
                first, second = variant.genotypes[::2], variant.genotypes[1::2]
                found = np.where((first < 0) | (second < 0), 1, codes[first + second])
                padded = np.zeros((-(-len(found) // 4), 4), np.uint8)
                padded.reshape(-1)[: len(found)] = found
                bed.write((padded << np.array([0, 2, 4, 6], np.uint8)).sum(axis=1, dtype=np.uint8).tobytes())
    os.unlink(bed.name)
    return results


def sum_by_numpy(path: str, share: float) -> Results:
    """Sum the first part of an array in an NPZ archive, of which ``numpy.load`` reads all."""
    import numpy as np

    with timed() as results:
        values = np.load(path)["data"]
        values[: int(share * len(values))].sum()
    return results


def sum_mapped(path: str, share: float) -> Results:
    """Sum the same part of the array that ``glassfs.open`` maps."""
    import numpy as np  # noqa: F401

    import glassfs

    with timed() as results, glassfs.open(path) as opened:
        values = opened["data"].numpy()
        values[: int(share * len(values))].sum()
    return results


def decompress_block(path: str, codec: str) -> Results:
    """Read the largest block of a WShard file and decompress it in memory."""
    import lz4.block
    import zstandard
    from writers.wshard import ENTRY, HEADER

    with timed() as results:
        with open(path, "rb", buffering=0) as file:
            count = HEADER.unpack(file.read(HEADER.size))[7]
            entries = [ENTRY.unpack(file.read(ENTRY.size)) for _ in range(count)]
            *_, offset, stored, size, _, _ = max(entries, key=lambda entry: int(entry[6]))
            block = os.pread(file.fileno(), stored, offset)
        if codec == "zstd":
            zstandard.ZstdDecompressor().decompress(block, max_output_size=size)
        else:
            lz4.block.decompress(block, uncompressed_size=size)
    return results


def inflate_blocks(path: str, blocks: int) -> Results:
    """Inflate the consecutive blocks of the first column of a data view in memory."""
    rest = Path(path).read_bytes()[IDV_HEADER:]
    stored = []
    for _ in range(blocks):
        decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        decoder.decompress(rest)
        stored.append(rest[: len(rest) - len(decoder.unused_data)])
        rest = decoder.unused_data
    with timed() as results:
        for block in stored:
            zlib.decompress(block, -zlib.MAX_WBITS)
    return results


def _read_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    while os.read(descriptor, CHUNK):
        pass
    os.close(descriptor)


def _part(path: str, size: int, offset: int) -> int:
    """Return how many bytes one ``pread`` returns."""
    descriptor = os.open(path, os.O_RDONLY)
    given = len(os.pread(descriptor, size, offset))
    os.close(descriptor)
    return given


def _quantiles(times: list[float]) -> Results:
    ordered = sorted(times)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.load(sys.stdin))))
