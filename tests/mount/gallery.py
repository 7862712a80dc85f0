"""A folder of containers and the expected content of its mount, computed without glassfs.

The expected files follow the mounted tree's contract (docs/manual/contents.md): arrays are what ``numpy.save`` writes,
videos and raw images are compared pixel by pixel, documents value by value.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from writers.idv import IdvWriter, vector
from writers.ikv import write_ikv2
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter, Stored, jpeg, png
from writers.wshard import WShardWriter

STEPS = 12
Pixels = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Document:
    """A file that is JSON with this value, or any JSON if the value is ``...``."""

    value: Any


Expected = bytes | Pixels | Document


@dataclass
class Gallery:
    """``files`` by path below the mount point; ``keys`` has original names of some of them."""

    folder: Path
    files: dict[str, Expected] = field(default_factory=dict)
    keys: dict[str, bytes] = field(default_factory=dict)

    def directories(self) -> set[str]:
        """All directories but the root."""
        return {str(parent) for path in self.files for parent in Path(path).parents} - {"."}

    def exact(self) -> dict[str, bytes]:
        """The files whose bytes are known."""
        return {path: expected for path, expected in self.files.items() if isinstance(expected, bytes)}

    def images(self) -> dict[str, Pixels]:
        return {path: expected for path, expected in self.files.items() if isinstance(expected, np.ndarray)}


def check(path: str, expected: Expected, data: bytes) -> None:
    """Assert that a file has the expected bytes."""
    if isinstance(expected, bytes):
        assert data == expected, path
    elif isinstance(expected, Document):
        value = json.loads(data, parse_constant=lambda word: pytest.fail(f"{path}: {word} is not JSON"))
        assert expected.value is ... or value == expected.value, path
    else:
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == "PNG", path
            np.testing.assert_array_equal(np.asarray(image), expected, err_msg=path)


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array))
    return buffer.getvalue()


def make_gallery(folder: Path) -> Gallery:
    gallery = Gallery(folder)
    _add_kinodb(gallery, "run.kdb")
    _add_wshard(gallery, "episode.wshard")
    _add_kastore(gallery, "store.kas")
    _add_ikv(gallery, "field.ikv")
    _add_idv(gallery, "table.idv")
    (folder / "sub").mkdir()
    _add_kastore(gallery, "sub/inner.kas")
    (folder / "notes.txt").write_bytes(b"not a container\n")
    gallery.files["notes.txt"] = b"not a container\n"
    return gallery


def _add_kinodb(gallery: Gallery, name: str) -> None:
    """Raw cameras in color and in gray, with a gap, and a camera of stored images."""
    generator = np.random.default_rng(1)
    state = generator.normal(size=(5, 3)).astype("<f4")
    action = generator.normal(size=(5, 2)).astype("<f4")
    reward = generator.normal(size=5).astype("<f4")
    front = generator.integers(0, 200, (5, 6, 9, 3), np.uint8)
    wrist = generator.integers(0, 200, (5, 4, 3), np.uint8)
    stored = [jpeg(generator.integers(0, 255, (8, 8, 3), np.uint8)), png(generator.integers(0, 255, (5, 7), np.uint8))]
    frames: list[dict[str, Any]] = [{"front": front[t], "arm/wrist": wrist[t]} for t in range(5)]
    del frames[2]["arm/wrist"]
    with KinoWriter(gallery.folder / name, created=1_700_000_000) as writer:
        writer.add_episode(
            state, action, reward, images=frames, task="stack", embodiment="widowx", fps=12.5, success=True,
            total_reward=2.5,
        )
        writer.add_episode(
            state[:2], action[:2], images=[{"cam": Stored(data, 8, 8)} for data in stored], fps=float("nan"),
        )
    files = gallery.files
    files[f"{name}/meta/file.json"] = Document({
        "format": "kinodb", "version": "0.1", "num_episodes": 2, "num_frames": 7, "created": 1_700_000_000,
    })
    common = {"state_dim": 3, "action_dim": 2}
    files[f"{name}/episodes/0/meta/episode.json"] = Document({
        "position": 0, "episode_id": 0, "embodiment": "widowx", "language_instruction": "stack", "fps": 12.5,
        "success": True, "total_reward": 2.5, "num_frames": 5, **common,
    })
    files[f"{name}/episodes/1/meta/episode.json"] = Document({
        "position": 1, "episode_id": 1, "embodiment": "", "language_instruction": "", "fps": "NaN",
        "success": None, "total_reward": None, "num_frames": 2, **common,
    })
    for episode, count in ((0, 5), (1, 2)):
        ends = np.arange(count) == count - 1
        rewards = reward if episode == 0 else np.zeros(count, "<f4")
        arrays = {"state": state[:count], "action": action[:count], "reward": rewards, "is_terminal": ends}
        files |= {f"{name}/episodes/{episode}/{key}.npy": npy(array) for key, array in arrays.items()}
    images = f"{name}/episodes/0/images"
    files |= {f"{images}/front/{t:06d}.png": front[t] for t in range(5)}
    files |= {f"{images}/arm/wrist/{t:06d}.png": wrist[t] for t in (0, 1, 3, 4)}
    files[f"{name}/episodes/1/images/cam/000000.jpg"] = stored[0]
    files[f"{name}/episodes/1/images/cam/000001.png"] = stored[1]


def _add_wshard(gallery: Gallery, name: str) -> None:
    """Compressed blocks, among them a video and one that exceeds the cache of the mount."""
    generator = np.random.default_rng(2)
    video = generator.integers(0, 4, (STEPS, 16, 20, 3), np.uint8)
    joints = generator.normal(size=(STEPS, 7)).astype("<f4")
    cloud = generator.integers(0, 9, (STEPS, 60_000)).astype("<f8")
    ticks = np.arange(STEPS, dtype="<i4")
    described = {"episode_id": "gallery", "length_T": STEPS}
    with WShardWriter(gallery.folder / name, codec="zstd", episode=described) as writer:
        writer.add_channel("rgb", video, modality="rgb")
        writer.add_channel("joint_pos", joints, codec="none")
        writer.add_channel("cloud", cloud, codec="lz4")
        writer.add("reward", joints[:, 0])
        writer.add("time/ticks", ticks)
        writer.add("signal/undescribed", b"what is this?")
    files = gallery.files
    files[f"{name}/meta/wshard.json"] = Document({"format": "W-SHARD", "wshard_version": "0.1", "alignment": 32})
    files[f"{name}/meta/episode.json"] = Document(described)
    files[f"{name}/meta/channels.json"] = Document({"channels": writer.channels})
    arrays = {"rgb": video, "joint_pos": joints, "cloud": cloud}
    files |= {f"{name}/signal/{key}.npy": npy(array) for key, array in arrays.items()}
    files |= {f"{name}/signal/rgb/{t:06d}.png": video[t] for t in range(STEPS)}
    files[f"{name}/reward.npy"] = npy(np.ascontiguousarray(joints[:, 0]))
    files[f"{name}/time/ticks.npy"] = npy(ticks)
    files[f"{name}/signal/undescribed.bin"] = b"what is this?"
    gallery.keys |= {f"{name}/signal/rgb.npy": b"signal/rgb", f"{name}/reward.npy": b"reward"}


def _add_kastore(gallery: Gallery, name: str) -> None:
    """Arrays under hostile names, one of them larger than 4 MiB."""
    generator = np.random.default_rng(len(name))
    arrays: dict[bytes, Any] = {
        b"nodes/time": generator.normal(size=1001),
        b"nodes/flags": generator.integers(0, 2**32, 77, np.uint32),
        b"big": generator.integers(0, 256, (4 << 20) + 13, np.uint8),
        b"empty": np.zeros(0, np.int32),
        b"caf\xe9/x": np.arange(3, dtype=np.int16),
        b"..": np.arange(5, dtype=np.int8),
        b"a\nb%": np.arange(6, dtype=np.uint16),
        b"long/" + b"n" * 400: np.arange(2, dtype=np.int64),
    }
    with KastoreWriter(gallery.folder / name) as store:
        for key, array in arrays.items():
            store.add(key, array)
    paths = {b"caf\xe9/x": "caf%E9/x", b"..": "%2E%2E", b"a\nb%": "a%0Ab%25", b"long/" + b"n" * 400: _LONG}
    for key, array in arrays.items():
        path = f"{name}/{paths.get(key) or key.decode()}.npy"
        gallery.files[path] = npy(array)
        gallery.keys[path] = key


def _long_name(length: int) -> str:
    """Return the shortened name of ``length`` n's: as much as fits, and the XXH64 of the whole."""
    import xxhash

    mark = f"~{xxhash.xxh64_hexdigest(b'n' * length)}"
    return "long/" + "n" * (255 - len(mark) - len(".npy")) + mark


_LONG = _long_name(400)


def _add_ikv(gallery: Gallery, name: str) -> None:
    yields = np.array([7.25, 6.5, 8.125])
    write_ikv2(gallery.folder / name, {
        "name": "north field", "area": 12.5, "count": 2**62 + 1, "organic": True, "tenant": None,
        "soil": {"ph": 6.0}, "yields": yields, "crops": ["wheat", "clover"],
    })
    gallery.files |= {
        f"{name}/document.json": Document(...),
        f"{name}/root/name.txt": b"north field",
        f"{name}/root/area.txt": b"12.5\n",
        f"{name}/root/count.txt": b"4611686018427387905\n",
        f"{name}/root/organic.txt": b"true\n",
        f"{name}/root/tenant.null": b"",
        f"{name}/root/soil/ph.txt": b"6.0\n",
        f"{name}/root/yields.npy": npy(yields),
        f"{name}/root/crops.json": Document(["wheat", "clover"]),
    }


def _add_idv(gallery: Gallery, name: str) -> None:
    rows = 1000
    label = np.arange(rows, dtype="<f4")
    features = np.random.default_rng(3).normal(size=(rows, 4)).astype("<f4")
    texts = [f"row {row}" for row in range(rows)]
    with IdvWriter(gallery.folder / name, rows_per_block=64) as writer:
        writer.add("Label", label)
        writer.add("Features", features, vector("Single", 4), metadata={"SlotNames": ["a", "b", "c", "d"]})
        writer.add("Text", texts)
    gallery.files |= {
        f"{name}/meta/schema.json": Document(...),
        f"{name}/meta/columns/Features/SlotNames.jsonl": b'"a"\n"b"\n"c"\n"d"\n',
        f"{name}/columns/Label.npy": npy(label),
        f"{name}/columns/Features.npy": npy(features),
        f"{name}/columns/Text.jsonl": "".join(f'"{text}"\n' for text in texts).encode(),
    }
