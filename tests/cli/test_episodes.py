"""Test ``glassfs episodes``: the table of a mount, from one process or many."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassfs.content.summary import COLUMNS, RECORD_COLUMNS, ContainerPiece, piece_of
from glassfs.datasets.table import CSV_SAFE, encoded, head
from glassfs.library import open_tree
from tests.cli.glassfs_command import fails, glassfs
from tests.conftest import DATA, Scale
from tests.datasets.batch.many import command, robot, sound

TEXTS = ['a "quoted"\r\ntext, with, commas', "=1+1", "ünïcode \u2028", "nul \0 inside", "\n"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of containers; sorted by the bytes of paths, they are not in the order of folders."""
    folder = tmp_path / "data"
    for number, name in enumerate(("a/run.kdb", "a-b/run.kdb", "a.kdb", "z.kdb", "b/deep/er/run.kdb", "B.kdb")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        robot(folder / name, 1 + number, TEXTS[number % len(TEXTS)])
    sound(folder / "none.kas")
    (folder / "notes.txt").write_text("no container")
    return folder


def shown(source: Path, form: str) -> bytes:
    """Return the file that the tree of the same source has."""
    with open_tree(source, views=form) as tree:
        node = tree.file(f"/episodes.{form}")
        return node.read(0, node.size)


@pytest.mark.parametrize(("form", "jobs"), [
    ("parquet", "2"), *(pytest.param(form, jobs, marks=pytest.mark.slow) for form, jobs in (
        ("jsonl", "1"), ("jsonl", "2"), ("parquet", "1"), ("csv", "1"), ("csv", "2"),
    )),
])
def test_output_file_equals_the_file_in_a_mount(folder: Path, form: str, jobs: str, tmp_path: Path) -> None:
    done = glassfs("episodes", folder, "--jobs", jobs, "--output", tmp_path / f"all.{form}")
    where = f"{len(shown(folder, 'jsonl').splitlines())} rows in {tmp_path}/all.{form}"
    assert (done.status, done.output, done.errors) == (0, b"", [f"7 containers, 0 faults; {where}"])
    assert (tmp_path / f"all.{form}").read_bytes() == shown(folder, form)
    assert sorted(tmp_path.iterdir()) == sorted([folder, tmp_path / f"all.{form}"])


def test_csv_follows_rfc_4180(folder: Path, tmp_path: Path) -> None:
    """Lines end with CR LF and quotes are doubled; a list is JSON in a cell."""
    assert glassfs("episodes", folder, "--output", tmp_path / "all.csv").status == 0
    raw = (tmp_path / "all.csv").read_bytes()
    assert raw.startswith(",".join(COLUMNS).encode() + b"\r\n") and raw.endswith(b"\r\n")
    found = list(csv.DictReader(io.StringIO(raw.decode(), newline="")))
    rows = [json.loads(line) for line in shown(folder, "jsonl").splitlines()]
    assert len(found) == len(rows) == 21
    for cells, row in zip(found, rows, strict=True):
        assert cells["language_instruction"] == row["language_instruction"].replace("\0", "\ufffd")
        assert (cells["container"], int(cells["position"])) == (row["container"], row["position"])
        assert cells["episode_name"] == "" and row["episode_name"] is None
        assert json.loads(cells["fps"]) == row["fps"]
    lists = DATA / "wshard/go_full_lanes.wshard"
    (line,), done = glassfs("episodes", lists).lines, glassfs("episodes", "--format", "csv", lists)
    (cells,) = csv.DictReader(io.StringIO(done.output.decode(), newline=""))
    for name in ("channels", "cameras"):
        assert json.loads(cells[name]) == json.loads(line)[name] != []


def test_safe_csv_has_no_formulas_in_texts(folder: Path, tmp_path: Path) -> None:
    """Only texts that begin as one change, and can be restored; numbers below zero are no formulas."""
    texts = ["=HYPERLINK(A1)", "+1", "-1", "@SUM(1)", "\tx", "\rx", "\nx", "\uff1dx", "'=x", "'x", "x=1", " =1", ""]
    names = [name for name, _ in RECORD_COLUMNS]
    columns: list[list[object]] = [[None] * len(texts) for _ in RECORD_COLUMNS]
    columns[names.index("language_instruction")] = texts
    columns[names.index("total_reward")] = [-0.5] * len(texts)
    columns[names.index("channels")] = [["=1"]] * len(texts)
    rows = ContainerPiece("-a.kdb", 0, piece_of(columns, RECORD_COLUMNS))
    raw = head(CSV_SAFE) + encoded(CSV_SAFE, [rows])
    found = list(csv.DictReader(io.StringIO(raw.decode(), newline="")))
    assert [cells["language_instruction"] for cells in found] == [f"'{text}" for text in texts[:9]] + texts[9:]
    assert {(cells["container"], cells["total_reward"], cells["channels"]) for cells in found} == {
        ("'-a.kdb", "-0.5", '["=1"]'),
    }
    done = glassfs("episodes", folder, "--csv-safe", "--format", "csv")
    plain = glassfs("episodes", folder, "--format", "csv")
    assert done.output.count(b",'=1+1 ") == plain.output.count(b",=1+1 ") > 0 == done.output.count(b",=1+1")
    fails(glassfs("episodes", folder, "--csv-safe"), "--csv-safe needs --format csv (see 'glassfs episodes --help')", 2)


def test_containers_are_named_as_in_a_mount(folder: Path) -> None:
    """A single container is named by its file, several sources as side by side in a mount."""
    def containers(*sources: Path) -> list[str]:
        lines = glassfs("episodes", *sources).output.splitlines()
        return list(dict.fromkeys(json.loads(line)["container"] for line in lines))

    assert containers(folder / "a.kdb") == ["a.kdb"]
    assert containers(folder / "z.kdb", folder / "a") == ["a/run.kdb", "z.kdb"]
    assert containers(folder / "a", folder / "a-b", folder / "a/run.kdb") == ["a-b/run.kdb", "a/run.kdb", "run.kdb"]


@pytest.mark.parametrize("name", ["all.xlsx", "all.json", "all.parquet.gz"])
def test_unknown_endings_are_refused(folder: Path, name: str, tmp_path: Path) -> None:
    done = glassfs("episodes", folder, "--output", tmp_path / name)
    assert done.status == 2 and "is not one of .jsonl, .parquet, .csv;" in done.errors[0]
    assert not list(tmp_path.glob("all*"))
    assert glassfs("episodes", folder, "--format", "jsonl", "--output", tmp_path / name).status == 0
    assert glassfs("episodes", folder, "--output", tmp_path / "ALL.CSV").status == 0
    assert (tmp_path / "ALL.CSV").read_bytes().startswith(b"container,position")


def test_an_unreadable_container_loses_its_rows_only(folder: Path, tmp_path: Path) -> None:
    (folder / "z.kdb").write_bytes((folder / "z.kdb").read_bytes()[:200])
    done = glassfs("episodes", folder, "--output", tmp_path / "all.jsonl")
    assert (done.status, len(done.errors)) == (1, 2) and done.errors[1].startswith("7 containers, 1 fault; ")
    assert done.errors[0].startswith(f"glassfs: {folder}/z.kdb: ")
    assert (tmp_path / "all.jsonl").read_bytes() == shown(folder, "jsonl")


@pytest.mark.slow
def test_a_long_table_is_processed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: Scale) -> None:
    """A table has more rows than a worker returns at once."""
    from glassfs.cli import episodes

    folder = tmp_path / "data"
    folder.mkdir()
    robot(folder / "a.kdb", scale(1000, 20_000), "t" * 200)
    robot(folder / "b.kdb", 3)
    monkeypatch.setattr(episodes, "PIECE", 100_000)
    assert glassfs("episodes", folder, "--jobs", 2).output == shown(folder, "jsonl")
    assert glassfs("episodes", folder).output == shown(folder, "jsonl")


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_part_of_another_program_stays(folder: Path, tmp_path: Path, form: str) -> None:
    output, part = tmp_path / f"all.{form}", tmp_path / f"all.{form}.part"
    part.write_text("half a download")
    done = glassfs("episodes", folder, "--output", output)
    fails(done, f"{part}: exists and is not from this command; move it away first")
    assert part.read_text() == "half a download" and not output.exists()
    part.unlink()
    assert glassfs("episodes", folder, "--output", output).status == 0
    whole = output.read_bytes()
    part.write_bytes(whole[:6])  # that of a killed command
    assert glassfs("episodes", folder, "--output", output).status == 0
    assert output.read_bytes() == whole and not part.exists()


def test_options_and_outputs_that_cannot_work_are_refused(folder: Path, tmp_path: Path) -> None:
    done = glassfs("episodes", folder, "--output", folder)
    fails(done, f"{folder}: is a folder")
    done = glassfs("episodes", folder, "--output", tmp_path / "none/x.csv")
    fails(done, f"{tmp_path}/none/x.csv.part: cannot be written: No such file or directory")


def test_parquet_is_not_written_to_a_terminal(folder: Path) -> None:
    terminal, other = pty.openpty()
    try:
        words = command("episodes", folder, "--format", "parquet")
        done = subprocess.run(words, stdout=other, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(terminal)
        os.close(other)
    assert done.returncode == 1
    assert b"Parquet cannot be written to a terminal" in done.stderr


def test_output_never_replaces_sources_or_containers(folder: Path, tmp_path: Path) -> None:
    other, notes = robot(tmp_path / "other.kdb"), folder / "notes.txt"
    link = tmp_path / "link"
    link.symlink_to(notes)
    before = {path: path.read_bytes() for path in (other, notes)}
    for output, reason in (
        (other, "is a container; name another file"), (notes, "is a source; name another file"),
        (link, "is a source; name another file"),
    ):
        done = glassfs("episodes", folder, notes, "--output", output, "--format", "csv")
        fails(done, f"{output}: {reason}")
    assert {path: path.read_bytes() for path in before} == before
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_failed_write_names_the_file_and_leaves_nothing(form: str, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    source, output = robot(tmp_path / "robot.kdb", 300), tmp_path / f"all.{form}"
    words = command("episodes", source, "--output", output)
    limited = [sys.executable, "-c", LIMITED, *words[1:]]
    done = subprocess.run(limited, capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (1, f"glassfs: {output}: cannot be written: File too large\n")
    assert list(tmp_path.iterdir()) == [source]


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_without_episodes_it_says_what_there_is(tmp_path: Path) -> None:
    folder = tmp_path / "trees and tables"
    folder.mkdir()
    for name in ("kastore/small.trees", "kastore/one_byte.kas", "idv/iris.idv", "idv/tiny.idv"):
        shutil.copy(DATA / name, folder)
    instead = "no episodes, but 2 containers with tables, 1 container with trees, "
    instead += "2 containers with arrays"
    for jobs in ("1", "2"):
        done = glassfs("episodes", "--jobs", jobs, folder)
        assert (done.status, done.output, done.errors) == (0, b"", [instead])
    rows = glassfs("cat", folder, "tables.jsonl").output.splitlines()
    assert [json.loads(row)["container"] for row in rows] == ["iris.idv", "tiny.idv"]
    alone = glassfs("episodes", folder / "small.trees")
    assert alone.errors == ["no episodes, but 1 container with trees, 1 container with arrays"]
    robot(folder / "run.kdb", 1, "pick")
    assert glassfs("episodes", "--where", "task = 'none'", folder).errors == []
