"""Steps of a selection: of each format, trimmed episodes have what slices of NumPy have of the whole ones."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from writers.kinodb import Frame, KinoWriter
from writers.mcap import JOINT_STATE, McapWriter, joint_state
from writers.wshard import WShardWriter

import glassfs
from glassfs.library.entry import Entry
from tests.formats.hdf5_files import write_aloha, write_robomimic
from tests.formats.kinodb_files import FRONT, WRIST, floats
from tests.formats.npz_files import episode, saved
from tests.layouts import files as layouts
from tests.layouts.test_aligned import LAYOUT

Files = dict[str, bytes]
SMALL = np.zeros((5, 4, 3), np.uint8)
FPS = 12
ALIGNED = ("aligned.npz", "run.mcap")
"""Containers whose files keep what is stored, as only times say which rows belong to a step."""


class Whole:
    """A container of which nothing is left out. Its representation is short, as Hypothesis prints it."""

    def __init__(self, path: Path, layout: str) -> None:
        self.path, self.layout = path, layout
        with glassfs.open(path, views="parquet+jsonl", layout=layout) as opened:
            self.files, self.rows = files_of(opened), list(opened.episodes())

    def __repr__(self) -> str:
        return self.path.name


def files_of(entry: Entry, above: str = "") -> Files:
    """Return the files that are listed, by their paths, but for those behind links."""
    found: Files = {}
    for name, child in entry.items():
        if child.is_dir():
            found |= {} if name == "episodes" and "data" in entry else files_of(child, f"{above}{name}/")
        else:
            found[above + name] = child.bytes()
    return found


REGULAR: list[Frame] = [{"front": FRONT + step, "wrist": WRIST + step} for step in range(9)]
MISSING: list[Frame] = [None if step % 3 == 1 else {"front": FRONT + step} for step in range(9)]
MIXED: list[Frame] = [{"front": FRONT if step % 2 else SMALL} for step in range(9)]


def write_kinodb(
    path: Path, *shots: list[Frame], steps: slice = slice(None), has_totals: bool = True,
) -> Path:
    """Write episodes with these images, of each only some steps."""
    reward = np.arange(9, dtype="f4")
    with KinoWriter(path, created=5) as writer:
        for number, images in enumerate(shots):
            writer.add_episode(
                floats(9, 2)[steps], floats(9, 3)[steps], reward[steps], np.arange(9)[steps] == 8,
                images=images[steps], task=f"task {number}", fps=FPS / (steps.step or 1), success=not number,
                total_reward=float(reward[steps].sum()) if has_totals else None,
            )
    return path


def write_mcap(path: Path) -> Path:
    with McapWriter(path) as writer:
        channels = [writer.add_channel(f"/{name}", "sensor_msgs/msg/JointState", JOINT_STATE) for name in ("a", "b")]
        for step in range(8):
            for offset, channel in enumerate(channels):
                time = (step * 10 + 3 * offset) * 10**8
                writer.add(channel, time, joint_state(time, ["x"], [float(step + 100 * offset)]))
    return path


def write_all(folder: Path) -> dict[str, str]:
    """Write a container of each kind, and return the layouts of those that need one, by their names."""
    write_kinodb(folder / "robot.kdb", REGULAR, MISSING, MIXED)
    with WShardWriter(folder / "wave.wshard", episode={"episode_id": "demo", "length_T": 9}) as writer:
        video = np.arange(9 * 8 * 10 * 3, dtype="u1").reshape(9, 8, 10, 3)
        writer.add_channel("rgb", video, modality="rgb", codec="zstd")
        writer.add_channel("force", floats(9, 3))
        writer.add("meta/limits", np.ones((2, 3), "<f4"))
    write_robomimic(folder / "robomimic.hdf5")
    write_aloha(folder / "jpeg.hdf5", is_compressed=True, missed=[2])
    for write in (layouts.minari, layouts.maniskill, layouts.episode_ends, layouts.d4rl, layouts.dreamer):
        write(folder)
    (folder / "plain.npz").write_bytes(saved(episode(), is_compressed=True))
    times = np.arange(8) * 10**8
    arm = {"arm/time": times + 10**7, "arm/joints/position": floats(8, 2), "arm/reward": np.arange(8.0)}
    np.savez(folder / "aligned.npz", **{"camera/time": times, **arm})
    write_mcap(folder / "run.mcap")
    found = {"aligned.npz": LAYOUT.format(align="nearest"), "run.mcap": (
        'name = "run"\nmatch = ["topics/a/log_time"]\n[episodes]\nwhole = true\n[steps]\n'
        'base = "topics/a/log_time"\nalign = "nearest"\n[roles]\nstate = "topics/b/fields/position"\n'
    )}
    (folder / "layouts").mkdir()
    for name, text in found.items():
        (folder / f"layouts/{name}.toml").write_text(text)
    return {name: str(folder / f"layouts/{name}.toml") for name in found}


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Whole]:
    folder = tmp_path_factory.mktemp("whole")
    layout = write_all(folder)
    paths = filter(Path.is_file, folder.iterdir())
    return {path.name: Whole(path, layout.get(path.name, "")) for path in paths}


def episodes_in(files: Files) -> dict[str, int]:
    """Return the number of steps of each episode, by the path of its directory."""
    name = "steps.parquet"
    return {path.removesuffix(name): pq.read_metadata(io.BytesIO(data)).num_rows for path, data in files.items()
            if path.endswith(name)}


def sliced(data: bytes, rows: range, count: int) -> bytes:
    """Return what remains of an array: rows of those that have one for each step, or one more."""
    values = np.load(io.BytesIO(data))
    if not values.ndim or len(values) not in (count, count + 1):
        return data
    made = io.BytesIO()
    np.save(made, np.ascontiguousarray(values[:count][rows.start : rows.stop : rows.step]))
    return made.getvalue()


def expected(files: Files, steps: slice, is_aligned: bool) -> Iterator[tuple[str, Any]]:
    """Yield what each file of an episode has: bytes, a table with the new numbers of frames, or the values of JSON."""
    episodes = episodes_in(files)
    for path, data in files.items():
        above = max((one for one in episodes if path.startswith(one)), key=len, default=None)
        if above is None:
            yield path, data
            continue
        count, (folder, _, name) = episodes[above], path.rpartition("/")
        rows = range(count)[steps]
        if name == "steps.parquet":
            yield path, (pq.read_table(io.BytesIO(data)).take(np.arange(count)[steps]), range(len(rows)))
        elif path == f"{above}meta/episode.json" and b"length_T" not in data:  # which WShard files store
            yield path, {**json.loads(data), "num_frames": len(rows)}
        elif name[:6].isdigit() and not is_aligned:
            if int(name[:6]) in rows:
                yield f"{folder}/{rows.index(int(name[:6])):06d}{name[6:]}", data
        elif name.endswith(".npy") and not is_aligned:
            yield path, sliced(data, rows, count)
        else:
            yield path, data


def check(whole: Whole, trim: str, every: int) -> None:
    start, _, stop = trim.partition(":")
    steps = slice(int(start) if start else None, int(stop) if stop else None, every)
    with glassfs.open(whole.path, views="parquet+jsonl", layout=whole.layout, trim=trim, every=every) as opened:
        files, rows = files_of(opened), list(opened.episodes())
    wanted = dict(expected(whole.files, steps, whole.path.name in ALIGNED))
    assert set(files) == set(wanted)
    for path, value in wanted.items():
        if isinstance(value, tuple):
            after = pq.read_table(io.BytesIO(files[path]))
            assert after["frame"].to_pylist() == list(value[1])
            assert after.drop(["frame"]).equals(value[0].drop(["frame"]))
        elif isinstance(value, dict):
            assert without_sums(json.loads(files[path])) == without_sums(value)
        elif not path.startswith("episodes."):
            assert files[path] == value, path
    for row, before in zip(rows, whole.rows, strict=True):
        left = len(range(before["num_frames"])[steps])
        assert without_sums(row) == without_sums({**before, "num_frames": left, "splits": None})
        assert row["fps"] == (before["fps"] and pytest.approx(before["fps"] / every))


def without_sums(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("fps", "total_reward")}


ends = st.none() | st.integers(-12, 12)
trims = st.tuples(ends, ends).map(lambda pair: ":".join("" if end is None else str(end) for end in pair))


@settings(max_examples=300)
@given(data=st.data(), trim=trims, every=st.integers(1, 4))
def test_trimmed_episodes_are_slices_of_whole_ones(
    containers: dict[str, Whole], data: st.DataObject, trim: str, every: int,
) -> None:
    assume((trim, every) != (":", 1))  # of which observations keep their last row
    check(containers[data.draw(st.sampled_from(sorted(containers)))], trim, every)


def test_every_kind_of_container_is_trimmed(containers: dict[str, Whole]) -> None:
    for whole in containers.values():
        check(whole, "1:-1", 2)


@pytest.mark.parametrize(("trim", "every"), [("3:8", 1), ("3:", 2), pytest.param("0:6", 3, marks=pytest.mark.slow)])
def test_views_are_those_of_a_container_of_the_steps(tmp_path: Path, trim: str, every: int) -> None:
    start, _, stop = trim.partition(":")
    path, views = write_kinodb(tmp_path / "robot.kdb", REGULAR, MISSING), "mp4+csv+html+zarr+lerobot"
    (tmp_path / "steps").mkdir()
    steps = slice(int(start), int(stop) if stop else None, every)
    written = write_kinodb(tmp_path / "steps/robot.kdb", REGULAR, MISSING, steps=steps)
    with glassfs.open(path, views=views, trim=trim, every=every) as opened:
        found = files_of(opened)
    with glassfs.open(written, views=views) as opened:
        wanted = files_of(opened)
    assert "lerobot/unknown/meta/info.json" in found
    own = {"meta/file.json", "episodes.csv", "data.js"}  # of the file, and with a column of splits
    assert {name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)} <= own


def test_total_reward_is_that_of_the_steps_that_are_left(containers: dict[str, Whole]) -> None:
    for name, column in (("robot.kdb", "reward"), ("minari.hdf5", "rewards"), ("d4rl.hdf5", "rewards")):
        with glassfs.open(containers[name].path, trim="1:-2", every=2) as opened:
            for number, row in enumerate(opened.episodes()):
                rewards = opened[f"episodes/{number}/{column}"].numpy()
                assert row["total_reward"] == rewards.sum()
                assert opened[f"episodes/{number}/meta/episode"].json()["total_reward"] == rewards.sum()


def test_total_reward_stays_unknown(tmp_path: Path) -> None:
    path = write_kinodb(tmp_path / "robot.kdb", REGULAR, has_totals=False)
    with glassfs.open(path, trim="1:") as opened:
        assert [row["total_reward"] for row in opened.episodes()] == [None]


def test_missing_frames_are_missing_in_all_views(tmp_path: Path) -> None:
    shots = [None if step in (0, 3, 4) else {"front": FRONT + step} for step in range(9)]
    (tmp_path / "steps").mkdir()
    for trim, steps in (("3:", slice(3, None)), ("::", slice(None)), (":4", slice(4))):
        found = []
        for path, words in (
            (write_kinodb(tmp_path / "a.kdb", shots), {"trim": trim} if trim != "::" else {}),
            (write_kinodb(tmp_path / "steps/a.kdb", shots, steps=steps), {}),
        ):
            with glassfs.open(path, views="mp4+html", **words) as opened:
                files = files_of(opened["episodes/0/images"])
                film = opened["episodes/0/images/front"]
                found.append((files, [name for name in files_of(opened) if "0000" in name]))
                with pytest.raises(IndexError):
                    film[0]
        assert found[0] == found[1]
