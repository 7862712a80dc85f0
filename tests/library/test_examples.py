"""The examples in docs/ run as they are, and type checkers accept what users write."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
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


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the example; where there is PyTorch, it is used. It warns where there are more workers than cores."""
    is_there = importlib.util.find_spec("torch") is not None
    environment = {"PYTHONWARNINGS": "ignore::UserWarning"} | ({} if is_there else {"PYTHONPATH": str(STAND_IN)})
    command = [sys.executable, EXAMPLE, *map(str, words)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_a_dataset_for_pytorch(tmp_path: Path, scale: Scale) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("run1.kdb", "deep/run2.kdb"):
        make_samples.write_kinodb(tmp_path / name)
    done = run(tmp_path, "front", scale(2, 8))
    assert (done.stdout, done.stderr, done.returncode) == ("144 steps\n", "", 0)
    assert len(EXAMPLE.read_text().splitlines()) <= LINES


def test_the_dataset_says_what_is_missing(tmp_path: Path) -> None:
    make_samples.write_all(tmp_path)
    with KinoWriter(tmp_path / "other.kdb") as writer:
        image = np.zeros((96, 128, 3), np.uint8)
        writer.add_episode(np.zeros((2, 3), "<f4"), np.zeros((2, 7), "<f4"), images=[{"front": image}] * 2)
        writer.add_episode(np.zeros((2, 7), "<f4"), np.zeros((2, 7), "<f4"))
    done = run(tmp_path, "front")
    assert (done.stdout, done.returncode) == ("72 steps\n", 0)
    said = "they lack camera 'front', or a state of 7 and an action of 7 values"
    assert done.stderr == f"{tmp_path}: 4 of 7 episodes are left out: {said}\n"
    done = run(tmp_path, "top", 2)
    assert (done.stdout, done.returncode) == ("", 1)
    cameras = "'front' in 4, 'wrist' in 3, 'signal/rgb' in 1"
    assert f"no episode has camera 'top', state and action; cameras: {cameras}" in done.stderr


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


# Type checkers, in a project of a user's own, find what is wrong in it.


PROJECT = Path(__file__).with_name("user_project.py")
WRONG = """
import glassfs

with glassfs.open("a") as data:
    data["a"].numpy().nothing_of_arrays
    data["a"].nothing
    data["a"]["b"].nothing
    data["a"][1:].nothing_of_arrays
    number: int = data["a"].bytes()
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_type_checkers_accept_what_users_write(checker: str, tmp_path: Path) -> None:
    """basedpyright is pyright with a Node.js of its own, so that nothing has to be fetched to run it."""
    shutil.copy(PROJECT, tmp_path / "right.py")
    (tmp_path / "wrong.py").write_text(WRONG)
    settings = {"typeCheckingMode": "strict", "venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = {"mypy": ["mypy", "--strict", "--cache-dir", str(tmp_path)], "basedpyright": ["basedpyright"]}[checker]

    def complaints(name: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", *command, name], cwd=tmp_path, capture_output=True, text=True, check=False,
        )
        return [line for line in done.stdout.splitlines() if " error: " in line or " - error" in line]

    assert complaints("right.py") == []
    assert len(complaints("wrong.py")) >= 5
