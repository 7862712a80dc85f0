"""Formats and views of other packages: the package of docs/plugins.md works as it says, broken ones are only logged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import glassfs.codec.compression
import glassfs.content
from glassfs.cache import BlockCache
from glassfs.errors import NotFound
from glassfs.formats import registry
from glassfs.formats.registry import Opening
from tests.conftest import ROOT
from tests.memory_store import MemoryStore
from tests.tree.made import FORMAT as MADE

PAGE = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
FORMAT, TESTS, ROWS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BROKEN = {
    "raises when it is imported": ("raise RuntimeError('no such thing')", "broken = broken_format:FORMAT"),
    "lacks the name": ("FORMAT = None", "broken = broken_format:MISSING"),
    "is not there": ("", "broken = module_that_is_not_there:FORMAT"),
    "is no format": ("FORMAT = 'wave'", "broken = broken_format:FORMAT"),
}


def write_distribution(target: Path, module: str, text: str, *entries: str, group: str = "glassfs.formats") -> None:
    """Write a module, and metadata that make it an installed distribution with entry points."""
    (target / f"{module}.py").write_text(text)
    info = target / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working folder with the package installed in ``site``, its tests, and a container."""
    (tmp_path / "site").mkdir()
    write_distribution(tmp_path / "site", "drivelog", FORMAT, "drive = drivelog:FORMAT")
    (tmp_path / "test_drivelog.py").write_text(TESTS)
    made = "import test_drivelog; open('monday.drive', 'wb').write(test_drivelog.drive(3))"
    assert run(tmp_path, "-c", made).returncode == 0
    return tmp_path


def run(place: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the packages in its folder ``site`` and the modules in itself."""
    path = os.pathsep.join((str(place / "site"), str(place)))
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=place,
        env=os.environ | {"PYTHONPATH": path},
    )


def glassfs_of(place: Path, *words: str | Path) -> str:
    done = run(place, "-m", "glassfs", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_commands_print_what_the_page_shows(place: Path) -> None:
    (shown,) = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    blocks = re.split(r"^\$ glassfs (.*)\n", shown, flags=re.MULTILINE)[1:]
    assert len(blocks) == 4
    for command, expected in zip(blocks[::2], blocks[1::2], strict=True):
        first, _, last = expected.partition("…\n")
        printed = glassfs_of(place, *command.split())
        assert printed.startswith(first) and printed.endswith(last)
    assert "monday.drive/" in glassfs_of(place, "ls", ".").splitlines()


def test_the_rows_for_a_table_of_its_own_are_those_shown() -> None:
    namespace: dict[str, Any] = {}
    exec(ROWS, namespace)
    columns, table = namespace["stations"]()
    assert [name for name, _ in columns] == ["city", "readings"]
    assert table.records.block(0) == [{"city": "Oslo", "readings": 24}]


@pytest.mark.slow
def test_its_container_is_an_episode_and_verified(place: Path) -> None:
    row = json.loads(glassfs_of(place, "episodes", "monday.drive"))
    assert (row["episode_name"], row["num_frames"], row["channels"]) == ("drive", 3, ["speed", "wheel"])
    assert "steps.parquet" in glassfs_of(place, "ls", "--views", "all", "monday.drive")
    assert "0 faults" in run(place, "-m", "glassfs", "verify", "monday.drive").stderr
    path = place / "monday.drive"
    path.write_bytes(path.read_bytes()[:-1])
    done = run(place, "-m", "glassfs", "ls", "monday.drive")
    assert done.returncode == 1 and "its samples end at 144, outside the file" in done.stderr
    path.write_bytes(b"DRIVE999")
    done = run(place, "-m", "glassfs", "ls", "monday.drive")
    assert "is a drive of a version that drivelog does not know" in done.stderr


@pytest.mark.slow
def test_it_passes_its_tests(place: Path) -> None:
    done = run(place, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_drivelog.py")
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 6


@pytest.mark.slow
@pytest.mark.parametrize(("module", "entry"), [
    pytest.param(*words, id=name, marks=[pytest.mark.slow] * (number > 0))
    for number, (name, words) in enumerate(BROKEN.items())
])
def test_the_list_says_why_a_format_cannot_be_used(place: Path, module: str, entry: str) -> None:
    write_distribution(place / "site", "broken_format", module, entry)
    found = {one["name"]: one for one in json.loads(glassfs_of(place, "formats", "--json"))}
    assert found["drive"] == {"name": "drive", "suffixes": [".drive"], "package": "drivelog 1.0", "error": None}
    assert found["broken"]["package"] == "broken-format 1.0" and found["broken"]["error"]
    (line,) = (line for line in glassfs_of(place, "formats").splitlines() if line.startswith("broken"))
    assert line.endswith(f"from broken-format 1.0: {found['broken']['error']}")
    assert found["kinodb"] == {"name": "kinodb", "suffixes": [".kdb"], "package": None, "error": None}


@pytest.mark.slow
def test_its_project_can_be_installed(tmp_path: Path) -> None:
    """As it stands on the page, with the tests in the same folder."""
    (project,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    for name, text in (("pyproject.toml", project), ("drivelog.py", FORMAT), ("test_drivelog.py", TESTS)):
        (package / name).write_text(text)
    offline = ["--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--target", str(site), str(package)]
    done = run(tmp_path, "-m", "pip", "install", *offline)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in site.glob("*.py")] == ["drivelog.py"]
    found = {one["name"]: one for one in json.loads(glassfs_of(tmp_path, "formats", "--json"))}
    assert found["drive"] == {"name": "drive", "suffixes": [".drive"], "package": "drivelog 1.0", "error": None}


def test_names_on_the_page_exist() -> None:
    """What the tables list is exported, and the modules that are stable have what the page says."""
    _, tables = PAGE.split("## What to make contents of")
    tables, _ = tables.split("## What `open` gets")
    names = set(re.findall(r"`([A-Za-z_]+)`", tables)) - {"Container", "Data"}
    known = {*glassfs.content.__all__, *vars(glassfs.codec.compression), *signature(glassfs.content.Decoded).parameters}
    assert {name for name in names if name[0].isupper() or "_" in name} <= known
    stable = PAGE.partition("## What is stable")[2]
    for module, listed in re.findall(r"`(glassfs\.[\w.]+)`: ((?:`\w+`(?:, | and )?)+)", stable):
        for name in re.findall(r"`(\w+)`", listed):
            assert hasattr(import_module(module), name), f"{module} has no {name}"


def test_built_in_formats_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that recognizes every file gets only those that no built-in format recognizes."""
    greedy = replace(MADE, name="greedy", recognises=lambda head: True)
    monkeypatch.setattr(registry, "built_in", lambda: iter([MADE]))
    monkeypatch.setattr(registry, "installed", lambda: (greedy,))
    assert registry.recognise(registry.Head(b"MADE\n")) is MADE
    assert registry.recognise(registry.Head(b"other")) is greedy


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/hostname", "a\0b", "\ud800"])
def test_siblings_outside_the_folder_are_not_found(name: str) -> None:
    store = MemoryStore({"folder/some": b"", "folder/a/b": b"", "x": b""})
    opening = Opening(store.open(("folder", "some")), BlockCache(), store, ("folder", "some"))
    with pytest.raises(NotFound):
        opening.sibling(name)
    with pytest.raises(NotFound):
        Opening(store.open(("x",)), BlockCache()).sibling("x")


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
    """A folder in whose ``site`` are packages with a working view, a failing one, and unusable ones."""
    (tmp_path / "site").mkdir()
    for module, *entries in (
        ("glassfs_shape", "shape = glassfs_shape:SHAPE", "failing = glassfs_shape:FAILING"),
        ("glassfs_useless", "mp4 = glassfs_useless:CLASH", "none = glassfs_useless:NONE"),
        ("glassfs_missing", "missing = glassfs_missing:SHAPE"),
    ):
        write_distribution(tmp_path / "site", module, VIEWS, *entries, group="glassfs.views")
    return tmp_path


@pytest.mark.slow
def test_installed_view_is_listed_and_shown(views: Path, store: Path) -> None:
    assert re.search("^shape +what an array is, for people$", run(views, "-m", "glassfs", "views").stdout, re.MULTILINE)
    assert glassfs_of(views, "ls", "--views", "shape", store) == "array.npy\narray.shape\n"
    assert glassfs_of(views, "ls", store) == "array.npy\n"
    assert glassfs_of(views, "cat", "--views", "shape", store, "array.shape") == "<f8 [2]\n"


def test_unusable_views_are_logged(views: Path, store: Path) -> None:
    program = (
        "import logging, sys; logging.basicConfig(); from glassfs.library import open_tree; "
        "tree = open_tree(sys.argv[1], views='all'); "
        "print([node.name for node in tree.root.listing()], tree.root.omitted()[0].reason)"
    )
    done = run(views, "-c", program, store)
    warnings = [line.removeprefix("WARNING:glassfs.view.contract:") for line in done.stderr.splitlines()]
    assert sorted(warnings) == [
        "view failing fails: RuntimeError('made of glass')",
        "view missing cannot be loaded: list index out of range",
        "view mp4 exists already",
        "view none is not a glassfs.view.View",
    ]
    for shown in ("'array.npy'", "'array.shape'", "array.zarr", "made of glass"):
        assert shown in done.stdout
