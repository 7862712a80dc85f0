"""Test that names and texts of untrusted containers reach a terminal or log escaped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from writers.ikv import write_ikv1
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter

FORGED = "\nglassfs: forged: line\x1b[2K\x1b]0;title\x07\x9b31m\u2028\u2029\u202e\x85"
RAW = os.fsencode(FORGED) + b"\xff\xfe\x80"


def run(*arguments: str | bytes | Path) -> tuple[int, bytes, bytes]:
    command = [os.fsencode(sys.executable), b"-m", b"glassfs", *map(os.fsencode, arguments)]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def is_harmless(raw: bytes) -> bool:
    """Return whether the output is printable UTF-8 without a line forged by a name."""
    lines = raw.decode().split("\n")
    return all(line.isprintable() and not line.startswith("glassfs: forged") for line in lines)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder with hostile names and link targets, outside and inside a container."""
    folder = os.fsencode(tmp_path / "hostile")
    os.mkdir(folder)
    with KastoreWriter(os.fsdecode(folder + b"/" + RAW + b".kas")) as writer:
        writer.add(FORGED, [1])
        writer.add(RAW, [1])
        writer.add(b"dir/" + RAW, [1])
    os.mkdir(folder + b"/folder" + RAW)
    with open(folder + b"/plain" + RAW, "wb") as file:
        file.write(b"plain")
    os.symlink(b"to" + RAW, folder + b"/link" + RAW)
    return Path(os.fsdecode(folder))


def container(hostile: Path) -> str:
    return next(str(path) for path in hostile.iterdir() if path.name.endswith(".kas"))


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ["ls"], ["ls", "-l"], ["ls", "-lR"], ["ls", "-lH"], ["tree"], ["tree", "-a"], ["info"], ["info", "--json"],
    ["info", "--quick"], ["verify"], ["verify", "--json"],
])
def test_listings_are_harmless(words: list[str], hostile: Path) -> None:
    for source in (str(hostile), container(hostile)):
        status, output, errors = run(*words, source)
        assert status == 0
        assert is_harmless(output)
        assert is_harmless(errors)
    assert output or words[0] == "verify"


def test_link_targets_are_escaped(hostile: Path) -> None:
    for words in (["ls", "-l"], ["tree"]):
        _, output, _ = run(*words, hostile)
        assert b"-> to\\nglassfs: forged: line\\x1b[2K\\x1b]0;title\\x07\\x9b31m\\u2028\\u2029\\u202e\\x85" in output


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "export"])
@pytest.mark.parametrize("kind", ["path", "source", "inner"])
def test_errors_about_typed_paths_are_harmless(command: str, kind: str, hostile: Path, tmp_path: Path) -> None:
    words: list[str | bytes] = {
        "path": [container(hostile), b"none" + RAW], "source": [os.fsencode(hostile) + b"/none" + RAW, "x"],
        "inner": [os.fsencode(container(hostile)) + b"/none" + RAW, "x"],
    }[kind]
    if command == "export":
        words.append(os.fsencode(tmp_path) + b"/out" + RAW)
    status, output, errors = run(command, *words)
    assert (status, output) == (1, b"")
    assert errors
    assert is_harmless(errors)


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "info", "export", "verify"])
def test_errors_about_damaged_containers_are_harmless(command: str, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/" + RAW
    with open(path, "wb") as file:
        file.write(b"\x89KAS\r\n\x1a\n\x63" + bytes(80))
    more = {"cat": ["x"], "export": [tmp_path / "out"]}.get(command, [])
    status, output, errors = run(command, path, *more)
    assert status == 1
    assert is_harmless(output)
    assert is_harmless(errors)
    assert b"forged" in output + errors


def test_a_hostile_command_line_is_one_line(tmp_path: Path) -> None:
    for words in ([RAW], ["ls", b"--" + RAW], ["export", RAW], ["tree", "-L", RAW, "x"], ["cat", RAW]):
        status, output, errors = run(*words)
        assert (status, output) == (2, b"")
        assert errors.count(b"\n") == 1
        assert is_harmless(errors)


def test_errors_of_an_export_are_harmless(hostile: Path, tmp_path: Path) -> None:
    target = os.fsencode(tmp_path) + b"/target" + RAW
    status, output, errors = run("export", hostile, target)
    assert (status, output, errors) == (0, b"", b"")
    for path in Path(os.fsdecode(target)).iterdir():
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            path.mkdir()
    status, _, errors = run("export", "--overwrite", hostile, target)
    assert status == 1
    assert errors.count(b"\n") == 3
    assert is_harmless(errors)
    status, _, errors = run("export", hostile, target)
    assert (status, errors.count(b"\n")) == (1, 1)
    assert is_harmless(errors)


def test_exported_names_are_those_of_a_mount(hostile: Path, tmp_path: Path) -> None:
    assert run("export", container(hostile), tmp_path / "out")[0] == 0
    escaped = FORGED.translate({code: f"%{code:02X}" for code in (*range(32), 127)})
    names = set(os.listdir(os.fsencode(tmp_path / "out")))
    assert names == {b"dir", f"{escaped}.npy".encode(), f"{escaped}%FF%FE%80.npy".encode()}


def test_names_in_headers_and_of_cameras_are_harmless(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "robot.kdb"
    with KinoWriter(path, created=0) as writer:
        pictures = [{FORGED: np.zeros((2, 2, 3), np.uint8)}]
        writer.add_episode(np.ones((1, 2)), np.zeros((1, 1)), images=pictures, task=FORGED)
    write_ikv1(tmp_path / "root.ikv", {"a": [1]}, FORGED)
    for source in (path, tmp_path / "root.ikv"):
        status, output, errors = run("info", source)
        assert (status, errors) == (0, b"")
        assert b"forged" in output
        assert is_harmless(output)
