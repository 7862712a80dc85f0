"""``glassfs install``: the helper for mount(8), units for systemd, the manual page; and what a wheel has of them."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassfs.cli.man import page
from tests.conftest import ROOT
from tests.mount.mounts import glassfs

WRITTEN = {
    "lib/systemd/system/glassfs@.service", "share/doc/glassfs/mnt-datasets.automount",
    "share/doc/glassfs/mnt-datasets.mount", "share/man/man1/glassfs.1",
}


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def sbin(tmp_path: Path) -> Path:
    path = tmp_path / "sbin"
    path.mkdir()
    return path


def test_links_to_the_helper_come_and_go(sbin: Path) -> None:
    done = glassfs("install", "--directory", sbin)
    assert done.returncode == 0, done.stderr
    links = sorted(sbin.iterdir())
    assert [link.name for link in links] == ["mount.fuse.glassfs", "mount.glassfs"]
    for link in links:
        run = subprocess.run([link], capture_output=True, text=True, timeout=60, check=False)
        assert (run.returncode, run.stderr.startswith("mount.glassfs: usage:")) == (1, True)
    assert glassfs("install", "--directory", sbin).returncode == 0  # again: replaced
    assert glassfs("install", "--directory", sbin, "--remove").returncode == 0
    assert not list(sbin.iterdir())


def test_units_and_manual_come_and_go(sbin: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "usr"
    words = ["install", "--directory", sbin, "--prefix", prefix]
    for _ in range(2):
        done = glassfs(*words, "--systemd")
        assert done.returncode == 0, done.stderr
        assert files_below(prefix) == WRITTEN
    unit = (prefix / "lib/systemd/system/glassfs@.service").read_text()
    commands = [line.partition("=")[2].split()[0] for line in unit.splitlines() if line.startswith("Exec")]
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
        assert done.stdout.startswith("glassfs ")
    assert (prefix / "share/man/man1/glassfs.1").read_text().partition("\n")[2] == page()
    assert glassfs(*words, "--remove").returncode == 0
    assert files_below(tmp_path) == set()
    assert not (prefix / "share/doc/glassfs").exists()


def test_without_systemd_nothing_is_written_there(sbin: Path, tmp_path: Path) -> None:
    assert glassfs("install", "--directory", sbin, "--prefix", tmp_path / "usr").returncode == 0
    assert not (tmp_path / "usr").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sbin/mount.glassfs", *sorted(f"usr/{name}" for name in WRITTEN)])
def test_what_is_not_its_own_is_neither_replaced_nor_removed(sbin: Path, tmp_path: Path, name: str) -> None:
    foreign = tmp_path / name
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_text("something else")
    words = ["install", "--directory", sbin, "--prefix", tmp_path / "usr"]
    done = glassfs(*words, "--systemd")
    assert done.returncode == 1
    assert str(foreign) in done.stderr and done.stderr.count("\n") == 1
    glassfs(*words, "--remove")
    assert files_below(tmp_path) == {name}
    assert foreign.read_text() == "something else"


def test_a_link_in_the_place_of_a_unit_is_not_followed(sbin: Path, tmp_path: Path) -> None:
    victim, units = tmp_path / "victim", tmp_path / "usr/lib/systemd/system"
    victim.write_text("mine")
    units.mkdir(parents=True)
    (units / "glassfs@.service").symlink_to(victim)
    assert glassfs("install", "--directory", sbin, "--prefix", tmp_path / "usr", "--systemd").returncode == 1
    assert victim.read_text() == "mine"


def test_the_command_is_found_through_links_and_without_a_path(sbin: Path, tmp_path: Path) -> None:
    """As ``sudo`` runs it: with a PATH that leaves the virtual environment out, or through a link somewhere else."""
    program = Path(sys.executable).parent / "glassfs"
    if not program.exists():
        pytest.skip("glassfs is not installed beside this Python")
    link = tmp_path / "glassfs"
    link.symlink_to(program)
    for command in ([link], [program], [sys.executable, "-m", "glassfs"]):
        done = subprocess.run(
            [*command, "install", "--systemd", "--directory", sbin, "--prefix", tmp_path / "usr"],
            capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        assert done.returncode == 0, done.stderr
        assert os.readlink(sbin / "mount.glassfs") == str(program.with_name("mount.glassfs"))
        unit = (tmp_path / "usr/lib/systemd/system/glassfs@.service").read_text()
        started = re.search(r"^ExecStart=(\S+) mount ", unit, re.MULTILINE)
        assert started and Path(started[1]).samefile(program)


@pytest.mark.parametrize("user", [0, 1000])
def test_who_may_not_write_there_is_told_the_whole_command(user: int) -> None:
    """``sudo glassfs`` is "command not found" where glassfs is in a virtual environment. In /sys nobody may write."""
    script = (
        f"import os, sys; os.geteuid = lambda: {user}\n"
        "from glassfs.cli import run; sys.exit(run(['install', '--directory', '/sys']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    said, has_advice, words = line.partition("; run it as root: sudo ")
    assert said in [f"glassfs: /sys/mount.glassfs: {os.strerror(number)}" for number in (errno.EPERM, errno.EACCES)]
    assert bool(has_advice) is (user != 0)
    if has_advice:
        program, command = shlex.split(words)
        assert Path(program).is_file() and command == "install"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_program_that_others_may_change_is_warned_of(sbin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("glassfs", "mount.glassfs"):
        shutil.copy2(Path(sys.executable).parent / name, folder / name)
    os.chown(folder, 65534, 65534)
    done = subprocess.run(
        [folder / "glassfs", "install", "--directory", sbin], capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0
    assert f"glassfs: warning: user 65534 can change {folder}, and root will run {folder}/glassfs" in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("folder", ["bin", "with blank", "100%h", "with blank %h"])
def test_the_installed_unit_is_sound(sbin: Path, tmp_path: Path, folder: str) -> None:
    """Wherever the program is: systemd-analyze looks whether it is there and can be run."""
    place = tmp_path / folder
    place.mkdir()
    for name in ("glassfs", "mount.glassfs"):
        shutil.copy2(Path(sys.executable).parent / name, place / name)
    words = ["install", "--systemd", "--directory", sbin, "--prefix", tmp_path / "usr"]
    done = subprocess.run([place / "glassfs", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "usr/lib/systemd/system/glassfs@.service").read_text()
    assert "/usr/local/bin" not in text
    unit = tmp_path / "glassfs@.service"
    # man(1) does not look for manual pages here.
    unit.write_text("\n".join(line for line in text.splitlines() if not line.startswith("Documentation=")))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder", ["it's", 'a"b', "back\\slash", "line\nbreak"])
def test_a_path_that_systemd_does_not_take(sbin: Path, tmp_path: Path, folder: str) -> None:
    place = tmp_path / folder
    place.mkdir()
    for name in ("glassfs", "mount.glassfs"):
        shutil.copy2(Path(sys.executable).parent / name, place / name)
    words = ["install", "--directory", sbin, "--prefix", tmp_path / "usr"]
    done = subprocess.run([place / "glassfs", *words, "--systemd"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "systemd cannot start a program whose path has" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "usr").exists()
    assert list(sbin.iterdir()) == []
    # The helper for mount(8) may be anywhere.
    assert subprocess.run([place / "glassfs", *words], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_wheel_has_the_units(tmp_path: Path) -> None:
    """Built and unpacked, used without this checkout."""
    sources = tmp_path / "sources"
    shutil.copytree(ROOT, sources, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "tests", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, sources], capture_output=True, text=True,
        check=False,
    )
    if "No matching distribution found for setuptools" in built.stderr:
        pytest.skip("setuptools to build with cannot be had here")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(wheel, unpacked, "zip")
    units = {path.name: path.read_text() for path in (ROOT / "systemd").iterdir()}
    assert {path.name: path.read_text() for path in (unpacked / "glassfs/data/systemd").iterdir()} == units
    script = (
        "import glassfs; from glassfs.cli.install import unit\n"
        "print(glassfs.__file__)\nprint(unit('glassfs@.service'), end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(unpacked)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )
    place, _, text = done.stdout.partition("\n")
    assert place.startswith(str(unpacked))
    assert text == units["glassfs@.service"]
