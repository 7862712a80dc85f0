"""Test what a look-up in a local store reads along: first bytes of the version that it describes, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs.errors import Changed
from glassfs.source.local import LocalStore
from tests.source.store_suite import CONTENT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_look_up_reads_first_bytes_along(path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """That of a private file does not depend on an ACL."""
    path.chmod(mode)
    store = LocalStore(path.parent)
    entry, source = store.found((path.name,), 100)
    assert source is not None and entry == store.entry((path.name,))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", None)
        assert source.read_ahead(100) == source.read(0, 100) == CONTENT[:100]
        assert source.read_ahead(50) == CONTENT[:50]
    assert source.read(90, 20) == CONTENT[90:110]
    assert source.read_ahead(200) == CONTENT[:200]
    source.drop_ahead()
    assert source.read(0, 300) == CONTENT[:300]
    source.close()


@pytest.mark.parametrize(("small", "expected"), [(0, 10), (len(CONTENT) - 1, 10), (len(CONTENT), len(CONTENT))])
def test_a_look_up_reads_a_small_file_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, small: int, expected: int,
) -> None:
    sizes = []
    real = os.pread
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda fd, size, offset: sizes.append(size) or real(fd, size, offset))
        _, source = LocalStore(path.parent).found((path.name,), 10, small)
        assert source is not None and source.read_ahead(expected) == CONTENT[:expected]
    assert sizes == [expected]
    source.close()


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_first_bytes_of_a_file_that_changes_are_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch, mode: int,
) -> None:
    path.chmod(mode)
    store = LocalStore(path.parent)
    real = os.pread

    def overtaken(fd: int, size: int, offset: int) -> bytes:
        data = real(fd, size, offset)
        path.write_bytes(b"new")
        return data

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", overtaken)
        entry, source = store.found((path.name,), 100)
    assert source is not None and source.entry == entry
    if entry.size == len(CONTENT):
        with pytest.raises(Changed):
            source.read(0, 3)
    else:
        assert source.read_ahead(100) == b"new"
    source.close()
