"""Files as sources: complete reads or an error, changes noticed, and no way out of the folder."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.errors import Changed, Damaged
from glassfs.source import LocalSource

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    return path


def test_ranges_are_those_of_the_file(path: Path) -> None:
    source = LocalSource(path)

    @given(st.integers(0, len(CONTENT)), st.integers(0, len(CONTENT)))
    def check(start: int, end: int) -> None:
        start, end = sorted((start, end))
        assert source.read(start, end - start) == CONTENT[start:end]

    check()


def test_identity_and_owner_are_those_of_the_file(path: Path) -> None:
    status, source = path.stat(), LocalSource(path)
    assert source.name == "file.bin"
    assert source.identity == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    assert (source.mode, source.uid, source.gid, source.size) == (
        status.st_mode, status.st_uid, status.st_gid, len(CONTENT),
    )


@pytest.mark.parametrize(("offset", "size"), [(0, len(CONTENT) + 1), (len(CONTENT), 1), (-1, 1), (5, -1), (1 << 62, 1),
                                              (0, 1 << 62), (1 << 70, 1)])
def test_ranges_outside_are_damage_and_allocate_nothing(path: Path, offset: int, size: int) -> None:
    with pytest.raises(Damaged, match=r"file\.bin"):
        LocalSource(path).read(offset, size)


@pytest.mark.parametrize("offset", [len(CONTENT) - 3, len(CONTENT), 1 << 40, 1 << 70])
def test_a_short_read_is_an_error(path: Path, offset: int) -> None:
    """Also when a caller hands down a buffer without asking for the size."""
    with pytest.raises(Damaged):
        LocalSource(path).read_into(memoryview(bytearray(4)), offset)


def test_a_truncated_file_gives_an_error_and_no_signal(path: Path) -> None:
    source = LocalSource(path)
    os.truncate(path, 100)
    for offset in (0, 50, 5000):
        with pytest.raises(Changed):
            source.read(offset, 100)


def test_a_rewritten_file_is_changed(path: Path) -> None:
    source = LocalSource(path)
    with path.open("r+b") as file:
        file.write(b"new")
    os.utime(path, ns=(0, source.identity.mtime_ns + 1))
    with pytest.raises(Changed, match=r"file\.bin"):
        source.read(200, 10)


def test_an_appended_file_is_changed(path: Path) -> None:
    source = LocalSource(path)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(Changed):
        source.read(0, 10)


def test_a_deleted_or_replaced_file_stays_what_was_opened(path: Path) -> None:
    source = LocalSource(path)
    other = path.with_name("other")
    other.write_bytes(b"other")
    other.rename(path)
    assert source.read(0, 256) == CONTENT[:256]
    path.unlink()
    assert source.read(256, 256) == CONTENT[256:512]


def test_after_close_reads_raise(path: Path) -> None:
    source = LocalSource(path)
    source.close()
    source.close()
    with pytest.raises(Changed, match="closed"):
        source.read(0, 1)


def test_a_forgotten_source_closes_its_descriptor(path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(50):
        LocalSource(path).read(0, 1)
    assert len(os.listdir("/dev/fd")) <= before + 1


def test_a_folder_or_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    """A FIFO without a writer must not block."""
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"):
            LocalSource(place)
    assert not [name for name in os.listdir("/dev/fd") if os.path.realpath(f"/dev/fd/{name}").endswith("/pipe")]


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalSource(tmp_path / "missing")


def test_siblings_stand_in_the_same_folder(path: Path) -> None:
    (path.parent / "next.bin").write_bytes(b"neighbour")
    (path.parent / "link").symlink_to("next.bin")
    source = LocalSource(path)
    assert source.sibling("next.bin").read(0, 9) == b"neighbour"
    assert source.sibling("link").read(0, 9) == b"neighbour"


@pytest.mark.parametrize("name", [
    "", ".", "..", "../secret", "/etc/hostname", "inner/file", "missing", "a\0b", "./next.bin", "out", "out_folder",
    "inner_link",
])
def test_siblings_never_leave_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "file.bin").write_bytes(b"x")
    (folder / "next.bin").write_bytes(b"x")
    (folder / "inner" / "file").write_bytes(b"x")
    (folder / "out").symlink_to("../secret")
    (folder / "out_folder").symlink_to("..")
    (folder / "inner_link").symlink_to("inner/file")
    with pytest.raises(FileNotFoundError):
        LocalSource(folder / "file.bin").sibling(name)


def test_a_sibling_through_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(b"a")
    (tmp_path / "real" / "b").write_bytes(b"b")
    (tmp_path / "link").symlink_to("real")
    assert LocalSource(tmp_path / "link" / "a").sibling("b").read(0, 1) == b"b"


def test_threads_share_a_source(path: Path) -> None:
    source = LocalSource(path)
    with ThreadPoolExecutor(8) as threads:
        offsets = [number * 13 % (len(CONTENT) - 100) for number in range(400)]
        parts = list(threads.map(lambda offset: source.read(offset, 100), offsets))
    assert parts == [CONTENT[offset : offset + 100] for offset in offsets]
