"""Programs that know nothing of containers: copies, comparisons and archives of a mount are exact."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.mount.gallery import Gallery, check
from tests.mount.mounts import Mount, glassfs

STATUS = "status.json"


def run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, errors="surrogateescape", check=False, cwd=cwd,
    )
    assert done.returncode == 0, (words, done.stderr)
    assert not done.stderr, (words, done.stderr)
    return done.stdout


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def files_below(folder: Path) -> dict[str, Path]:
    """All files but the mount's own."""
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
    assert (done.returncode, done.stderr) == (0, "")
    run("diff", "-r", "-x", ".glassfs", shown.path, tmp_path / "exported")
    run("diff", "-r", tmp_path / "exported", shown.path, "-x", ".glassfs")


def test_tar_holds_the_whole_tree(shown: Mount, gallery: Gallery, tmp_path: Path) -> None:
    run("tar", "-cf", tmp_path / "all.tar", "--exclude=./.glassfs", "-C", shown.path, ".")
    run("tar", "-df", tmp_path / "all.tar", "-C", shown.path)
    with tarfile.open(tmp_path / "all.tar", errors="surrogateescape") as archive:
        members = {member.name.removeprefix("./"): member for member in archive.getmembers()}
        assert {name for name, member in members.items() if member.isfile()} == set(gallery.files)
        assert not [name for name, member in members.items() if member.islnk()]
        for name, expected in gallery.files.items():
            content = archive.extractfile(members[name])
            assert content is not None
            check(name, expected, content.read())


def test_rsync_by_checksum(shown: Mount, gallery: Gallery, tmp_path: Path) -> None:
    needs("rsync")
    words = ["rsync", "-a", "-c", "--exclude=.glassfs", f"{shown.path}/", f"{tmp_path}/copy/"]
    run(*words)
    assert_is_copy(tmp_path / "copy", gallery)
    changed = tmp_path / "copy/notes.txt"
    changed.chmod(0o644)
    changed.write_bytes(b"NOT A CONTAINER\n")
    os.utime(changed, ns=(0, (shown.path / "notes.txt").stat().st_mtime_ns))
    itemized = run(*words, "-n", "--itemize-changes", "--no-perms", "--no-times").splitlines()
    assert [line.split(" ", 1)[1] for line in itemized if line.startswith(">f")] == ["notes.txt"]


def test_du_counts_the_bytes(shown: Mount, gallery: Gallery) -> None:
    sizes = {name: (shown.path / name).stat().st_size for name in gallery.files}
    own = (shown.path / ".glassfs" / STATUS).stat().st_size
    assert int(run("du", "-s", "-b", "--exclude=.glassfs", shown.path).split()[0]) == sum(sizes.values())
    blocks = sum((size + 511) // 512 for size in [*sizes.values(), own])
    assert int(run("du", "-s", "-B512", shown.path).split()[0]) == blocks


def test_df_tells_the_size_of_the_sources(shown: Mount, gallery: Gallery) -> None:
    total = sum(path.stat().st_size for path in gallery.folder.rglob("*") if path.is_file())
    line = run("df", "-B1", "--output=fstype,size,used,avail,target", shown.path).splitlines()[1].split()
    assert line[0] == "fuse.glassfs" and line[4] == str(shown.path)
    assert total <= int(line[1]) < total + 4096
    assert (int(line[2]), line[3]) == (int(line[1]), "0")


def test_find_does_not_rely_on_wrong_link_counts(shown: Mount, gallery: Gallery) -> None:
    """With right counts `find` may skip looking for sub-directories; -noleaf makes it look everywhere."""
    quick = run("find", shown.path, "-type", "f", "-print0").split("\0")
    careful = run("find", shown.path, "-noleaf", "-type", "f", "-print0").split("\0")
    assert sorted(quick) == sorted(careful)
    assert len(quick) - 1 == len(gallery.files) + 1


def test_git_sees_no_difference(shown: Mount, tmp_path: Path) -> None:
    """git maps files into memory; a wrong size would kill it."""
    needs("git")
    shutil.copytree(shown.path / "episode.wshard", tmp_path / "copy")
    run("git", "diff", "--no-index", "--exit-code", tmp_path / "copy", shown.path / "episode.wshard")
