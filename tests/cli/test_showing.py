"""Test ``ls``, ``tree``, ``cat`` and ``info``, errors of all commands and what they suggest, and tab completion."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.shell_completion import BashComplete
from writers.kastore import KastoreWriter
from writers.safetensors import described, packed

from glassfs import cli
from tests.cli.conftest import VALUES
from tests.cli.glassfs_command import fails, glassfs
from tests.formats.npz_files import npy


def test_ls_lists_a_directory_or_a_file(store: Path) -> None:
    assert glassfs("ls", store).lines == ["nodes/", "odd%0Aname.npy", "zeros.npy"]
    for path in ("nodes", "/nodes", "nodes/", "//nodes/.//"):
        assert glassfs("ls", store, path).lines == ["flags.npy", "time.npy"]
    assert glassfs("ls", store, "nodes/time.npy").lines == ["time.npy"]


def test_ls_lists_recursively(robot: Path) -> None:
    assert glassfs("ls", "-R", robot, "episodes/0").lines == [
        "/episodes/0:", "action.npy", "images/", "is_terminal.npy", "meta/", "reward.npy", "state.npy",
        "", "/episodes/0/images:", "cam/",
        "", "/episodes/0/images/cam:", "000000.png", "000001.png", "000002.png",
        "", "/episodes/0/meta:", "episode.json",
    ]


def test_ls_shows_attributes_and_shapes(store: Path) -> None:
    os.utime(store, (0, 86_400))
    done = glassfs("ls", "-l", store)
    fields = [line.split() for line in done.lines]
    assert [(field[0], field[4], *field[8:]) for field in fields] == [
        ("dr-xr-x---", "0", "nodes"), ("-r--r-----", "136", "odd%0Aname.npy", "int64", "[1]"),
        ("-r--r-----", str(128 + 4_000_000), "zeros.npy", "float64", "[500000]"),
    ]
    assert {" ".join(field[5:8]) for field in fields} == {"Jan 2 1970"}
    assert glassfs("ls", "-lH", store, "zeros.npy").lines[0].split()[4] == "3.8M"
    assert glassfs("ls", store.parent).lines == ["store.kas/"]


def test_tree_shows_sizes_and_shapes(robot: Path) -> None:
    assert glassfs("tree", robot, "episodes/0/images").lines == ["episodes/0/images", "└── cam/  3 frames"]
    assert "├── images/" in glassfs("tree", robot, "episodes/0").lines
    assert len(glassfs("tree", robot, "episodes/0/images/cam").lines) == 4
    done = glassfs("tree", "--all", robot, "episodes/0/images")
    # PNG signature, header and end; the chunks of the stream's head, of the rows, and of its end.
    facts = f"{45 + (12 + 2) + (12 + 5 + 4 * 16) + (12 + 5 + 4)}  uint8 [4, 5, 3]"
    assert done.lines == [
        "episodes/0/images", "└── cam/", f"    ├── 000000.png  {facts}", f"    ├── 000001.png  {facts}",
        f"    └── 000002.png  {facts}",
    ]
    assert "└── state.npy  152  float32 [3, 2]" in glassfs("tree", robot, "episodes/0").lines
    assert glassfs("tree", "-L", "1", robot).lines[1:] == ["├── episodes/", "└── meta/"]


def test_widened_tensors_say_what_is_stored(tmp_path: Path) -> None:
    types = {"a": ("BF16", 2048), "b": ("F8_E4M3", 1024), "c": ("F4", 512), "d": ("F16", 2048), "e": ("BOOL", 1024)}
    header, at = {}, 0
    for name, (kind, size) in types.items():
        header[name], at = described(kind, [4, 256], at, at + size), at + size
    (tmp_path / "x.safetensors").write_bytes(packed(header, bytes(at)))
    facts = {
        "a.npy": "float32 [4, 256] (stored as BF16, 2.0K)", "b.npy": "float32 [4, 256] (stored as F8_E4M3, 1.0K)",
        "c.bin": "F4 [4, 256]", "d.npy": "float16 [4, 256]", "e.npy": "bool [4, 256]",
    }
    listed = glassfs("ls", "-l", tmp_path / "x.safetensors/tensors").lines
    assert [line.rpartition("  ")[2] for line in listed] == list(facts.values())
    shown = glassfs("tree", tmp_path / "x.safetensors", "tensors").lines[1:]
    assert [line.rpartition("  ")[2] for line in shown] == list(facts.values())


def test_tree_shortens_long_directories(tmp_path: Path) -> None:
    with KastoreWriter(tmp_path / "many.kas") as writer:
        for number in range(100):
            writer.add(f"k{number:03}", [1])
    done = glassfs("tree", tmp_path / "many.kas")
    assert len(done.lines) == 1 + 40 + 1
    assert done.lines[-1] == "└── … 60 more"
    assert len(glassfs("tree", "--all", tmp_path / "many.kas").lines) == 101


def test_cat_writes_the_bytes_of_files(store: Path, robot: Path) -> None:
    assert glassfs("cat", store, "nodes/time.npy").output == npy(VALUES)
    done = glassfs("cat", store, "nodes/flags.npy", "zeros.npy")
    assert done.output == npy(np.array([1, 2], "u4")) + npy(np.zeros(500_000))
    episode = json.loads(glassfs("cat", robot, "episodes/0/meta/episode.json").output)
    assert episode["language_instruction"] == "pick"


def test_cat_into_a_pipe_that_closes_is_quiet(store: Path) -> None:
    command = f"{sys.executable} -m glassfs cat {store} zeros.npy | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (npy(np.zeros(1))[:10], b"")


def test_info_counts_contents(robot: Path, store: Path) -> None:
    found = json.loads(glassfs("info", "--json", robot).output)
    assert (found["format"], found["bytes"], found["source"]) == ("kinodb", robot.stat().st_size, str(robot))
    assert found["contents"]["images"] == 3
    assert found["contents"]["arrays"] == 4
    assert found["raw_bytes"] == sum(
        int(line.split()[4]) for path in ("episodes/0", "episodes/0/images/cam")
        for line in glassfs("ls", "-l", robot, path).lines
    )
    assert found["not_counted"] == 2  # the two documents, which are not rendered for this
    lines = glassfs("info", store).lines
    assert lines[0].startswith(f"{store}: kastore ")
    assert any("arrays" in line for line in lines)
    both = glassfs("info", "--json", "--quick", robot, store).lines
    assert [json.loads(line)["format"] for line in both] == ["kinodb", "kastore"]


def test_damage_is_reported_in_one_line(damaged: Path) -> None:
    done = glassfs("cat", damaged, "signal/good.npy", "signal/bad.npy")
    assert done.status == 1
    assert done.output.startswith(npy(np.arange(2000, dtype=np.float32)))
    assert len(done.errors) == 1
    assert done.errors[0].startswith(f"glassfs: {damaged}: signal/bad.npy: ")
    assert done.errors[0].count("damaged.wshard") == 1
    listed = glassfs("ls", "-lR", damaged)
    assert (listed.status, listed.errors) == (0, [])


@pytest.mark.parametrize("command", ["ls", "cat", "tree"])
def test_missing_paths_are_errors(command: str, store: Path) -> None:
    hint = "the nearest: nodes/flags.npy, nodes/time.npy"
    fails(glassfs(command, store, "nodes/none"), f"nodes/none: no such file or directory in {store}; {hint}")
    hint = "the nearest: nodes"
    fails(glassfs(command, store, "node/time"), f"node/time: no such file or directory in {store}; {hint}")
    fails(glassfs(command, store, "zeros.npy/x"), f"zeros.npy/x: not a directory in {store}")


def test_cat_of_directories_and_tree_of_files_are_errors(store: Path) -> None:
    fails(glassfs("cat", store, "nodes"), f"nodes: is a directory; list it with 'glassfs ls {store} nodes'")
    fails(glassfs("tree", store, "zeros.npy"), "zeros.npy: is not a directory; show it with 'glassfs ls -l'")
    needed = f"{store}: name a path inside it; 'glassfs ls {store}' shows what is there"
    fails(glassfs("cat", store), f"{needed} (see 'glassfs cat --help')", 2)


def test_views_are_found_by_their_path_and_not_listed(store: Path, robot: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "robot.kdb").write_bytes(robot.read_bytes())
    for source, path in (
        (robot, "episodes.parquet"), (robot, "episodes/0/images/cam.mp4"), (store, "nodes/time.zarr/zarr.json"),
        (folder, "episodes.parquet"), (folder, "robot.kdb/episodes/0/index.html"),
    ):
        expected = glassfs("cat", "--views", "all", source, path)
        assert expected.status == 0 and expected.output
        assert glassfs("cat", source, path).output == expected.output
        assert glassfs("ls", source, path).lines == [path.rpartition("/")[2]]
        out = tmp_path / "out" / path
        assert glassfs("export", source, path, tmp_path / "out", "--overwrite").status == 0
        assert out.read_bytes() == expected.output
    for source in (robot, folder):
        assert glassfs("cat", f"{source}/episodes.parquet").output == glassfs("cat", source, "episodes.parquet").output
    assert glassfs("ls", f"{folder}/by-task/pick").lines == ["robot.kdb~0"]
    assert glassfs("ls", "--views", "mp4,parquet", robot).lines == glassfs("ls", "--views", "mp4+parquet", robot).lines
    assert not any("format" in line for line in glassfs("info", f"{folder}/episodes.jsonl").lines)
    assert glassfs("ls", store, "nodes/time.zarr").lines == ["c/", "zarr.json"]
    for shown in (glassfs("ls", "-R", folder), glassfs("tree", folder), glassfs("ls", robot, "episodes/0")):
        assert shown.status == 0 and not any(view in shown.output for view in (b"mp4", b"parquet", b"html"))


def test_info_of_what_is_in_a_container(store: Path, robot: Path) -> None:
    lines = glassfs("info", f"{store}/nodes/time.npy").lines
    assert lines[0] == f"{store}/nodes/time.npy: file, 2.3M, float64 [300000]" and "  key: nodes/time" in lines
    found = json.loads(glassfs("info", "--json", f"{robot}/episodes.parquet").output)
    assert (found["kind"], found["bytes"]) == ("file", len(glassfs("cat", robot, "episodes.parquet").output))
    assert glassfs("info", f"{store}/nodes").lines[:2] == [f"{store}/nodes: directory", "  contents: 2 arrays"]
    done = glassfs("info", f"{store}/node")
    assert done.status == 1 and done.errors[0].endswith("; the nearest: nodes")


# Mistakes, and paths that lead into containers.


@pytest.mark.parametrize(("typed", "meant"), [
    ("unmount", "umount"), ("mont", "mount"), ("exprot", "export"), ("verfy", "verify"), ("ifno", "info"),
    ("hlep", "help"),
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


@pytest.mark.parametrize("command", ["ls", "tree", "info", "verify"])
def test_errors_name_a_missing_path_as_typed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for place in (f"{tmp_path}/none.kas", "none.kas", "folder/none.kas", "folder/none/none", "none/none.kas"):
        fails(glassfs(command, place), f"{place}: No such file or directory")


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
        cli.execute([word.format(source) for word in words])
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        assert not [name for name in names if os.path.lexists(name) and os.readlink(name) == str(source)]
    finally:
        gc.enable()


def test_characters_missing_in_the_encoding_are_escaped(robot: Path) -> None:
    done = glassfs("tree", "-L", "1", robot, PYTHONIOENCODING="ascii")
    assert (done.status, done.errors) == (0, [])
    assert len(done.lines) == 3


# Tab completion, called like the shells' scripts do.


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


def test_help_says_what_works_without_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"/dev/fuse" not in glassfs("--help").output or not os.access("/dev/fuse", os.R_OK | os.W_OK)
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/dev/fuse")
    assert b"Only mount, run and umount need it." in glassfs("--help").output
