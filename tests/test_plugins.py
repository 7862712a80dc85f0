"""Formats of third parties: a package with an entry point is found, its containers open, and a broken one only logs."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

MODULE = '''
import struct

from glassfs.content import Array, Container, Extent, Group, Member, Memory, Text
from glassfs.errors import Damaged
from glassfs.formats.registry import Format

MAGIC = b"WAVE1D\\0\\0"


def open_wave(source, cache):
    if source.size < 16:
        raise Damaged(f"{source.name}: the header is cut")
    (count,) = struct.unpack("<Q", source.read(8, 8))
    if 16 + 4 * count != source.size:
        raise Damaged(f"{source.name}: {count} samples do not fit")
    members = [
        Member((b"samples",), Array(b"samples", Extent(source, 16, 4 * count), "<f4", (count,))),
        Member((b"meta", b"note"), Text(b"meta/note", Memory(b"made by a third party"))),
    ]
    return Container("wave", "1", Group(b"", lambda: members), [source], {"samples": count})


FORMAT = Format("wave", lambda head: head.startswith(MAGIC), open_wave)
'''

PYPROJECT = '''
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "glassfs-wave"
version = "1.0"

[project.entry-points."glassfs.formats"]
wave = "glassfs_wave:FORMAT"

[tool.setuptools]
py-modules = ["glassfs_wave"]
'''

SAMPLES = struct.pack("<3f", 0.5, -1.0, 2.0)
WAVE = b"WAVE1D\0\0" + struct.pack("<Q", 3) + SAMPLES


@pytest.fixture(scope="module", params=["built", "by hand"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The third party's package in a folder of its own, offline: built by setuptools from its pyproject.toml, and laid
    down as an installer lays a wheel down.
    """
    target = tmp_path_factory.mktemp("site")
    if request.param == "by hand":
        write_distribution(target, "glassfs_wave", MODULE, "wave = glassfs_wave:FORMAT")
        return target
    pytest.importorskip("setuptools")
    project = tmp_path_factory.mktemp("project")
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "glassfs_wave.py").write_text(MODULE)
    # Without bdist_wheel, which needs a package that is not everywhere.
    build = ["-c", "import setuptools; setuptools.setup()", "-q", "build_py", "-d", target, "egg_info", "-e", target]
    subprocess.run([sys.executable, *build], cwd=project, capture_output=True, check=True)
    return target


def write_distribution(target: Path, module: str, text: str, *entries: str) -> None:
    """A module and the metadata that make it an installed distribution with entry points."""
    (target / f"{module}.py").write_text(text)
    info = target / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[glassfs.formats]", *entries, ""]))


def glassfs(*arguments: str | Path, path: Path | None) -> subprocess.CompletedProcess[bytes]:
    environment: Mapping[str, str] = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, "-m", "glassfs", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, env=environment)


@pytest.fixture
def wave(tmp_path: Path) -> Path:
    path = tmp_path / "tone.bin"
    path.write_bytes(WAVE)
    return path


def test_nobody_knows_the_format_without_the_package(wave: Path) -> None:
    done = glassfs("ls", wave, path=None)
    assert done.returncode == 1
    assert done.stderr.decode() == "glassfs: tone.bin: is not a container of a known format\n"


def test_an_installed_format_is_recognised(installed: Path, wave: Path) -> None:
    done = glassfs("ls", "-R", wave, path=installed)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "/:\nmeta/\nsamples.npy\n\n/meta:\nnote.txt\n"


def test_its_files_are_read_through_the_views(installed: Path, wave: Path) -> None:
    done = glassfs("cat", wave, "meta/note.txt", "samples.npy", path=installed)
    assert done.returncode == 0
    assert done.stdout.startswith(b"made by a third party\x93NUMPY")
    assert done.stdout.endswith(b"\n" + SAMPLES)


def test_its_containers_show_in_a_mirrored_folder(installed: Path, wave: Path) -> None:
    (wave.parent / "plain.txt").write_text("x")
    done = glassfs("ls", wave.parent, path=installed)
    assert done.stdout.decode().split() == ["plain.txt", "tone.bin/"]


def test_its_refusals_are_one_line(installed: Path, wave: Path) -> None:
    wave.write_bytes(WAVE[:-1])
    done = glassfs("ls", wave, path=installed)
    assert (done.returncode, done.stderr) == (1, b"glassfs: tone.bin: 3 samples do not fit\n")


def test_built_in_formats_cannot_be_taken_over(tmp_path: Path, wave: Path) -> None:
    """A package that claims every file gets only those that no built-in format knows."""
    from writers.kastore import KastoreWriter

    store = tmp_path / "store.kas"
    with KastoreWriter(store) as writer:
        writer.add("a", [1])
    greedy = MODULE.replace("head.startswith(MAGIC)", "True")
    write_distribution(tmp_path, "greedy_format", greedy, "greedy = greedy_format:FORMAT")
    assert glassfs("ls", store, path=tmp_path).stdout == b"a.npy\n"
    assert glassfs("ls", wave, path=tmp_path).stdout == b"meta/\nsamples.npy\n"


BROKEN = {
    "raises when it is imported": ("raise RuntimeError('no such thing')", "broken = broken_format:FORMAT"),
    "lacks the name": ("FORMAT = None", "broken = broken_format:MISSING"),
    "is not there": ("", "broken = module_that_is_not_there:FORMAT"),
    "is no format": ("FORMAT = 'wave'", "broken = broken_format:FORMAT"),
}


@pytest.mark.parametrize(("module", "entry"), BROKEN.values(), ids=BROKEN)
def test_a_broken_package_only_logs(tmp_path: Path, wave: Path, module: str, entry: str) -> None:
    """The sound one beside it still works, and the log names the one that does not load."""
    write_distribution(tmp_path, "glassfs_wave", MODULE, "wave = glassfs_wave:FORMAT")
    write_distribution(tmp_path, "broken_format", textwrap.dedent(module), entry)
    done = glassfs("ls", wave, path=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"meta/\nsamples.npy\n", b"")
    program = "import logging, sys, glassfs; logging.basicConfig(); glassfs.open(sys.argv[1])"
    logged = subprocess.run(
        [sys.executable, "-c", program, wave], capture_output=True, check=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert logged.stderr.startswith(b"WARNING:glassfs.formats.registry:format broken ")
    assert logged.stderr.count(b"\n") == 1
