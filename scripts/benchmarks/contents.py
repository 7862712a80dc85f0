"""Write the containers of the benchmark. Their contents are pseudo-random, the same in each run, and fast to make."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from writers.idv import IdvWriter
from writers.ikv import write_ikv2
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter, Stored, jpeg, png
from writers.mcap import COMPRESSED_IMAGE, JOINT_STATE, McapWriter, compressed_image, joint_state
from writers.wshard import WShardWriter

MIB = 1 << 20
CHUNK = 64 * MIB
HOLE = 64 << 10
LARGE_FRAME = (480, 640, 3)
MIDDLE_FRAME = (256, 256, 3)
SMALL_FRAME = (37, 37, 3)  # 4,107 bytes
FILM_FRAME = (96, 96, 3)  # 27 KiB: the frame before is in reach of lz4
FILMS = 4
FILM_GAP = 24  # pixels at random distances of up to so many change from frame to frame
EPISODE_FRAMES = 4
ROWS_PER_BLOCK = 8192
WIDE, NARROW = 100, 32
COLUMNS = ("Left", "Right")
TAKES, TAKE_FRAMES, CAMERAS = 3, 30, ("cam0", "cam1")  # what a container of the dataset holds
STATE, ACTION = 14, 7
PARTS, FIRST_PART, FIRST_SHARE = 10, "part_0", 6  # the first of ten folders has a sixth of the containers
PHOTOS, PHOTO_SIDE = 300, 128
RECORDED_JOINTS, RECORDED_CAMERA, STATES_AN_IMAGE, STATE_TIME = "/joint_states", "/camera/front", 100, 1_000_000
GENOTYPED = 1001
DEMOS, DEMO_FRAMES, DEMO_CAMERA, DEMO_FRAME = 10, 100, "agentview_image", (84, 84, 3)

TRAINED, TRAINED_SIDE = ("npy", "png", "jpeg"), 224  # as DLIO reads: a picture in each file

Bytes = NDArray[np.uint8]
Sample = tuple[str, int, str]
"""The directory of an episode, the number of a frame and the name of a camera."""


def noise(size: int, seed: int) -> Bytes:
    """Return bytes that do not compress."""
    return np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8)


def film(size: int, seed: int) -> Bytes:
    """Return [T, H, W, 3] of about ``size`` bytes: a still scene with noise that lz4 and zstd compress 2 to 4 times."""
    pixels = int(np.prod(FILM_FRAME))
    generator = np.random.default_rng(seed)
    scene = np.arange(pixels) // 96 % 160 + generator.integers(0, 64, pixels)
    frames = np.empty((max(2, size // pixels), pixels), np.uint8)
    frames[:] = scene
    for start in range(0, len(frames), 512):
        part = frames[start : start + 512].reshape(-1)
        changed = np.cumsum(generator.integers(1, FILM_GAP, 2 * part.size // FILM_GAP))
        changed = changed[changed < part.size]
        part[changed] += generator.integers(0, 32, changed.size, dtype=np.uint8)
    return frames.reshape(-1, *FILM_FRAME)


def table(rows: int, columns: int) -> NDArray[np.float32]:
    """Return values with one decimal, like those of sensors."""
    values = np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)
    return np.round(values, 1)


def write_array(path: Path, size: int) -> None:
    """Write a store with one uint8 array of ``size`` bytes, ``data``."""
    lengths = [min(CHUNK, size - start) for start in range(0, size, CHUNK)]
    with KastoreWriter(path) as store:
        store.add_chunks("data", "uint8", size, (noise(length, seed) for seed, length in enumerate(lengths)))


def write_stored_npz(path: Path, size: int) -> None:
    """Write an archive with one array of float64, ``data``, of ``size`` bytes."""
    _savez(np.savez, path, np.random.default_rng(7).random(size // 8))


def write_deflated_npz(path: Path, size: int) -> None:
    """Write a compressed archive with one array of small integers, ``data``, of ``size`` bytes."""
    _savez(np.savez_compressed, path, np.random.default_rng(8).integers(0, 4000, size // 8))


def write_hdf5(path: Path, size: int) -> None:
    """Write an array of float32, ``data``, of ``size`` bytes, in chunks of 1 MiB with gzip and shuffle."""
    import h5py

    rows = max(4096, size // 256)
    steps = np.random.default_rng(9).integers(-9, 10, (4096, 64), np.int8)
    with h5py.File(path, "w") as file:
        made = file.create_dataset("data", (rows, 64), "f4", chunks=(4096, 64), compression="gzip", shuffle=True)
        for start in range(0, rows, 4096):
            count = min(4096, rows - start)
            made[start : start + count] = np.cumsum(np.roll(steps, start // 4096, 0)[:count], 0) / np.float32(16)


def write_demonstrations(path: Path, files: int) -> None:
    """Write a folder of HDF5 files as robomimic does, with images in chunks that h5py chooses, compressed by gzip."""
    import h5py

    path.mkdir()
    for number in range(files):
        with h5py.File(path / f"{number}.hdf5", "w") as file:
            for demo in range(DEMOS):
                group = file.create_group(f"data/demo_{demo}")
                group["actions"] = np.zeros((DEMO_FRAMES, ACTION))
                frames = film(DEMO_FRAMES * int(np.prod(FILM_FRAME)), number * DEMOS + demo)
                height, width, _ = DEMO_FRAME
                group.create_dataset(f"obs/{DEMO_CAMERA}", data=frames[:, :height, :width], compression="gzip")


def write_recording(path: Path, messages: int) -> None:
    """Write an MCAP recording of ``messages`` states of seven joints, with a JPEG of about 50 kB for each hundred."""
    names, image = [f"joint_{number}" for number in range(7)], noise(50_000, 11).tobytes()
    with McapWriter(path) as writer:
        joints = writer.add_channel(RECORDED_JOINTS, "sensor_msgs/msg/JointState", JOINT_STATE)
        camera = writer.add_channel(RECORDED_CAMERA, "sensor_msgs/msg/CompressedImage", COMPRESSED_IMAGE)
        for number in range(messages):
            time = number * STATE_TIME
            if number % STATES_AN_IMAGE == 0:
                writer.add(camera, time, compressed_image(time, b"\xff\xd8\xff" + image[number % 1000 :]))
            writer.add(joints, time, joint_state(time, names, [number / 7 + joint for joint in range(7)]))


def write_trained(path: Path, files: int) -> None:
    """Write ``files`` pictures in each of three containers: arrays, PNG and JPEG."""
    path.mkdir()
    side = TRAINED_SIDE
    pictures = [np.repeat(frame, 8, 1)[:, :side] for frame in _raw(min(files, 50), (side, side // 8, 3))]
    with KastoreWriter(path / "npy.kas") as store:
        for number in range(files):
            store.add(f"{number:06d}", pictures[number % len(pictures)].reshape(-1))
    for suffix, stored in (("png", png), ("jpeg", jpeg)):
        kept = [Stored(stored(picture), side, side) for picture in pictures]
        _write_frames(path / f"{suffix}.kdb", [kept[number % len(kept)] for number in range(files)])


def demonstration_frames(files: int, count: int) -> list[tuple[int, int, int]]:
    """Return random frames as numbers of files, episodes and frames."""
    chance = random.Random(10)
    return [(chance.randrange(files), chance.randrange(DEMOS), chance.randrange(DEMO_FRAMES)) for _ in range(count)]


def _savez(save: Callable[..., None], path: Path, values: NDArray[Any]) -> None:
    with path.open("wb") as file:  # given a path, NumPy adds a suffix
        save(file, data=values)


def write_raw_frames(path: Path, size: int) -> None:
    """Write an episode with ``size`` bytes of raw frames."""
    _write_frames(path, _raw(max(1, size // int(np.prod(LARGE_FRAME))), LARGE_FRAME))


def write_small_frames(path: Path, count: int) -> None:
    """Write an episode with ``count`` raw frames of 4 KiB."""
    _write_frames(path, _raw(count, SMALL_FRAME))


def write_pictures(path: Path, count: int) -> None:
    """Write an episode with ``count`` images of 4 KiB, stored as PNG."""
    height, width, _ = SMALL_FRAME
    pictures = [Stored(png(frame), width, height) for frame in _raw(min(count, 500), SMALL_FRAME)]
    _write_frames(path, [pictures[number % len(pictures)] for number in range(count)])


def write_episodes(path: Path, count: int) -> None:
    """Write ``count`` short episodes without images."""
    states = np.random.default_rng(3).standard_normal((count, EPISODE_FRAMES, 7), dtype=np.float32)
    with KinoWriter(path) as writer:
        for number, state in enumerate(states):
            writer.add_episode(state, state, task=f"task {number % 100}", embodiment="arm", success=number % 3 == 0)


def write_film(path: Path, size: int, codec: str) -> None:
    """Write a compressed video of ``size`` bytes, ``signal/film``."""
    with WShardWriter(path, codec=codec) as writer:
        writer.add_channel("film", film(size, 4), modality="rgb")


def write_films(path: Path, size: int) -> None:
    """Write compressed videos of ``size`` bytes each, ``signal/film0`` and so on."""
    with WShardWriter(path, codec="zstd") as writer:
        for number in range(FILMS):
            writer.add_channel(f"film{number}", film(size, 5 + number), modality="rgb")


def write_table(path: Path, rows: int, columns: int) -> None:
    """Write a data view with one vector column, ``Features``."""
    with IdvWriter(path, rows_per_block=ROWS_PER_BLOCK) as view:
        view.add("Features", table(rows, columns))


def write_columns(path: Path, rows: int) -> None:
    """Write a data view with two columns of measured values, ``Left`` and ``Right``."""
    values = table(rows, 2)
    with IdvWriter(path, rows_per_block=ROWS_PER_BLOCK) as view:
        for name, column in zip(COLUMNS, values.T, strict=True):
            view.add(name, np.ascontiguousarray(column))


def write_sparse_frames(path: Path, size: int, shape: tuple[int, int, int] = LARGE_FRAME) -> None:
    """Write an episode with ``size`` bytes of black frames as a sparse file."""
    black = np.zeros(shape, np.uint8)
    count = max(1, size // black.size)
    zeros = np.zeros((count, 1), np.float32)
    with _SparseWriter(path) as writer:
        writer.add_episode(zeros, zeros, images=repeat({"front": black}, count), task="film")


class _SparseWriter(KinoWriter):
    """Leave holes in place of long runs of zeros. The index, which comes last, has few zeros."""

    _last, _rest = b"", b""

    def _write(self, data: bytes) -> int:
        if data is not self._last:
            rest = data.rstrip(b"\0")
            self._last, self._rest = data, rest if len(data) - len(rest) >= HOLE else data
        self._file.write(self._rest)
        self._end += len(data)
        self._file.seek(self._end)
        return len(data)


def write_store(path: Path, size: int) -> None:
    """Write a store of ``size`` bytes with the columns of a tree sequence; ``nodes/time`` has 13.5 % of them."""
    nodes, edges = size * 135 // 8000, size * 865 // 24000
    generator = np.random.default_rng(6)
    with KastoreWriter(path) as store:
        store.add("nodes/time", generator.random(nodes))
        store.add("edges/left", generator.random(edges))
        store.add("edges/right", generator.random(edges))
        store.add("edges/parent", generator.integers(0, nodes, edges, dtype=np.int32))
        store.add("edges/child", generator.integers(0, nodes, edges, dtype=np.int32))


def write_genotypes(path: Path, size: int) -> None:
    """Write a tree sequence of ``size`` bases with GENOTYPED diploid individuals, simulated by msprime."""
    import msprime

    ancestry = msprime.sim_ancestry(
        GENOTYPED, sequence_length=size, recombination_rate=1e-8, population_size=10_000, random_seed=1,
    )
    msprime.sim_mutations(ancestry, rate=2e-8, random_seed=2).dump(path)


def write_keys(path: Path, count: int) -> None:
    """Write a document of ``count`` keys with values of three types."""
    values: list[Any] = [lambda n: n * 7, lambda n: n / 8, lambda n: f"value {n}"]
    write_ikv2(path, {f"key_{number:06d}": values[number % 3](number) for number in range(count)})


def write_folder(path: Path, count: int, per_folder: int = 0) -> None:
    """Write ``count`` small stores into one folder, or into folders of ``per_folder`` each."""
    for number in range(count):
        folder = path / f"batch_{number // per_folder:03d}" if per_folder else path
        folder.mkdir(parents=True, exist_ok=True)
        with KastoreWriter(folder / f"store_{number:06d}.kas") as store:
            for name in ("nodes/time", "nodes/flags", "edges/left", "edges/right"):
                store.add(name, np.zeros(10))


def write_dataset(path: Path, count: int) -> None:
    """Write ``count`` different containers of episodes whose images are a few repeated photos."""
    generator = np.random.default_rng(8)
    photos = [_photo(number) for number in range(PHOTOS)]
    chance = random.Random(8)
    for number, name in enumerate(dataset_names(count)):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        with KinoWriter(path / name, created=1_700_000_000 + number) as writer:
            for take in range(TAKES):
                state = generator.standard_normal((TAKE_FRAMES, STATE), dtype=np.float32)
                images = [dict(zip(CAMERAS, chance.sample(photos, 2), strict=True)) for _ in state]
                writer.add_episode(state, state[:, :ACTION], images=images, task=f"task {take}", embodiment="arm")


def dataset_names(count: int) -> list[str]:
    """Return the paths of ``count`` containers; those of the first folder come first."""
    first = part_size(count)
    parts = [0 if number < first else 1 + number % (PARTS - 1) for number in range(count)]
    return [f"part_{part}/take_{number:05d}.kdb" for number, part in enumerate(parts)]


def part_size(count: int) -> int:
    """Return how many of ``count`` containers are in the first folder."""
    return count // FIRST_SHARE


def samples(names: list[str], count: int, seed: int = 9) -> list[Sample]:
    """Return ``count`` random samples of these containers, the same in each run."""
    chance = random.Random(seed)
    return [
        (f"{chance.choice(names)}/episodes/{chance.randrange(TAKES)}", chance.randrange(TAKE_FRAMES),
         chance.choice(CAMERAS))
        for _ in range(count)
    ]


def _photo(number: int) -> Stored:
    """Return a JPEG of some 4 KiB."""
    down, right = np.mgrid[:PHOTO_SIDE, :PHOTO_SIDE]
    scene = np.stack([right + number, 2 * down + number, (right + down) // 2 + number], -1) % 256
    pixels = np.clip(scene + np.random.default_rng(number).integers(-12, 12, scene.shape), 0, 255).astype(np.uint8)
    return Stored(jpeg(pixels), PHOTO_SIDE, PHOTO_SIDE)


def write_changing(path: Path, size: int, version: int = 1) -> None:
    """Write a store with one array of ``size`` bytes, ``data``, that are all ``version``."""
    with KastoreWriter(path) as store:
        store.add("data", np.full(size, version, np.uint8))


def write_changing_folder(path: Path, size: int) -> None:
    """Write a folder with one such store."""
    path.mkdir()
    write_changing(path / "changing.kas", size)


def _raw(count: int, shape: tuple[int, int, int]) -> Iterator[Bytes]:
    """Return frames of noise, each a different slice of the same bytes."""
    size = int(np.prod(shape))
    pool = noise(16 * MIB, 2)
    for number in range(count):
        start = number * 4099 % (pool.size - size)
        yield pool[start : start + size].reshape(shape)


def _write_frames(path: Path, frames: Iterable[Any]) -> None:
    given = list(frames)
    zeros = np.zeros((len(given), 1), np.float32)
    with KinoWriter(path) as writer:
        writer.add_episode(zeros, zeros, images=({"front": frame} for frame in given), task="film")
