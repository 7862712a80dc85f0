"""What libfuse says on stderr while it mounts is caught, and nothing of it is lost or left behind."""

from __future__ import annotations

import os
import subprocess
import tempfile

import pytest

from glassfs.mount.messages import Messages


def test_stderr_is_captured_as_one_printable_line(capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    messages = Messages()
    os.write(2, b"fuse: mountpoint is not empty\n\n  \xff\x1b[31m\n")
    subprocess.run(["sh", "-c", "echo of a child >&2"], check=True)
    messages.restore()
    os.write(2, b"after\n")
    assert messages.text() == r"fuse: mountpoint is not empty; \xff\x1b[31m; of a child"
    assert capfd.readouterr().err == "after\n"
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_child_that_outlives_the_capture_may_write(capfd: pytest.CaptureFixture[str]) -> None:
    """As fusermount does that waits to unmount: a pipe without a reader would kill it."""
    messages = Messages()
    child = subprocess.Popen(["sh", "-c", "read line; echo late >&2; exit 7"], stdin=subprocess.PIPE)
    messages.restore()
    assert child.communicate(b"go on\n") == (None, None)
    assert child.returncode == 7
    assert messages.text() == capfd.readouterr().err == ""


def test_no_folder_for_temporary_files_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/does/not/exist")
    messages = Messages()
    os.write(2, b"said")
    assert messages.text() == "said"
