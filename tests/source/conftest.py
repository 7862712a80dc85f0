"""Fixtures for tests of watched folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from glassfs.source.local import LocalStore
from tests.source.watching_lab import Listener, instances, threads
from tests.waiting import wait_until

if TYPE_CHECKING:
    from glassfs.source.watching import Watches


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watches]:
    """Replace the pool of watches for this test; check that nothing is left when all stores are closed."""
    pytest.importorskip("inotify_simple", reason="inotify is Linux's")
    from glassfs.source import watching

    pool = watching.Watches()
    monkeypatch.setattr(watching, "pool", pool)
    before = instances()
    yield pool
    wait_until(lambda: not threads() and instances() <= before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of the store, with the folders ``a`` and ``a/b``."""
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_bytes(b"one")
    return root


@pytest.fixture
def store(pool: Watches, root: Path) -> Iterator[LocalStore]:
    store = LocalStore(root)
    if not store.watch((), lambda path, name: None):
        pytest.skip("nothing can be watched here")
    store.close()
    yield store
    store.close()


@pytest.fixture
def listener() -> Listener:
    return Listener()
