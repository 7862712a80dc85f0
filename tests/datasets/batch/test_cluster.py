"""Test a Dask cluster with a real scheduler and real workers, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.glassfs_command import fails, glassfs
from tests.conftest import DATA
from tests.datasets.batch.many import (
    command,
    cut_short,
    lines_of,
    many_links,
    robot,
    same_lines,
    sound,
    stuck,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@contextmanager
def started(log: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program of Dask in a session of its own, and kill the session at the end."""
    with log.open("wb") as file:
        program = subprocess.Popen(
            [sys.executable, "-m", "dask", *map(str, words)], stdout=file, stderr=file, start_new_session=True,
        )
    try:
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


@contextmanager
def started_scheduler(log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a scheduler; yield its address and process."""
    words = ("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0")
    with started(log, *words) as program:
        wait_until(lambda: b"Scheduler at" in log.read_bytes() or program.poll() is not None)
        assert program.poll() is None, log.read_text()
        yield next(line.split()[-1] for line in log.read_text().splitlines() if "Scheduler at" in line), program


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started_scheduler(tmp_path_factory.mktemp("scheduler") / "log") as (address, _):
        yield address


@contextmanager
def worker(scheduler: str, place: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    place.mkdir()
    options = ("--nthreads", "1", "--no-dashboard", "--local-directory", place, "--host", "127.0.0.1", *words)
    with started(place / "log", "worker", scheduler, *options) as program:
        wait_until(lambda: b"Registered to" in (place / "log").read_bytes() or program.poll() is not None)
        assert program.poll() is None, (place / "log").read_text()
        yield program


@pytest.fixture(scope="module")
def two_workers(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("workers")
    with worker(scheduler, place / "one"), worker(scheduler, place / "two"):
        yield scheduler


def test_work_of_a_killed_worker_is_repeated_once(scheduler: str, tmp_path: Path) -> None:
    """The other worker repeats it, and the report has each container once."""
    folder = many_links(cut_short(tmp_path / "cut"), tmp_path / "data", 1500)
    report, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    with worker(scheduler, tmp_path / "one", "--no-nanny"), worker(scheduler, tmp_path / "two", "--no-nanny") as two:
        with stuck(report, "verify", folder, "--scheduler", scheduler) as program:
            two.kill()
            two.wait()
            assert len(lines_of(report)) < 1500
            output, errors = program.communicate()
        assert errors.startswith(b"1,500 containers, 1,500 faults")
        assert program.returncode == 1
    assert set(Counter(output.splitlines()).values()) == {1}
    glassfs("verify", folder, "--report", whole)
    assert same_lines(report, whole)


def test_sigterm_ends_the_command_with_one_line(two_workers: str, tmp_path: Path) -> None:
    folder = many_links(cut_short(tmp_path / "cut"), tmp_path / "data", 1500)
    with stuck(tmp_path / "report.jsonl", "verify", folder, "--scheduler", two_workers) as program:
        program.send_signal(signal.SIGTERM)
        _, errors = program.communicate()
    assert (program.returncode, errors) == (143, b"glassfs: terminated; continue with --resume\n")


def test_relative_paths_are_printed_as_typed(two_workers: str, tmp_path: Path) -> None:
    """The workers have another working directory."""
    many_links(robot(tmp_path / "robot"), tmp_path / "data", 20, ".kdb")
    cut_short(tmp_path / "data/cut.kas")
    words = command("verify", "data", "--scheduler", two_workers, "--report", "report.jsonl")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("data/cut.kas: is cut short") and len(done.stdout.splitlines()) == 1
    assert {line["path"] for line in lines_of(tmp_path / "report.jsonl")} == {
        str(path.relative_to(tmp_path)) for path in (tmp_path / "data").rglob("*.k*")
    }


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_episodes_are_those_of_one_process(two_workers: str, form: str) -> None:
    one = glassfs("episodes", DATA, "--format", form)
    done = glassfs("episodes", DATA, "--format", form, "--scheduler", two_workers)
    assert done.output == one.output
    assert len(done.errors) == len(one.errors) > 10


def test_a_scheduler_that_ends_is_reported_in_one_line(tmp_path: Path) -> None:
    folder = many_links(cut_short(tmp_path / "cut"), tmp_path / "data", 1500)
    report = tmp_path / "report.jsonl"
    with (
        started_scheduler(tmp_path / "log") as (address, scheduler), worker(address, tmp_path / "one", "--no-nanny"),
        stuck(report, "verify", folder, "--scheduler", address) as program,
    ):
        scheduler.kill()
        scheduler.wait()
        _, errors = program.communicate()
    assert program.returncode == 1
    assert len(errors.splitlines()) == 1
    assert b"the scheduler is gone" in errors


def test_an_invalid_scheduler_address_is_an_error(tmp_path: Path) -> None:
    fails(
        glassfs("verify", "--scheduler", "nonsense://x", sound(tmp_path / "a.kas")),
        "nonsense://x: the scheduler does not answer: unknown address scheme 'nonsense' (known schemes: "
        "['inproc', 'tcp', 'tls', 'ucx', 'ws', 'wss'])",
    )
