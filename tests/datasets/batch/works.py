"""Work for tests of ``Mapping``; worker processes import this module by its name."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from glassfs.datasets.batch.found import Outcome, Problem, SearchHit
from glassfs.source import Kind

OutcomeOf = Callable[[SearchHit], Outcome]


def item(name: str) -> SearchHit:
    return SearchHit(name, name, (), name, name, Kind.FILE, "1", 1)


def items(count: int) -> Iterator[SearchHit]:
    return (item(f"{number}") for number in range(count))


def named(one: SearchHit) -> Outcome:
    return Outcome((Problem("", one.name),))


def say() -> AbstractContextManager[OutcomeOf]:
    return nullcontext(named)


def die_of_some() -> AbstractContextManager[OutcomeOf]:
    """Kill the worker at each container whose number ends in 7."""
    return nullcontext(lambda one: os.kill(os.getpid(), signal.SIGKILL) if one.name.endswith("7") else named(one))


def die_once(name: str, mark: str) -> AbstractContextManager[OutcomeOf]:
    """Kill the first worker that gets the container ``name``, after creating the file ``mark``."""
    def outcome(one: SearchHit) -> Outcome:
        if one.name == name and not os.path.exists(mark):
            with open(mark, "wb"):
                os.kill(os.getpid(), signal.SIGKILL)
        return named(one)

    return nullcontext(outcome)


def in_parts() -> AbstractContextManager[OutcomeOf]:
    """Return as many large parts per container as its number says."""
    def outcome(one: SearchHit) -> Outcome:
        part = one.rest or 0
        rest = part + 1 if part < int(one.name) else None
        return Outcome(data=(one.name, part, b"x" * 300_000), rest=rest)

    return nullcontext(outcome)


def begin_and_end() -> None:
    os._exit(1)


def fail() -> AbstractContextManager[OutcomeOf]:
    raise ZeroDivisionError("not predicted")


def sleep(one: SearchHit) -> None:
    time.sleep(3600)


def write_half(mark: str) -> None:
    """Behave like a worker that is stopped while it sends a result."""
    worker: Any = multiprocessing.current_process()
    os.write(worker._args[1]._writer.fileno(), struct.pack("!i", 100) + b"half")
    with open(mark, "wb"):
        time.sleep(3600)
