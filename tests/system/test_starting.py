"""How a daemon starts: what its log says from the first line on, its limits, and what it can do without."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mount.mounts import COMMAND, glassfs, is_mounted
from tests.waiting import wait_until

AWKWARD = b"bad\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\xff\xc2\x9b\xe2\x80\xa8\xe2\x80\xae.kas"
SHOWN = r"bad\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\xff\x9b\u2028\u202e.kas"
SHOWN_IN_ASCII = r"bad\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\xff\xc2\x9b\xe2\x80\xa8\xe2\x80\xae.kas"


@pytest.fixture
def folder(tmp_path: Path, store: Path) -> Path:
    """A sound container, and one cut short with a name that is not even text."""
    place = tmp_path / "folder"
    place.mkdir()
    (place / "good.kas").write_bytes(store.read_bytes())
    with open(os.path.join(os.fsencode(place), AWKWARD), "wb") as file:
        file.write(store.read_bytes()[:-8])
    return place


def pid_of(mountpoint: Path) -> int:
    number: int = json.loads((mountpoint / ".glassfs/status.json").read_text())["pid"]
    return number


def assert_tells_of_the_bad_one(lines: list[str], shown: str = SHOWN) -> None:
    """Each line is a record, and what the stranger's name would have forged is inside one."""
    assert all(line.isprintable() for line in lines)
    assert any(shown in line for line in lines)
    assert not [line for line in lines if line.startswith("2026-01-01 00:00:00,000")]


def test_names_of_strangers_in_a_log_file(folder: Path, mountpoint: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert glassfs("mount", "--log-file", log, folder, mountpoint).returncode == 0
    try:
        assert len(os.listdir(mountpoint)) >= 2
        os.listdir(os.path.join(os.fsencode(mountpoint), b"good.kas"))
        (mountpoint / "good.kas").stat()
        wait_until(lambda: b".kas" in log.read_bytes())
    finally:
        assert glassfs("umount", mountpoint).returncode == 0
    assert_tells_of_the_bad_one(log.read_bytes().decode("utf-8").removesuffix("\n").split("\n"))


@pytest.mark.parametrize("journal", [False, True], ids=["terminal", "journal"])
def test_names_of_strangers_on_stderr(folder: Path, mountpoint: Path, tmp_path: Path, journal: bool) -> None:
    """In the C locale, where even a name that is text is none to Python."""
    said = tmp_path / "said"
    with said.open("wb") as stream:
        status = os.fstat(stream.fileno())
        variables = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
        if journal:
            variables["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
        process = subprocess.Popen(
            [*COMMAND, "mount", "-f", str(folder), str(mountpoint)], stderr=stream, env=variables,
        )
        try:
            wait_until(lambda: is_mounted(mountpoint) and len(os.listdir(mountpoint)) >= 2)
            wait_until(lambda: b"is mounted at" in said.read_bytes())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    lines = said.read_bytes().decode("ascii").removesuffix("\n").split("\n")
    assert_tells_of_the_bad_one(lines, SHOWN_IN_ASCII)
    assert all(line.startswith("<") for line in lines) is journal


def test_lines_from_before_readiness_are_not_lost(store: Path, mountpoint: Path, tmp_path: Path) -> None:
    """With -f: libfuse's messages are caught while it mounts, the log's are not. No kernel has that much read-ahead."""
    said = tmp_path / "said"
    with said.open("wb") as stream:
        process = subprocess.Popen(
            [*COMMAND, "mount", "-f", "-o", "read_ahead=99999999999T", str(store), str(mountpoint)], stderr=stream,
        )
        try:
            wait_until(lambda: "is mounted at" in said.read_text())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    before, _, _ = said.read_text().partition("is mounted at")
    assert "the read-ahead of" in before


@pytest.mark.parametrize("foreground", [False, True], ids=["daemon", "foreground"])
def test_the_limit_of_descriptors_is_raised(store: Path, mountpoint: Path, foreground: bool) -> None:
    hard = 300

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

    words = [*COMMAND, "mount", *(["-f"] if foreground else []), str(store), str(mountpoint)]
    process = subprocess.Popen(words, preexec_fn=lower, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_mounted(mountpoint) and (mountpoint / "array.npy").exists())
        lines = Path(f"/proc/{pid_of(mountpoint)}/limits").read_text().splitlines()
        limits = next(line for line in lines if line.startswith("Max open files")).split()
        assert limits[3:5] == [str(hard), str(hard)]
    finally:
        assert glassfs("umount", mountpoint).returncode == 0
        assert process.wait(20) == 0


def test_closed_descriptors_of_the_starter_stay_out_of_it(store: Path, mountpoint: Path) -> None:
    """Else the source or /dev/fuse comes to be stdin or stderr, and is replaced by /dev/null when the daemon starts."""
    before = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh"]
    done = glassfs("mount", store, mountpoint, before=before)
    assert (done.returncode, done.stdout) == (0, "")
    try:
        assert (mountpoint / "array.npy").read_bytes().startswith(b"\x93NUMPY")
        held = Path(f"/proc/{pid_of(mountpoint)}/fd")
        assert [os.readlink(held / str(number)) for number in range(3)] == ["/dev/null"] * 3
    finally:
        assert glassfs("umount", mountpoint).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="takes root and unshare(1)")
def test_mounting_needs_no_folder_for_temporary_files(store: Path, mountpoint: Path) -> None:
    """In a namespace where nothing at all may be written, but for what a mount needs."""
    script = (
        'mount -o remount,bind,ro / && for place in /tmp /var/tmp /usr/tmp /dev/shm /run; do '
        'if [ -d "$place" ]; then mount --bind "$place" "$place" && mount -o remount,bind,ro "$place"; fi; done; '
        'cd "$PLACE" && "$PYTHON" -m glassfs mount "$STORE" "$MOUNTPOINT" && ls "$MOUNTPOINT" && umount "$MOUNTPOINT"'
    )
    variables = {
        "PYTHON": COMMAND[0], "PLACE": str(mountpoint.parent), "STORE": str(store), "MOUNTPOINT": str(mountpoint),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], env=os.environ | variables,
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "array.npy\n", "")
