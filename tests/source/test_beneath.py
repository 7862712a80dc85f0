"""Test opening below a folder in one system call: no path leads out of the folder."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.errors import NotFound
from glassfs.source import Kind, system
from glassfs.source.local import LocalStore
from glassfs.source.system import How, opened_beneath

READ = How(os.O_RDONLY | os.O_NOFOLLOW)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "root/in").mkdir(parents=True)
    (tmp_path / "root/in/file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root/up").symlink_to("../secret")
    (tmp_path / "root/out").symlink_to("..")
    (tmp_path / "root/back").symlink_to("in")
    number = os.open(tmp_path / "root", os.O_RDONLY | os.O_DIRECTORY)
    yield number
    os.close(number)


def test_a_file_below_is_opened(folder: int) -> None:
    number = opened_beneath(folder, ("in", "file"), READ)
    if number is None:
        pytest.skip("the system does not have openat2")
    assert os.read(number, 9) == b"inside"
    assert not os.get_inheritable(number)
    os.close(number)


@pytest.mark.parametrize("path", [("none",), ("in", "none"), ("none", "file")])
def test_missing_paths_are_not_found(folder: int, path: tuple[str, ...]) -> None:
    with pytest.raises(FileNotFoundError):
        if opened_beneath(folder, path, READ) is None:
            pytest.skip("the system does not have openat2")


@pytest.mark.parametrize("path", [
    (), ("..", "secret"), ("in", "..", "..", "secret"), ("up",), ("out", "secret"), ("back", "file"),
    ("in", "", "file"), (".", "in", "file"), ("in/file",), ("../secret",), ("in", "file\0"), ("/", "etc"),
    ("in", "file", "more"),
])
def test_unusual_paths_are_left_to_the_caller(folder: int, path: tuple[str, ...]) -> None:
    assert opened_beneath(folder, path, READ) is None


def test_mounts_are_not_crossed() -> None:
    root = os.open("/", os.O_RDONLY)
    try:
        assert opened_beneath(root, ("proc", "self", "status"), READ) is None
    finally:
        os.close(root)


@given(st.lists(st.text(st.characters(codec="utf-8") | st.sampled_from("/.\0\udcff"), max_size=5), max_size=4))
def test_no_name_leads_out(tmp_path_factory: pytest.TempPathFactory, path: list[str]) -> None:
    """No path below an empty folder can be opened."""
    empty = os.open(tmp_path_factory.mktemp("empty"), os.O_RDONLY)
    try:
        assert opened_beneath(empty, tuple(path), How(os.O_RDONLY)) is None
    except (FileNotFoundError, UnicodeEncodeError):
        pass
    finally:
        os.close(empty)


def test_stores_work_without_the_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems lack it, and sandboxes deny it."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(b"c")
    (tmp_path / "link").symlink_to("a")
    store = LocalStore(tmp_path)

    def denied(*_: object) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    for function in (None, denied):
        monkeypatch.setattr(system, "_syscall", function)
        assert store.open(("a", "b", "c")).read(0, 1) == b"c"
        assert store.entry(("a", "b", "c")).size == 1
        assert [name for name, _ in store.list(("a", "b"))] == ["c"]
        assert store.entry(("link",)).kind is Kind.LINK
        for path in (("link", "b", "c"), ("a", "none"), ("none", "b")):
            with pytest.raises((NotFound, NotADirectoryError)):
                store.open(path)


def test_a_released_root_stays_open_while_in_use(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    store = LocalStore(tmp_path)
    is_over = threading.Event()

    def release() -> None:
        while not is_over.is_set():
            store.close()

    thread = threading.Thread(target=release)
    thread.start()
    try:
        for _ in range(2000):
            assert store.entry(("a",)).size == 1
    finally:
        is_over.set()
        thread.join()
