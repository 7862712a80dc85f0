"""The text of the status file."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from glassfs.mount import status as module
from glassfs.mount.status import StatusText
from glassfs.settings import settings


class Status:
    """A status that takes ``cost`` seconds to make, and ``slow`` seconds the first time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float, slow: float | None = None) -> None:
        self.made = 0
        self.now = self.used = 0.0
        self._cost = cost
        self._slow = cost if slow is None else slow
        fake = SimpleNamespace(monotonic=lambda: self.now, thread_time=lambda: self.used)
        monkeypatch.setattr(module, "time", fake)

    def __call__(self) -> dict[str, Any]:
        self.made += 1
        self.used += self._cost if self.made > 1 else self._slow
        return {"made": self.made}


def test_status_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Status(monkeypatch, settings.status_quick / 2, slow=100 * settings.status_quick)
    text = StatusText(status)
    assert [json.loads(text())["made"] for _ in range(3)] == [1, 2, 3]


def test_status_that_takes_long_is_made_for_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Status(monkeypatch, 0.25)
    text = StatusText(status)
    for number in range(400):
        status.now = number / 16
        assert json.loads(text())["made"] == status.made
    assert status.used == pytest.approx(25 / 10 + 0.25)  # the first one is followed by another
