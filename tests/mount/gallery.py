"""A folder of containers and the expected content of its mount.

Arrays are what ``numpy.save`` writes, under names by hand; of all else, which the tests of each format compare with
other software, a mount shows what the library does.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from writers.idv import IdvWriter, vector
from writers.ikv import write_ikv2
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter, Stored, jpeg, png
from writers.wshard import WShardWriter

from glassfs.library import open_tree
from tests.tree.trees import files_of

STEPS = 12


@dataclass
class Gallery:
    """``files`` by path below the mount point; ``keys`` has original names of some of them."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)
    keys: dict[str, bytes] = field(default_factory=dict)


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array))
    return buffer.getvalue()


def make_gallery(folder: Path) -> Gallery:
    gallery = Gallery(folder)
    (folder / "sub").mkdir()
    (folder / "notes.txt").write_bytes(b"not a container\n")
    write_kinodb(folder / "run.kdb")
    write_ikv2(folder / "field.ikv", {
        "name": "north field", "area": 12.5, "count": 2**62 + 1, "organic": True, "tenant": None,
        "soil": {"ph": 6.0}, "yields": np.array([7.25, 6.5, 8.125]), "crops": ["wheat", "clover"],
    })
    write_idv(folder / "table.idv")
    _add_wshard(gallery, "episode.wshard")
    _add_kastore(gallery, "store.kas")
    _add_kastore(gallery, "sub/inner.kas")
    with open_tree(folder) as tree:
        shown = {path[1:]: data for path, data in files_of(tree).items()}
    assert gallery.files.keys() <= shown.keys()
    gallery.files = shown | gallery.files
    return gallery


def write_kinodb(path: Path) -> None:
    """Raw cameras in color and in gray, with a gap, and a camera of stored images."""
    generator = np.random.default_rng(1)
    state = generator.normal(size=(5, 3)).astype("<f4")
    action = generator.normal(size=(5, 2)).astype("<f4")
    frames: list[dict[str, Any]] = [
        {"front": generator.integers(0, 200, (6, 9, 3), np.uint8), "arm/wrist": np.full((4, 3), t, np.uint8)}
        for t in range(5)
    ]
    del frames[2]["arm/wrist"]
    stored = [jpeg(generator.integers(0, 255, (8, 8, 3), np.uint8)), png(generator.integers(0, 255, (5, 7), np.uint8))]
    with KinoWriter(path, created=1_700_000_000) as writer:
        writer.add_episode(state, action, state[:, 0], images=frames, task="stack", fps=12.5, success=True)
        writer.add_episode(state[:2], action[:2], images=[{"cam": Stored(data, 8, 8)} for data in stored], fps=10.0)


def write_idv(path: Path) -> None:
    features = np.random.default_rng(3).normal(size=(1000, 4)).astype("<f4")
    with IdvWriter(path, rows_per_block=64) as writer:
        writer.add("Label", np.arange(1000, dtype="<f4"))
        writer.add("Features", features, vector("Single", 4), metadata={"SlotNames": ["a", "b", "c", "d"]})
        writer.add("Text", [f"row {row}" for row in range(1000)])


def _add_wshard(gallery: Gallery, name: str) -> None:
    """Compressed blocks, among them a video and one that exceeds the cache of the mount."""
    generator = np.random.default_rng(2)
    joints = generator.normal(size=(STEPS, 7)).astype("<f4")
    channels = {
        "rgb": generator.integers(0, 4, (STEPS, 16, 20, 3), np.uint8), "joint_pos": joints,
        "cloud": generator.integers(0, 9, (STEPS, 60_000)).astype("<f8"),
    }
    described = {"episode_id": "gallery", "length_T": STEPS}
    with WShardWriter(gallery.folder / name, codec="zstd", episode=described) as writer:
        writer.add_channel("rgb", channels["rgb"], modality="rgb")
        writer.add_channel("joint_pos", joints, codec="none")
        writer.add_channel("cloud", channels["cloud"], codec="lz4")
        writer.add("reward", joints[:, 0])
        writer.add("signal/undescribed", b"what is this?")
    gallery.files |= {f"{name}/signal/{key}.npy": npy(array) for key, array in channels.items()}
    gallery.files[f"{name}/reward.npy"] = npy(np.ascontiguousarray(joints[:, 0]))
    gallery.files[f"{name}/signal/undescribed.bin"] = b"what is this?"
    gallery.keys |= {f"{name}/signal/rgb.npy": b"signal/rgb", f"{name}/reward.npy": b"reward"}


def _add_kastore(gallery: Gallery, name: str) -> None:
    """Arrays under hostile names, one of them larger than 4 MiB."""
    generator = np.random.default_rng(len(name))
    mark = f"~{xxhash.xxh64_hexdigest(b'n' * 400)}"
    long_name = "n" * (255 - len(mark) - len(".npy")) + mark  # as much as fits, and the XXH64 of the whole
    arrays: dict[str, tuple[bytes, Any]] = {
        "nodes/time": (b"nodes/time", generator.normal(size=1001)),
        "nodes/flags": (b"nodes/flags", generator.integers(0, 2**32, 77, np.uint32)),
        "big": (b"big", generator.integers(0, 256, (4 << 20) + 13, np.uint8)),
        "empty": (b"empty", np.zeros(0, np.int32)),
        "caf%E9/x": (b"caf\xe9/x", np.arange(3, dtype=np.int16)),
        "%2E%2E": (b"..", np.arange(5, dtype=np.int8)),
        "a%0Ab%25": (b"a\nb%", np.arange(6, dtype=np.uint16)),
        f"long/{long_name}": (b"long/" + b"n" * 400, np.arange(2, dtype=np.int64)),
    }
    with KastoreWriter(gallery.folder / name) as store:
        for key, array in arrays.values():
            store.add(key, array)
    gallery.files |= {f"{name}/{path}.npy": npy(array) for path, (_, array) in arrays.items()}
    gallery.keys |= {f"{name}/{path}.npy": key for path, (key, _) in arrays.items()}
