"""What the manual says about programs that serve a mount again or walk through it (docs/manual/exporting.md)."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import bytes_below, opened
from tests.optional import without

pytestmark = pytest.mark.usefixtures("as_root")


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=without(program))


@contextmanager
def served(words: Sequence[str | Path], at: Path) -> Iterator[None]:
    """Run a command that mounts at a folder, and unmount it at the end."""
    at.mkdir()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{words[0]} cannot mount here: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


@pytest.mark.slow
@needs("bindfs")
def test_bindfs_shows_the_same_files(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    with mounted(gallery.folder, options=["allow_other"]) as mount:
        with served(["bindfs", "-r", mount.path, tmp_path / "other"], tmp_path / "other"):
            shown = bytes_below(tmp_path / "other")
        assert shown == bytes_below(mount.path) and len(shown) > 50


@pytest.mark.slow
def test_overlayfs_shows_the_same_files_and_keeps_changes(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    upper, work, at = tmp_path / "upper", tmp_path / "work", tmp_path / "changed"
    upper.mkdir()
    work.mkdir()
    with mounted(gallery.folder) as mount:
        layers = f"lowerdir={mount.path},upperdir={upper},workdir={work}"
        with served(["mount", "-t", "overlay", "overlay", "-o", layers, at], at):
            before = bytes_below(mount.path)
            assert bytes_below(at) == before
            name = next(name for name in before if name.endswith(".npy"))
            (at / name).write_bytes(b"changed")
            assert (at / name).read_bytes() == (upper / name).read_bytes() == b"changed"
        assert bytes_below(mount.path) == before


@pytest.mark.slow
@needs("updatedb.plocate")
def test_updatedb_leaves_mounts_out_by_their_type(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    at, database = tmp_path / "mnt", tmp_path / "database"
    at.mkdir()
    with mounted(gallery.folder, at=at):
        found = []
        for more in ([], ["--add-prunefs", "fuse.glassfs"]):
            subprocess.run(["updatedb.plocate", "-U", tmp_path, "--prunepaths", "", *more, "-o", database], check=True)
            listed = subprocess.run(
                ["plocate", "-d", database, f"{at}/"], capture_output=True, text=True, check=False,
            )
            found.append(len(listed.stdout.splitlines()))
    assert found[0] > 50 and found[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ["tar", "--one-file-system", "-cf", "{out}/copy.tar", "."],
    ["rsync", "-a", "--one-file-system", "./", "{out}/copy"],
], ids=["tar", "rsync"])
def test_backups_of_one_file_system_leave_mounts_out(
    mounted: Mounted, gallery: Gallery, tmp_path: Path, words: list[str],
) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(without(words[0]))
    walked, out = tmp_path / "walked", tmp_path / "out"
    (walked / "mnt").mkdir(parents=True)
    out.mkdir()
    (walked / "file").write_text("mine")
    with mounted(gallery.folder, at=walked / "mnt"):
        subprocess.run([word.format(out=out) for word in words], cwd=walked, check=True, capture_output=True)
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 20_000


AT_FDCWD = -100
_LIBC = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    """``struct file_handle``"""

    _fields_ = (("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128))


def handle_of(path: Path) -> Handle:
    handle, mount = Handle(128), ctypes.c_int()
    if _LIBC.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def target_of(handle: Handle, at: Path) -> str | int:
    """Return the path that a handle leads to, or the errno."""
    with opened(at) as root:
        descriptor = _LIBC.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
        if descriptor < 0:
            return ctypes.get_errno()
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)


def files_below(path: Path) -> list[Path]:
    found = (Path(folder, name) for folder, folders, files in os.walk(path) for name in folders + files)
    return [path for path in found if not path.is_symlink()]


def test_handles_of_an_earlier_mount_lead_to_no_other_file(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    at = tmp_path / "mnt"
    at.mkdir()
    source = gallery.folder
    with mounted(source, at=at):
        handles = {path: handle_of(path) for path in files_below(at)}
        assert len(handles) > 50
        assert {target_of(handle, at) for handle in handles.values()} == set(map(str, handles))
        root = handle_of(at)
    with mounted(source, at=at):
        kept = sorted(files_below(at), reverse=True)
        for path in kept:  # ids are given in another order
            path.stat()
        assert {target_of(handle, at) for handle in handles.values()} == {errno.ESTALE}
        assert target_of(root, at) == str(at)
