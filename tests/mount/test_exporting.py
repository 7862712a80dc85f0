"""What the manual says about programs that serve a mount again or walk through it (docs/manual/exporting.md)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import bytes_below
from tests.optional import without

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_root")]


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


@needs("bindfs")
def test_bindfs_shows_the_same_files(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    with mounted(gallery.folder, options=["allow_other"]) as mount:
        with served(["bindfs", "-r", mount.path, tmp_path / "other"], tmp_path / "other"):
            shown = bytes_below(tmp_path / "other")
        assert shown == bytes_below(mount.path) and len(shown) > 50


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
