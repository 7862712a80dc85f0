"""Questions that may never be answered; nothing is mounted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassfs.mount.probe import FOREIGN, ask, statuses
from glassfs.settings import settings


def _hang() -> bytes:
    time.sleep(600)
    return b"never"


def _fail() -> bytes:
    raise OSError("no")


def test_answers_come_in_the_order_of_the_questions(capfd: pytest.CaptureFixture[str]) -> None:
    """Also long and empty ones, and those that fail."""
    assert ask([lambda: b"x" * (5 << 20), lambda: b"", _fail, lambda: b"y"], 60) == [b"x" * (5 << 20), b"", None, b"y"]
    assert ask([]) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_hanging_question_costs_only_its_timeout() -> None:
    before = set(os.listdir("/proc/self/fd"))
    answers = ask([_hang, lambda: b"here", _hang], 3)
    assert (answers[0], answers[2]) == (None, None)
    assert answers[1] == b"here"
    assert set(os.listdir("/proc/self/fd")) <= before  # what other tests left may be closed meanwhile


def test_hanging_child_does_not_hold_the_output_open() -> None:
    """The child stands for one that hangs in the kernel and cannot be killed."""
    script = (
        "import os, time; from glassfs.mount import probe\n"
        "def spare(pid, number): print(pid, flush=True)\n"
        "probe.os.kill = spare\n"
        "print(probe.ask([lambda: time.sleep(600)], 0.2))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    pid, answer = done.stdout.splitlines()
    os.kill(int(pid), 9)
    assert answer == "[None]"


@pytest.mark.parametrize("said", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000, b"null"])
def test_malformed_status_is_reported(tmp_path: Path, said: bytes) -> None:
    (tmp_path / ".glassfs").mkdir()
    (tmp_path / ".glassfs/status.json").write_bytes(said)
    assert statuses([str(tmp_path)]) == [{"unreadable": FOREIGN}]


def test_statuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".glassfs").mkdir()
    path = tmp_path / ".glassfs/status.json"
    path.write_text(json.dumps({"pid": 1}) + " " * 4096)
    assert statuses([str(tmp_path), str(tmp_path / "none")]) == [
        {"pid": 1}, {"unreadable": "No such file or directory"},
    ]
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(settings, "probe", 0.2)
    assert statuses([str(tmp_path)]) == [{"unreadable": "does not answer"}]
