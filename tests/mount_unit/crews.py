"""A crew at work, whose requests come from a queue."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable

from glassfs.mount.engines.crew import Crew, Shares, Task, Worker
from glassfs.mount.engines.wire import Opcode
from glassfs.names import RESERVED
from tests.waiting import SECONDS, wait_for, wait_until

VOLUME = 1_000_000
"""Node ids of one volume."""
OWN = 99
"""The volume of the mount's own directory."""


class Bench:
    """A crew at work. Requests about a volume that ``hangs`` are answered when it is released."""

    def __init__(self, shares: Shares = Shares()) -> None:  # noqa: B008
        self.coming: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.answered: Counter[int] = Counter()
        self.busy: Counter[tuple[str, bool]] = Counter()
        self.most: Counter[tuple[str, bool]] = Counter()
        self.gates: dict[str, threading.Event] = {}
        self.computes = False
        """Whether requests that hang use the processor."""
        self.refused: list[int] = []
        self.begun: list[int] = []
        self.ended = threading.Event()
        self.changed = threading.Condition()
        self.unique = 0
        self.make_state: Callable[[], None] = lambda: None
        self.crew: Crew = Crew(
            self.take, self.answer, lambda: self.make_state(), self.volume_of, self.refuse, self.ended.set, shares,
        )

    def take(self, worker: Worker) -> Task | None:
        task = self.coming.get()
        if task is None:
            self.coming.put(None)
        return task

    def volume_of(self, ident: int) -> str:
        return RESERVED if ident // VOLUME == OWN else str(ident // VOLUME)

    def answer(self, worker: Worker, task: Task) -> None:
        kind = str(task.ident // VOLUME), task.opcode == Opcode.READ
        with self.changed:
            self.begun.append(task.unique)
            self.busy[kind] += 1
            self.most[kind] = max(self.most[kind], self.busy[kind])
            self.changed.notify_all()
        gate = self.gates.get(kind[0])
        if gate is not None:
            task.has_computed = self.computes
            gate.wait()
        with self.changed:
            self.busy[kind] -= 1
            self.answered[task.unique] += 1
            self.changed.notify_all()

    def refuse(self, task: Task) -> None:
        self.refused.append(task.unique)

    def hang(self, volume: int) -> None:
        self.gates[str(volume)] = threading.Event()

    def release(self, volume: int) -> None:
        self.gates.pop(str(volume)).set()

    def ask(self, opcode: Opcode, volume: int, times: int = 1, size: int = 0, owner: int = 1000) -> list[int]:
        """Send requests of a user about nodes of a volume; return their numbers."""
        numbers = []
        for _ in range(times):
            self.unique += 1
            numbers.append(self.unique)
            self.coming.put(Task(opcode, self.unique, volume * VOLUME + self.unique, b"", size, owner=owner))
        return numbers

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, SECONDS)

    def wait_for_answers(self, numbers: list[int]) -> None:
        self.wait(lambda: all(self.answered[number] for number in numbers))

    def wait_for_deferral(self, numbers: list[int]) -> None:
        """Wait until each of these hanging requests was begun or deferred."""
        wait_until(lambda: self.deferred + sum(self.busy.values()) == len(numbers))

    @property
    def deferred(self) -> int:
        return sum(map(len, self.crew._queues.values()))

    def close(self) -> None:
        for volume in list(self.gates):
            self.release(int(volume))
        self.coming.put(None)
        wait_for(self.ended)
        with self.crew._lock:
            while self.crew._parked:
                self.crew._parked.pop().needed.release()


def progress(crew: Crew) -> dict[int, Task]:
    """The requests that are not answered yet."""
    return {task.unique: task for task in crew.tasks()}
