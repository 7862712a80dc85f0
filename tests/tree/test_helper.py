"""What may hang is done on another thread: results and errors come back, and what hangs is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from glassfs.errors import Changed, DeviceFailed
from glassfs.tree.sources.helper import MOST_OF_VOLUME, Helper


@pytest.fixture
def goes_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_results_and_errors_come_back() -> None:
    helper = Helper(60.0)
    me = threading.get_ident()
    threads = {helper.call("key", "disk", threading.get_ident) for _ in range(20)}
    assert len(threads) == 1 and me not in threads, "one thread, one after another"

    def fail() -> None:
        raise Changed("was replaced")

    for _ in range(2):
        with pytest.raises(Changed, match="was replaced"):
            helper.call("key", "disk", fail)
    helper.close()
    assert helper.call("key", "disk", lambda: 7) == 7
    helper.close()


def test_what_hangs_is_left_behind_and_not_tried_again(goes_on: threading.Event) -> None:
    helper = Helper(0.05)
    tried: list[int] = []

    def hang() -> None:
        tried.append(1)
        goes_on.wait()

    for _ in range(3):
        with pytest.raises(DeviceFailed):
            helper.call("key", "disk", hang)
    assert len(tried) == 1
    assert helper.call("other", "disk", lambda: "well") == "well"
    goes_on.set()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            assert helper.call("key", "disk", lambda: "again") == "again"
            break
        except DeviceFailed:
            time.sleep(0.01)
    else:
        pytest.fail("it is not asked again")
    helper.close()


def test_a_disk_on_which_several_things_hang_is_left_alone(goes_on: threading.Event) -> None:
    helper = Helper(0.05)
    for number in range(MOST_OF_VOLUME):
        with pytest.raises(DeviceFailed):
            helper.call(number, "dead", goes_on.wait)
    with pytest.raises(DeviceFailed):
        helper.call("well", "dead", lambda: pytest.fail("it is tried"))
    assert helper.call("well", "other", lambda: 1) == 1
    helper.close()


def test_a_disk_that_answers_is_not_to_blame_for_what_takes_long(goes_on: threading.Event) -> None:
    helper = Helper(0.05)
    probed: list[int] = []
    for number in range(MOST_OF_VOLUME + 1):
        with pytest.raises(DeviceFailed):
            helper.call(number, "disk", goes_on.wait, lambda: probed.append(1))
    assert probed
    helper._patience = 600.0
    assert helper.call("well", "disk", lambda: 1) == 1
    goes_on.set()
    helper.close()


def test_a_disk_that_does_not_answer_either_is_left_alone(goes_on: threading.Event) -> None:
    helper = Helper(0.05)
    for number in range(MOST_OF_VOLUME):
        with pytest.raises(DeviceFailed):
            helper.call(number, "dead", goes_on.wait, goes_on.wait)
    with pytest.raises(DeviceFailed):
        helper.call("well", "dead", lambda: pytest.fail("it is tried"), lambda: pytest.fail("it is tried"))
    goes_on.set()
    helper.close()
