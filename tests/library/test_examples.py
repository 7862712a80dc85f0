"""The examples in docs/, run as they are."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import make_samples
import numpy as np
import pytest
from writers.kinodb import KinoWriter

from tests.conftest import ROOT, Scale

EXAMPLE = ROOT / "docs/examples/torch_dataset.py"
STAND_IN = Path(__file__).parent / "stand_in"
LINES = 60


def environment() -> dict[str, str]:
    """Where there is PyTorch, it is used. It warns where there are more workers than cores."""
    is_there = importlib.util.find_spec("torch") is not None
    quiet = os.environ | {"PYTHONWARNINGS": "ignore::UserWarning"}
    return quiet if is_there else quiet | {"PYTHONPATH": str(STAND_IN)}


def test_a_dataset_for_pytorch(tmp_path: Path, scale: Scale) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("run1.kdb", "deep/run2.kdb"):
        make_samples.write_kinodb(tmp_path / name)
    command = [sys.executable, EXAMPLE, tmp_path, "front", str(scale(2, 8))]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("144 steps\n", "", 0)
    assert len(EXAMPLE.read_text().splitlines()) <= LINES


def test_the_dataset_says_what_is_missing(tmp_path: Path) -> None:
    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, EXAMPLE, *map(str, words)]
        return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)

    (tmp_path / "mixed").mkdir()
    make_samples.write_all(tmp_path / "mixed")
    with KinoWriter(tmp_path / "mixed/other.kdb") as writer:
        image = np.zeros((96, 128, 3), np.uint8)
        writer.add_episode(np.zeros((2, 3), "<f4"), np.zeros((2, 7), "<f4"), images=[{"front": image}] * 2)
        writer.add_episode(np.zeros((2, 7), "<f4"), np.zeros((2, 7), "<f4"))
    done = run(tmp_path / "mixed", "front")
    assert (done.stdout, done.returncode) == ("72 steps\n", 0)
    assert done.stderr == (
        f"{tmp_path}/mixed: 4 of 7 episodes are left out: they lack camera 'front', or a state of 7 and an action of 7 "
        "values\n"
    )
    done = run(tmp_path / "mixed", "top", 2)
    assert (done.stdout, done.returncode) == ("", 1)
    cameras = "'front' in 4, 'wrist' in 3, 'signal/rgb' in 1"
    assert f"no episode has camera 'top', state and action; cameras: {cameras}" in done.stderr
    done = run(tmp_path / "mixed/robot.kdb", "wrist")
    assert (done.stdout, done.stderr, done.returncode) == ("72 steps\n", "", 0)
    done = run("--help")
    assert done.returncode == 0 and "folder of KinoDB files" in done.stdout and "workers" in done.stdout


def test_the_samples_are_explained(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts/make_samples.py", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "FOLDER" in done.stdout and not list(tmp_path.iterdir())


def test_the_dataset_gives_each_step_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if importlib.util.find_spec("torch") is None:
        monkeypatch.syspath_prepend(STAND_IN)
    make_samples.write_kinodb(tmp_path / "run.kdb")
    spec = importlib.util.spec_from_file_location("torch_dataset", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    steps = module.Steps(str(tmp_path), "wrist")
    assert len(steps) == 72
    for number in (0, 23, 24, 47, 48, 71):
        image, state, action = steps[number]
        episode = steps.data[f"run.kdb/episodes/{number // 24}"]
        assert (image == episode[f"images/wrist/{number % 24:06d}"].numpy()).all()
        assert (state == episode["state"].numpy()[number % 24]).all()
        assert (action == episode["action"].numpy()[number % 24]).all()
