"""Test that names and texts of untrusted containers reach a terminal or log escaped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from writers.ikv import write_ikv1
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter

from tests.cli.glassfs_command import Done, glassfs

FORGED = "\nglassfs: forged: line\x1b[2K\x1b]0;title\x07\x9b31m\u2028\u2029\u202e\x85"
RAW = os.fsencode(FORGED) + b"\xff\xfe\x80"
NAME = os.fsdecode(RAW)


def run(*words: str | Path) -> Done:
    """Run a command; check that it prints UTF-8 without control characters, and no line forged by a name."""
    done = glassfs(*words)
    for line in (done.output + done.raw_errors).decode().split("\n"):
        assert line.isprintable() and not line.startswith("glassfs: forged")
    return done


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder with hostile names and link targets, outside and inside a container."""
    folder = tmp_path / "hostile"
    (folder / f"folder{NAME}").mkdir(parents=True)
    with KastoreWriter(folder / f"{NAME}.kas") as writer:
        writer.add(FORGED, [1])
        writer.add(RAW, [1])
        writer.add(b"dir/" + RAW, [1])
    (folder / f"plain{NAME}").write_bytes(b"plain")
    (folder / f"link{NAME}").symlink_to(f"to{NAME}")
    return folder


@pytest.mark.parametrize("words", [
    ["ls"], ["ls", "-lRH"], ["tree", "-a"], ["info"], ["info", "--json"], ["info", "--quick"], ["verify"],
    ["verify", "--json"],
])
def test_listings_are_harmless(words: list[str], hostile: Path) -> None:
    for source in (hostile, hostile / f"{NAME}.kas"):
        done = run(*words, source)
        assert done.status == 0
        assert done.output or words[0] == "verify"
        escaped = br"-> to\nglassfs: forged: line\x1b[2K\x1b]0;title\x07\x9b31m\u2028\u2029\u202e\x85"
        assert source != hostile or words[0] != "tree" or escaped in done.output


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "export"])
@pytest.mark.parametrize("kind", ["path", "source", "inner"])
def test_errors_about_typed_paths_are_harmless(command: str, kind: str, hostile: Path, tmp_path: Path) -> None:
    container = hostile / f"{NAME}.kas"
    words: list[str | Path] = {
        "path": [container, f"none{NAME}"], "source": [hostile / f"none{NAME}", "x"],
        "inner": [container / f"none{NAME}", "x"],
    }[kind]
    done = run(command, *words, *[tmp_path / f"out{NAME}"][: command == "export"])
    assert (done.status, done.output) == (1, b"")
    assert done.errors


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "info", "export", "verify"])
def test_errors_about_damaged_containers_are_harmless(command: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"\x89KAS\r\n\x1a\n\x63" + bytes(80))
    more = {"cat": ["x"], "export": [tmp_path / "out"]}.get(command, [])
    done = run(command, path, *more)
    assert done.status == 1
    assert b"forged" in done.output + done.raw_errors


def test_a_hostile_command_line_is_one_line() -> None:
    for words in (
        [NAME], ["ls", f"--{NAME}"], ["export", NAME], ["tree", "-L", NAME, "x"], ["cat", NAME], ["ls"],
        ["tree", "-L", "0", "x"],
    ):
        done = run(*words)
        assert (done.status, done.output, len(done.errors)) == (2, b"", 1)
        assert done.errors[0].startswith("glassfs: ")
    assert run().status == 2


def test_errors_of_an_export_are_harmless(hostile: Path, tmp_path: Path) -> None:
    target = tmp_path / f"target{NAME}"
    done = run("export", hostile, target)
    assert (done.status, done.output, len(done.errors)) == (0, b"", 1)
    for path in target.iterdir():
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            path.mkdir()
    done = run("export", "--overwrite", hostile, target)
    assert (done.status, len(done.errors)) == (1, 4)
    done = run("export", hostile, target)
    assert (done.status, len(done.errors)) == (1, 1)


def test_names_in_headers_and_of_cameras_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "robot.kdb"
    with KinoWriter(path, created=0) as writer:
        pictures = [{FORGED: np.zeros((2, 2, 3), np.uint8)}]
        writer.add_episode(np.ones((1, 2)), np.zeros((1, 1)), images=pictures, task=FORGED)
    write_ikv1(tmp_path / "root.ikv", {"a": [1]}, FORGED)
    for command, source in (("tree", path), ("info", tmp_path / "root.ikv")):
        done = run(command, source)
        assert (done.status, done.errors) == (0, [])
        assert b"forged" in done.output
