"""Calls that may hang: results and errors come back, and what hangs is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from glassfs.datasets.timed_calls import TimedCalls
from glassfs.errors import Changed, DeviceFailed


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def calls() -> TimedCalls:
    return TimedCalls(600.0)


def hang(
    calls: TimedCalls, key: object, volume: str, do: Callable[[], object], probe: Callable[[], object] | None = None,
) -> None:
    """Make a call that does not return; only these have a short timeout."""
    calls.timeout_seconds = 0.05
    with pytest.raises(DeviceFailed):
        calls.call(key, volume, do, probe)
    calls.timeout_seconds = 600.0


def test_results_and_errors_come_back(calls: TimedCalls) -> None:
    threads = {calls.call("key", "disk", threading.get_ident) for _ in range(20)}
    assert threading.get_ident() not in threads

    def fail() -> None:
        raise Changed("was replaced")

    for _ in range(2):
        with pytest.raises(Changed, match="was replaced"):
            calls.call("key", "disk", fail)


@pytest.mark.parametrize("is_probed", [False, True])
def test_a_dead_volume_is_left_alone(calls: TimedCalls, go_on: threading.Event, is_probed: bool) -> None:
    for number in range(TimedCalls.most_of_volume):
        hang(calls, number, "dead", go_on.wait, go_on.wait if is_probed else None)
    with pytest.raises(DeviceFailed):
        calls.call("well", "dead", lambda: pytest.fail("it is tried"), lambda: pytest.fail("it is tried"))
    assert calls.call("well", "other", lambda: 1) == 1


def test_a_volume_that_answers_is_not_to_blame(calls: TimedCalls, go_on: threading.Event) -> None:
    probed: list[int] = []
    for number in range(TimedCalls.most_of_volume + 1):
        hang(calls, number, "disk", go_on.wait, lambda: probed.append(1))
    assert probed
    assert calls.call("well", "disk", lambda: 1) == 1
