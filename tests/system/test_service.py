"""Start of a daemon, readiness, the helper of mount(8), the units, completion and the manual page."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from glassfs.cli import COMMANDS
from glassfs.cli.man import NOTES
from glassfs.mount.options import DESCRIPTIONS
from tests.conftest import ROOT
from tests.mount.mounts import glassfs, is_mounted
from tests.security.test_workers import write_numbers
from tests.system.conftest import in_foreground, pid_of
from tests.waiting import SECONDS, wait_until

AWKWARD = b"bad\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\xff\xc2\x9b\xe2\x80\xa8\xe2\x80\xae.kas"
SHOWN = r"bad\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\xff\xc2\x9b\xe2\x80\xa8\xe2\x80\xae.kas"
WRONG_USE, MOUNT_FAILURE = 1, 32
HELPER = (sys.executable, "-c", "from glassfs.mount.helper import main; main()")


def test_hostile_names_on_stderr(store: Path, mountpoint: Path, tmp_path: Path) -> None:
    """Of a container that is cut short. The C locale escapes even names that are valid UTF-8."""
    folder, said = tmp_path / "folder", tmp_path / "said"
    folder.mkdir()
    (folder / os.fsdecode(AWKWARD)).write_bytes(store.read_bytes()[:-8])
    with said.open("wb") as stream:
        variables = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
        with in_foreground(folder, mountpoint, stderr=stream, variables=variables):
            wait_until(lambda: b"is mounted at" in said.read_bytes())
            assert len(os.listdir(mountpoint)) == 2
    lines = said.read_bytes().decode("ascii").removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert any(SHOWN in line for line in lines)
    assert not [line for line in lines if line.startswith("2026-01-01 00:00:00,000")]


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


def helper(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HELPER, *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS, check=False)


def test_service_manager_is_notified(store: Path, mountpoint: Path, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(address))
        channel.settimeout(SECONDS)
        with in_foreground(store, mountpoint, variables={"NOTIFY_SOCKET": str(address)}) as process:
            assert channel.recv(4096).decode().splitlines() == ["READY=1", f"MAINPID={process.pid}"]
            assert sorted(os.listdir(mountpoint)) == [".glassfs", "array.npy"]
        assert channel.recv(4096) == b"STOPPING=1"
    assert not is_mounted(mountpoint)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to drop")
@pytest.mark.parametrize("is_hdf5", [False, True])
def test_daemon_keeps_only_the_capabilities_it_needs(store: Path, mountpoint: Path, is_hdf5: bool) -> None:
    """None of its threads has more, also those that begin when the source is opened, as it is for HDF5."""
    if is_hdf5:
        store = store.with_name("a.h5")
        write_numbers(store)
    assert glassfs("mount", store, mountpoint).returncode == 0
    for task in Path(f"/proc/{pid_of(mountpoint)}/task").iterdir():
        fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        # At most CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_SYS_ADMIN remain. The server of the sandbox may get
        # CAP_KILL, CAP_SETGID, CAP_SETUID and CAP_SETPCAP as well.
        assert int(fields["CapEff"], 16) & ~0x200006 == 0
        assert int(fields["CapPrm"], 16) & ~0x2001E6 == 0
        assert int(fields["CapBnd"], 16) & ~0x2001E6 == 0
        assert fields["NoNewPrivs"] == "1"
    assert glassfs("umount", mountpoint).returncode == 0
    assert not is_mounted(mountpoint)


def test_helper_mounts_nothing_with_f(store: Path, mountpoint: Path) -> None:
    assert helper(store, mountpoint, "-f").returncode == 0
    assert not is_mounted(mountpoint)


@pytest.mark.slow
def test_helper_ignores_unknown_options_only_if_sloppy(store: Path, mountpoint: Path) -> None:
    refused = helper(store, mountpoint, "-o", "colour=blue")
    assert refused.returncode == WRONG_USE
    assert refused.stderr.startswith("mount.glassfs: unknown mount option 'colour=blue'")
    assert len(refused.stderr.splitlines()) == 1
    assert helper(store, mountpoint, "-s", "-o", "colour=blue").returncode == 0
    assert glassfs("umount", mountpoint).returncode == 0


@pytest.mark.parametrize("arguments", [
    ["only-one"], ["a", "b", "-x"],
    *(pytest.param(words, marks=pytest.mark.slow) for words in ([], ["a", "b", "c"], ["a", "b", "-o"])),
])
def test_helper_explains_its_usage(arguments: list[str]) -> None:
    done = helper(*arguments)
    assert done.returncode == WRONG_USE
    assert "usage: mount.glassfs SOURCE MOUNTPOINT" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_helper_exit_status_distinguishes_failure_from_wrong_use(tmp_path: Path, mountpoint: Path) -> None:
    """The exit statuses are those of mount(8). The message is one line, whatever the name contains."""
    done = helper(tmp_path / "none\n\x1b[31m.kas", mountpoint)
    assert done.returncode == MOUNT_FAILURE
    (line,) = done.stderr.splitlines()
    assert line.startswith("mount.glassfs: ") and line.isprintable() and "no such file" in line


def test_units_do_not_hide_the_mount() -> None:
    text = (ROOT / "systemd/glassfs@.service").read_text()
    settings = [line.partition("=")[0] for line in text.splitlines() if not line.startswith("#")]
    assert not {"PrivateTmp", "ProtectSystem", "ProtectHome", "PrivateMounts", "MemoryDenyWriteExecute"} & set(settings)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(shell: str) -> None:
    done = glassfs("completion", shell)
    assert done.returncode == 0
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=done.stdout, text=True, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_manual_page_has_every_command_and_option() -> None:
    page = glassfs("man").stdout.replace("\\-", "-")
    for command in COMMANDS:
        assert f".SS glassfs {command}" in page
    for option in DESCRIPTIONS:
        assert option.replace("\\", "\\e") in page
    for subject in NOTES:
        assert subject in page
    assert "auto_unmount" in "".join(NOTES.values()) and "mmap(2)" in "".join(NOTES.values())
    if shutil.which("groff"):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8"], input=glassfs("man").stdout, text=True, capture_output=True, check=False,
        )
        assert done.stderr == ""
