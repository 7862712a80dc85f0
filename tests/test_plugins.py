"""Formats and views of other packages: entry points are found, and broken ones are only logged."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from glassfs.cache import BlockCache
from glassfs.errors import NotFound
from glassfs.formats import registry
from glassfs.formats.registry import Opening
from tests.memory_store import MemoryStore
from tests.tree.made import FORMAT

MODULE = '''
import struct

from glassfs.content import Array, Container, Extent, Group, Member, Memory, Text
from glassfs.errors import Damaged, NotFound
from glassfs.formats.registry import Format

MAGIC = b"WAVE1D\\0\\0"


class Samples(Array):
    """A content of its own, shown as what it derives from."""


def open_wave(opening):
    source = opening.source
    if source.size < 16:
        raise Damaged("the header is cut")
    (count,) = struct.unpack("<Q", source.read(8, 8))
    if 16 + 4 * count != source.size:
        raise Damaged(f"{count} samples do not fit")
    members = [
        Member((b"samples",), Samples(b"samples", Extent(source, 16, 4 * count), "<f4", (count,))),
        Member((b"meta", b"note"), Text(b"meta/note", Memory(b"made by a third party"))),
    ]
    sources = [source]
    try:
        sources.append(opening.sibling("lyrics.txt"))
    except NotFound:
        opening.warn("has no words", "lyrics.txt")
    else:
        members.append(Member((b"meta", b"lyrics"), Text(b"lyrics", Extent(sources[1], 0, sources[1].size))))
    return Container("wave", "1", Group(b"", lambda: members), sources, {"samples": count})


def hint(head):
    return "is a wave of version 2, which this package does not know" if head.startswith(b"WAVE2D") else None


FORMAT = Format("wave", lambda head: head.startswith(MAGIC), open_wave, hint)
'''

SAMPLES = struct.pack("<3f", 0.5, -1.0, 2.0)
WAVE = b"WAVE1D\0\0" + struct.pack("<Q", 3) + SAMPLES


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which a package with a format is installed."""
    target = tmp_path_factory.mktemp("site")
    write_distribution(target, "glassfs_wave", MODULE, "wave = glassfs_wave:FORMAT")
    return target


def write_distribution(target: Path, module: str, text: str, *entries: str, group: str = "glassfs.formats") -> None:
    """Write a module, and metadata that make it an installed distribution with entry points."""
    (target / f"{module}.py").write_text(text)
    info = target / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))


def glassfs(*arguments: str | Path, path: Path | None) -> subprocess.CompletedProcess[bytes]:
    environment: Mapping[str, str] = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, "-m", "glassfs", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, env=environment)


@pytest.fixture
def wave(tmp_path: Path) -> Path:
    path = tmp_path / "tone.bin"
    path.write_bytes(WAVE)
    return path


def test_installed_format_works_like_a_built_in_one(installed: Path, wave: Path) -> None:
    """It is recognized, listed in folders, opens siblings, and its contents are shown by views."""
    (wave.parent / "lyrics.txt").write_text("la la")
    done = glassfs("ls", "-R", wave, path=installed)
    assert (done.returncode, done.stdout) == (0, b"/:\nmeta/\nsamples.npy\n\n/meta:\nlyrics.txt\nnote.txt\n")
    done = glassfs("cat", wave, "meta/note.txt", "meta/lyrics.txt", "samples.npy", path=installed)
    assert done.returncode == 0
    assert done.stdout.startswith(b"made by a third partyla la\x93NUMPY")
    assert done.stdout.endswith(b"\n" + SAMPLES)
    assert glassfs("ls", wave.parent, path=installed).stdout.split() == [b"lyrics.txt", b"tone.bin/"]


def run(program: str, container: Path, packages: Path) -> subprocess.CompletedProcess[str]:
    """Run a program about a container, with logging."""
    return subprocess.run(
        [sys.executable, "-c", f"import logging, sys; logging.basicConfig(); {program}", container],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(packages)},
    )


def test_built_in_formats_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that recognizes every file gets only those that no built-in format recognizes."""
    greedy = replace(FORMAT, name="greedy", recognises=lambda head: True)
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    monkeypatch.setattr(registry, "installed", lambda: (greedy,))
    assert registry.recognise(registry.Head(b"MADE\n")) is FORMAT
    assert registry.recognise(registry.Head(b"other")) is greedy


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/hostname", "a\0b", "\ud800"])
def test_siblings_outside_the_folder_are_not_found(name: str) -> None:
    store = MemoryStore({"folder/some": b"", "folder/a/b": b"", "x": b""})
    opening = Opening(store.open(("folder", "some")), BlockCache(), store, ("folder", "some"))
    with pytest.raises(NotFound):
        opening.sibling(name)
    with pytest.raises(NotFound):
        Opening(store.open(("x",)), BlockCache()).sibling("x")


BROKEN = {
    "raises when it is imported": ("raise RuntimeError('no such thing')", "broken = broken_format:FORMAT"),
    "lacks the name": ("FORMAT = None", "broken = broken_format:MISSING"),
    "is not there": ("", "broken = module_that_is_not_there:FORMAT"),
    "is no format": ("FORMAT = 'wave'", "broken = broken_format:FORMAT"),
}


VIEWS = '''
from glassfs.content import Array, Memory, Table
from glassfs.view import Shown, View


def described(array, cache, key):
    yield Shown(Memory(f"{array.dtype} {list(array.shape)}\\n".encode()), ".shape")


def failing(array, cache, key):
    raise RuntimeError("made of glass")


SHAPE = View("shape", "what an array is, for people", (Array,), described)
FAILING = View("failing", "nothing", (Array,), failing)
CLASH = View("mp4", "another one", (Array,), described)
NONE = "no view"
raise_when_loaded = [][0] if __name__ == "glassfs_missing" else None
'''


@pytest.fixture
def views(tmp_path: Path) -> Path:
    """A folder of packages with a working view, a failing one, and unusable ones."""
    site = tmp_path / "site"
    site.mkdir()
    entries = ("shape = glassfs_shape:SHAPE", "failing = glassfs_shape:FAILING")
    write_distribution(site, "glassfs_shape", VIEWS, *entries, group="glassfs.views")
    entries = ("mp4 = glassfs_useless:CLASH", "none = glassfs_useless:NONE")
    write_distribution(site, "glassfs_useless", VIEWS, *entries, group="glassfs.views")
    write_distribution(site, "glassfs_missing", VIEWS, "missing = glassfs_missing:SHAPE", group="glassfs.views")
    return site


@pytest.mark.slow
def test_installed_view_is_listed_and_shown(views: Path, store: Path) -> None:
    listed = glassfs("views", path=views)
    assert listed.returncode == 0
    assert ["shape", "what an array is, for people"] in [
        line.split(maxsplit=1) for line in listed.stdout.decode().splitlines()
    ]
    assert glassfs("ls", "--views", "shape", store, path=views).stdout == b"array.npy\narray.shape\n"
    assert b"array.shape\n" in glassfs("ls", "--views", "all", store, path=views).stdout
    assert glassfs("ls", store, path=views).stdout == b"array.npy\n"
    assert glassfs("cat", "--views", "shape", store, "array.shape", path=views).stdout == b"<f8 [2]\n"
    assert b"shape" not in glassfs("views", path=None).stdout


def test_unusable_views_are_logged(views: Path, store: Path) -> None:
    done = run(
        "from glassfs.library import open_tree; tree = open_tree(sys.argv[1], views='all'); "
        "print([node.name for node in tree.root.listing()], tree.root.omitted()[0].reason)", store, views,
    )
    warnings = [line.removeprefix("WARNING:glassfs.view.registry:") for line in done.stderr.splitlines()]
    assert sorted(warnings) == [
        "view failing fails: RuntimeError('made of glass')",
        "view missing cannot be loaded: list index out of range",
        "view mp4 exists already",
        "view none is not a glassfs.view.View",
    ]
    assert "'array.npy'" in done.stdout and "'array.shape'" in done.stdout and "array.zarr" in done.stdout
    assert "made of glass" in done.stdout
