"""Levels of tests: what each deselects, and that Hypothesis has no deadline."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import FEWEST_EXAMPLES, ROOT, adapt_settings


@pytest.mark.parametrize(("level", "examples"), [("short", 20), ("all", 200), ("long", 4000)])
def test_level_sets_the_number_of_examples(level: str, examples: int) -> None:
    @settings(max_examples=200, deadline=1)
    @given(st.integers())
    def says_much(number: int) -> None: ...

    @settings(max_examples=5)
    @given(st.integers())
    def says_little(number: int) -> None: ...

    for test, expected in ((says_much, examples), (says_little, max(5, examples // 40))):
        adapt_settings(test, level)
        found = test._hypothesis_internal_use_settings  # type: ignore[attr-defined]
        assert (found.max_examples, found.deadline) == (expected, None)
    assert FEWEST_EXAMPLES <= 20


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
