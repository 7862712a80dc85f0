"""Levels of tests: what each deselects, and that Hypothesis has no deadline."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(("level", "marks"), [
    ("short", ""), pytest.param("all", "slow", marks=pytest.mark.slow),
    pytest.param("long", "slow long", marks=pytest.mark.slow),
])
def test_levels_deselect_slow_tests(level: str, marks: str) -> None:
    words = ["--level", level, "--collect-only", "-q", "-p", "no:xdist", "tests/system/test_scripts.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, check=True, cwd=ROOT,
    )
    assert ("test_benchmark_measures_all_sides" in done.stdout) == ("slow" in marks)
    assert ("test_fuzzing_for_hours" in done.stdout) == ("long" in marks)
    assert "test_containers_of_the_demo_are_sound" in done.stdout
