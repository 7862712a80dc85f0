"""Fixtures for the tests of the kernel side without a kernel."""

from __future__ import annotations

import pytest

from glassfs.formats import registry
from tests.tree.made import FORMAT


@pytest.fixture
def made_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other format is built in."""
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
