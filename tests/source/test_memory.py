"""Test that the memory store of the tests meets the contract of a store."""

from __future__ import annotations

import pytest

from glassfs.source import Store
from tests.memory_store import MemoryStore
from tests.source.store_suite import Lab, StoreSuite


class MemoryLab(MemoryStore, Lab):
    def __init__(self) -> None:
        super().__init__()
        self.store: Store = self


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def lab(self) -> Lab:
        return MemoryLab()
