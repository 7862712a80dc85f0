"""Work for tests of ``Mapping``; worker processes import this module by its name."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glassfs.datasets.batch.contract import Outcome, Problem, SearchHit, WorkItem
from glassfs.source import Kind


def item(name: str) -> WorkItem:
    return WorkItem(SearchHit(name, name, (), name, name, Kind.FILE, "1", 1))


def items(count: int) -> Iterator[WorkItem]:
    return (item(f"{number}") for number in range(count))


def say(given: Iterator[WorkItem]) -> Iterator[Outcome]:
    for one in given:
        yield Outcome((Problem("", one.found.name),))


def die_of_some(given: Iterator[WorkItem]) -> Iterator[Outcome]:
    """Kill the worker at each container whose number ends in 7."""
    for one in given:
        if one.found.name.endswith("7"):
            os.kill(os.getpid(), signal.SIGKILL)
        yield Outcome((Problem("", one.found.name),))


@dataclass(frozen=True)
class DieOnce:
    """Kill the first worker that gets the container ``name``, after creating the file ``mark``."""

    name: str
    mark: str

    def __call__(self, given: Iterator[WorkItem]) -> Iterator[Outcome]:
        for one in given:
            if one.found.name == self.name and not os.path.exists(self.mark):
                with open(self.mark, "wb"):
                    os.kill(os.getpid(), signal.SIGKILL)
            yield Outcome((Problem("", one.found.name),))


def in_parts(given: Iterator[WorkItem]) -> Iterator[Outcome]:
    """Yield as many large parts per container as its number says."""
    for one in given:
        part = one.rest or 0
        rest = part + 1 if part < int(one.found.name) else None
        yield Outcome(data=(one.found.name, part, b"x" * 300_000), rest=rest)


def begin_and_end() -> None:
    os._exit(1)


def fail(given: Iterator[WorkItem]) -> Iterator[Outcome]:
    yield from ()
    raise ZeroDivisionError("not predicted")


def sleep(given: Iterator[WorkItem]) -> Iterator[Outcome]:
    for _ in given:
        time.sleep(3600)
        yield Outcome()


def write_half(mark: str) -> None:
    """Behave like a worker that is stopped while it sends a result."""
    worker: Any = multiprocessing.current_process()
    os.write(worker._args[1]._writer.fileno(), struct.pack("!i", 100) + b"half")
    with open(mark, "wb"):
        time.sleep(3600)
