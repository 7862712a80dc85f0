"""Containers that several test modules of a format share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from writers.idv import IdvWriter

from glassfs.sandbox.client import Sandbox
from tests.formats.kinodb_files import three_episodes


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write an IDV file of what ``fill`` adds to a writer: ``make(fill, name, **options)``."""
    def write(fill: Callable[[IdvWriter], None], name: str = "made.idv", **options: Any) -> Path:
        with IdvWriter(tmp_path / name, **options) as view:
            fill(view)
        return tmp_path / name

    return write


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the requests to workers, as they are made."""
    requests: list[dict[str, Any]] = []
    ask = Sandbox.ask

    def counted(self: Sandbox, request: dict[str, Any], most: int = 0) -> tuple[Any, bytearray]:
        requests.append(request)
        return ask(self, request, most)

    monkeypatch.setattr(Sandbox, "ask", counted)
    return requests


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder for what programs leave to later ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GLASSFS_CATALOGUE", "yes")
