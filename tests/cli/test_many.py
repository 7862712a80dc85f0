"""Test ``glassfs verify`` over many containers: worker processes, shards, reports, and killed programs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glassfs import errors, installing
from glassfs.cli.many import fault_of
from tests.cli.conftest import sparse_store
from tests.cli.glassfs_command import fails, glassfs
from tests.conftest import DATA, Scale
from tests.datasets.batch.many import (
    children_of,
    command,
    cut_short,
    lines_of,
    many_links,
    most_memory,
    robot,
    same_lines,
    sound,
    stuck,
)
from tests.mount.mounts import is_running
from tests.waiting import SECONDS, wait_until

LONG = "a-folder-with-a-long-name-so-that-a-pipe-is-full-soon-" * 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of 20 sound containers, two with a fault, and files that are no containers."""
    folder = many_links(sound(tmp_path / "sound"), tmp_path / "data", 20)
    for name in ("cut.kas", "000/cut.kas"):
        cut_short(folder / name)
    (folder / "notes.txt").write_text("no container")
    (folder / "empty").touch()
    return folder


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """Return containers with more faults than fit into a pipe that no process reads."""
    return many_links(cut_short(tmp_path / "cut"), tmp_path / LONG, 1000)


@pytest.mark.parametrize("jobs", ["2", *(pytest.param(jobs, marks=pytest.mark.slow) for jobs in ("1", "auto"))])
def test_a_report_has_a_line_for_each_container(folder: Path, jobs: str, tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    done = glassfs("verify", "--jobs", jobs, "--report", report, folder)
    assert (done.status, len(done.lines), done.errors) == (1, 2, [f"22 containers, 2 faults; report in {report}"])
    lines = lines_of(report)
    assert [set(line) for line in lines] == [{"path", "version", "ok", "faults"}] * 22
    assert {line["path"] for line in lines} == {str(path) for path in folder.rglob("*.kas")}
    bad = {line["path"]: line["faults"] for line in lines if not line["ok"]}
    assert sorted(f"{path}: {fault}" for path, faults in bad.items() for fault in faults) == sorted(done.lines)
    assert all(line["faults"] == [] for line in lines if line["ok"])


def test_a_named_file_that_is_no_container_is_a_fault(folder: Path, tmp_path: Path) -> None:
    done = glassfs("verify", "--report", tmp_path / "report.jsonl", folder / "notes.txt")
    assert (done.status, done.lines) == (1, [f"{folder}/notes.txt: is not a container of a known format"])
    assert [line["ok"] for line in lines_of(tmp_path / "report.jsonl")] == [False]


def test_a_missing_source_fails_before_any_work(folder: Path, tmp_path: Path) -> None:
    done = glassfs("verify", folder, tmp_path / "gone", "--report", tmp_path / "report.jsonl")
    fails(done, f"{tmp_path}/gone: No such file or directory")


def test_resume_skips_containers_with_a_line(folder: Path, tmp_path: Path) -> None:
    """Earlier faults count; changed and new containers are read."""
    report = tmp_path / "report.jsonl"
    assert glassfs("verify", folder, "--report", report).status == 1
    before = report.read_bytes()
    again = glassfs("verify", folder, "--report", report, "--resume")
    assert (again.status, again.output, again.errors) == (1, b"", [f"22 containers, 2 faults; report in {report}"])
    assert report.read_bytes() == before
    os.utime(folder / "cut.kas", (1, 1))
    sound(folder / "new.kas")
    third = glassfs("verify", folder, "--report", report, "--resume")
    assert (third.status, third.errors) == (1, [f"23 containers, 2 faults; report in {report}"])
    assert len(third.lines) == 1 and str(folder / "cut.kas") in third.lines[0]
    added = report.read_bytes().removeprefix(before).splitlines()
    assert [json.loads(line)["path"] for line in added] == [str(folder / "cut.kas"), str(folder / "new.kas")]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_resume_after_kill_completes_the_report(faulty: Path, jobs: str, tmp_path: Path) -> None:
    """No worker process is left, and the report equals that of an uninterrupted run."""
    report, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    with stuck(report, "verify", faulty, "--jobs", jobs) as program:
        workers = children_of(program.pid)
        program.kill()
        program.wait()
        wait_until(lambda: not any(map(is_running, workers)))
    assert len(workers) >= (2 if jobs == "2" else 0)
    assert 1 <= len(lines_of(report)) < 1000
    with report.open("ab") as file:
        file.write(b'{"path": "' + b"torn")
    resumed = glassfs("verify", faulty, "--jobs", jobs, "--report", report, "--resume")
    assert (resumed.status, resumed.errors) == (1, [f"1,000 containers, 1,000 faults; report in {report}"])
    glassfs("verify", faulty, "--report", whole)
    assert same_lines(report, whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_resume_after_a_signal_completes_the_report(faulty: Path, number: signal.Signals, tmp_path: Path) -> None:
    """The signal reaches the workers as well, as from a terminal; one line is printed."""
    report = tmp_path / "report.jsonl"
    with stuck(report, "verify", faulty, "--jobs", 2) as program:
        workers = children_of(program.pid)
        os.killpg(program.pid, number)
        _, errors = program.communicate()
        wait_until(lambda: not any(map(is_running, workers)))
    reason = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}.get(number, "its terminal was closed")
    assert errors.decode() == f"glassfs: {reason}; continue with --resume\n"
    assert program.returncode == 128 + number
    assert 1 <= len(lines_of(report)) < 1000
    resumed = glassfs("verify", faulty, "--report", report, "--resume", "--jobs", 2)
    assert resumed.errors == [f"1,000 containers, 1,000 faults; report in {report}"]


def test_sigterm_ends_verify_of_a_large_container(tmp_path: Path) -> None:
    program = subprocess.Popen(command("verify", sparse_store(tmp_path / "large.kas", 8 << 40)), stderr=subprocess.PIPE)
    wait_until(lambda: len(list(Path(f"/proc/{program.pid}/task").iterdir())) > 1)
    program.terminate()
    _, errors = program.communicate(timeout=300)
    assert (program.returncode, errors) == (143, b"glassfs: terminated\n")


@pytest.mark.parametrize(("words", "message"), [
    (["--jobs", "some"], "Invalid value for '--jobs': must be a number up to 1024, or auto"),
    (["--jobs", "9" * 5000], "Invalid value for '--jobs': must be a number up to 1024, or auto"),
    (["--jobs", "-1"], "Invalid value for '--jobs': must be a number up to 1024, or auto"),
    (["--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"], "--jobs and --scheduler cannot be used together"),
    (["--shard", "3/3"], "Invalid value for '--shard': '3/3' is out of range: with N parts, I is 0 to N-1"),
    (["--resume"], "--resume needs --report FILE"),
])
def test_contradicting_options_are_usage_errors(store: Path, words: list[str], message: str) -> None:
    done = glassfs("verify", *words, store)
    fails(done, f"{message} (see 'glassfs verify --help')", 2)


def test_without_dask_the_extra_is_named(store: Path, tmp_path: Path) -> None:
    (tmp_path / "distributed.py").write_text("raise ImportError('none')")
    done = glassfs("verify", "--scheduler", "tcp://127.0.0.1:1", store, PYTHONPATH=str(tmp_path))
    fails(done, f"--scheduler needs Dask: {installing.command('dask')}")


@pytest.mark.slow
def test_memory_is_independent_of_the_number_of_containers(tmp_path: Path, scale: Scale) -> None:
    count = scale(10_000, 10_000, 100_000)
    folder = many_links(sound(tmp_path / "sound"), tmp_path / "data", count)
    program = subprocess.Popen(
        command("verify", folder, "--jobs", 2, "--report", tmp_path / "report.jsonl"), stderr=subprocess.PIPE,
    )
    largest = most_memory(program)
    _, errors = program.communicate()
    assert (program.returncode, errors) == (
        0, f"{count:,} containers, 0 faults; report in {tmp_path}/report.jsonl\n".encode(),
    )
    assert 0 < largest < 200 << 10


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", ["verify", pytest.param("export", marks=pytest.mark.slow)])
def test_resume_reads_containers_of_several_files_again(command: str, jobs: str, tmp_path: Path) -> None:
    """The version of the main file does not show that another file was removed or is back."""
    folder, report = tmp_path / "data", tmp_path / "report.jsonl"
    shutil.copytree(DATA / "wshard/go_chunked", folder)
    part = folder / "go_long_chunk_0001.wshard"
    words: list[str | Path] = [command, "--jobs", jobs, "--report", report, folder]
    words += [tmp_path / "target"] if command == "export" else []
    assert glassfs(*words).status == 0
    part.rename(tmp_path / "part")
    assert glassfs(*words, "--resume").status == 1
    (tmp_path / "part").rename(part)
    assert glassfs(*words, "--resume").status == 0


def test_only_a_second_ctrl_c_ends_cleanup_at_once() -> None:
    code = """
import time
from glassfs.cli.stopping import Stopped, stoppable
with stoppable():
    try:
        print("begun", flush=True)
        time.sleep(3600)
    except Stopped:
        print("cleanup", flush=True)
        time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"begun\n"
        program.send_signal(signal.SIGTERM)
        assert program.stdout.readline() == b"cleanup\n"
        program.send_signal(signal.SIGHUP)
        program.send_signal(signal.SIGINT)
        assert program.wait(SECONDS) == 130


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", ["verify", "export"])
def test_an_unexpected_error_costs_one_container(command: str, jobs: str, tmp_path: Path) -> None:
    folder, report = tmp_path / "data", tmp_path / "report.jsonl"
    folder.mkdir()
    for name in ("a.kdb", "bad.kdb", "c.kdb", "large.kdb"):
        robot(folder / name)
    (tmp_path / "sitecustomize.py").write_text("""
from glassfs.source.local import LocalStore
def failing(before):
    def open_or_fail(self, path, *ahead):
        if path[-1] in ("bad.kdb", "large.kdb"):
            raise KeyError("that") if path[-1] == "bad.kdb" else MemoryError
        return before(self, path, *ahead)
    return open_or_fail
LocalStore.open, LocalStore.found = failing(LocalStore.open), failing(LocalStore.found)
""")
    words = [command, "--jobs", jobs, "--report", report, folder, *[tmp_path / "target"][: command == "export"]]
    done = glassfs(*words, PYTHONPATH=str(tmp_path))
    assert done.status == 1
    reported = " ".join(line for line in (*done.lines, *done.errors) if "cannot be read" in line)
    assert "bad.kdb" in reported and "KeyError: 'that'" in reported and "MemoryError" in reported
    assert "Traceback" not in " ".join(done.errors)
    results = {Path(str(line["path"])).name: line["ok"] for line in lines_of(report)}
    assert not results.pop("bad.kdb", False)
    assert results == {"a.kdb": True, "c.kdb": True}


def test_progress_counts_what_resume_skips(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassfs.cli.many import Progress

    totals: list[int] = []
    for words in ([], ["--resume"]):
        counted: list[int] = []
        monkeypatch.setattr(Progress, "advance", lambda self, count, counted=counted: counted.append(count))
        assert glassfs("verify", folder, "--report", tmp_path / "report.jsonl", *words).status == 1
        totals.append(sum(counted))
    assert totals[0] == totals[1] > 0


@pytest.mark.parametrize(("error", "is_passing"), [
    (errors.Unavailable("x"), True), (errors.NotInstalled("x"), True), (OSError(errno.EMFILE, "x"), True),
    (MemoryError(), True), (errors.Damaged("x"), False), (KeyError("x"), False),
], ids=repr)
def test_what_a_machine_lacks_is_tried_again(error: Exception, is_passing: bool) -> None:
    assert fault_of(error, "a.h5").is_passing is is_passing
