"""Ordinary programs make exact copies and archives of a mount."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.mount.gallery import Gallery, check
from tests.mount.mounts import Mount, glassfs


def run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, errors="surrogateescape", check=False, cwd=cwd,
    )
    assert done.returncode == 0, (words, done.stderr)
    assert not done.stderr, (words, done.stderr)
    return done.stdout


def files_below(folder: Path) -> dict[str, Path]:
    """Return all files except those of the mount itself."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in found.items() if not name.startswith(".glassfs/")}


def assert_is_copy(copy: Path, gallery: Gallery) -> None:
    found = files_below(copy)
    assert set(found) == set(gallery.files)
    for name, path in found.items():
        check(name, gallery.files[name], path.read_bytes())


def test_cp_keeps_bytes_modes_and_times(shown: Mount, gallery: Gallery, tmp_path: Path) -> None:
    run("cp", "-a", f"{shown.path}/.", tmp_path / "copy")
    assert_is_copy(tmp_path / "copy", gallery)
    for name in gallery.files:
        original, copied = (shown.path / name).stat(), (tmp_path / "copy" / name).stat()
        assert (copied.st_mode, copied.st_mtime_ns) == (original.st_mode, original.st_mtime_ns), name
        assert (copied.st_uid, copied.st_gid) == (original.st_uid, original.st_gid), name
    run("chmod", "-R", "u+w", tmp_path / "copy")


def test_export_is_the_same_as_a_copy(shown: Mount, gallery: Gallery, tmp_path: Path) -> None:
    done = glassfs("export", gallery.folder, tmp_path / "exported")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    run("diff", "-r", "-x", ".glassfs", shown.path, tmp_path / "exported")
