"""LeRobot's own class on the view ``lerobot`` of a mount, and on the same episodes converted by LeRobot.

``scripts/lerobot-benchmark`` runs this in an environment with LeRobot. All sides of a work are measured in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import glassfs
from benchmarks import contents
from benchmarks.runner import write_back
from tests.lerobot import client

EMBODIMENT = "arm"
FPS = 10
WORKERS = (2, 8)
FRAMES, BATCH = 960, 32
"""Frames that a pass reads, of both cameras each."""
WORKS = ("open", "samples", "stats", "copy")
READY_SECONDS = 60.0
HERE, KNOWN, COPIED, CONVERTED = "mount", "mount, with the catalogue", "copy", "converted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--containers", type=int, default=100, help="of three episodes of 30 frames each")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=WORKS, action="append")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glassfs-benchmark-") as folder:
        _Benchmark(Path(folder), given.containers, given.runs).run(given.only or WORKS)


class _Benchmark:
    """The sides: a folder of containers that is mounted, a copy of the view, and what LeRobot converts."""

    def __init__(self, folder: Path, containers: int, runs: int) -> None:
        self._folder = folder
        self._runs = runs
        self._data = folder / "data"
        self._catalogue = folder / "known"
        contents.write_dataset(self._data, containers)
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}

    def run(self, works: Sequence[str]) -> None:
        for work in WORKS:
            if work in works:
                getattr(self, f"_{work}")()

    def _open(self) -> None:
        """The dataset is opened and all its rows are read into LeRobot's cache."""
        copied = self._folder / "copied"
        with self._mounted(self._folder / "first") as root:
            for name in ("meta", "data"):
                shutil.copytree(root / name, copied / name)
            for film in root.glob("videos/**/*.mp4"):  # only has to be there
                (copied / film.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
                (copied / film.relative_to(root)).touch()
        with self._mounted(self._catalogue) as root:
            _read(root, "open")
        times: dict[str, list[float]] = {HERE: [], KNOWN: [], COPIED: []}
        for number in range(self._runs):
            with self._mounted(self._folder / f"open-{number}") as root:
                times[HERE].append(_read(root, "open"))
            with self._mounted(self._catalogue) as root:
                times[KNOWN].append(_read(root, "open"))
            times[COPIED].append(_read(copied, "open"))
        _show("opened, and all rows read", times, COPIED, "s")

    def _samples(self) -> None:
        """Random frames with both cameras, in the second pass of a DataLoader."""
        converted = self._converted()[0]
        for workers in WORKERS:
            times: dict[str, list[float]] = {HERE: [], CONVERTED: []}
            for _ in range(self._runs):
                with self._mounted(self._catalogue) as root:
                    times[HERE].append(FRAMES / _read(root, "samples", workers))
                times[CONVERTED].append(FRAMES / _read(converted, "samples", workers))
            _show(f"samples a second, {workers} workers, second pass", times, CONVERTED, "/s")

    def _stats(self) -> None:
        """``stats.json`` of a mount that knows nothing, and what LeRobot computes for it while it converts."""
        times: dict[str, list[float]] = {HERE: [], CONVERTED: [self._converted()[1]] * self._runs}
        for number in range(self._runs):
            with self._mounted(self._folder / f"stats-{number}") as root:
                begun = time.perf_counter()
                (root / "meta/stats.json").read_bytes()
                times[HERE].append(time.perf_counter() - begun)
        _show("stats.json", times, CONVERTED, "s")

    def _copy(self) -> None:
        """``cp -r``, and writing as many bytes to the same disk."""
        rates: dict[str, list[float]] = {HERE: [], "disk": []}
        for number in range(self._runs):
            with self._mounted(self._catalogue) as root:
                target = self._folder / f"copy-{number}"
                begun = time.perf_counter()
                subprocess.run(["cp", "-r", root, target], check=True)
                write_back(self._folder)
                took = time.perf_counter() - begun
            size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
            shutil.rmtree(target)
            rates[HERE].append(size / took / 1e6)
            begun = time.perf_counter()
            blocks = -(-size >> 20)
            words = ["dd", "if=/dev/zero", f"of={target}", "bs=1M", f"count={blocks}", "status=none"]
            subprocess.run(words, check=True)
            write_back(self._folder)
            rates["disk"].append((blocks << 20) / (time.perf_counter() - begun) / 1e6)
            target.unlink()
        _show("cp -r", rates, "disk", "MB/s")

    def _converted(self) -> tuple[Path, float]:
        """Return the root of the converted dataset, and the seconds that LeRobot took for its statistics."""
        root, took = self._folder / "converted", self._folder / "converted.json"
        if not root.exists():
            took.write_text(json.dumps(_convert(self._data, root)))
        return root, json.loads(took.read_text())

    @contextmanager
    def _mounted(self, cache: Path) -> Iterator[Path]:
        """Mount the containers with a catalogue in ``cache``; yield the root of the dataset."""
        cache.mkdir(mode=0o700, exist_ok=True)
        point = self._folder / "mnt"
        point.mkdir(exist_ok=True)
        words = [sys.executable, "-m", "glassfs"]
        served = subprocess.Popen(
            [*words, "mount", "-f", "-o", "views=lerobot", self._data, point],
            env=os.environ | {"XDG_CACHE_HOME": str(cache)}, stderr=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + READY_SECONDS
            while not os.path.ismount(point):
                if time.monotonic() > until or served.poll() is not None:
                    raise RuntimeError("not mounted")
                time.sleep(0.02)
            yield point / "lerobot" / EMBODIMENT
        finally:
            subprocess.run([*words, "umount", point], check=served.poll() is None)
            served.wait()


def _read(root: Path, work: str, workers: int = 0) -> float:
    """Return the seconds of a work of ``read``, in a process of its own without anything in LeRobot's cache."""
    with tempfile.TemporaryDirectory(prefix="glassfs-benchmark-") as cache:
        words = [sys.executable, "-c", f"from benchmarks.lerobot import {read.__name__} as read; read()"]
        ended = subprocess.run(
            [*words, str(root), work, str(workers)], check=True, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"HF_HOME": cache},
        )
    return float(ended.stdout.splitlines()[-1])


def read() -> None:
    """Print the seconds that a work took: ``sys.argv`` is a root, ``open`` or ``samples``, and a number of workers."""
    import torch

    root, work, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    loads = client.dataset_class()
    begun = time.perf_counter()
    dataset = loads("local/benchmark", root=root)  # all rows are read into LeRobot's cache
    if work == "open":
        print(time.perf_counter() - begun)
        return
    chosen = np.random.default_rng(1).permutation(len(dataset))[:FRAMES].tolist()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.Subset(dataset, chosen), BATCH, num_workers=workers, persistent_workers=True, shuffle=True,
    )
    for _ in range(2):
        begun = time.perf_counter()
        for _batch in loader:
            pass
    print(time.perf_counter() - begun)


def _convert(data: Path, root: Path) -> float:
    """Convert all episodes with LeRobot's own writer and codec; return the seconds of its statistics."""
    module = client.module("datasets.lerobot_dataset")
    compute, seconds = module.compute_episode_stats, 0.0

    def timed(*given: Any, **named: Any) -> Any:
        nonlocal seconds
        begun = time.perf_counter()
        found = compute(*given, **named)
        seconds += time.perf_counter() - begun
        return found

    module.compute_episode_stats = timed
    side = contents.PHOTO_SIDE
    features: dict[str, Mapping[str, Any]] = {
        "observation.state": {"dtype": "float32", "shape": (contents.STATE,), "names": None},
        "action": {"dtype": "float32", "shape": (contents.ACTION,), "names": None},
    }
    for camera in contents.CAMERAS:
        features[f"observation.images.{camera}"] = {
            "dtype": "video", "shape": (side, side, 3), "names": ["height", "width", "channels"],
        }
    made = client.dataset_class().create("local/benchmark", FPS, features, root, robot_type=EMBODIMENT)
    for path in sorted(data.rglob("*.kdb")):
        with glassfs.open(path) as container:
            for number in range(contents.TAKES):
                episode = container[f"episodes/{number}"]
                state, action = episode["state"].numpy(), episode["action"].numpy()
                for step in range(len(state)):
                    pictures = {
                        f"observation.images.{camera}": np.asarray(episode[f"images/{camera}/{step:06d}"].image())
                        for camera in contents.CAMERAS
                    }
                    made.add_frame(
                        {"observation.state": state[step], "action": action[step], "task": f"task {number}"} | pictures,
                    )
                made.save_episode()
    made.finalize()
    return seconds


def _show(title: str, figures: Mapping[str, Sequence[float]], peer: str, unit: str) -> None:
    each = ", ".join(f"{side} {median(found):.3g} {unit}" for side, found in figures.items())
    ratios = ", ".join(
        f"{side} {median(ours / theirs for ours, theirs in zip(found, figures[peer], strict=True)):.2f} ×"
        for side, found in figures.items() if side != peer
    )
    print(f"{title}: {each}; of {peer}: {ratios}", flush=True)


if __name__ == "__main__":
    main()
