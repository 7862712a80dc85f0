"""The benchmark and the fuzzer do what they say. Both are run for a moment only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import fuzzing
import pytest
import tskit

from tests.conftest import ROOT
from tests.mount.mounts import missing


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
    )


def test_containers_of_the_demo_are_sound(tmp_path: Path) -> None:
    """Down to the tree sequence, which tskit itself opens."""
    assert run(ROOT / "scripts/make_samples.py", tmp_path).returncode == 0
    done = run("-m", "glassfs", "verify", tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
    assert "5 containers, 0 faults" in done.stderr
    sequence = tskit.load(tmp_path / "ancestry.trees")
    assert [variant.alleles for variant in sequence.variants()] == [("A", "T"), ("G",), ("ACGT", "")]


@pytest.mark.slow
def test_benchmark_measures_all_sides(tmp_path: Path) -> None:
    if missing("3") and missing("2"):
        pytest.skip("nothing can be mounted here")
    report = tmp_path / "report.json"
    done = run("-m", "benchmarks", "--scale", "0.05", "--runs", "2", "--only", "store", "--json", report)
    assert done.returncode == 0, done.stderr
    (measure,) = json.loads(report.read_text())["measures"]
    for side in ("glassfs", "plain", "kastore load"):
        assert len(measure["sides"][side]["samples"]) == 2 and measure["sides"][side]["median"] > 0
    assert "goal ≤ 3 × kastore.load" in done.stdout


def test_fuzzer_counts_what_it_tried_and_what_that_reached(tmp_path: Path) -> None:
    done = run(ROOT / "scripts/fuzzing.py", "--seconds", "3", "--seed", "1", "--keep", tmp_path / "crashes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 crashed; " in done.stdout
    assert not (tmp_path / "crashes").exists()
    reached = int(done.stdout.split(" lines")[0].rpartition(" ")[2].replace(",", ""))
    assert reached > 1000


def _raise(path: str) -> str:
    raise IndexError("not a GlassfsError")


def _hang(path: str) -> str:
    time.sleep(60)
    return "opened"


def _die(path: str) -> str:
    os._exit(1)


@pytest.mark.parametrize(
    ("look", "expected"), [(_raise, "IndexError: not a GlassfsError"), (_hang, "hangs"), (_die, "the process died")],
)
def test_fuzzer_notices_crashes(look: object, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "_look", look)
    monkeypatch.setattr(fuzzing, "PATIENCE", 0.3)
    worker = fuzzing._Worker()
    try:
        outcome, _ = worker.look_at(b"anything")
        assert expected in outcome
        assert expected in worker.look_at(b"and the next one is looked at, too")[0]
    finally:
        worker.end()


def test_fuzzer_goes_on_from_what_reached_something_new() -> None:
    coverage = fuzzing._Coverage()
    from glassfs.tree import names

    for text, grows in ((b"plain", True), (b"plain", False), (b"\xff" * 300, True)):
        before = coverage.count
        sys.settrace(coverage.watch)
        names.component(text)
        sys.settrace(None)
        assert (coverage.count > before) == grows
