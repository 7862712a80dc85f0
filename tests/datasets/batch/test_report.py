"""Reports and other files under names that users gave: complete lines, one writer, resuming after a killed program."""

from __future__ import annotations

import errno
import fcntl
import os
import tracemalloc
from contextlib import closing, suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs import outputs
from glassfs.datasets.batch.found import BatchError
from glassfs.datasets.batch.run import MOST_LINE_BYTES, Report
from glassfs.errors import GlassfsError
from tests.datasets.batch.many import lines_of

HOSTILE = ["a\nb", '"}\n{"path": "x"', "\udcff\udc80", "\u2028\x85\x1b[2K", "\0", "ü" * 300, ""]


def written(path: Path, is_resumed: bool = False) -> closing[Report]:
    return closing(Report(str(path), "verify", is_resumed))


def faults(report: Report, path: str, version: str = "1") -> int | None:
    known = report.known(path, version)
    return None if known is None else known.faults


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_one_ascii_line_written_at_once(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with written(path) as report:
        report.write(name, name, [name])
        assert lines_of(path) == [{"path": name, "version": name, "ok": False, "faults": [name]}]
        report.write("next", "1", [])
        assert lines_of(path)[1:] == [{"path": "next", "version": "1", "ok": True, "faults": []}]
    assert path.read_bytes().isascii() and path.read_bytes().count(b"\n") == 2
    with written(path, is_resumed=True) as report:
        assert (faults(report, name, name), faults(report, name, "other"), faults(report, "next")) == (1, None, 0)


@given(st.integers(0, 400))
def test_a_torn_line_is_cut_off(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Wherever the file was cut, complete lines are kept and the next one starts on a line of its own."""
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


LINE = b'{"path": "%s", "version": "1", "ok": true, "faults": []}\n'


@pytest.mark.parametrize("line", [
    LINE % rb"\ud800",
    LINE.replace(b"[]", b"[" * 10**6) % b"b",
    LINE.replace(b"[]", b'[], "rows": ' + b"9" * 10**5) % b"b",
    LINE.replace(b"[]", b"[" + b"0," * MOST_LINE_BYTES + b"0]") % b"b",
    b" " * MOST_LINE_BYTES + LINE % b"b",
    b'{"path": 3}\n',
    bytes(20) + b"\n",
], ids=["half a pair", "nested", "digits", "long", "in a long one", "not a path", "zeros after a crash"])
def test_hostile_lines_are_ignored(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "report.jsonl"
    path.write_bytes(LINE % b"a" + line + LINE % b"c" + b"torn")
    with written(path, is_resumed=True) as report:
        assert (len(report._known), faults(report, "a"), faults(report, "b"), faults(report, "c")) == (2, 0, None, 0)
    assert path.read_bytes() == LINE % b"a" + line + LINE % b"c"


@pytest.mark.slow
@pytest.mark.parametrize("begin", [b"", LINE % b"a", b'{"path": "'])
def test_long_file_takes_little_memory(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "report.jsonl"
    path.write_bytes(begin)
    os.truncate(path, 20 * MOST_LINE_BYTES)
    tracemalloc.start()
    with suppress(BatchError), written(path, is_resumed=True):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MOST_LINE_BYTES


def test_only_the_locked_file_is_truncated(tmp_path: Path) -> None:
    """In a folder that other users may write to, the name may lead to another file by the time that it is read."""
    path, other = tmp_path / "report.jsonl", tmp_path / "other"
    other.write_bytes(LINE % b"a")
    path.write_bytes(b"not a report\n" * 100)
    lock = fcntl.flock

    def swapped(*words: int) -> None:
        lock(*words)
        other.rename(path)

    with path.open("rb") as private:
        with mock.patch("fcntl.flock", swapped), pytest.raises(BatchError, match="is not a report"):
            Report(str(path), "verify", is_resumed=True)
        assert private.read() == b"not a report\n" * 100


def test_report_is_not_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "report.jsonl").symlink_to("other")
    for text in (None, b"", LINE % b"a"):
        if text is not None:
            (tmp_path / "other").write_bytes(text)
        with pytest.raises(GlassfsError, match=r"report\.jsonl: cannot be written: is a symbolic link"):
            Report(str(tmp_path / "report.jsonl"), "verify", is_resumed=True)
        assert text is None or (tmp_path / "other").read_bytes() == text
    assert (tmp_path / "other").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_report_of_another_user_is_continued(tmp_path: Path) -> None:
    """A colleague's, or on a server that gives the files of root to another user."""
    path = tmp_path / "report.jsonl"
    path.write_bytes(LINE % b"a")
    os.chown(path, 12345, 12345)
    with written(path, is_resumed=True) as report:
        assert len(report._known) == 1


def test_an_existing_report_requires_resume_of_the_same_command(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.touch()
    with written(path) as report:
        report.write("a", "1", [])
    with pytest.raises(BatchError, match=f"{path}: this report exists already; --resume continues it"):
        written(path)
    with pytest.raises(BatchError, match="is a report of 'verify', not of 'export'"):
        Report(str(path), "export", True)
    assert len(lines_of(path)) == 1


@pytest.mark.parametrize("content", [b"text", b"text\n", b'{"path": "a"}\n', b"[]\n{", b"\0" * 100, b'{"a": 1}\ntorn'])
def test_other_files_are_never_truncated(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(BatchError, match="is not a report of glassfs; name another file"):
        written(path, is_resumed=True)
    assert path.read_bytes() == content


def test_only_one_program_writes_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with written(path):
        for is_resumed in (False, True):
            with pytest.raises(GlassfsError, match=f"{path}: another program is writing to it"):
                written(path, is_resumed)
    written(path).__exit__(None, None, None)


def test_reports_work_on_file_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(errno.ENOSYS, "Function not implemented")))
    with written(tmp_path / "report.jsonl") as report:
        report.write("a", "1", [])
    assert len(lines_of(tmp_path / "report.jsonl")) == 1


def test_paths_are_recognized_however_they_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# When something else has the name of a file.


def test_missing_file_is_created_and_an_existing_one_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for expected in (b"a", b"aa"):
        descriptor = outputs.opened(str(path), 0o640)
        os.write(descriptor, b"a")
        os.close(descriptor)
        assert path.read_bytes() == expected
    assert path.stat().st_mode & 0o777 == 0o640


def test_name_is_looked_up_in_the_open_folder(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    descriptor = outputs.opened("log", folder=folder)
    assert outputs.is_at(descriptor, "log", folder)
    (tmp_path / "log").rename(tmp_path / "other")
    assert not outputs.is_at(descriptor, "log", folder)
    (tmp_path / "log").write_text("another file")
    assert not outputs.is_at(descriptor, "log", folder)
    os.close(descriptor)
    os.close(folder)


@pytest.mark.parametrize(("kind", "reason"), [
    ("link", "is a symbolic link"), ("dangling link", "is a symbolic link"), ("hard link", "hard links"),
    ("fifo", "is not a regular file"), ("device", "is not a regular file"), ("folder", "Is a directory"),
    ("of another user", "belongs to another user"),
])
def test_other_files_stay_as_they_are(tmp_path: Path, kind: str, reason: str) -> None:
    if kind in ("device", "of another user") and os.geteuid() != 0:
        pytest.skip("only root can make it")
    path, victim = tmp_path / "log", tmp_path / "victim"
    victim.write_text("mine")
    match kind:
        case "link":
            path.symlink_to(victim)
        case "dangling link":
            path.symlink_to(tmp_path / "none")
        case "hard link":
            path.hardlink_to(victim)
        case "fifo":
            os.mkfifo(path)
        case "device":
            os.mknod(path, 0o020666, os.makedev(1, 3))
        case "folder":
            path.mkdir()
        case "of another user":
            path.write_text("mine")
            os.chown(path, 12345, 12345)
    with pytest.raises(OSError, match=reason):
        outputs.opened(str(path))
    assert sorted(os.listdir(tmp_path)) == ["log", "victim"] and victim.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of root")
def test_users_may_append_to_files_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator may prepare a log for a service that has a user of its own."""
    (tmp_path / "log").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    os.close(outputs.opened(str(tmp_path / "log")))
