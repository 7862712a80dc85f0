"""Test tab completion, called like the shells' scripts do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from glassfs import cli


def offered(*words: str | Path) -> list[str]:
    """Return completions of the last word with their type: ``plain,nodes/``; ``file,…`` is left to the shell."""
    shell = BashComplete(cli.glassfs, {}, "glassfs", "_GLASSFS_COMPLETE")
    *before, last = map(str, words)
    return [shell.format_completion(item) for item in shell.get_completions(before, last)]


def test_commands_and_files_are_completed() -> None:
    assert offered("um") == ["plain,umount"]
    for command in ("mount", "umount", "ls", "tree", "cat", "export", "info", "diff", "verify"):
        assert offered(command, "some") == ["file,some"]
    assert offered("export", "a.kas", "/tmp/so") == ["file,/tmp/so"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
def test_the_printed_script_completes_in_bash(tmp_path: Path) -> None:
    (tmp_path / "glassfs").write_text(f'#!/bin/sh\nexec {sys.executable} -m glassfs "$@"\n')
    (tmp_path / "glassfs").chmod(0o755)
    script = (
        f'PATH="{tmp_path}:$PATH"; eval "$(glassfs completion bash)"; COMP_WORDS=(glassfs um); '
        'COMP_CWORD=1; _glassfs_completion glassfs; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "umount\n"


def test_mount_options_are_completed() -> None:
    assert offered("mount", "-o", "allow") == ["plain,allow_other", "plain,allow_root"]
    assert offered("mount", "-o", "allow_other,uid=5,um") == ["plain,allow_other,uid=5,umask="]
    assert "plain,uid=5,uid=" not in offered("mount", "-o", "uid=5,")
    assert offered("mount", "-o", "zzz") == []
