"""Write a container of each format into a folder: the containers that the demo mounts.

    python scripts/make_samples.py FOLDER
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from writers.idv import IdvWriter, vector
from writers.ikv import write_ikv2
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.mcap import COMPRESSED_IMAGE, JOINT_STATE, McapWriter, compressed_image, joint_state
from writers.safetensors import write_safetensors
from writers.wshard import WShardWriter

FRAMES = 24
HEIGHT, WIDTH = 96, 128


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a container of each format into a folder.")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="The folder, which is made if it does not exist.")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_all(folder)


def write_all(folder: Path) -> None:
    """Write all sample containers."""
    write_kinodb(folder / "robot.kdb")
    write_wshard(folder / "episode.wshard")
    write_tree_sequence(folder / "ancestry.trees")
    write_ikv(folder / "field.ikv")
    write_idv(folder / "iris.idv")
    write_npz(folder / "replay.npz")
    write_model(folder / "tiny.safetensors")
    write_recording(folder / "run.mcap")


def film(hue: int) -> NDArray[np.uint8]:
    """Return [FRAMES, HEIGHT, WIDTH, 3]: a bright ball that moves over a colored background."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    frames = np.empty((FRAMES, HEIGHT, WIDTH, 3), np.uint8)
    for number in range(FRAMES):
        x = WIDTH * (number + 0.5) / FRAMES
        y = HEIGHT * (0.75 - 0.5 * abs(math.sin(number / 4)))
        ball = np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 120)[..., None]
        ground = np.stack([rows + hue, columns // 2 + 40, 160 - rows // 2 + 0 * columns], axis=-1) % 256
        frames[number] = np.clip(ground * (1 - ball) + 255 * ball, 0, 255)
    return frames


def write_kinodb(path: Path) -> None:
    """Write three episodes of a robot with two cameras."""
    generator = np.random.default_rng(1)
    with KinoWriter(path) as writer:
        for number, task in enumerate(("pick up the red block", "open the drawer", "stack the cups")):
            front, wrist = film(40 * number), film(40 * number + 20)[:, ::2, ::2]
            steps = np.linspace(0, 1, FRAMES, dtype=np.float32)[:, None]
            writer.add_episode(
                np.sin(steps * np.arange(1, 8)).astype(np.float32),
                generator.normal(size=(FRAMES, 7)).astype(np.float32),
                reward=steps[:, 0],
                is_terminal=np.arange(FRAMES) == FRAMES - 1,
                images=({"front": a, "wrist": b} for a, b in zip(front, wrist, strict=True)),
                embodiment="widowx", task=task, fps=10.0, success=number != 1, total_reward=float(steps.sum()),
            )


def write_wshard(path: Path) -> None:
    """Write an episode with a compressed video and joint positions."""
    with WShardWriter(path, codec="zstd", episode={"episode_id": "demo_001", "length_T": FRAMES}) as writer:
        writer.add_channel("rgb", film(90), modality="rgb")
        writer.add_channel("joint_pos", np.random.default_rng(2).normal(size=(FRAMES, 7)).astype(np.float32))
        writer.add_channel("ctrl", np.zeros((FRAMES, 2), np.float32), kind="action")
        writer.add("reward", np.linspace(0, 1, FRAMES, dtype=np.float32))
        writer.add("done", (np.arange(FRAMES) == FRAMES - 1).astype(np.uint8))
        writer.add("time/ticks", np.arange(FRAMES, dtype=np.int32))


def write_model(path: Path) -> None:
    """Write the weights of a network of two layers."""
    generator = np.random.default_rng(3)
    sizes = {"layers.0": (8, 4), "layers.1": (2, 8)}
    tensors = {f"{name}.weight": generator.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    tensors |= {f"{name}.bias": np.zeros(size[0], np.float16) for name, size in sizes.items()}
    write_safetensors(path, tensors, {"format": "np"})


def write_tree_sequence(path: Path) -> None:
    """Write a tree sequence with all tables of tskit: two samples of one individual, and their ancestor."""
    with KastoreWriter(path) as store:
        store.add_text("format/name", "tskit.trees", "int8")
        store.add("format/version", np.array([12, 7], np.uint32))
        store.add("sequence_length", np.array([100.0]))
        store.add_text("time_units", "generations", "int8")
        store.add_text("uuid", "2f7a2a5c-7a0e-4a6e-9a43-0f6d6f3b8a11", "int8")
        for key in ("metadata", "metadata_schema"):
            store.add_text(key, "", "int8")

        def columns(table: str, dtype: type, **values: Sequence[float]) -> None:
            for name, column in values.items():
                store.add(f"{table}/{name}", np.array(column, dtype))

        columns("individuals", np.uint32, flags=[0], location_offset=[0, 2], parents_offset=[0, 0])
        columns("individuals", np.float64, location=[52.5, 13.4])
        columns("individuals", np.int32, parents=[])
        columns("nodes", np.uint32, flags=[1, 1, 0])
        columns("nodes", np.float64, time=[0, 0, 12.5])
        columns("nodes", np.int32, population=[0, 0, 0], individual=[0, 0, -1])
        columns("edges", np.float64, left=[0, 0], right=[100, 100])
        columns("edges", np.int32, parent=[2, 2], child=[0, 1])
        columns("indexes", np.int32, edge_insertion_order=[0, 1], edge_removal_order=[0, 1])
        columns("migrations", np.float64, left=[], right=[], time=[])
        columns("migrations", np.int32, node=[], source=[], dest=[])
        columns("sites", np.float64, position=[3, 41, 77])
        store.add_rows("sites/ancestral_state", [b"A", b"G", b"ACGT"])
        columns("mutations", np.int32, site=[0, 2], node=[1, 0], parent=[-1, -1])
        columns("mutations", np.float64, time=[7.25, 3.5])
        store.add_rows("mutations/derived_state", [b"T", b""])
        store.add_rows("provenances/timestamp", [b"2026-05-01T12:00:00"])
        record = b'{"schema_version": "1.0.0", "software": {"name": "demo", "version": "1"},'
        record += b' "parameters": {}, "environment": {}}'
        store.add_rows("provenances/record", [record])
        rows = {"individuals": 1, "nodes": 3, "edges": 2, "migrations": 0, "sites": 3, "mutations": 2, "populations": 1}
        for table, count in rows.items():
            store.add_rows(f"{table}/metadata", [b""] * count)
            store.add_text(f"{table}/metadata_schema", "")


def write_ikv(path: Path) -> None:
    """Write a document with nested objects and a typed array."""
    write_ikv2(path, {
        "name": "north field",
        "area_ha": 12.5,
        "organic": True,
        "tenant": None,
        "soil": {"kind": "loam", "ph": 6.4, "layers": {"top": 30, "sub": 70}},
        "yields": np.array([7.25, 6.5, 8.125]),
        "crops": ["wheat", "clover", {"name": "rye", "year": 2025}],
    })


def write_idv(path: Path) -> None:
    """Write a table with a vector column and text."""
    rows = 150
    generator = np.random.default_rng(3)
    with IdvWriter(path) as writer:
        writer.add("Label", (np.arange(rows) // 50).astype(np.float32))
        features = generator.normal(size=(rows, 4)).astype(np.float32)
        names = ["sepal length", "sepal width", "petal length", "petal width"]
        writer.add("Features", features, vector("Single", 4), metadata={"SlotNames": names})
        writer.add("Species", [("setosa", "versicolor", "virginica")[row // 50] for row in range(rows)])


def write_npz(path: Path) -> None:
    """Write an episode as DreamerV3 stores it."""
    steps = np.arange(FRAMES)
    np.savez_compressed(
        path, image=film(150)[:, ::2, ::2], action=np.random.default_rng(4).normal(size=(FRAMES, 6)).astype(np.float32),
        reward=np.linspace(0, 1, FRAMES, dtype=np.float32), is_first=steps == 0, is_last=steps == FRAMES - 1,
        is_terminal=steps == FRAMES - 1,
    )


def write_recording(path: Path) -> None:
    """Write a recording of a camera with 10 images a second, and of joints with 50 messages a second."""
    start = 1_750_000_000_000_000_000
    names = [f"joint_{number}" for number in range(1, 7)]
    with McapWriter(path) as writer:
        camera = writer.add_channel("/camera/front/compressed", "sensor_msgs/msg/CompressedImage", COMPRESSED_IMAGE)
        joints = writer.add_channel("/joint_states", "sensor_msgs/msg/JointState", JOINT_STATE)
        for number, frame in enumerate(film(200)):
            time = start + number * 100_000_000
            jpeg = io.BytesIO()
            Image.fromarray(frame).save(jpeg, "JPEG", quality=90)
            writer.add(camera, time, compressed_image(time, jpeg.getvalue()))
            for step in range(5):
                at = time + step * 20_000_000
                position = [math.sin((5 * number + step) * joint / 50) for joint in range(1, 7)]
                writer.add(joints, at, joint_state(at, names, position))
        writer.add_attachment("calibration.yaml", b"camera: front\nfx: 110.5\n", "application/yaml")
        writer.add_metadata("robot", {"model": "arm-6", "site": "lab"})


if __name__ == "__main__":
    main()
