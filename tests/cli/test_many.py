"""Test commands over many containers: worker processes, reports, buckets, and programs that are killed or stopped."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from glassfs import errors
from glassfs.cli.many import fault_of
from tests.cli.glassfs_command import fails, glassfs
from tests.cli.test_export import written
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
from tests.remote.faults import Status, for_each
from tests.remote.s3 import Bucket, S3Server
from tests.security.bombs import write_episodes, write_holes
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


SIGNALS = {
    signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "its terminal was closed",
}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "jobs"), [
    (signal.SIGKILL, 1), *((number, 2) for number in (signal.SIGKILL, *SIGNALS)),
])
def test_resume_after_a_signal_completes_the_report(
    faulty: Path, number: signal.Signals, jobs: int, tmp_path: Path,
) -> None:
    """Others than SIGKILL reach the workers as well, as from a terminal, and one line is printed; no worker is left."""
    report, whole = tmp_path / "report.jsonl", tmp_path / "whole.jsonl"
    with stuck(report, "verify", faulty, "--jobs", str(jobs)) as program:
        workers = children_of(program.pid)
        (os.kill if number == signal.SIGKILL else os.killpg)(program.pid, number)
        _, errors = program.communicate()
        wait_until(lambda: not any(map(is_running, workers)))
    assert len(workers) >= (2 if jobs == 2 else 0)
    if number == signal.SIGKILL:
        assert program.returncode == -number
    else:
        assert program.returncode == 128 + number
        assert errors.decode() == f"glassfs: {SIGNALS[number]}; continue with --resume\n"
    assert 1 <= len(lines_of(report)) < 1000
    with report.open("ab") as file:
        file.write(b'{"path": "' + b"torn")
    resumed = glassfs("verify", faulty, "--jobs", jobs, "--report", report, "--resume")
    assert (resumed.status, resumed.errors) == (1, [f"1,000 containers, 1,000 faults; report in {report}"])
    glassfs("verify", faulty, "--report", whole)
    assert same_lines(report, whole)


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
    fails(done, "--scheduler needs Dask: install glassfs[dask]")


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
from glassfs.cli import Stopped, stoppable
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
    def open_or_fail(self, path):
        if path[-1] in ("bad.kdb", "large.kdb"):
            raise KeyError("that") if path[-1] == "bad.kdb" else MemoryError
        return before(self, path)
    return open_or_fail
LocalStore.open = failing(LocalStore.open)
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


# Of a bucket.


@pytest.fixture
def remote_folder(tmp_path: Path) -> Path:
    """Return a folder with the contents of the bucket."""
    folder = tmp_path / "here" / "data"
    (folder / "sub").mkdir(parents=True)
    sound(folder / "a.kas")
    robot(folder / "sub/robot.kdb", 3)
    robot(folder / "sub/odd % name?#.kdb", 2)
    cut_short(folder / "sub/cut.kas")
    (folder / "text.txt").write_text("text")
    return folder


@pytest.fixture
def bucket(remote_folder: Path) -> Bucket:
    files = (path for path in remote_folder.rglob("*") if path.is_file())
    return Bucket({str(path.relative_to(remote_folder.parent)): path.read_bytes() for path in files})


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_export_of_a_bucket_is_that_of_files(s3: S3Server, remote_folder: Path, jobs: str, tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    options = ("-o", f"endpoint={s3.url},region=us-east-1", "--jobs", jobs, "--report", report)
    assert glassfs("export", *options, "s3://bucket/data", tmp_path / "one").status == 0
    assert glassfs("export", remote_folder, tmp_path / "two").status == 0
    assert written(tmp_path / "one") == written(tmp_path / "two") != {}
    assert all(line["ok"] for line in lines_of(report))


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_resume_retries_containers_that_a_server_refused(
    s3: S3Server, remote_folder: Path, jobs: str, tmp_path: Path,
) -> None:
    """A container that could not be read now has no line in the report."""
    report = tmp_path / "report.jsonl"
    options = ("-o", f"endpoint={s3.url},region=us-east-1,timeout=1", "--jobs", jobs, "--report")
    verify = ("verify", *options, report, "s3://bucket/data")
    export = ("export", *options, tmp_path / "export.jsonl", "s3://bucket/data/sub", tmp_path / "target")
    s3.faults = for_each(Status(503), lambda request: "a.kas" in request.path or "robot.kdb" in request.path)
    done = glassfs(*verify)
    assert (done.status, done.errors) == (1, [f"4 containers, 3 faults; report in {report}"])
    assert any(line.startswith("s3://bucket/data/sub/cut.kas: is cut short") for line in done.lines)
    assert sorted(str(line["path"]) for line in lines_of(report)) == [
        f"s3://bucket/data/sub/{name}" for name in ("cut.kas", "odd % name?#.kdb")
    ]
    assert glassfs(*export).status == 1
    assert not [line for line in lines_of(tmp_path / "export.jsonl") if "robot" in str(line["path"])]
    s3.faults = []
    again = glassfs(*verify, "--resume")
    assert (again.status, again.output, again.errors) == (1, b"", [f"4 containers, 1 fault; report in {report}"])
    assert len(lines_of(report)) == 4
    glassfs(*export, "--resume")
    assert (tmp_path / "target/robot.kdb").is_dir()


# Ctrl-C ends a command at once, in the middle of a container that would take minutes.


AT_MOST_SECONDS = 20.0
"""Generous: a command that is not interrupted takes minutes."""
COMMANDS = {
    "verify": ["a.kdb"],
    "export": ["a.kdb", "out"],
    "cat": ["a.kdb", "episodes/0/images/cam/000009.png"],
    "episodes": ["a.kdb", "--output", "out.parquet"],
}
JOBS = [(command, jobs) for command in ("verify", "export", "episodes") for jobs in ("1", "4")]


def running(session: int) -> list[int]:
    """Return the processes of a session, except those that have ended and are waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, number = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state != "Z":
                found.append(int(path.name))
    return found


def opened(session: int, file: Path) -> bool:
    """Whether a process of a session has the file open."""
    for number in running(session):
        with suppress(OSError):
            if any(os.path.samefile(path, file) for path in Path(f"/proc/{number}/fd").iterdir() if path.exists()):
                return True
    return False


@pytest.mark.parametrize(("command", "jobs"), [
    ("cat", ""), *(pytest.param(*words, marks=[pytest.mark.slow] * (words != ("verify", "4"))) for words in JOBS),
])
def test_ctrl_c_ends_a_command_within_a_container(command: str, jobs: str, tmp_path: Path) -> None:
    """The signal reaches worker processes as well, as from a terminal. None is left, and no file that looks whole."""
    container = tmp_path / "a.kdb"
    if command == "episodes":
        write_episodes(container, 100_000)
    else:
        write_holes(container)
    words = [sys.executable, "-m", "glassfs", command, *COMMANDS[command], *(["--jobs", jobs] if jobs else [])]
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as program:
        wait_until(lambda: opened(program.pid, container) or program.poll() is not None)
        os.killpg(program.pid, signal.SIGINT)
        output, errors = program.communicate(timeout=AT_MOST_SECONDS)
        wait_until(lambda: not running(program.pid))
    lines = errors.decode().splitlines()
    assert program.returncode == 130
    assert output == b""
    assert lines[-1].startswith("glassfs: interrupted")
    assert all(line.startswith("glassfs: ") and "Traceback" not in line for line in lines)
    assert not (tmp_path / "out.parquet").exists()
    assert not list(tmp_path.glob("out/**/images/*/*"))
