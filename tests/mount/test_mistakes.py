"""Each mistake gives one line that says what to do, exit status 1 and no mount; a wrong command line has status 2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.mounts import COMMAND, glassfs, is_mounted, mountinfo

NOBODY = 65534


@pytest.fixture
def at(tmp_path: Path) -> Path:
    path = tmp_path / "mnt"
    path.mkdir()
    return path


def assert_one_sentence(done: subprocess.CompletedProcess[str], *parts: str | Path, status: int = 1) -> None:
    assert done.returncode == status, done
    assert done.stdout == ""
    assert done.stderr.startswith("glassfs: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n")
    for part in parts:
        assert str(part) in done.stderr


def assert_refused(
    source: Path, at: Path, *parts: str | Path, options: Sequence[str] = (), foreground: bool = False,
    status: int = 1, starts_none: bool = False,
) -> None:
    before = len(mountinfo(at))
    words = ["mount", *(["-f"] if foreground else []), *options]
    assert_one_sentence(glassfs(*words, source, at, starts_none=starts_none), *parts, status=status)
    assert len(mountinfo(at)) == before


# Source, mount point, and parts of the message.
MISTAKES = {
    "missing source": ("missing.kdb", "mnt", ["{here}/missing.kdb", "no such file"]),
    "missing folder above": ("some.kas", "missing/at", ["{here}/missing/at", "does not exist", "mkdir -p {here}"]),
    "missing second source": ("some.kas", "missing.kdb", ["{here}/missing.kdb", "does not exist"]),
    "mount point is a file": ("some.kas", "notes.txt", ["not a directory"]),
    "mount point is not empty": ("some.kas", "full", ["not empty", "-o nonempty"]),
    "inside its source": ("full", "full/a/b", ["inside", "{here}/full"]),
    "inside its source by a link": ("full", "link", ["inside"]),
}
OFTEN = {"missing source", "mount point is not empty", "inside its source by a link"}
# The daemon detects these after the fork.
REFUSED = {"unknown format": "notes.txt", "empty file": "empty.kas", "damaged container": "damaged.kas"}


@pytest.fixture
def here(store: Path, at: Path, tmp_path: Path) -> Path:
    """A folder of sources and mount points named by mistake."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty.kas").write_bytes(b"")
    (tmp_path / "damaged.kas").write_bytes(store.read_bytes()[:100])
    (tmp_path / "full/a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("full/a/b")
    return tmp_path


@pytest.mark.parametrize("mistake", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in MISTAKES
])
def test_mistake_is_one_message(fuse: None, here: Path, mistake: str) -> None:
    source, mountpoint, parts = MISTAKES[mistake]
    assert_refused(here / source, here / mountpoint, *(part.format(here=here) for part in parts), starts_none=True)
    assert (here / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("foreground", [
    pytest.param(False, id="daemon"), pytest.param(True, id="foreground", marks=pytest.mark.slow),
])
@pytest.mark.parametrize("mistake", [
    pytest.param(name, marks=[pytest.mark.slow] * (name != "damaged container")) for name in REFUSED
])
def test_source_that_cannot_be_opened(fuse: None, here: Path, at: Path, mistake: str, foreground: bool) -> None:
    assert_refused(here / REFUSED[mistake], at, REFUSED[mistake], foreground=foreground)


def test_wrong_option_and_log_file(fuse: None, here: Path, at: Path) -> None:
    assert_refused(here / "some.kas", at, "read-only", options=["-o", "rw"], status=2, starts_none=True)
    words = ["--log-file", "/does/not/exist/log"]
    assert_refused(here / "some.kas", at, "/does/not/exist/log: No such file", options=words, starts_none=True)


@pytest.mark.usefixtures("as_root")
def test_mount_inside_its_source_by_a_bind_mount(fuse: None, store: Path, tmp_path: Path) -> None:
    """A bind mount is not a link: only device and inode number identify the folder."""
    source, other = tmp_path / "source", tmp_path / "other"
    (source / "inside").mkdir(parents=True)
    other.mkdir()
    undo = f'status=$?; umount -l "{other}/inside" 2>/dev/null; exit $status'
    script = f'mount --bind "{source}" "{other}"; "$@"; {undo}'
    before = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
    done = glassfs("mount", source, other / "inside", before=before)
    assert_one_sentence(done, "inside", source)


def test_umount_of_a_mount_in_use(mounted: Mounted, store: Path) -> None:
    with mounted(store) as mount:
        assert_refused(store, mount.path, "mounted there already", f"glassfs umount {mount.path}", starts_none=True)
        with (mount.path / "array.npy").open("rb"):
            assert_one_sentence(glassfs("umount", mount.path), mount.path, "busy", "--lazy")
            assert is_mounted(mount.path)
        mount.unmount()


def test_unreadable_source(fuse: None, public_folder: Path, store: Path) -> None:
    """The command runs as another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can run a command as another user")
    if not _is_public(Path(COMMAND[0])):
        pytest.skip("other users may not run this Python")
    path = public_folder / store.name
    path.write_bytes(store.read_bytes())
    path.chmod(0o600)
    (public_folder / "mnt").mkdir()
    done = subprocess.run(
        [*COMMAND, "mount", path, public_folder / "mnt"], capture_output=True, text=True, check=False, user=NOBODY,
    )
    assert_one_sentence(done, path, "this user may not read it")


@pytest.mark.usefixtures("as_root")
def test_no_device(fuse: None, store: Path, at: Path) -> None:
    """In a mount namespace without /dev/fuse."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    hide = 'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && exec "$@"'
    done = glassfs("mount", store, at, before=["unshare", "-m", "sh", "-ec", hide, "sh"])
    assert_one_sentence(done, "/dev/fuse cannot be opened (No such file", "modprobe fuse", "all commands but 'mount'")


def _is_public(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)
