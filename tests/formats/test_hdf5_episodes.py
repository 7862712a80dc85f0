"""Episodes of robomimic, LIBERO and ALOHA, and images in whatever holds their bytes."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import glassfs
from glassfs.codec import h264
from glassfs.view import mp4
from tests.cli.glassfs_command import glassfs as run
from tests.formats.hdf5_files import h5py, jpeg, values, write_aloha, write_robomimic


def test_robomimic_episodes_have_steps_videos_and_pages(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5", options={"chunks": (1, 12, 10, 3), "compression": "gzip"})
    with glassfs.open(path, views="all") as opened:
        demo = opened["data/demo_8"]
        steps = demo["steps.parquet"].table().to_pandas()
        assert len(steps) == 6 and "obs/eef_pos" in {name.split(".")[0] for name in steps.columns}
        assert demo["obs/agentview_image.mp4"].file_size > 100
        assert demo["index.html"].file_size > 100
        frame = np.asarray(demo["obs/agentview_image/000002.png"].image())
        assert np.array_equal(frame, values((6, 12, 10, 3), "u1")[2])


@pytest.mark.parametrize(("stored", "shown"), [
    (["pick", "up", "the", "bowl"], "pick up the bowl"), ('"pick up the bowl"', "pick up the bowl"),
    (["\"pick", "up\""], "pick up"), ('say "hi"', 'say "hi"'), (' a ', ' a '), ([], None), ("", None), ([1, 2], None),
    (["a", None], None), ({"a": "b"}, None),
])
def test_instructions_are_words_without_quotation_marks(tmp_path: Path, stored: Any, shown: str | None) -> None:
    path = write_robomimic(tmp_path / "libero.hdf5")
    with h5py.File(path, "a") as file:
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": stored})
    with glassfs.open(path) as opened:
        assert {row["language_instruction"] for row in opened.episodes()} == {shown}


def test_robosuite_names_robot_and_rate_in_env_info(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        file["data/demo_1/actions"], file["data/demo_1/states"] = np.zeros((3, 7)), np.zeros((3, 32))
        file["data"].attrs["env"] = "Lift"
        file["data"].attrs["env_info"] = json.dumps({"robots": ["Panda"], "control_freq": 20})
    with glassfs.open(tmp_path / "demo.hdf5") as opened:
        row = next(iter(opened.episodes()))
        assert [row[name] for name in ("env_name", "embodiment", "fps")] == ["Lift", "Panda", 20]


def test_splits_are_named_in_the_table_and_by_lerobot(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    with h5py.File(path, "a") as file:
        file["mask/train"] = np.array([b"demo_8", b"demo_12"])
        file.create_dataset("mask/valid", data=["demo_10", "demo_8"], dtype=h5py.string_dtype())
        file["mask/number"] = np.arange(3)
    with glassfs.open(path) as opened:
        assert [row["splits"] for row in opened.episodes()] == [["train", "valid"], ["valid"], ["train"]]
    done = run("export", "--views", "lerobot", path, "lerobot", tmp_path / "out")
    assert done.status == 1
    assert any("splits: the episodes of some are not consecutive (train)" in line for line in done.errors)
    assert info(tmp_path / "out/lerobot/Panda")["splits"] == {"train": "0:3"}
    done = run("export", "--views", "lerobot-splits", path, "lerobot", tmp_path / "apart")
    assert done.status == 0
    assert sorted(one.name for one in (tmp_path / "apart/lerobot").iterdir()) == ["Panda-train", "Panda-valid"]
    assert info(tmp_path / "apart/lerobot/Panda-valid")["splits"] == {"valid": "0:2"}
    done = run("episodes", "--where", "'train' in splits", path)
    assert done.output.count(b"\n") == 2


def info(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "meta/info.json").read_bytes())
    return found


def test_consecutive_splits_are_those_of_lerobot(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    with h5py.File(path, "a") as file:
        file["mask/train"], file["mask/valid"] = np.array([b"demo_10", b"demo_8"]), np.array([b"demo_12"])
    done = run("export", "--views", "lerobot", path, "lerobot", tmp_path / "out")
    assert done.status == 0
    assert info(tmp_path / "out/lerobot/Panda")["splits"] == {"train": "0:2", "valid": "2:3"}


@pytest.mark.parametrize("is_compressed", [False, True])
def test_aloha_is_one_episode(tmp_path: Path, is_compressed: bool) -> None:
    path = write_aloha(tmp_path / "episode_0.hdf5", is_compressed=is_compressed)
    with glassfs.open(path, views="all") as opened:
        row = next(iter(opened.episodes()))
        assert (row["fps"], row["num_frames"], row["action_dim"], row["state_dim"]) == (50.0, 5, 14, 14)
        assert row["cameras"] == ["observations/images/top"]
        assert opened["observations/images/top.mp4"].file_size > 100
        assert len(opened["steps.parquet"].table()) == 5
        frames = values((5, 12, 16, 3), "u1")
        if is_compressed:
            assert opened["observations/images/top/000003.jpg"].bytes() == jpeg(frames[3])
        else:
            assert np.array_equal(np.asarray(opened["observations/images/top/000003.png"].image()), frames[3])


@pytest.mark.parametrize("has_strings", [False, True])
def test_encoded_images_are_frames_and_no_signal(tmp_path: Path, has_strings: bool) -> None:
    path = write_aloha(tmp_path / "episode_0.hdf5", is_compressed=True, has_strings=has_strings)
    frames = values((5, 12, 16, 3), "u1")
    with h5py.File(path, "a") as file:
        file["camera"] = h5py.SoftLink("/observations/images/top")
        file["observations/images/same"] = h5py.SoftLink("top")
    with glassfs.open(path) as opened:
        row = next(iter(opened.episodes()))
        assert row["cameras"] == ["observations/images/top"]
        for link in ("camera", "observations/images/same"):
            assert opened[f"{link}/000003.jpg"].bytes() == jpeg(frames[3])
        assert row["channels"] == ["action", "observations/qpos", "observations/qvel"]
        assert sorted(opened["observations/images"]) == ["same", "top"]
        assert np.array_equal(opened["observations/images/top"][3], np.asarray(Image.open(io.BytesIO(jpeg(frames[3])))))
        assert opened["observations/images/top/000003.jpg"].bytes() == jpeg(frames[3])
        assert opened["steps"].table().columns == ["frame", "action", "observations/qpos", "observations/qvel"]


@pytest.mark.parametrize("has_strings", [False, True])
def test_video_shows_the_frame_before_a_missed_one(tmp_path: Path, has_strings: bool) -> None:
    """Missed frames are rows of zeros: the first, two in the middle."""
    path = write_aloha(
        tmp_path / "episode_0.hdf5", steps=8, is_compressed=True, has_strings=has_strings, missed=(0, 3, 4),
    )
    size, start = h264.size_of(16, 12), len(mp4.head(16, 12, 50, 8))
    with glassfs.open(path, views="mp4+html") as opened:
        made = opened["observations/images/top.mp4"].bytes()
        found = [made[at + h264.HEAD : at + size] for at in range(start, len(made), size)]
        assert len(found) == 8 and found[3] == found[4] == found[2]
        assert len(set(found)) == 6  # gray before the first
        with pytest.raises(IndexError, match="frame 3 is missing"):
            opened["observations/images/top"][3]
        facts = opened["index.html"].bytes().partition(b'id="facts">')[2]
        (camera,) = json.loads(facts.partition(b"</script>")[0])["cameras"]
        assert camera["runs"] == [1, 2, 2, 3]


def write_demonstrations(path: Path, count: int) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(count):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["model_file"] = "x" * 10_000
            demo.attrs["language_instruction"] = f"task {number}"
            for name in ("actions", "rewards", "obs/position", "obs/velocity"):
                demo[name] = np.full((3, 2) if name == "actions" else (3,), float(number))
    return path


def test_episodes_ask_only_for_attributes_of_columns(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    path = write_demonstrations(tmp_path / "made.hdf5", 200)
    with glassfs.open(path) as opened:
        rows = [json.loads(line) for line in opened["episodes.jsonl"].bytes().splitlines()]
    assert [row["total_reward"] for row in rows] == [3.0 * number for number in range(200)]
    assert [row["language_instruction"] for row in rows] == [f"task {number}" for number in range(200)]
    prepared = [one for one in asked if one["do"] == "prepare"]
    assert [len(one["paths"]) for one in prepared] == [16] * 12 + [8]
    assert all("language_instruction" in one["names"] and "model_file" not in one["names"] for one in prepared)
    assert not any(one["do"] == "attributes" and len(one["path"]) == 2 for one in asked)


@pytest.mark.usefixtures("catalogue")
def test_table_of_episodes_is_kept_for_later_programs(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    path = write_demonstrations(tmp_path / "made.hdf5", 300)
    os.utime(path, (1e9, 1e9))
    first = run("episodes", path)
    assert len(first.lines) == 300
    asked.clear()
    assert run("episodes", path).lines == first.lines
    assert asked == []
    write_demonstrations(path, 3)
    os.utime(path, (1e9 + 9, 1e9 + 9))
    assert len(run("episodes", path).lines) == 3


# Images

FRAMES = np.random.default_rng(3).integers(0, 255, (5, 24, 32, 3), np.uint8)


def encoded(frame: Any, media: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, media)
    return out.getvalue()


def rows_of(file: Any, images: list[bytes], kind: str) -> None:
    longest = max(map(len, images)) + 9
    if kind == "variable":
        rows = file.create_dataset("cam", (len(images),), dtype=h5py.vlen_dtype("u1"))
        for number, image in enumerate(images):
            rows[number] = np.frombuffer(image, "u1")
    elif kind == "bytes":
        padded = b"".join(image.ljust(longest, b"\0") for image in images)
        file["cam"] = np.frombuffer(padded, "u1").reshape(len(images), longest)
    else:
        file["cam"] = np.array(images, f"{'S' if kind == 'strings' else 'V'}{longest}")


@pytest.mark.parametrize("media", ["jpeg", "png"])
@pytest.mark.parametrize("kind", ["variable", "bytes", "strings", "opaque"])
def test_rows_that_are_images_are_frames(tmp_path: Path, kind: str, media: str) -> None:
    images = [encoded(frame, media) for frame in FRAMES]
    images[1] = b""  # a frame that the camera missed
    path = tmp_path / "images.h5"
    with h5py.File(path, "w") as file:
        rows_of(file, images, kind)
        file["link"] = h5py.SoftLink("/cam")
    suffix = "jpg" if media == "jpeg" else "png"
    with glassfs.open(path, views="mp4") as opened:
        assert opened["cam.mp4"].file_size > 100
        for number in (0, 2, 4):
            assert opened[f"cam/{number:06d}.{suffix}"].bytes() == images[number]
            assert opened[f"link/{number:06d}.{suffix}"].bytes() == images[number]
        assert len(list(opened["cam"])) == len(images)


@pytest.mark.parametrize("kind", ["opaque", "bytes"])
def test_single_image_is_a_file(tmp_path: Path, kind: str) -> None:
    image = encoded(FRAMES[0], "png")
    path = tmp_path / "image.h5"
    with h5py.File(path, "w") as file:
        file["thumbnail"] = np.void(image) if kind == "opaque" else np.frombuffer(image, "u1")
        file["link"] = h5py.SoftLink("/thumbnail")
    with glassfs.open(path) as opened:
        assert opened["thumbnail.png"].bytes() == image == opened["link.png"].bytes()
        assert np.array_equal(np.asarray(opened["thumbnail"].image()), FRAMES[0])


@pytest.mark.parametrize("start", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"], ids=["png", "jpeg"])
@pytest.mark.parametrize(("kind", "shown"), [
    ("variable", ["cam", "values.npy"]), ("bytes", ["cam.npy"]), ("strings", ["cam.jsonl"]), ("opaque", ["cam.bin"]),
])
def test_bytes_that_only_begin_like_images_stay_what_they_are(
    tmp_path: Path, kind: str, shown: list[str], start: bytes,
) -> None:
    path = tmp_path / "images.h5"
    with h5py.File(path, "w") as file:
        rows_of(file, [start + bytes(range(1, 100))] * 3, kind)
    with glassfs.open(path) as opened:
        assert "/".join(shown) in opened and sorted(opened) == shown[:1]
