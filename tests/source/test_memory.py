"""Test that the memory store of the tests meets the contract of a store."""

from __future__ import annotations

import pytest

from tests.memory_store import MemoryStore
from tests.source.store_suite import Lab, StoreSuite


class MemoryLab(Lab):
    def __init__(self) -> None:
        self.store: MemoryStore = MemoryStore()

    def put(self, path: str, data: bytes) -> None:
        self.store.put(path, data)

    def rewrite(self, path: str, data: bytes) -> None:
        self.store.rewrite(path, data)

    def remove(self, path: str) -> None:
        self.store.remove(path)

    def link(self, path: str, target: str) -> None:
        self.store.link(path, target)

    def set_permissions(self, path: str, permissions: int) -> None:
        self.store.set_permissions(path, permissions)


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def lab(self) -> Lab:
        return MemoryLab()
