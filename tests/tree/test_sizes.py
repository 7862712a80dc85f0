"""B8: how much work finding the size of a file may take, compared with the size of its container."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from glassfs import work
from glassfs.content.data import Data
from glassfs.errors import TooLarge
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import EXPANSION, SIZING_BYTES, File
from tests.tree.trees import origin

STORED = 1000
ALLOWED = SIZING_BYTES + EXPANSION * STORED


class Laborious(Data):
    """Data whose size is found by reading ``needed`` bytes."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.passes = 0

    is_sized = False

    @property
    def size(self) -> int:
        self.passes += 1
        for _ in range(10):
            work.check(self.needed // 10)
        return 7

    def read_into(self, buffer: memoryview, offset: int) -> None:
        raise NotImplementedError


def file_of(data: Data, stored: int = STORED) -> File:
    source = cast(Any, SimpleNamespace(size=stored, name="a.kdb"))
    return File("a.parquet", 5, replace(origin(), lease=Lease([source] if stored else [])), data)


def test_size_beyond_the_budget_is_refused_once_and_for_all() -> None:
    data = Laborious(ALLOWED + 100)
    file = file_of(data)
    for _ in range(2):
        with pytest.raises(TooLarge, match=r"^a\.kdb: a\.parquet: its size takes too long"):
            _ = file.size
    assert data.passes == 1
    work.check(ALLOWED)  # the budget is over


def test_processor_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, *[11.0] * 10])
    monkeypatch.setattr(work, "time", SimpleNamespace(thread_time=lambda: next(times)))
    with pytest.raises(TooLarge):
        _ = file_of(Laborious(0)).size


def test_what_is_of_no_container_has_limits_of_its_own() -> None:
    assert file_of(Laborious(1 << 50), stored=0).size == 7
