"""What a session does without a kernel: its watch goes on whatever the sources do."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import cast

import pytest

from glassfs.mount.errors import Failures
from glassfs.mount.session import Session


def test_the_watch_outlives_what_goes_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """Without it nothing new would be shown any more; the log says once what it was."""
    outcomes: list[list[str] | Exception] = [ValueError("unexpected"), ["/changed"], ValueError("unexpected")]

    def refresh() -> list[str]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    session = cast(Session, SimpleNamespace(sources=SimpleNamespace(refresh=refresh), failures=Failures()))
    with caplog.at_level(logging.ERROR):
        assert [Session._refreshed(session) for _ in range(3)] == [[], ["/changed"], []]
    assert [record.getMessage() for record in caplog.records] == ["ValueError: unexpected"]
