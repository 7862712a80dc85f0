"""Test mapped bytes of sources: only of the opened version, and only inside the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs.errors import Changed, Damaged
from glassfs.source.local import LocalStore
from glassfs.source.sealed import SealedSource
from tests.memory_store import MemoryStore

RAW = bytes(range(256)) * 64


@pytest.mark.parametrize(("offset", "size"), [(0, len(RAW)), (1, 3), (4095, 4098), (8192, 8192), (len(RAW) - 1, 1)])
def test_mapped_bytes_are_those_of_the_opened_file(tmp_path: Path, offset: int, size: int) -> None:
    (tmp_path / "a").write_bytes(RAW)
    source = LocalStore(tmp_path).open(("a",))
    mapped = source.mapped(offset, size)
    assert mapped is not None and mapped.readonly and bytes(mapped) == RAW[offset : offset + size]
    os.replace(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").write_bytes(b"other" * 10_000)
    source.close()
    assert bytes(mapped) == RAW[offset : offset + size]


@pytest.mark.parametrize(("offset", "size"), [(0, len(RAW) + 1), (-1, 3), (len(RAW), 1), (1 << 70, 1), (5, 0)])
def test_nothing_outside_the_file_is_mapped(tmp_path: Path, offset: int, size: int) -> None:
    (tmp_path / "a").write_bytes(RAW)
    assert LocalStore(tmp_path).open(("a",)).mapped(offset, size) is None


def test_a_changed_file_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(RAW)
    source = LocalStore(tmp_path).open(("a",))
    os.truncate(tmp_path / "a", 100)
    with pytest.raises(Changed):
        source.mapped(0, len(RAW))


def test_a_sealed_source_is_verified_before_mapping(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(RAW)
    source = SealedSource(LocalStore(tmp_path).open(("a",)), "0" * 64)
    source.seal()
    with pytest.raises(Damaged):
        source.mapped(0, 10)


def test_other_stores_map_nothing() -> None:
    assert MemoryStore({"a": RAW}).open(("a",)).mapped(0, 10) is None
