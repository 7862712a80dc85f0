"""Mounts of an ordinary user: by fusermount, and in a user namespace, where the user may mount without it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.mount.gallery import npy
from tests.mount.mounts import COMMAND, PATIENCE, is_mounted, require
from tests.security.namespaces import bind, in_own_namespace
from tests.security.places import make_folder, write_store
from tests.security.test_workers import write_numbers
from tests.security.users import STRANGER

ROOT = Path(__file__).parent.parent.parent
FUSE = os.makedev(10, 229)
WORD = b"for everybody"
AS_STRANGER = ("setpriv", "--reuid", str(STRANGER.uid), "--regid", str(STRANGER.gid), "--clear-groups")
AS_NOBODY = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups")
"""A user with a name, which fusermount demands."""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
BY_NAMESPACE = *AS_STRANGER, *NAMESPACE
GLASSFS = " ".join(COMMAND)
MOUNT = f'{GLASSFS} mount "$1" "$2"\n'
READ = """od -An -v -tx1 "$2/word.npy" | tr -d ' \\n'; echo\n"""
PID = """pid=$(sed -n 's/.*"pid": \\([0-9]*\\).*/\\1/p' "$2/.glassfs/status.json")\n"""
UMOUNT = f'{GLASSFS} umount "$2"\n'


@pytest.fixture
def point(place: Path) -> Path:
    """A mount point of STRANGER's, beside a container that this user may read."""
    if os.geteuid() != 0:
        pytest.skip("only root can become other users")
    require()
    for tool in (AS_STRANGER[0], NAMESPACE[0]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: apt install util-linux")
    done = subprocess.run([*BY_NAMESPACE, "true"], capture_output=True, text=True, check=False, cwd="/")
    if done.returncode != 0:
        pytest.skip(f"no user namespace for others: {done.stderr.strip()}")
    write_store(place / "store.kas", WORD)
    return make_folder(place / "mnt", 0o755, STRANGER)


def make_reachable(*wanted: str | Path) -> None:
    """Make these folders reachable for all users although a parent is closed. Needs a mount namespace of its own."""
    held: dict[str, int] = {}
    closed: set[str] = set()
    for path in {os.path.realpath(path) for path in wanted}:
        above = [str(folder) for folder in reversed(Path(path).parents)]
        outermost = next((folder for folder in above if not os.stat(folder).st_mode & stat.S_IXOTH), None)
        if outermost is not None:
            closed.add(outermost)
            held[path] = os.open(path, os.O_PATH)
    for folder in closed:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder], check=True)
    for path, number in held.items():
        os.makedirs(path, exist_ok=True)
        bind(f"/proc/self/fd/{number}", path)


def run_in_namespace(
    place: Path, script: str, *arguments: str | Path, mode: int = 0o666,
    words: Sequence[str] = BY_NAMESPACE,
) -> tuple[int, str, str]:
    """Run a shell script as STRANGER with a /dev/fuse of this mode; return exit status, output and errors.

    ``words`` are in front of the command of the shell.
    """
    devices = make_folder(place / "devices")

    def inside() -> tuple[int, str, str] | None:
        # The test's own file system may be mounted with nodev.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", devices], check=True)
        node = devices / "fuse"
        try:
            os.mknod(node, stat.S_IFCHR, FUSE)
        except PermissionError:
            return None
        node.chmod(mode)
        bind(node, "/dev/fuse")
        make_reachable(sys.prefix, sys.base_prefix, ROOT)
        command = [*words, "sh", "-c", script, "sh", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    found: tuple[int, str, str] | None = in_own_namespace(inside)
    if found is None:
        pytest.skip("no device can be made here")
    return found


def printed(place: Path, script: str, *arguments: str | Path, words: Sequence[str] = BY_NAMESPACE) -> list[str]:
    """Run a script of which each command has to succeed, and return the lines of its output."""
    status, output, errors = run_in_namespace(place, f"set -e\n{script}", *arguments, words=words)
    assert (status, errors) == (0, "")
    return output.splitlines()


def refusal(
    place: Path, script: str, *arguments: str | Path, mode: int = 0o666, words: Sequence[str] = AS_NOBODY,
) -> str:
    """Return the one line with which a command fails."""
    status, output, errors = run_in_namespace(place, script, *arguments, mode=mode, words=words)
    assert (status, output, errors.count("\n")) == (1, "", 1)
    return errors


def test_mount_in_an_unprivileged_namespace(place: Path, point: Path) -> None:
    """Mount, read and unmount without fusermount3; the mount is invisible outside, and its daemon ends."""
    script = f"""
        {MOUNT}{READ}{PID}{UMOUNT}
        ls "$2"
        for _ in $(seq 1200); do if ! kill -0 "$pid" 2>/dev/null; then echo ended; break; fi; sleep 0.1; done
    """
    data, end = printed(place, script, place / "store.kas", point)
    assert bytes.fromhex(data) == npy(np.frombuffer(WORD, "u1"))
    assert end == "ended"
    assert not is_mounted(point)


@pytest.mark.parametrize("program", ["fusermount3", "fusermount"])
@pytest.mark.parametrize("end", ["umount", "TERM", "KILL"])
def test_mount_by_fusermount(place: Path, point: Path, program: str, end: str) -> None:
    """The programs of libfuse 3 and libfuse 2 mount and unmount for users. After a kill, the mount is replaced."""
    shutil.chown(point, "nobody")
    tools = make_folder(place / "tools", 0o755)
    for name in (program, "sh"):
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"{program} is not installed")
        (tools / name).symlink_to(found)
    script = f"""
        full=$PATH; PATH=$3
        {MOUNT}
        PATH=$full
        grep " $2 " /proc/self/mountinfo
        {READ}{PID}
        PATH=$3
        case $4 in
        umount) {UMOUNT};;
        KILL) kill -KILL $pid; {MOUNT}{UMOUNT};;
        *) kill -$4 $pid;;
        esac
        PATH=$full
        for _ in $(seq 1200); do
            if ! grep -q " $2 " /proc/self/mountinfo; then echo ended; break; fi; sleep 0.1
        done
        ls "$2"
    """
    mounted, data, left = printed(place, script, place / "store.kas", point, tools, end, words=AS_NOBODY)
    assert " ro,nosuid,nodev,noexec,relatime " in mounted
    assert " - fuse.glassfs " in mounted and "allow_other" not in mounted
    assert bytes.fromhex(data) == npy(np.frombuffer(WORD, "u1"))
    assert left == "ended"


def test_failure_of_fusermount_is_reported(place: Path, point: Path) -> None:
    shutil.chown(point, "nobody")
    tools = make_folder(place / "tools", 0o755)
    (tools / "fusermount3").write_text("#!/bin/sh\necho fusermount3: it is forbidden >&2; exit 1")
    (tools / "fusermount3").chmod(0o755)
    said = refusal(place, f"PATH=$3 {MOUNT}", place / "store.kas", point, tools)
    assert said == f"glassfs: {point}: cannot be mounted: fusermount3: it is forbidden\n"


@pytest.mark.slow
def test_guard_of_an_ordinary_user_can_end_the_connection(place: Path, point: Path) -> None:
    """The kernel gives the file ``abort`` of a connection to the user who mounted."""
    script = f"""
        {MOUNT}{PID}
        for _ in $(seq 600); do
            for guard in $(cat /proc/$pid/task/$pid/children); do
                case $(tr '\\0' ' ' </proc/$guard/cmdline) in glassfs-guard*) readlink /proc/$guard/fd/1; break 2;; esac
            done
            sleep 0.1
        done
        {UMOUNT}
    """
    (output,) = printed(place, script, place / "store.kas", point)
    assert output.endswith("/abort")


def test_worker_of_an_ordinary_user_has_no_rights(place: Path, point: Path) -> None:
    """The root of the namespace is the user, and no user nobody exists there."""
    write_numbers(place / "a.h5")
    script = f"""
        {MOUNT}
        ls "$2/group"
        {PID}
        for server in $(cat /proc/$pid/task/*/children); do
            for worker in $(cat /proc/$server/task/*/children); do
                grep -E '^(Uid|Gid|Cap|NoNewPrivs|Seccomp)' /proc/$worker/status
            done
        done
        {UMOUNT}
    """
    listed, *lines = printed(place, script, place / "a.h5", point)
    assert listed == "x.npy"
    found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert found["Uid"] == found["Gid"] == ["0"] * 4
    assert all(int(found[name][0], 16) == 0 for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"))
    assert (found["NoNewPrivs"], found["Seccomp"]) == (["1"], ["2"])


def test_allow_other_needs_the_consent_of_root(place: Path, point: Path) -> None:
    if "\nuser_allow_other" in Path("/etc/fuse.conf").read_text():
        pytest.skip("root allows it here")
    shutil.chown(point, "nobody")
    script = f'{GLASSFS} mount -o allow_other "$1" "$2"'
    assert "user_allow_other" in refusal(place, script, place / "store.kas", point)


def test_device_that_cannot_be_opened_is_named(place: Path, point: Path) -> None:
    said = refusal(place, MOUNT, place / "store.kas", point, mode=0o600, words=BY_NAMESPACE)
    assert "/dev/fuse cannot be opened (Permission denied)" in said
