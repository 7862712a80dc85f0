"""Set-up, the benchmark, the fuzzers and the pictures of the README. Each is run briefly."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import fuzzing_live
import fuzzing_reading
import mutants
import pytest
import tskit
from benchmarks.report import Report, row_text
from benchmarks.sides import SIDES
from benchmarks.workloads import WORKLOADS, Samples
from PIL import Image

from tests.chromium import needs_chromium
from tests.conftest import ROOT
from tests.mount.mounts import require

SYNC = re.compile(r"""\bos\.sync\b|["']sync["']|^\s*sync\b|[;&|] *sync\b""")


def run(*arguments: str | Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
    )


def find_python(wanted: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", "source scripts/setup.sh && find_python"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False, env=os.environ | {"GLASSFS_PYTHON": wanted},
    )


def test_requested_python_is_used() -> None:
    done = find_python(sys.executable)
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n")


def test_interpreter_built_with_optimizations_is_preferred(tmp_path: Path) -> None:
    for name, said in (("python3.14", "exit 1"), ("python3.13", "echo other"), ("python3.12", "echo optimized")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{said}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f"PATH={tmp_path}:$PATH; unset GLASSFS_PYTHON; source scripts/setup.sh && find_python"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.stdout == f"{tmp_path}/python3.12\n", done.stderr


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


@pytest.mark.slow
def test_containers_of_the_demo_are_sound(tmp_path: Path) -> None:
    """Including the tree sequence, which tskit itself opens."""
    assert run(ROOT / "scripts/make_samples.py", tmp_path).returncode == 0
    done = run("-m", "glassfs", "verify", tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
    assert f"{len(list(tmp_path.iterdir()))} containers, 0 faults" in done.stderr
    sequence = tskit.load(tmp_path / "ancestry.trees")
    assert [variant.alleles for variant in sequence.variants()] == [("A", "T"), ("G",), ("ACGT", "")]


def benchmark(folder: Path, *words: str | Path) -> Any:
    """Run the benchmark once and return its report; the tables are written beside it."""
    written = "--json", folder / "report.json", "--markdown", folder / "report.md"
    done = run("-m", "benchmarks", "--runs", "1", *words, *written)
    assert done.returncode == 0 and "Failed" not in done.stdout, done.stdout + done.stderr
    return json.loads((folder / "report.json").read_text())


@pytest.mark.slow
def test_benchmark_measures_processor_time_of_two_checkouts(tmp_path: Path) -> None:
    measured = benchmark(tmp_path, "--cpu", "--against", ROOT, "--scale", "0.01")["cpu"]
    assert len(measured) == 7
    assert all(len(times) == 1 and times[0] > 0 for one in measured for times in one["microseconds"].values())
    assert [list(one["microseconds"]) for one in measured] == 7 * [["before", "now"]]


@pytest.mark.slow
def test_benchmark_measures_all_sides(tmp_path: Path) -> None:
    require()
    measures = {
        "store": 1, "dataset-samples": 3, "dataset-loader": 3, "dataset-cores": 3, "dataset-query": 2,
        "dataset-find": 2, "dataset-ls": 1, "dlio-npy": 2, "dlio-png": 2, "dlio-jpeg": 2, "mp4": 1, "parquet": 1,
    }
    store, *others = benchmark(tmp_path, "--scale", "0.005", *(f"--only={name}" for name in measures))["measures"]
    assert Counter(measure["workload"] for measure in (store, *others)) == measures
    for measure in (store, *others):
        assert "glassfs" in measure["sides"]
        assert all(len(side["samples"]) == 1 and side["median"] > 0 for side in measure["sides"].values())
    sides = {side for measure in others for side in measure["sides"]}
    assert "kastore load" in store["sides"] and "plain" in store["sides"]
    assert "plain" in sides and ("C server" in sides) == (SIDES["C server"].missing() is None)
    assert [goal["words"] for goal in store["goals"]] == ["≤ 3 × kastore load"]
    tables = (tmp_path / "report.md").read_text()
    assert all(measure["title"] in tables for measure in (store, *others))


@pytest.mark.slow
def test_benchmark_measures_remote_containers(tmp_path: Path) -> None:
    require()
    pytest.importorskip("obstore")
    wanted = [f"--only=remote-{name}" for name in ("kastore", "large-picture", "cat", "disk", "folder")]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for measure in benchmark(tmp_path, "--scale", "0.005", *wanted)["measures"]:
        sides = {name: side["median"] for name, side in measure["sides"].items()}
        found.setdefault(measure["workload"].removeprefix("remote-"), {})[measure["measure"]] = sides
        assert "glassfs" in sides
    assert found["kastore"]["requests"]["glassfs"] in (1, 2)
    assert found["folder"]["LIST"]["glassfs"] == 1 and found["folder"]["others"]["glassfs"] == 0
    assert found["large-picture"]["sent"]["glassfs"] > 0
    assert found["disk"]["again: requests"]["glassfs"] == 1 and found["disk"]["again: sent"]["glassfs"] <= 1 << 18
    found["cat"]["share"].pop("ratarmount", None)  # has read all of a small tar when it is mounted
    for side, share in found["cat"]["share"].items():
        assert 0.5 < share < 2, side
        assert found["cat"]["requests"][side] >= 1


def _report(name: str, samples: Samples) -> Report:
    (workload,) = (workload for workload in WORKLOADS if workload.name == name)
    report = Report(runs=3, scale=1)
    report.add(workload, samples)
    return report


def test_goals_of_rates_and_of_other_measures() -> None:
    loader = _report("dataset-loader", {
        "glassfs": {
            "first": [0.001, 0.002, 0.004], "known": [0.001] * 3, "again": [0.001] * 3, "first READ": [3, 3],
            "first requests": [3] * 3,
        },
        "C server": {"first": [0.0001] * 3, "again": [0.0008] * 3},
        "squashfuse_ll": {"first": [0.0032] * 3},
    })
    first, known, again = map(row_text, loader.rows)
    assert "500 /s" in first and "250 /s … 1000 /s" in first and "requests for each sample: READ 3" in first
    assert "met: 500 /s of 250 /s wanted (1.60 ×)" in first
    assert "1000 /s" in known and "wanted" not in known
    assert "MISSED: 1000 /s of 1188 /s wanted (0.80 ×)" in again
    assert loader.ending() == "1 of 2 goals met."
    walk = _report("dataset-find", {
        "glassfs": {"first": [3.0], "again": [0.9]}, "squashfuse_ll": {"first": [2.0], "again": [0.1]},
    })
    assert [row.is_met(row.measure.goals[0]) for row in walk.rows] == [False, True]
    assert [row.part(row.measure.goals[0]) for row in walk.rows] == [1.5, 0.45]
    cat = row_text(_report("remote-cat", {"glassfs": {"seconds": [1 / 90, 1 / 80, 1 / 20]}}).rows[0])
    assert "20.0 MB/s … 90.0 MB/s" in cat and "met: 80.0 MB/s of 70.0 MB/s wanted" in cat


def test_no_test_or_script_calls_sync() -> None:
    """sync(2) waits for every mount of the machine, also for one that hangs."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("scripts", "tests") for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in ("", ".py", ".sh") and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if SYNC.search(line)
    ]
    assert not found
    assert SYNC.search("os.sync()") and SYNC.search("run(['sync'])") and SYNC.search("sync; echo 3")


@pytest.mark.slow
def test_fuzzer_counts_containers_and_lines_reached(tmp_path: Path) -> None:
    done = run(ROOT / "scripts/fuzzing.py", "--count", "200", "--seed", "1", "--keep", tmp_path / "crashes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("200 containers: ") and " 0 crashed; " in done.stdout
    assert not (tmp_path / "crashes").exists()
    reached = int(done.stdout.split(" lines")[0].rpartition(" ")[2].replace(",", ""))
    assert reached > 1000


def _raise(path: str, views: str = "") -> str:
    raise IndexError("not a GlassfsError")


def _die(path: str, views: str = "") -> str:
    os._exit(1)


@pytest.mark.slow
def test_live_fuzzer_finds_no_difference(tmp_path: Path) -> None:
    require()
    words = ("--live", "--count", "200", "--seed", "5")
    done = run(ROOT / "scripts/fuzzing.py", *words, "--keep", tmp_path / "crashes")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.startswith("200 live mutants: ")
    assert " 0 differences, 0 tracebacks, 0 findings; " in done.stdout
    assert int(done.stdout.split(" files read")[0].rpartition(" ")[2].replace(",", "")) > 500


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("words", [
    ("--seconds", "3600", "--live"), ("--seconds", "7200"),
])
def test_fuzzing_for_hours(tmp_path: Path, words: tuple[str, ...]) -> None:
    if "--live" in words:
        require()
    done = run(ROOT / "scripts/fuzzing.py", *words, "--keep", tmp_path / "crashes", timeout=3 * 3600)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def _other_bytes(folder: Path, views: str = "") -> dict[str, fuzzing_reading.Tree]:
    """Return what the library shows, with a changed digest of each file."""
    found = fuzzing_reading.look_at_library(folder)
    for tree in found.values():
        for name, seen in tree.items():
            if seen.parts:
                tree[name] = seen._replace(parts=(*seen.parts[:-1], 1))
    return found


def _silent(folder: Path, views: str = "") -> dict[str, fuzzing_reading.Tree]:
    threading.Event().wait()
    return {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("look", "expected"),
    [(_other_bytes, "the library has 1 bytes with"), (_raise, "not a GlassfsError"), (_silent, "hangs"),
     (_die, "the process died")],
)
def test_live_fuzzer_notices_differences(
    look: object, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    require()
    monkeypatch.setattr(fuzzing_live, "look_at_library", look)
    monkeypatch.setattr(fuzzing_live, "TIMEOUT_SECONDS" if look is _silent else "BATCH", 2)
    chance = random.Random(1)
    seeds = mutants.seeds(wanted="ancestry")
    assert fuzzing_live.fuzz_live(seeds, chance, 1, None, tmp_path / "crashes") == 1
    report = (tmp_path / "crashes/live0001/report.txt").read_text()
    assert expected in report
    assert len(list((tmp_path / "crashes/live0001").iterdir())) == 2
    assert " 0 findings" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    "tree.png", pytest.param("page.png", marks=[needs_chromium, pytest.mark.slow]),
])
def test_pictures_of_the_readme_are_made(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "tree.png":  # without Chromium only this one is made
        monkeypatch.setenv("PATH", "")
    done = run(ROOT / "scripts/make_picture.py", tmp_path)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / name) as drawn, Image.open(ROOT / "docs/images" / name) as kept:
        assert drawn.size == kept.size
        assert len(drawn.convert("RGB").getcolors(1 << 24)) > 1000
    assert (ROOT / "docs/images" / name).stat().st_size < 150_000
