"""Containers for servers: one of each format, and a sparse episode of many gigabytes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from writers.idv import IdvWriter
from writers.ikv import write_ikv2
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.safetensors import write_safetensors
from writers.wshard import WShardWriter

HEIGHT, WIDTH = 480, 640
FRAME = HEIGHT * WIDTH * 3


def write_each_format(folder: Path) -> dict[str, Path]:
    """A container of each format by the format's name, each larger than half a megabyte."""
    chance = np.random.default_rng(12)
    paths = {
        name: folder / f"some.{suffix}" for name, suffix in
        (("kastore", "kas"), ("kinodb", "kdb"), ("wshard", "wshard"), ("ikv", "ikv"), ("idv", "idv"), ("npz", "npz"),
         ("safetensors", "safetensors"))
    }
    with KastoreWriter(paths["kastore"]) as store:
        for key in ("nodes/time", "edges/left"):
            store.add(key, chance.random(100_000))
    with KinoWriter(paths["kinodb"]) as episodes:
        pictures = [chance.integers(0, 256, (37, 37, 3), np.uint8) for _ in range(50)]
        for number in range(10):
            episodes.add_episode(
                chance.random((50, 14)), chance.random((50, 7)), images=({"front": image} for image in pictures),
                task=f"task {number}", embodiment="arm",
            )
    with WShardWriter(paths["wshard"], codec="none") as shard:
        for number in range(3):
            shard.add_channel(f"camera{number}", chance.integers(0, 256, (40, 64, 64, 3), np.uint8), modality="rgb")
    write_ikv2(paths["ikv"], {f"key_{number:06d}": f"value {number} " * 4 for number in range(12_000)})
    with IdvWriter(paths["idv"], rows_per_block=1024) as view:
        view.add("Features", chance.random((20_000, 20), np.float32))
        view.add("Label", chance.random(20_000, np.float32))
    np.savez(paths["npz"], a=chance.random(50_000), b=chance.integers(0, 9, (20, 1000)), c=chance.random(50_000))
    weights = {f"layers.{number}.weight": chance.random((100, 900)) for number in range(3)}
    write_safetensors(paths["safetensors"], weights)
    return paths


def write_sparse_episode(path: Path, size: int) -> int:
    """An episode of about ``size`` bytes with black raw frames of one camera. Returns how many.

    Only the heads are written (docs/formats/kinodb.md, 4 to 6).
    """
    head = struct.pack("<HH5sIIBBI", 1, 5, b"front", WIDTH, HEIGHT, 3, 0, FRAME)
    count = size // (len(head) + FRAME)
    metadata = struct.pack("<HHfBB", 0, 0, 10.0, 0, 0)
    actions = 64 + len(metadata)
    images = actions + 5 * count
    index = images + count * (len(head) + FRAME)
    with path.open("wb") as file:
        file.write(struct.pack("<4sHHQQQQQ16x", b"KINO", 0, 1, 1, count, index, 64, 0) + metadata)
        for number in range(count):
            os.pwrite(file.fileno(), head, images + number * (len(head) + FRAME))
        entry = struct.pack(
            "<QIHHQQQQQQ", 0, count, 0, 0, actions, 5 * count, images, index - images, 64, len(metadata),
        )
        os.pwrite(file.fileno(), entry, index)
    return count
