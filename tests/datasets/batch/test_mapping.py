"""Test ``Mapping`` over real processes: no item is lost or processed twice, even if workers end."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from glassfs.datasets.batch.found import BatchError, SearchHit
from glassfs.datasets.batch.mapping import MAX_ITEMS, TASKS_PER_WORKER, Mapping, Processes, Workers, here
from tests.datasets.batch import works
from tests.waiting import SECONDS, wait_until


def result(mapping: Iterator[Any]) -> list[str]:
    return [fault.reason for _, outcome in mapping for fault in outcome.faults]


class Inline(Workers):
    """Run each task when it is submitted, and record the number of its items."""

    width, lost, tries, is_remote = 2, (BrokenPipeError,), 3, False

    def __init__(self) -> None:
        self.most: list[int] = []

    def submit(self, task: Any, *words: Any) -> Future[Any]:
        self.most.append(len(words[1]))
        future: Future[Any] = Future()
        future.set_result(task(*words))
        return future

    def renew(self) -> None:
        raise AssertionError("nothing was lost")

    def stop(self, is_over: bool) -> None:
        pass


@pytest.mark.parametrize("is_ordered", [False, True])
def test_each_item_is_processed_once(is_ordered: bool) -> None:
    assert result(here(works.say, works.items(10))) == list(map(str, range(10))), "in this process"
    with Processes(2) as workers:
        found = result(Mapping(works.say, workers, is_ordered).all(works.items(500)))
    assert Counter(found) == Counter(map(str, range(500)))
    assert not is_ordered or found == list(map(str, range(500)))
    wait_until(lambda: not multiprocessing.active_children())


def test_parts_of_containers_arrive_in_order() -> None:
    expected = [(f"{number}", part) for number in range(9) for part in range(number + 1)]
    assert [outcome.data[:2] for _, outcome in here(works.in_parts, works.items(9))] == expected
    with Processes(2) as workers:
        dones = list(Mapping(works.in_parts, workers, is_ordered=True).all(works.items(9)))
    assert [outcome.data[:2] for _, outcome in dones] == expected
    assert [outcome.rest is None for _, outcome in dones] == [name == f"{part}" for name, part in expected]


def test_tasks_under_way_are_bounded() -> None:
    """Items are taken from the iterator only to be submitted."""
    workers = Inline()
    taken = 0

    def found() -> Iterator[SearchHit]:
        nonlocal taken
        for item in works.items(100_000):
            taken += 1
            yield item

    mapping = Mapping(works.say, workers).all(found())
    for count in range(1, 2000):
        next(mapping)
        assert taken <= count + TASKS_PER_WORKER * workers.width * MAX_ITEMS
    assert max(workers.most) <= MAX_ITEMS


@pytest.mark.parametrize("is_ordered", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_loses_nothing(is_ordered: bool, tmp_path: Path) -> None:
    work = partial(works.die_once, "150", str(tmp_path / "mark"))
    with Processes(2) as workers:
        found = result(Mapping(work, workers, is_ordered).all(works.items(300)))
    assert (tmp_path / "mark").exists()
    assert sorted(found, key=int) == list(map(str, range(300)))
    assert not is_ordered or found == sorted(found, key=int)


@pytest.mark.slow
@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_container_that_ends_its_workers_is_a_fault(is_ordered: bool) -> None:
    with Processes(2) as workers:
        dones = list(Mapping(works.die_of_some, workers, is_ordered).all(works.items(30)))
    found = {item.name: outcome.faults[0].reason for item, outcome in dones}
    assert len(dones) == len(found) == 30
    assert {name for name, reason in found.items() if "killed by the system" in reason} == {"7", "17", "27"}
    assert not is_ordered or list(found) == list(map(str, range(30)))


def test_an_unexpected_error_of_work_is_reported() -> None:
    with pytest.raises(BatchError, match="ZeroDivisionError: not predicted"), Processes(1) as workers:
        result(Mapping(works.fail, workers).all(works.items(3)))
    wait_until(lambda: not multiprocessing.active_children())


def test_workers_that_cannot_start_are_no_fault_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.datasets.batch.mapping._begin_worker", works.begin_and_end)
    with pytest.raises(BatchError, match="end right after they start"), Processes(1) as workers:
        result(Mapping(works.say, workers).all(works.items(3)))


def test_canceled_work_ends_at_once() -> None:
    """Workers in the middle of a long task are killed."""
    with pytest.raises(KeyboardInterrupt), Processes(2) as workers:
        for item in works.items(9):
            workers.submit(works.sleep, item)
        raise KeyboardInterrupt
    wait_until(lambda: not multiprocessing.active_children())


def test_stop_does_not_wait_for_half_a_result(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"""
import os, time
from glassfs.cli import leave
from glassfs.datasets.batch.mapping import Processes
from tests.datasets.batch.works import write_half
if __name__ == "__main__":
    workers = Processes(1)
    workers.submit(write_half, {str(mark)!r})
    while not os.path.exists({str(mark)!r}):
        time.sleep(0.01)
    workers.stop(is_over=False)
    leave(3)
"""
    (tmp_path / "program.py").write_text(code)
    where = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, tmp_path / "program.py"]
    done = subprocess.run(words, env=os.environ | where, capture_output=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (3, b"")
