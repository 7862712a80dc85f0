"""Test ``Target``: invalid names, folders that disappear, and closed descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.cli.target import Existing, NotWritten, Target, opened_folder
from glassfs.sizes import PIECE


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_text("source")
    return path


@pytest.fixture
def target(tmp_path: Path, source: Path) -> Iterator[Target]:
    with opened_folder(str(tmp_path / "out"), 0o755, Existing.REFUSE, str(source)) as opened:
        yield opened


def pieces(*texts: bytes) -> Iterator[memoryview]:
    return map(memoryview, texts)


@pytest.mark.parametrize("place", ["/..", "/.", "/../outside", "/a/../../outside", "/", "/nul\0", "/a//b"])
def test_names_that_leave_the_target_are_refused(place: str, target: Target, tmp_path: Path) -> None:
    target.make_folder("/a", 0o755)
    before = sorted(os.listdir(tmp_path))
    for write in (
        lambda: target.write(place, 0o644, 0, pieces(b"x"), 1), lambda: target.link(place, "goal", 0),
        lambda: target.make_folder(place, 0o755),
    ):
        with pytest.raises(NotWritten):
            write()
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(tmp_path / "out") == ["a"]
    assert os.listdir(tmp_path / "out" / "a") == []


def test_a_folder_that_became_a_link_is_not_entered(target: Target, tmp_path: Path) -> None:
    target.make_folder("/a", 0o755)
    (tmp_path / "outside").mkdir()
    (tmp_path / "out" / "a").rmdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(NotWritten, match="no longer exists"):
        target.write("/a/b", 0o644, 0, pieces(b"x"), 1)
    assert os.listdir(tmp_path / "outside") == []


def test_an_error_of_pieces_leaves_no_file(target: Target, tmp_path: Path) -> None:
    def broken() -> Iterator[memoryview]:
        yield memoryview(b"begin")
        assert os.listdir(tmp_path / "out")[0].startswith(".glassfs-")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        target.write("/file", 0o644, 0, broken(), 5)
    assert os.listdir(tmp_path / "out") == []


def test_zeros_are_written_at_every_position(target: Target, tmp_path: Path) -> None:
    zero, one = bytes(PIECE), b"\1" * PIECE
    for number, parts in enumerate(([zero], [zero, one], [one, zero, b"\0\0"], [zero, zero, b"\0\1"], [b""], [])):
        target.write(f"/{number}", 0o644, 5, pieces(*parts), sum(map(len, parts)))
        assert (tmp_path / "out" / str(number)).read_bytes() == b"".join(parts)
        assert (tmp_path / "out" / str(number)).stat().st_mtime_ns == 5


def test_the_number_of_open_folders_is_bounded(tmp_path: Path, source: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with opened_folder(str(tmp_path / "out"), 0o755, Existing.REFUSE, str(source)) as target:
        place = ""
        for number in range(200):
            place += f"/{number}"
            target.make_folder(place, 0o755)
            target.write(f"{place}/file", 0o644, 0, pieces(b"x"), 1)
            assert len(os.listdir("/proc/self/fd")) <= before + 3
        target.write("/0/1/2/late", 0o644, 0, pieces(b"x"), 1)
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "out/0/1/2/late").exists()
    assert len(list((tmp_path / "out").rglob("file"))) == 200


def test_a_refused_target_leaves_nothing_open(tmp_path: Path, source: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    before = len(os.listdir("/proc/self/fd"))
    for place in ("full", "source", "source/x", "full/x/y"):
        with (
            pytest.raises(NotWritten),
            opened_folder(str(tmp_path / place), 0o755, Existing.REFUSE, str(source)),
        ):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
