"""Commands and code in the documents do what the documents say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import make_samples
import numpy as np
import pytest

from glassfs.cache import BlockCache
from glassfs.content import Array, Memory
from glassfs.view import View
from tests.cli.glassfs_command import glassfs
from tests.conftest import ROOT
from tests.library.conftest import write_datasets
from tests.test_documents import README, arguments, lines_to_type

WITHOUT_A_MOUNT = {"ls", "tree", "cat", "info", "export", "verify"}


def python_in(page: str, containing: str) -> str:
    """Return the block of Python on a page that contains this text."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if containing in block)
    return block


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder as in the documents: robot.kdb beside a folder of containers."""
    (tmp_path / "datasets").mkdir()
    for path in (tmp_path / "robot.kdb", tmp_path / "datasets/robot.kdb"):
        make_samples.write_kinodb(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_commands_work(place: Path) -> None:
    lines = [words for words in map(arguments, lines_to_type(README.read_text(encoding="utf-8")))
             if words[0] in WITHOUT_A_MOUNT and "://" not in " ".join(words)]
    printed: dict[str, bytes] = {}
    assert {words[0] for words in lines} >= {"tree", "cat", "info", "export", "verify"}
    for words in lines:
        done = glassfs(*words)
        assert done.status == 0, f"glassfs {' '.join(words)}: {done.errors}"
        if words[0] == "cat":
            printed[words[2]] = done.output
    for path, data in printed.items():
        assert data and (place / "exported" / path).read_bytes() == data


def test_python_guide_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """All blocks, from top to bottom, as in a notebook."""
    write_datasets(tmp_path / "datasets")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "run2.kdb/episodes/2 24\n" in printed and "/episodes/0/state.npy\n" in printed
    assert "run1.kdb/episodes/0/sate: there is no such entry; the nearest: run1.kdb/episodes/0/state.npy" in printed
    assert names["data"]["run1.kdb"].attributes["format"] == "kinodb"
    assert names["array"].shape == (24, 7) and names["video"].shape[3] == 3
    assert str(names["times"][1]).startswith("1970-01-02")
    assert names["failed"]["language_instruction"].tolist() == ["open the drawer"] * 2
    assert names["actions"].shape == (24, 7) and (tmp_path / "episode.mp4").read_bytes()[4:8] == b"ftyp"
    assert names["nodes"]["time"].tolist() == [0, 0, 12.5] and names["sites"] == ["A", "G", "ACGT"]
    assert str(names["columns"]["Time"].dtype).startswith("datetime64")
    assert names["png"].startswith(b"\x89PNG")


def test_extras_of_the_guide_exist() -> None:
    extras = re.findall(r"glassfs\[(\w+)\]", (ROOT / "docs/python.md").read_text(encoding="utf-8"))
    offered = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extras and all(f"\n{extra} = [" in offered for extra in extras)


def test_advice_for_100ns_times_is_exact(tmp_path: Path) -> None:
    """Also for years that NumPy prints wrong as ``<M8[100ns]``."""
    assert '.astype("M8[us]")' in python_in("docs/python.md", "columns/Time")
    ticks = np.array([0, 15_778_800_000_000_000, 10**17], "<i8")
    path = tmp_path / "Time.npy"
    np.save(path, ticks.view("<M8[100ns]"))
    times = np.load(path).astype("M8[us]")
    assert (times.view("<i8") * 10 == ticks).all() and str(times[1]).startswith("2020-01-01")


def test_example_view_works() -> None:
    names: dict[str, object] = {}
    exec(python_in("docs/manual/views.md", "View("), names)
    view = names["SHAPE"]
    assert isinstance(view, View)
    (shown,) = view.show(Array(b"", Memory(bytes(24)), "<f8", (3,)), BlockCache(), ("version",))
    assert isinstance(shown.thing, Memory)
    assert (shown.suffix, shown.thing.read(0, shown.thing.size)) == (".shape", b"<f8 [3]\n")
