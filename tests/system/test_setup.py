"""Set-up: the Python that the scripts use, and that continuous integration tests all supported versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT


def find_python(wanted: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", "source scripts/setup.sh && find_python"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False, env=os.environ | {"GLASSFS_PYTHON": wanted},
    )


def test_requested_python_is_used() -> None:
    done = find_python(sys.executable)
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n")


@pytest.mark.parametrize("wanted", ["/no/such/python", "false"])
def test_no_other_python_replaces_the_requested_one(wanted: str) -> None:
    done = find_python(wanted)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"GLASSFS_PYTHON={wanted} does not run Python 3.10 or newer\n"


def test_each_supported_python_is_tested() -> None:
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert supported[0] == "3.10" and re.findall(r'"([^"]+)"', matrix) == supported
    assert "- run: .ci/run\n" in workflow and "GLASSFS_PYTHON: python${{ matrix.python }}" in workflow
