"""The engine without a kernel: requests that are interrupted or counted, and a lack of memory."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from glassfs.mount.engines import engine as engine_module
from glassfs.mount.engines import wire
from glassfs.mount.engines.answers import Buffers
from glassfs.mount.engines.crew import Shares, Task, Worker
from glassfs.mount.engines.engine import Engine
from glassfs.mount.engines.wire import Opcode
from glassfs.mount.errors import Failures
from glassfs.settings import settings
from tests.mount_unit.crews import Bench, progress
from tests.mount_unit.protocol import kernel_of
from tests.waiting import wait_until


def engine_of(bench: Bench) -> tuple[Engine, list[tuple[int, int]]]:
    """Return an engine over a crew, and the list of the requests that it answers with an error."""
    answered: list[tuple[int, int]] = []
    engine = Engine(kernel_of().operations, Failures())
    engine._crew = cast(Any, bench.crew)
    engine._answers = cast(Any, SimpleNamespace(fail=lambda unique, number: answered.append((unique, number))))
    return engine, answered


def test_interrupted_requests_go_on_while_their_threads_ask_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now))
    engine, answered = engine_of(bench)
    bench.hang(1)
    numbers = bench.ask(Opcode.LOOKUP, 1, 3)
    bench.wait(lambda: len(bench.begun) == 3)
    first, again, other = (progress(bench.crew)[number] for number in numbers)
    first.thread = again.thread = threading.get_native_id()
    again.ident = first.ident
    engine._interrupted.append((now, first.unique))
    for _ in range(3):
        engine.tick()
        assert answered == [(first.unique, errno.EINTR)]
        assert not first.is_canceled
        assert set(engine._unanswered()) == {again, other}
        now += settings.repetition / 2
    engine._interrupted.append((now, again.unique))
    engine.tick()
    assert again.is_canceled  # it only waits for the first one
    assert not first.is_canceled
    now += settings.repetition
    engine.tick()
    assert first.is_canceled
    assert len(answered) == 2
    bench.release(1)


def test_interrupted_requests_that_hang_are_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now))
    engine, answered = engine_of(bench)
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, Shares().volume + 10)
    bench.wait_for_deferral(hanging)
    done = bench.ask(Opcode.LOOKUP, 2)
    bench.wait_for_answers(done)
    wait_until(lambda: done[0] not in progress(bench.crew))
    begun = bench.begun[0]
    task = progress(bench.crew)[begun]
    waiting = next(number for number in hanging if number not in bench.begun)
    for number in (begun, done[0], waiting):
        engine._interrupted.append((now + settings.interruption, number))
    engine.tick()
    assert answered == []
    now += settings.interruption
    engine.tick()
    now += settings.repetition
    engine.tick()
    assert sorted(answered) == sorted([(begun, errno.EINTR), (waiting, errno.EINTR)])
    assert task.is_canceled
    assert waiting not in progress(bench.crew)
    bench.release(1)
    bench.wait_for_answers([number for number in hanging if number != waiting])
    assert waiting not in bench.begun


def test_requests_without_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, answered = engine_of(Bench())
    engine._descriptor, writable = os.pipe()
    worker = Worker()
    worker.state = Buffers()
    made = iter([MemoryError(), MemoryError(), Task(Opcode.GETATTR, 6, 1, b"")])
    monkeypatch.setattr(engine_module, "Task", Mock(side_effect=made))
    for opcode, unique in ((Opcode.GETATTR, 2), (Opcode.FORGET, 4), (Opcode.GETATTR, 6)):
        os.write(writable, wire.IN_HEADER.pack(wire.IN_HEADER.size, opcode, unique, 1, 0, 0, 1, 0).ljust(4096))
        worker.state.request = worker.state.request[:4096]
    task = engine._take(worker)
    assert task is not None
    assert task.unique == 6
    assert answered == [(2, errno.ENOMEM)]  # there is no answer to the other one
    os.close(writable)
    os.close(engine._descriptor)
