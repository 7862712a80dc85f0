"""Start of a daemon: its first log records, its limits, closed descriptors and read-only folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mount.mounts import glassfs
from tests.system.conftest import in_foreground, pid_of
from tests.waiting import wait_until

AWKWARD = b"bad\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\xff\xc2\x9b\xe2\x80\xa8\xe2\x80\xae.kas"
SHOWN = r"bad\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\xff\xc2\x9b\xe2\x80\xa8\xe2\x80\xae.kas"


@pytest.mark.parametrize("journal", [
    pytest.param(False, id="terminal", marks=pytest.mark.slow), pytest.param(True, id="journal"),
])
def test_hostile_names_on_stderr(store: Path, mountpoint: Path, tmp_path: Path, journal: bool) -> None:
    """Of a container that is cut short. The C locale escapes even names that are valid UTF-8."""
    folder, said = tmp_path / "folder", tmp_path / "said"
    folder.mkdir()
    (folder / os.fsdecode(AWKWARD)).write_bytes(store.read_bytes()[:-8])
    with said.open("wb") as stream:
        status = os.fstat(stream.fileno())
        variables = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
        if journal:
            variables["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
        with in_foreground(folder, mountpoint, stderr=stream, variables=variables):
            wait_until(lambda: b"is mounted at" in said.read_bytes())
            assert len(os.listdir(mountpoint)) == 2
    lines = said.read_bytes().decode("ascii").removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert any(SHOWN in line for line in lines)
    assert not [line for line in lines if line.startswith("2026-01-01 00:00:00,000")]
    assert all(line.startswith("<") for line in lines) is journal


def test_log_records_before_readiness_are_not_lost(store: Path, mountpoint: Path, tmp_path: Path) -> None:
    """libfuse's messages are captured while it mounts, log records are not. No kernel has that much read-ahead."""
    said = tmp_path / "said"
    with said.open("wb") as stream, in_foreground("-o", "read_ahead=99999999999T", store, mountpoint, stderr=stream):
        wait_until(lambda: "is mounted at" in said.read_text())
    before, _, _ = said.read_text().partition("is mounted at")
    assert "read-ahead stays at" in before


def test_limit_of_descriptors_is_raised(store: Path, mountpoint: Path) -> None:
    before = ["sh", "-c", 'ulimit -Sn 64; ulimit -Hn 300; exec "$@"', "sh"]
    assert glassfs("mount", store, mountpoint, before=before).returncode == 0
    lines = Path(f"/proc/{pid_of(mountpoint)}/limits").read_text().splitlines()
    limits = next(line for line in lines if line.startswith("Max open files")).split()
    assert limits[3:5] == ["300", "300"]
    assert glassfs("umount", mountpoint).returncode == 0


def test_closed_standard_descriptors_are_not_reused(store: Path, mountpoint: Path) -> None:
    """Otherwise the source or /dev/fuse becomes stdin or stderr, which daemonizing replaces by /dev/null."""
    before = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh"]
    done = glassfs("mount", store, mountpoint, before=before)
    assert (done.returncode, done.stdout) == (0, "")
    assert (mountpoint / "array.npy").read_bytes().startswith(b"\x93NUMPY")
    held = Path(f"/proc/{pid_of(mountpoint)}/fd")
    assert [os.readlink(held / str(number)) for number in range(3)] == ["/dev/null"] * 3
    assert glassfs("umount", mountpoint).returncode == 0
