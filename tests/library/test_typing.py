"""Type checkers accept what users write, from a project of their own, and find what is wrong in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that is not in the checkout."""
    shutil.copy(PROJECT, tmp_path / "right.py")
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path


@pytest.mark.slow
def test_mypy_accepts_it(project: Path) -> None:
    def complaints(name: str) -> list[str]:
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", project / "cache", name]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        return [line for line in done.stdout.splitlines() if " error: " in line]

    assert complaints("right.py") == []
    assert len(complaints("wrong.py")) == 5


@pytest.mark.slow
def test_pyright_accepts_it(project: Path) -> None:
    """basedpyright is pyright with a Node.js of its own, so that nothing has to be fetched to run it."""
    settings = {"typeCheckingMode": "strict", "venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name}
    (project / "pyrightconfig.json").write_text(json.dumps(settings))

    def complaints(name: str) -> list[str]:
        command = [sys.executable, "-m", "basedpyright", "--outputjson", name]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        found = json.loads(done.stdout)["generalDiagnostics"]
        return [f"{one['range']['start']['line']}: {one['message']}" for one in found if one["severity"] == "error"]

    assert complaints("right.py") == []
    assert len(complaints("wrong.py")) >= 5
