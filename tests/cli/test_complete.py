"""Test tab completion, called like the shells' scripts do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from writers.kastore import KastoreWriter

from glassfs import cli


def offered(*words: str | Path) -> list[str]:
    """Return completions of the last word with their type: ``plain,nodes/``; ``file,…`` is left to the shell."""
    shell = BashComplete(cli.glassfs, {}, "glassfs", "_GLASSFS_COMPLETE")
    *before, last = map(str, words)
    return [shell.format_completion(item) for item in shell.get_completions(before, last)]


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "export"])
def test_paths_in_the_source_are_completed(command: str, store: Path) -> None:
    assert offered(command, store, "z") == ["plain,zeros.npy"]
    assert offered(command, store, "nodes/") == ["plain,nodes/flags.npy", "plain,nodes/time.npy"]
    assert offered(command, store, "/nodes/t") == ["plain,/nodes/time.npy"]
    assert offered(command, f"{store}/nodes", "t") == ["plain,time.npy"]


def test_other_words_are_completed(store: Path) -> None:
    """A single match that is a directory is offered with its contents, so that no shell appends a space."""
    assert offered("um") == ["plain,umount"]
    assert offered("mount", "some") == offered("umount", "some") == ["file,some"]
    assert offered("ls", store, "no") == ["plain,nodes/flags.npy", "plain,nodes/time.npy"]
    assert offered("cat", store, "zeros.npy", "nodes/t") == ["plain,nodes/time.npy"]
    assert offered("export", store, "zeros.npy", "/tmp/so") == ["dir,/tmp/so"]


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "export", "info"])
def test_files_and_paths_through_containers_are_completed(command: str, store: Path) -> None:
    begun = str(store)[:-2]
    assert offered(command, begun) == [f"file,{begun}"]
    assert offered(command, f"{store.parent}/") == [f"file,{store.parent}/"]
    assert offered(command, f"{store}/nodes/t") == [f"plain,{store}/nodes/time.npy"]
    assert f"plain,{store}/nodes/" in offered(command, f"{store}/")


def test_files_that_are_no_containers_offer_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    assert offered("ls", tmp_path / "text", "x") == []
    assert offered("ls", tmp_path / "none", "x") == []
    assert offered("ls", f"{tmp_path}/text/x") == []


def test_names_that_a_shell_interprets_are_not_offered(tmp_path: Path) -> None:
    path = tmp_path / "names.kas"
    hostile = ("$(touch${IFS}x)", "a b", "semi;colon", "`tick`", "esc\x1b[31m", "c1\x9b31m", "turn\u202e", "*", "~x")
    with KastoreWriter(path) as writer:
        for name in ("good", "é", *hostile):
            writer.add(name, [1])
    assert offered("cat", path, "") == ["plain,good.npy", "plain,é.npy"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
def test_the_printed_script_completes_in_bash(store: Path, tmp_path: Path) -> None:
    (tmp_path / "glassfs").write_text(f'#!/bin/sh\nexec {sys.executable} -m glassfs "$@"\n')
    (tmp_path / "glassfs").chmod(0o755)
    script = (
        f'PATH="{tmp_path}:$PATH"; eval "$(glassfs completion bash)"; COMP_WORDS=(glassfs cat "{store}" nodes/t); '
        'COMP_CWORD=3; _glassfs_completion glassfs; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "nodes/time.npy\n"


def test_mount_options_are_completed() -> None:
    assert offered("mount", "-o", "allow") == ["plain,allow_other", "plain,allow_root"]
    assert offered("mount", "-o", "allow_other,uid=5,um") == ["plain,allow_other,uid=5,umask="]
    assert "plain,uid=5,uid=" not in offered("mount", "-o", "uid=5,")
    assert offered("mount", "-o", "zzz") == []
