"""Concurrent processes, spawned and with all modules imported before the clock starts."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from typing import Any

import glassfs
from benchmarks.contents import DEMO_CAMERA, DEMO_FRAME, Sample

PATIENCE = 60.0
BATCH = 32
PAGE = 4096

Frame = Callable[[int, int, int], Any]
"""Reads a frame, given the numbers of its file, its episode and itself."""

_all_are_there: Barrier


@contextlib.contextmanager
def spawned(count: int) -> Iterator[Pool]:
    """Yield ``count`` processes that are ready to start."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(count, _begin, (context.Barrier(count, timeout=PATIENCE),)) as pool:
        pool.map(_be_ready, range(count), chunksize=1)
        yield pool


def load_all(pool: Pool, root: str, samples: Sequence[Sample], has_library: bool = False) -> float:
    """Load the samples as a DataLoader does, a batch to each idle process; return the seconds for each sample.

    Samples are read as files below ``root``, or through the library if ``has_library``.
    """
    batches = [(root, samples[start : start + BATCH]) for start in range(0, len(samples), BATCH)]
    start = time.perf_counter()
    loaded = sum(pool.imap(_load_by_library if has_library else _load, batches))
    seconds = time.perf_counter() - start
    if loaded != len(samples):
        raise OSError(f"{loaded} of {len(samples)} samples loaded")
    return seconds / len(samples)


def read_pages(pool: Pool, path: str, readers: int, count: int) -> list[float]:
    """Return the seconds of each of ``count`` reads of random pages by ``readers`` processes, no page twice."""
    pages = os.path.getsize(path) // PAGE
    chosen = random.Random(2).sample(range(pages), min(count, pages))
    shares = [(path, chosen[number::readers]) for number in range(readers)]
    return [seconds for times in pool.map(_read, shares, chunksize=1) for seconds in times]


def read_demonstrations(
    pool: Pool, root: str, chosen: Sequence[Sequence[int]], processes: int, reader: str,
) -> float:
    """Read frames of files of demonstrations, an equal share by each process; return the seconds for each frame."""
    shares = [(root, reader, chosen[number::processes]) for number in range(processes)]
    start = time.perf_counter()
    found = sum(pool.map(_read_demonstrations, shares, chunksize=1))
    seconds = time.perf_counter() - start
    if found != len(chosen):
        raise OSError(f"{found} of {len(chosen)} frames read")
    return seconds / len(chosen)


def load_files(pool: Pool, names: Sequence[str]) -> float:
    """Load each file as the readers of DLIO do, a batch to each idle process; return the seconds for each file."""
    batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
    start = time.perf_counter()
    loaded = sum(pool.imap_unordered(_load_files, batches))
    seconds = time.perf_counter() - start
    if loaded != len(names):
        raise OSError(f"{loaded} of {len(names)} files loaded")
    return seconds / len(names)


def _load_files(names: Sequence[str]) -> int:
    import numpy as np
    from PIL import Image

    loaded = 0
    for name in names:
        loaded += (np.load(name) if name.endswith(".npy") else np.asarray(Image.open(name))).size > 0
    return loaded


def _begin(barrier: Barrier) -> None:
    global _all_are_there
    _all_are_there = barrier


def _be_ready(_number: int) -> None:
    import numpy  # noqa: F401
    from PIL import Image

    Image.init()
    _all_are_there.wait()


def _load(batch: tuple[str, Sequence[Sample]]) -> int:
    """Read two rows of arrays and a decoded image for each sample."""
    import numpy as np
    from PIL import Image

    root, samples = batch
    loaded = 0
    for episode, frame, camera in samples:
        place = f"{root}/{episode}"
        rows = [np.load(f"{place}/{name}.npy", mmap_mode="r")[frame].copy() for name in ("state", "action")]
        with Image.open(f"{place}/images/{camera}/{frame:06d}.jpg") as picture:
            pixels = np.asarray(picture.convert("RGB"))
        loaded += all(row.size for row in rows) and pixels.ndim == 3
    return loaded


def _load_by_library(batch: tuple[str, Sequence[Sample]]) -> int:
    """Do the same with containers that the library has open."""
    import numpy as np

    root, samples = batch
    data = _opened(root)
    loaded = 0
    for path, frame, camera in samples:
        episode = data[path]
        rows = [episode[name].numpy()[frame].copy() for name in ("state", "action")]
        pixels = np.asarray(episode[f"images/{camera}/{frame:06d}"].image().convert("RGB"))
        loaded += all(row.size for row in rows) and pixels.ndim == 3
    return loaded


@functools.cache
def _opened(root: str) -> glassfs.Library:
    return glassfs.open(root)


def _read_demonstrations(share: tuple[str, str, Sequence[Sequence[int]]]) -> int:
    root, reader, chosen = share
    frame = READERS[reader](root)
    _all_are_there.wait()  # so each process has one share
    return sum(frame(*place).shape == DEMO_FRAME for place in chosen)


def _by_h5py(root: str) -> Frame:
    import h5py

    files = functools.cache(lambda number: h5py.File(f"{root}/{number}.hdf5"))
    return lambda number, demo, frame: files(number)[f"data/demo_{demo}/obs/{DEMO_CAMERA}"][frame]


def _by_glassfs(root: str) -> Frame:
    opened = glassfs.open(root)
    return lambda number, demo, frame: opened[f"{number}.hdf5/data/demo_{demo}/obs/{DEMO_CAMERA}"][frame]


def _by_files(root: str) -> Frame:
    """Read pictures below a mount."""
    import numpy as np
    from PIL import Image

    def read(number: int, demo: int, frame: int) -> Any:
        with Image.open(f"{root}/{number}.hdf5/data/demo_{demo}/obs/{DEMO_CAMERA}/{frame:06d}.png") as picture:
            return np.asarray(picture)

    return read


READERS: dict[str, Callable[[str], Frame]] = {"h5py": _by_h5py, "glassfs": _by_glassfs, "files": _by_files}


def _read(share: tuple[str, Sequence[int]]) -> list[float]:
    path, pages = share
    _all_are_there.wait()  # so each process has one share
    times = []
    with open(path, "rb", buffering=0) as file:
        for page in pages:
            start = time.perf_counter()
            os.pread(file.fileno(), PAGE, page * PAGE)
            times.append(time.perf_counter() - start)
    return times
