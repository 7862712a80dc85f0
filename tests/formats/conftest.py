"""Containers that several test modules of a format share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.formats.idv_files import made_in
from tests.formats.kinodb_files import three_episodes


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write an IDV file: ``make(fill, name, **options)``."""
    return made_in(tmp_path)


@pytest.fixture
def good(tmp_path: Path) -> bytearray:
    """A KinoDB file of three episodes."""
    return three_episodes(tmp_path)


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """A small tree sequence with rows in every table."""
    from tests.formats.test_tskit import tables

    tables().dump(tmp_path / "made.trees")
    return tmp_path / "made.trees"
