"""Ctrl-C in a Python program, or a closed cell of a notebook, ends reading; later reads work."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import glassfs
from glassfs import work
from glassfs.view.parquet.records import RecordPages
from tests.security.bombs import write_episodes, write_holes
from tests.waiting import SECONDS, wait_until

AT_MOST_SECONDS = 20.0
"""Generous: what is not interrupted takes minutes."""


def interrupted(read: Callable[[], object], is_begun: Callable[[], object]) -> float:
    """Call ``read``, interrupt it once ``is_begun``, and return how many seconds later it ended."""
    sent: list[float] = []

    def interrupt() -> None:
        wait_until(is_begun)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        try:
            read()
        finally:
            helper.join(SECONDS)  # so that the signal always comes within the block
    return time.monotonic() - sent[0]


def computed(seconds: float) -> Callable[[], bool]:
    until = time.process_time() + seconds
    return lambda: time.process_time() > until


def test_ctrl_c_ends_listing_and_globbing(tmp_path: Path) -> None:
    write_holes(tmp_path / "a.kdb")
    with glassfs.open(tmp_path) as data:
        images = data["a.kdb/episodes/0/images"]
        for read in (lambda: list(images), lambda: data["a.kdb/episodes/1/images/cam/000009"].bytes(),
                     lambda: list(data.glob("*/episodes/*/images/**"))):
            assert interrupted(read, computed(0.2)) < AT_MOST_SECONDS
        assert data["a.kdb/meta/file.json"].json()["format"] == "kinodb"
        assert len(data["a.kdb/episodes"]) == 200


@pytest.mark.parametrize("method", ["to_pandas", "to_arrow", "to_polars"])
def test_ctrl_c_ends_reading_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Also while a library reads the file in threads of its own, which does not see the signal before its end."""
    pytest.importorskip({"to_arrow": "pyarrow"}.get(method, method.removeprefix("to_")))
    write_episodes(tmp_path / "a.kdb", 20)
    read_into = RecordPages.read_into
    begun = threading.Event()

    def slow(pages: RecordPages, buffer: memoryview, offset: int) -> None:
        until = time.monotonic() + 2 * AT_MOST_SECONDS
        begun.set()
        while time.monotonic() < until:
            work.check()
        read_into(pages, buffer, offset)

    with glassfs.open(tmp_path) as data:
        monkeypatch.setattr(RecordPages, "read_into", slow)
        assert interrupted(getattr(data.episodes(), method), begun.is_set) < AT_MOST_SECONDS
        monkeypatch.setattr(RecordPages, "read_into", read_into)
        assert len(getattr(data.episodes(), method)()) == 20
