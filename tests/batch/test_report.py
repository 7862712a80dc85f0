"""Reports: lines that are whole, one writer at a time, and what a program that was killed has left."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.batch.contract import BatchError
from glassfs.batch.report import Report
from glassfs.errors import NotFound

HOSTILE = ["a\nb", '"}\n{"path": "x"', "\udcff\udc80", "\u2028\x85\x1b[2K", "\0", "ü" * 300, ""]


def written(path: Path, is_resumed: bool = False) -> Report:
    return Report(str(path), "verify", is_resumed)


def faults(report: Report, path: str, version: str = "1") -> int | None:
    known = report.known(path, version)
    return None if known is None else known.faults


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_a_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with written(path) as report:
        report.write("a.kdb", "1", [])
        assert lines_of(path) == [{"path": "a.kdb", "version": "1", "ok": True, "faults": []}]
        report.write("b.kdb", "2", ["/x: is wrong"])
        said = {"path": "b.kdb", "version": "2", "ok": False, "faults": ["/x: is wrong"]}
        assert lines_of(path)[1:] == [said]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_any_kind(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with written(path) as report:
        report.write(name, name, [name])
        report.write("next", "1", [])
    assert [line["path"] for line in lines_of(path)] == [name, "next"]
    assert path.read_bytes().isascii() and path.read_bytes().count(b"\n") == 2
    with written(path, is_resumed=True) as report:
        assert (faults(report, name, name), faults(report, name, "other"), faults(report, "next")) == (1, None, 0)


@given(st.integers(0, 400))
def test_a_torn_line_is_cut_off(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Wherever the file ends, there are the lines before, and what is written next stands on a line of its own."""
    path = tmp_path_factory.mktemp("torn") / "report.jsonl"
    with written(path) as report:
        for number in range(4):
            report.write(f"{number}.kdb", "version", ["a fault"] * number)
    whole = path.read_bytes()
    cut = min(cut, len(whole))
    path.write_bytes(whole[:cut])
    with written(path, is_resumed=True) as report:
        known = [faults(report, f"{number}.kdb", "version") for number in range(4)]
        assert known == [number if whole[:cut].count(b"\n") > number else None for number in range(4)]
        report.write("next", "1", [])
    assert [line["path"] for line in lines_of(path)] == [f"{n}.kdb" for n in range(whole[:cut].count(b"\n"))] + ["next"]


def test_a_line_that_is_none_says_nothing(tmp_path: Path) -> None:
    """A crash of the machine may leave zeros in the midst of a file."""
    path = tmp_path / "report.jsonl"
    with written(path) as report:
        report.write("a", "1", [])
        report.write("b", "1", [])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + bytes(20) + b"\n" + b'{"path": 3}\n' + second)
    with written(path, is_resumed=True) as report:
        assert (faults(report, "a"), faults(report, "b"), report.known_lines) == (0, 0, 2)


def test_an_older_report_is_not_written_to_unasked(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with written(path) as report:
        report.write("a", "1", [])
    with pytest.raises(BatchError, match="--resume continues it"):
        written(path)
    assert len(lines_of(path)) == 1


def test_an_empty_file_is_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.touch()
    for is_resumed in (False, True):
        with written(path, is_resumed) as report:
            assert not report.known_lines


@pytest.mark.parametrize("content", [b"text", b"text\n", b'{"path": "a"}\n', b"[]\n{", b"\0" * 100, b'{"a": 1}\ntorn'])
def test_nothing_is_cut_off_a_file_of_another_kind(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(BatchError, match="is not a report of glassfs; name another file"):
        written(path, is_resumed=True)
    assert path.read_bytes() == content


def test_two_programs_do_not_write_one_report(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with written(path):
        with pytest.raises(BatchError, match="another program is writing to this report"):
            written(path)
        with pytest.raises(BatchError, match="another program is writing to this report"):
            written(path, is_resumed=True)
    written(path).__exit__(None, None, None)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of some clusters: there a report can be written nevertheless."""
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with written(tmp_path / "report.jsonl") as report:
        report.write("a", "1", [])
    assert len(lines_of(tmp_path / "report.jsonl")) == 1


def test_a_report_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        written(tmp_path / "none" / "report.jsonl")
    with pytest.raises(BatchError, match="Is a directory"):
        written(tmp_path)


def test_a_report_is_of_one_command(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with written(path) as report:
        report.write("a", "1", [])
    with pytest.raises(BatchError, match="is a report of 'verify', not of 'export'"):
        Report(str(path), "export", True)
    assert len(lines_of(path)) == 1


def test_one_path_can_be_typed_in_several_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "report.jsonl"
    with written(path) as report:
        report.write("data/a.kdb", "1", [])
        report.write("s3://bucket/a.kdb", "1", [])
    with written(path, is_resumed=True) as report:
        same = ["data/a.kdb", "./data/a.kdb", "data//a.kdb", f"{tmp_path}/data/a.kdb", f"{tmp_path}/./data//a.kdb"]
        others = ["data/b.kdb", "a/../data/a.kdb", "s3:/bucket/a.kdb", "/data/a.kdb"]
        assert [faults(report, name) for name in (*same, "s3://bucket/a.kdb")] == [0] * 6
        assert [faults(report, name) for name in others] == [None] * 4


def test_rows_are_known_by_what_they_call_the_container(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with written(path) as report:
        report.write("data/a.kdb", "1", [], "a.kdb", 3)
        report.write("data/b.kdb", "1", [], "b.kdb", 0)
    assert [(line["container"], line["rows"]) for line in lines_of(path)] == [("a.kdb", 3), ("b.kdb", 0)]
    with written(path, is_resumed=True) as report:
        known = report.known("data/a.kdb", "1")
        assert known is not None and known.has_rows("a.kdb", 3)
        assert not (known.has_rows("a.kdb", 2) or known.has_rows("data/a.kdb", 3))
