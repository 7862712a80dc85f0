"""Each mistake gives one line that says what to do, exit status 1 and no mount; a wrong command line has status 2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.mounts import COMMAND, LIBRARIES, environment, glassfs, is_mounted, mountinfo

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
    fuse: str, source: Path, at: Path, *parts: str | Path, options: Sequence[str] = (), foreground: bool = False,
    status: int = 1,
) -> None:
    before = len(mountinfo(at))
    words = ["mount", *(["-f"] if foreground else []), *options]
    assert_one_sentence(glassfs(*words, source, at, generation=fuse), *parts, status=status)
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
    if store.parent != tmp_path:
        (tmp_path / "some.kas").write_bytes(store.read_bytes())
    (tmp_path / "full/a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("full/a/b")
    return tmp_path


@pytest.mark.parametrize("mistake", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in MISTAKES
])
def test_mistake_is_one_message(fuse: str, here: Path, mistake: str) -> None:
    source, mountpoint, parts = MISTAKES[mistake]
    assert_refused(fuse, here / source, here / mountpoint, *(part.format(here=here) for part in parts))
    assert (here / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("foreground", [
    pytest.param(False, id="daemon"), pytest.param(True, id="foreground", marks=pytest.mark.slow),
])
@pytest.mark.parametrize("mistake", [
    pytest.param(name, marks=[pytest.mark.slow] * (name != "damaged container")) for name in REFUSED
])
def test_source_that_cannot_be_opened(fuse: str, here: Path, at: Path, mistake: str, foreground: bool) -> None:
    assert_refused(fuse, here / REFUSED[mistake], at, REFUSED[mistake], foreground=foreground)


def test_wrong_option_and_log_file(fuse: str, here: Path, at: Path) -> None:
    assert_refused(fuse, here / "some.kas", at, "read-only", options=["-o", "rw"], status=2)
    words = ["--log-file", "/does/not/exist/log"]
    assert_refused(fuse, here / "some.kas", at, "/does/not/exist/log: No such file", options=words)


@pytest.mark.usefixtures("as_root")
def test_mount_inside_its_source_by_a_bind_mount(fuse: str, store: Path, tmp_path: Path) -> None:
    """A bind mount is not a link: only device and inode number identify the folder."""
    source, other = tmp_path / "source", tmp_path / "other"
    (source / "inside").mkdir(parents=True)
    other.mkdir()
    undo = f'status=$?; umount -l "{other}/inside" 2>/dev/null; exit $status'
    script = f'mount --bind "{source}" "{other}"; "$@"; {undo}'
    before = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
    done = glassfs("mount", source, other / "inside", generation=fuse, before=before)
    assert_one_sentence(done, "inside", source)


def test_mounted_already(mounted: Mounted, fuse: str, store: Path) -> None:
    with mounted(store) as mount:
        assert_refused(fuse, store, mount.path, "mounted there already", f"glassfs umount {mount.path}")
        assert (mount.path / "array.npy").exists()


def test_umount_of_a_mount_in_use(mounted: Mounted, store: Path) -> None:
    with mounted(store) as mount:
        with (mount.path / "array.npy").open("rb"):
            assert_one_sentence(glassfs("umount", mount.path), mount.path, "busy", "--lazy")
            assert is_mounted(mount.path)
        mount.unmount()


def test_unreadable_source(fuse: str, public_folder: Path, store: Path) -> None:
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
        env=environment(fuse),
    )
    assert_one_sentence(done, path, "this user may not read it")


@pytest.mark.slow
def test_usage(fuse: str, store: Path) -> None:
    """A wrong command line has status 2."""
    for words in (["mount"], ["mount", "-f"], ["mount", "--colour", store, "/mnt"], ["umount"], ["munt", store]):
        done = glassfs(*words, generation=fuse)
        assert done.returncode == 2
        assert done.stderr.startswith("glassfs: ") and done.stderr.count("\n") == 1


class TestMissingParts:
    """Commands in a mount namespace without /dev/fuse or the libraries."""

    HIDE_DEVICE = (
        'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && exec "$@"'
    )

    @pytest.fixture(autouse=True)
    def can_unshare(self, as_root: None) -> None:
        if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
            pytest.skip("no mount namespace can be made here")

    def hidden(self, script: str, *words: str | Path, generation: str | None) -> subprocess.CompletedProcess[str]:
        return glassfs(*words, generation=generation, before=["unshare", "-m", "sh", "-ec", script, "sh"])

    @staticmethod
    def hide_libraries(*generations: str) -> str:
        """Return a script that hides each file of these libraries."""
        lines = ["exec 3>/dev/null"]
        for generation in generations:
            lines += [
                f'for file in $(find /lib /usr/lib /usr/local/lib -name "{name}*" 2>/dev/null); do '
                'mount --bind /dev/null "$(readlink -f "$file")" 2>/dev/null || true; done'
                for name in LIBRARIES[generation]
            ]
        return "; ".join([*lines, 'exec "$@"'])

    def test_no_device(self, fuse: str, store: Path, at: Path) -> None:
        done = self.hidden(self.HIDE_DEVICE, "mount", store, at, generation=fuse)
        assert_one_sentence(done, "/dev/fuse does not exist", "modprobe fuse", "all commands but 'mount'")

    @pytest.mark.slow
    def test_no_library(self, fuse: str, store: Path, at: Path) -> None:
        done = self.hidden(self.hide_libraries(fuse), "mount", store, at, generation=fuse)
        assert_one_sentence(done, f"libfuse {fuse} is not installed", "apt install")

    @pytest.mark.slow
    def test_no_library_at_all(self, fuse: str, store: Path, at: Path) -> None:
        done = self.hidden(self.hide_libraries("2", "3"), "mount", store, at, generation=None)
        assert_one_sentence(done, "libfuse 3 is not installed", "apt install fuse3", "all commands but 'mount'")

    @pytest.mark.slow
    def test_other_commands_do_without(self, fuse: str, store: Path) -> None:
        done = self.hidden(self.hide_libraries("2", "3"), "ls", store, generation=None)
        assert (done.returncode, done.stdout, done.stderr) == (0, "array.npy\n", "")


@pytest.mark.slow
def test_without_fusepy_mounts_go_through_libfuse_3(
    fuse: str, store: Path, at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "fuse.py").write_text("raise ImportError('none')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if fuse == "2":
        assert_one_sentence(glassfs("mount", store, at, generation="2"), "the Python package fusepy", "(none)")
        return
    assert glassfs("mount", store, at, generation="3").stderr == ""
    try:
        assert (at / "array.npy").is_file()
    finally:
        glassfs("umount", at)
    assert not is_mounted(at)


def _is_public(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def test_unknown_generation_of_libfuse(fuse: str, store: Path, at: Path) -> None:
    assert_one_sentence(glassfs("mount", store, at, generation="4"), "GLASSFS_FUSE=4")
