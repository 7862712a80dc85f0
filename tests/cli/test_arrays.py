"""Test ``glassfs info`` and ``glassfs arrays``: of containers and folders, from the catalogue too."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.safetensors import write_safetensors

from glassfs.cache.catalogue import SWITCH
from glassfs.datasets.batch.found import Opener
from glassfs.sizes import human_size
from glassfs.tree.containers.containers import Containers
from tests.cli.glassfs_command import Done, fails, glassfs
from tests.datasets.batch.many import robot
from tests.formats.hdf5_files import write_robomimic
from tests.formats.npz_files import npy, saved, zipped

h5py = pytest.importorskip("h5py")
RANDOM = np.random.default_rng(7).random((50, 40))
HALVES = np.array([[1.5, -2.0], [np.nan, 3.0]], ml_dtypes.bfloat16)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of containers that were written a while ago: others are not kept in the catalogue."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    write_safetensors(folder / "m.safetensors", {"half": HALVES, "none": np.zeros((0, 3), "<f4")})
    arrays = {"x": RANDOM.astype(">f8"), "s": np.array(["a", "bc"])}
    (folder / "sub/z.npz").write_bytes(saved(arrays, is_compressed=True))
    with KastoreWriter(folder / "k.kas") as writer:
        writer.add("a/b", np.array([3, 1 << 40], np.uint64))
    with h5py.File(folder / "h.h5", "w") as file:
        file.create_dataset("g/zipped", data=RANDOM, chunks=(10, 40), compression="gzip")
        file["g/again"] = file["g/zipped"]
        file["more"] = file["g"]
        file["soft"], file["outer"] = h5py.SoftLink("/g/zipped"), h5py.ExternalLink("other.h5", "/x")
        file["flags"], file["texts"] = np.array([True, False, True]), ["a", "b"]
        # Rows that begin like JPEG are shown as images; here they are rows of bytes.
        file["frames"] = np.frombuffer(b"\xff\xd8\xff" * 100, np.uint8).reshape(3, 100)
    robot(folder / "run.kdb", 1, "pick")
    (folder / "notes.txt").write_text("no container")
    for path in folder.rglob("*.*"):
        os.utime(path, (1, 1))
    return folder


def rows(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.lines]


def stored_in_h5(path: Path) -> int:
    with h5py.File(path) as file:
        return int(file["g/zipped"].id.get_storage_size())


def test_arrays_are_listed_once_by_stored_size(folder: Path) -> None:
    done = glassfs("arrays", folder)
    assert (done.status, done.errors) == (0, [])
    with zipfile.ZipFile(folder / "sub/z.npz") as archive:
        x, s = (archive.getinfo(f"{name}.npy").compress_size for name in "xs")
    expected = [
        ("h.h5", "g/again", "<f8", [50, 40], stored_in_h5(folder / "h.h5")), ("sub/z.npz", "x", ">f8", [50, 40], x),
        ("h.h5", "frames", "|u1", [3, 100], 300), ("sub/z.npz", "s", "<U2", [2], s), ("h.h5", "texts", "text", [2], 32),
        ("k.kas", "a/b", "uint64", [2], 16), ("m.safetensors", "tensors/half", "BF16", [2, 2], 8),
        ("h.h5", "flags", "|b1", [3], 3), ("m.safetensors", "tensors/none", "F32", [0, 3], 0),
    ]
    names = ("container", "name", "dtype", "shape", "stored_bytes")
    found = [tuple(row[name] for name in names) for row in rows(done)]
    assert sorted(found, key=str) == sorted(expected, key=str)
    sizes = [row[-1] for row in found]
    assert sizes == sorted(sizes, reverse=True)


def test_unchanged_containers_are_not_opened_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = glassfs("arrays", folder)
    glimpsed, opened = Containers.glimpsed, list[str]()

    def counting(self: Containers, location: Any, version: Any) -> Any:
        opened.append("/".join(location.path))
        return glimpsed(self, location, version)

    monkeypatch.setattr(Containers, "glimpsed", counting)
    assert glassfs("arrays", folder).lines == first.lines and opened == []
    write_safetensors(folder / "m.safetensors", {"other": np.zeros(2)})
    again = [row["name"] for row in rows(glassfs("arrays", folder)) if row["container"] == "m.safetensors"]
    assert len(opened) == 1 and again == ["tensors/other"]


def test_containers_folders_and_their_names(folder: Path, tmp_path: Path) -> None:
    alone = rows(glassfs("arrays", folder / "k.kas"))
    assert [(row["container"], row["name"]) for row in alone] == [("k.kas", "a/b")]
    both = rows(glassfs("arrays", folder / "k.kas", folder / "sub"))
    assert {row["container"] for row in both} == {"k.kas", "sub/z.npz"}
    none = glassfs("arrays", folder / "run.kdb")
    assert (none.status, none.output, none.errors) == (0, b"", [f"glassfs: {folder}/run.kdb: no arrays"])
    fails(glassfs("arrays", folder / "missing.npz"), f"{folder}/missing.npz: No such file or directory")


def test_hashes_are_of_stored_bytes(folder: Path) -> None:
    found = {row["name"]: row["hash"] for row in rows(glassfs("arrays", "--hash", folder))}
    with zipfile.ZipFile(folder / "sub/z.npz") as archive:
        info = archive.getinfo("x.npy")
    raw = (folder / "sub/z.npz").read_bytes()
    start = info.header_offset + 30 + sum(raw[info.header_offset + 26 : info.header_offset + 30 : 2])
    for name, stored in {
        "tensors/half": HALVES.tobytes(), "a/b": np.array([3, 1 << 40], np.uint64).tobytes(), "tensors/none": b"",
        "x": raw[start : start + info.compress_size],
        "g/again": RANDOM.tobytes(),  # in chunks, and so decoded
    }.items():
        assert found[name] == xxhash.xxh3_64_hexdigest(stored), name
    assert found["texts"] is None


def test_statistics_leave_nan_out(folder: Path) -> None:
    write_safetensors(folder / "n.safetensors", {"nan": np.full(3, np.nan), "inf": np.array([np.inf, 1.0])})
    found = {
        row["name"]: [row[name] for name in ("min", "max", "mean", "nan")]
        for row in rows(glassfs("arrays", "--stats", folder))
    }
    assert found["tensors/half"] == [-2.0, 3.0, pytest.approx(2.5 / 3), 1]
    assert found["a/b"] == [3, 1 << 40, ((1 << 40) + 3) / 2, 0]
    assert found["flags"] == [0, 1, pytest.approx(2 / 3), 0]
    assert found["x"] == found["g/again"] == [RANDOM.min(), RANDOM.max(), pytest.approx(RANDOM.mean()), 0]
    assert found["s"] == found["texts"] == [None, None, None, None]
    assert found["tensors/none"] == [None, None, None, 0] and found["tensors/nan"] == [None, None, None, 3]
    assert found["tensors/inf"] == [1.0, "Infinity", "Infinity", 0]


def test_what_cannot_be_read_is_a_line_and_the_rest_goes_on(folder: Path) -> None:
    members = [("lost.npy", np.zeros(4)), ("bad.npy", np.zeros(9)), ("good.npy", np.ones(5))]
    damaged = bytearray(zipped(*((name, npy(values)) for name, values in members)))
    damaged[0] = 0  # of the local header
    at = damaged.index(b"bad.npy") + 7 + 128
    damaged[at] ^= 1  # of the values, whose checksum is wrong then
    for path in folder.rglob("*.*"):
        path.unlink()
    (folder / "d.npz").write_bytes(damaged)
    (folder / "e.npz").write_bytes(b"PK\5\6 and no archive")
    done = glassfs("arrays", "--stats", folder)
    assert done.status == 1
    assert [(row["name"], row["mean"]) for row in rows(done)] == [("bad", None), ("good", 1.0)]
    name = f"glassfs: {folder}/d.npz"
    assert done.errors[0].startswith(f"{name}: lost.npy: its local header at 0 is damaged")
    assert done.errors[1].startswith(f"{name}: bad: its checksum does not match")
    assert done.errors[2].startswith(f"glassfs: {folder}/e.npz: ") and len(done.errors) == 3


def test_files_of_a_large_archive_are_named_as_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.formats.npz.MOST_DESCRIBED", 1)
    (tmp_path / "a.npz").write_bytes(saved({"x": np.zeros(3), "y": np.zeros(3)}))
    done = glassfs("arrays", tmp_path)
    assert (done.status, done.output, len(done.errors)) == (0, b"", 2)
    assert done.errors[0].startswith(f"glassfs: {tmp_path}/a.npz: omitted: files: there are too many")


def test_lines_are_ascii_whatever_is_in_them(folder: Path) -> None:
    name = "é\x9b\"],[\n"
    write_safetensors(folder / "é.safetensors", {name: np.full(2, np.inf)})
    plain, with_statistics = (glassfs("arrays", *words, folder / "é.safetensors") for words in ((), ("--stats",)))
    assert plain.output.isascii() and with_statistics.output.isascii()
    ((one,), (other,)) = rows(plain), rows(with_statistics)
    assert one["container"] == "é.safetensors" and one["name"].startswith("tensors/é") and one["stored_bytes"] == 16
    assert other == one | {"min": "Infinity", "max": "Infinity", "mean": "Infinity", "nan": 0}


def test_a_terminal_gets_an_aligned_table(folder: Path) -> None:
    write_safetensors(folder / "t.safetensors", {"a\x1b[31m": np.zeros((2, 2), "<f4"), "b": np.zeros(300, "<i8")})
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        words = [sys.executable, "-m", "glassfs", "arrays", "t.safetensors"]
        assert subprocess.run(words, stdout=terminal, cwd=folder, check=False).returncode == 0
    text = os.read(ours, 1 << 16).decode().replace("\r\n", "\n")
    os.close(ours)
    assert text == (
        "stored_bytes  dtype  shape   array\n"
        "        2.3K  I64    [300]   t.safetensors/tensors/b\n"
        "          16  F32    [2, 2]  t.safetensors/tensors/a%1B[31m\n"
    )


# ``glassfs info``.


@pytest.fixture
def dataset(robot: Path, store: Path, damaged: Path, tmp_path: Path) -> Path:
    """Return a folder of two KinoDB files, one deep below, a kastore, an episode, a plain file and links."""
    folder = tmp_path / "data"
    (folder / "a" / "b").mkdir(parents=True)
    shutil.copy(robot, folder / "one.kdb")
    shutil.copy(robot, folder / "a" / "b" / "two.bin")
    shutil.copy(store, folder / "a")
    shutil.copy(damaged, folder / "a")
    (folder / "notes.txt").write_text("notes")
    (folder / "link.kdb").symlink_to("one.kdb")
    (folder / "loop").symlink_to(".")
    return folder


def test_a_folder_is_summed_by_format(dataset: Path, robot: Path, store: Path, damaged: Path) -> None:
    found = json.loads(glassfs("info", "--json", dataset).output)
    assert found == {
        "source": str(dataset),
        "formats": {
            "kastore": {"containers": 1, "bytes": store.stat().st_size, "keys": 4},
            "kinodb": {"containers": 2, "bytes": 2 * robot.stat().st_size, "num_episodes": 2, "num_frames": 6},
            "wshard": {"containers": 1, "bytes": damaged.stat().st_size, "num_episodes": 1, "num_frames": 2000},
        },
        "unreadable": [],
        "omitted": [],
    }
    lines = glassfs("info", dataset).lines
    assert lines[0].startswith(f"{dataset}: 4 containers, ") and lines[0].endswith(", 3 episodes, 2,006 frames, 4 keys")
    assert lines[2].startswith("  kinodb: 2, ")
    assert lines[2].endswith(", 2 episodes, 6 frames")


def test_episodes_of_layouts_are_counted_and_zeros_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "data/r.hdf5"
    path.parent.mkdir()
    write_robomimic(path)
    lines = glassfs("info", path).lines
    assert "  episodes: 3, 21 frames" in lines and not [line for line in lines if "block" in line]
    assert json.loads(glassfs("info", "--json", path).output)["facts"]["user_block"] == 0
    size = human_size(path.stat().st_size)
    assert glassfs("info", path.parent).lines == [
        f"{path.parent}: 1 container, {size}, 3 episodes, 21 frames", f"  hdf5: 1, {size}, 3 episodes, 21 frames",
    ]
    assert glassfs("info", "--quick", path.parent).lines[1:] == [f"  hdf5: 1, {size}"]


def test_sums_of_a_folder_come_from_the_catalogue(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH, raising=False)
    for path in dataset.rglob("*"):
        os.utime(path, (10**9, 10**9), follow_symlinks=False)
    (dataset / "notes.txt").unlink()  # what is no container is looked at each time
    first = glassfs("info", "--json", dataset).output
    opened: list[object] = []
    glimpsed = Opener.glimpsed
    monkeypatch.setattr(Opener, "glimpsed", lambda *words: opened.append(words) or glimpsed(*words))
    assert glassfs("info", "--json", dataset).output == first
    assert opened == []
    os.utime(dataset / "one.kdb")
    assert glassfs("info", "--json", dataset).output == first
    assert len(opened) == 1


def test_a_missing_source_does_not_stop_the_others(dataset: Path, store: Path, tmp_path: Path) -> None:
    done = glassfs("info", "--json", store, tmp_path / "none", dataset)
    assert [json.loads(line)["source"] for line in done.lines] == [str(store), str(dataset)]
    assert done.errors == [f"glassfs: {tmp_path}/none: No such file or directory"]
    assert done.status == 1


def test_cameras_and_success_of_episodes_are_counted(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "robot.kdb"
    image = np.zeros((2, 2, 3), np.uint8)
    with KinoWriter(path, created=0) as writer:
        for number, success in enumerate((True, True, False, None)):
            cameras = {"front": image} | ({"wrist": image} if number == 1 else {})
            writer.add_episode(np.ones((1, 2)), np.zeros((1, 1)), images=[cameras], success=success)
    found = json.loads(glassfs("info", "--json", path).output)
    assert found["cameras"] == {"front": 4, "wrist": 1}
    assert found["success"] == {"yes": 2, "no": 1, "unknown": 1}
    assert glassfs("info", path).lines[-2:] == [
        "  cameras: front (in 4), wrist (in 1)", "  success: 2 yes, 1 no, 1 unknown",
    ]
    assert "cameras" not in json.loads(glassfs("info", "--json", "--quick", path).output)
    assert {"cameras", "success"}.isdisjoint(json.loads(glassfs("info", "--json", store).output))


def test_containers_in_a_container(robot: Path, tmp_path: Path) -> None:
    whole = robot.read_bytes()
    path = tmp_path / "runs.npz"
    path.write_bytes(zipped(("a.npy", npy(np.arange(3))), ("robot.kdb", whole), ("cut.kdb", whole[:-9])))
    alone = json.loads(glassfs("info", "--json", robot).output)
    found = json.loads(glassfs("info", "--json", path / "robot.kdb").output)
    for name in ("format", "version", "bytes", "facts", "contents", "raw_bytes"):
        assert found[name] == alone[name], name
    assert glassfs("info", path / "robot.kdb").lines[0].startswith(f"{path}/robot.kdb: kinodb ")
    lines = glassfs("info", path / "cut.kdb").lines
    assert lines[-1].startswith("  unreadable: ") and "cut short" in lines[-1]
    assert json.loads(glassfs("info", "--json", path).output)["contents"]["arrays"] == 1 + alone["contents"]["arrays"]
