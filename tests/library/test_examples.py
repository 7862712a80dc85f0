"""The examples in docs/, run as they are."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import make_samples
import pytest

from tests.conftest import ROOT, Scale

EXAMPLE = ROOT / "docs/examples/torch_dataset.py"
STAND_IN = Path(__file__).parent / "stand_in"
LINES = 40


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
