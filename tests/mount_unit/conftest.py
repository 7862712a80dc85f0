"""Fixtures for the tests of the kernel side without a kernel."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from glassfs.formats import registry
from tests.mount_unit.crews import Bench
from tests.tree.made import FORMAT


@pytest.fixture
def made_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other format is built in."""
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads are interrupted all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.crew.start()
    yield made
    made.close()
