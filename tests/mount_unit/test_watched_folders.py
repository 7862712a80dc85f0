"""Changes in folders reach the kernel; names that cannot be watched have short timeouts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs.datasets.joined import open_sources
from glassfs.mount.inodes import ROOT
from glassfs.settings import settings
from tests.memory_store import MemoryStore
from tests.mount_unit.kernel import nodes_of, operations_of, served
from tests.tree.made import made

pytestmark = pytest.mark.usefixtures("made_format")


def test_changes_reported_by_a_store_reach_the_kernel() -> None:
    store = MemoryStore({"c": made(a=b"a"), "sub/d": made(b=b"b"), "p": b"plain"})
    woken: list[int] = []
    sources, kernel = served(store, on_change=lambda: woken.append(1))
    container, inside, deep = kernel.find("/c"), kernel.find("/c/a.bin"), kernel.find("/sub/d")
    sources.refresh()
    woken.clear()
    store.put("c", made(a=b"new"))
    assert woken
    assert sources.refresh() == ["/c"]
    stale = kernel.operations.stale(["/c"])
    assert (ROOT, "c") in stale.entries
    assert {ROOT, container, inside} <= nodes_of(stale)
    store.put("sub/new", b"made")
    assert sources.refresh() == ["/sub/new"]
    stale = kernel.operations.stale(["/sub/new"])
    assert list(stale.entries) == [(kernel.find("/sub"), "new")]
    assert deep not in nodes_of(stale)
    store.remove("p")
    assert sources.refresh() == ["/p"]


def test_file_with_a_hard_link_has_a_short_timeout(tmp_path: Path) -> None:
    """Changes made under its other name are not reported to a watch of this folder."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for name in ("alone", "shared"):
        (folder / name).write_bytes(made(a=b"a"))
    os.link(folder / "shared", outside / "other")
    sources = open_sources([str(folder)])
    with sources.tree:
        operations = operations_of(sources)
        if operations.look_up(ROOT, "alone").entry_timeout != settings.cached:
            pytest.skip("folders cannot be watched here")
        assert operations.look_up(ROOT, "shared").entry_timeout == settings.cached_unwatched
        os.link(folder / "alone", outside / "another")
        assert operations.look_up(ROOT, "alone").entry_timeout == settings.cached_unwatched
