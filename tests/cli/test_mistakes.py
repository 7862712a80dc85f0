"""Test suggestions for mistyped commands and paths, and paths that lead into containers."""

from __future__ import annotations

import gc
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glassfs import cli
from tests.cli.conftest import VALUES
from tests.cli.glassfs_command import fails, glassfs


@pytest.mark.parametrize(("typed", "meant"), [
    ("unmount", "umount"), ("mont", "mount"), ("exprot", "export"), ("list", "ls"), ("extract", "export"),
    ("verfy", "verify"), ("ifno", "info"), ("hlep", "help"), ("head", "cat"), ("describe", "info"),
    ("convert", "export"), ("open", "mount"),
])
def test_unknown_commands_get_a_suggestion(typed: str, meant: str) -> None:
    fails(glassfs("xyzzy"), "no such command: 'xyzzy' (see 'glassfs --help')", 2)
    fails(glassfs(typed, "x"), f"no such command: '{typed}'; did you mean '{meant}'? (see 'glassfs --help')", 2)


def test_closed_streams_are_no_errors(store: Path) -> None:
    command = f"'{sys.executable}' -m glassfs"
    for words in (f"ls '{store}' >&-", f"ls '{store}' >&- 2>&-", f"ls '{store}/nothing' 2>&-; test $? = 1"):
        done = subprocess.run(f"{command} {words}", shell=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(("typed", "meant"), [
    (["help"], ["--help"]), (["help", "ls"], ["ls", "--help"]), (["version"], ["--version"]),
])
def test_help_and_version_are_commands_too(typed: list[str], meant: list[str]) -> None:
    done = glassfs(*typed)
    assert (done.status, done.output) == (0, glassfs(*meant).output)


def test_a_container_as_command_gets_a_suggestion(store: Path) -> None:
    end = "(see 'glassfs --help')"
    fails(glassfs(store), f"no such command: '{store}'; did you mean 'glassfs ls {store}'? {end}", 2)
    meant = f"glassfs mount {store} mnt"
    fails(glassfs(store, "mnt"), f"no such command: '{store}'; did you mean '{meant}'? {end}", 2)


def test_source_and_path_may_be_one_argument(store: Path) -> None:
    raw = glassfs("cat", store, "nodes/time.npy").output
    assert np.array_equal(np.load(io.BytesIO(raw)), VALUES)
    for between in ("/", "//", "/./"):
        assert glassfs("cat", f"{store}{between}nodes/time.npy").output == raw
    both = glassfs("cat", f"{store}/nodes/flags.npy", f"{store}/nodes/flags.npy").output
    assert both == 2 * glassfs("cat", store, "nodes/flags.npy").output
    assert glassfs("ls", f"{store}/nodes").lines == ["flags.npy", "time.npy"]
    assert glassfs("ls", f"{store}/", "nodes").lines == ["flags.npy", "time.npy"]
    assert glassfs("ls", f"{store}/nodes", "flags.npy").lines == ["flags.npy"]
    assert len(glassfs("tree", f"{store}/nodes").lines) == 3


def test_export_of_a_path_keeps_its_folders(store: Path, tmp_path: Path) -> None:
    assert glassfs("export", f"{store}/nodes", tmp_path / "a").status == 0
    assert glassfs("export", f"{store}/nodes", "flags.npy", tmp_path / "b").status == 0
    assert sorted(os.listdir(tmp_path / "a" / "nodes")) == ["flags.npy", "time.npy"]
    assert os.listdir(tmp_path / "b" / "nodes") == ["flags.npy"]


def test_source_and_path_may_have_escaped_names(store: Path, tmp_path: Path) -> None:
    inner = tmp_path / "a\nb"
    inner.mkdir()
    shutil.copy(store, inner / "s.kas")
    assert glassfs("ls", f"{inner}/s.kas/nodes").lines == ["flags.npy", "time.npy"]
    assert glassfs("ls", f"{tmp_path}/a%0Ab/s.kas/nodes").lines == ["flags.npy", "time.npy"]


@pytest.mark.parametrize("command", ["ls", "tree"])
def test_errors_name_a_missing_path_as_typed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for place in (f"{tmp_path}/none.kas", "none.kas", "folder/none.kas", "folder/none/none", "none/none.kas"):
        fails(glassfs(command, place), f"{place}: No such file or directory")


def test_patterns_and_a_second_source_are_explained(store: Path, robot: Path, tmp_path: Path) -> None:
    done = glassfs("cat", store, "nodes/*.npy")
    fails(done, f"nodes/*.npy: no such file or directory in {store}; patterns such as * only work in a mount")
    done = glassfs("export", store, robot, tmp_path / "out")
    fails(done, f"{robot}: no such file or directory in {store}; it is a separate file; only one source is allowed")


def test_cat_without_a_path_is_a_usage_error(store: Path, tmp_path: Path) -> None:
    needed = f"{store}: name a path inside it; 'glassfs ls {store}' shows what is there"
    fails(glassfs("cat", store), f"{needed} (see 'glassfs cat --help')", 2)
    assert glassfs("cat", tmp_path / "none").status == 2


def test_cat_continues_after_a_failure(store: Path) -> None:
    done = glassfs("cat", store, "none", "nodes", "nodes/flags.npy")
    assert done.output == glassfs("cat", store, "nodes/flags.npy").output
    assert (done.status, len(done.errors)) == (1, 2)


@pytest.mark.parametrize("words", [
    ["ls", "{}"], ["ls", "-R", "{}"], ["tree", "{}"], ["cat", "{}", "nodes/flags.npy"], ["cat", "{}", "none"],
    ["ls", "{}", "none"], ["info", "{}"], ["export", "{}", "{}.out"], ["export", "{}", "/dev/null"],
])
def test_trees_are_closed(
    words: list[str], store: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Trees of failing commands are closed too."""
    source = tmp_path / "closed.kas"
    shutil.copy(store, source)
    gc.disable()  # the command itself must close the tree
    try:
        cli.run([word.format(source) for word in words])
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        assert not [name for name in names if os.path.lexists(name) and os.readlink(name) == str(source)]
    finally:
        gc.enable()


def test_characters_missing_in_the_encoding_are_escaped(robot: Path) -> None:
    done = glassfs("tree", "-L", "1", robot, PYTHONIOENCODING="ascii")
    assert (done.status, done.errors) == (0, [])
    assert len(done.lines) == 3
