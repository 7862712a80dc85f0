"""``glassfs install``: the helper of mount(8), units of systemd, the manual page, and these files in a wheel."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glassfs.cli import install
from glassfs.cli.man import page
from tests.cli.glassfs_command import glassfs as in_process
from tests.mount.mounts import glassfs

BIN = Path(sys.executable).parent
SERVICE = "usr/lib/systemd/system/glassfs@.service"
WRITTEN = {
    "lib/systemd/system/glassfs@.service", "share/doc/glassfs/mnt-datasets.automount",
    "share/doc/glassfs/mnt-datasets.mount", "share/man/man1/glassfs.1",
}


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def copy_programs(folder: Path) -> Path:
    """Copy the commands into a new folder and return the path of ``glassfs`` there."""
    folder.mkdir()
    for name in ("glassfs", "mount.glassfs"):
        shutil.copy2(BIN / name, folder / name)
    return folder / "glassfs"


def run(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **more)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command that installs below ``sbin`` and ``usr``."""
    (tmp_path / "sbin").mkdir()
    return ["install", "--directory", f"{tmp_path}/sbin", "--prefix", f"{tmp_path}/usr"]


def test_links_to_the_helper_are_made_and_removed(words: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        done = glassfs(*words)
        assert done.returncode == 0, done.stderr
        assert files_below(tmp_path) == {"sbin/mount.fuse.glassfs", "sbin/mount.glassfs"}
    for link in (tmp_path / "sbin").iterdir():
        done = run(link)
        assert (done.returncode, "; usage: mount.glassfs SOURCE" in done.stderr) == (1, True)
    assert glassfs(*words, "--remove").returncode == 0
    assert files_below(tmp_path) == set()


def test_units_and_manual_are_made_and_removed(words: list[str], tmp_path: Path) -> None:
    prefix = tmp_path / "usr"
    for _ in range(2):
        done = glassfs(*words, "--systemd")
        assert done.returncode == 0, done.stderr
        assert files_below(prefix) == WRITTEN
    unit = (tmp_path / SERVICE).read_text()
    commands = [line.partition("=")[2].split()[0] for line in unit.splitlines() if line.startswith("Exec")]
    assert len(commands) == 2
    for command in commands:
        assert run(command, "--version").stdout.startswith("glassfs ")
    assert (prefix / "share/man/man1/glassfs.1").read_text().partition("\n")[2] == page()
    assert glassfs(*words, "--remove").returncode == 0
    assert files_below(tmp_path) == set()
    assert not (prefix / "share/doc/glassfs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sbin/mount.glassfs", *sorted(f"usr/{name}" for name in WRITTEN)])
def test_foreign_files_are_neither_replaced_nor_removed(words: list[str], tmp_path: Path, name: str) -> None:
    foreign = tmp_path / name
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_text("something else")
    done = glassfs(*words, "--systemd")
    assert done.returncode == 1
    assert str(foreign) in done.stderr and done.stderr.count("\n") == 1
    glassfs(*words, "--remove")
    assert files_below(tmp_path) == {name}
    assert foreign.read_text() == "something else"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_file_that_appears_after_the_check_stays(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str,
) -> None:
    """In a prefix that other users may write to."""
    victim, unit = tmp_path / "victim", tmp_path / SERVICE
    victim.write_text("mine")
    checked = install._check

    def swapped(paths: list[Path]) -> None:
        checked(paths)
        unit.parent.mkdir(parents=True)
        unit.symlink_to(victim) if kind == "link" else victim.rename(unit)

    monkeypatch.setattr(install, "_check", swapped)
    done = in_process(*words, "--systemd")
    assert done.status == 1 and str(unit) in done.errors[0]
    assert unit.read_text() == "mine"


@pytest.mark.slow
def test_command_is_found_through_links_and_without_a_path(words: list[str], tmp_path: Path) -> None:
    """As ``sudo`` runs it: with a PATH without the virtual environment, or through a link."""
    program = BIN / "glassfs"
    if not program.exists():
        pytest.skip("glassfs is not installed beside this Python")
    link = tmp_path / "glassfs"
    link.symlink_to(program)
    for command in ([link], [program], [sys.executable, "-m", "glassfs"]):
        done = run(*command, *words, "--systemd", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        assert done.returncode == 0, done.stderr
        assert os.readlink(tmp_path / "sbin/mount.glassfs") == str(program.with_name("mount.glassfs"))
        started = re.search(r"^ExecStart=(\S+) mount ", (tmp_path / SERVICE).read_text(), re.MULTILINE)
        assert started and Path(started[1]).samefile(program)


@pytest.mark.parametrize("user", [0, 1000])
def test_refusal_names_the_whole_command(user: int) -> None:
    """``sudo glassfs`` does not find a command in a virtual environment. Nothing can be written in /sys."""
    script = (
        f"import os, sys; os.geteuid = lambda: {user}\n"
        "from glassfs.cli import execute; sys.exit(execute(['install', '--directory', '/sys']))"
    )
    done = run(sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    said, has_advice, words = line.partition("; run it as root: sudo ")
    assert said in [f"glassfs: /sys/mount.glassfs: {os.strerror(number)}" for number in (errno.EPERM, errno.EACCES)]
    assert bool(has_advice) is (user != 0)
    if has_advice:
        program, command = shlex.split(words)
        assert Path(program).is_file() and command == "install"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_program_that_others_may_change_causes_a_warning(words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    program = copy_programs(folder)
    os.chown(folder, 65534, 65534)
    done = run(program, *words)
    assert done.returncode == 0
    assert f"glassfs: warning: user 65534 can change {folder}, and root will run {folder}/glassfs" in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("folder", [
    "with blank %h", *(pytest.param(folder, marks=pytest.mark.slow) for folder in ("bin", "with blank", "100%h")),
])
def test_installed_units_are_valid(words: list[str], tmp_path: Path, folder: str) -> None:
    """systemd-analyze checks that the program exists and can be run."""
    program = copy_programs(tmp_path / folder)
    done = run(program, *words, "--systemd")
    assert done.returncode == 0, done.stderr
    assert "/usr/local/bin" not in (tmp_path / SERVICE).read_text()
    units = [tmp_path / "usr" / name for name in sorted(WRITTEN) if not name.endswith(".1")]
    for unit in units:  # man(1) does not search this prefix for manual pages
        unit.write_text(re.sub("(?m)^Documentation=.*\n", "", unit.read_text()))
    done = run("systemd-analyze", "verify", *units)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder", [
    "it's", *(pytest.param(folder, marks=pytest.mark.slow) for folder in ('a"b', "back\\slash", "line\nbreak")),
])
def test_path_that_systemd_rejects_is_refused(words: list[str], tmp_path: Path, folder: str) -> None:
    program = copy_programs(tmp_path / folder)
    done = run(program, *words, "--systemd")
    assert done.returncode == 1
    assert "systemd cannot start a program whose path has" in done.stderr and done.stderr.count("\n") == 1
    assert files_below(tmp_path / "usr") == files_below(tmp_path / "sbin") == set()
    assert run(program, *words).returncode == 0  # mount(8) accepts any path
