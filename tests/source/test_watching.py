"""Test watched folders with the real inotify: notifications, replaced folders, and cleanup."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from glassfs.source import Path as Names
from glassfs.source.local import LocalStore

if sys.platform != "linux":
    pytest.skip("inotify is Linux's", allow_module_level=True)

from inotify_simple import INotify

from glassfs.source import watching
from tests.source.watching_lab import Listener, no_threads, watches_again
from tests.waiting import wait_until

LIBC, AT_FDCWD, RENAME_EXCHANGE = ctypes.CDLL(None), -100, 2


def write(place: Path) -> None:
    with (place / "file").open("ab") as file:
        file.write(b"more")


def store_through_a_mapping(place: Path) -> None:
    with (place / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0] = 65


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "made": ("new", lambda place: (place / "new").touch()),
    "made, a folder": ("new", lambda place: (place / "new").mkdir()),
    "made, a link": ("new", lambda place: (place / "new").symlink_to("file")),
    "made, another name": ("new", lambda place: os.link(place / "file", place / "new")),
    "written": ("file", write),
    "cut": ("file", lambda place: os.truncate(place / "file", 1)),
    "mapped": ("file", store_through_a_mapping),
    "mode": ("file", lambda place: (place / "file").chmod(0o600)),
    "times": ("file", lambda place: os.utime(place / "file", (1, 1))),
    "removed": ("file", lambda place: (place / "file").unlink()),
    "removed, a folder": ("b", lambda place: (place / "b").rmdir()),
    "renamed away": ("file", lambda place: (place / "file").rename(place.parent / "x")),
    "renamed here": ("new", lambda place: (place / "file").rename(place / "new")),
    "replaced": ("file", lambda place: ((place / "x").touch(), (place / "x").replace(place / "file"))),
    "not UTF-8": ("\udcff", lambda place: (place / "\udcff").touch()),
    "the folder's mode": ("", lambda place: place.chmod(0o700)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_kind_of_change_is_reported(store: LocalStore, root: Path, listener: Listener, change: str) -> None:
    name, make = CHANGES[change]
    assert store.watch(("a",), listener)
    make(root / "a")
    listener.hears(("a",), name)
    assert store.watch(("a",), listener)


def test_changes_below_a_folder_are_not_reported(store: LocalStore, root: Path, listener: Listener) -> None:
    assert store.watch((), listener)
    assert store.watch(("a",), listener)
    (root / "a" / "b" / "deep").touch()
    (root / "last").touch()
    wait_until(lambda: ((), "last") in listener.heard)
    assert {path for path, _ in listener.heard} == {()}


def test_many_writes_are_batched_and_the_last_is_reported(
    store: LocalStore, root: Path, listener: Listener,
) -> None:
    file = root / "a" / "file"
    sizes = []

    def notify(path: Names, name: str) -> None:
        listener(path, name)
        sizes.append(file.stat().st_size)

    assert store.watch(("a",), notify)
    with file.open("ab", buffering=0) as stream:
        for _ in range(2000):
            stream.write(b"x")
    wait_until(lambda: sizes and sizes[-1] == 2003)
    assert listener.count(("a",), "file") < 1000


def test_a_failing_listener_does_not_affect_others(store: LocalStore, root: Path, listener: Listener) -> None:
    assert store.watch(("a",), lambda path, name: 1 / 0)
    assert store.watch(("a", "b"), listener)
    (root / "a" / "new").touch()
    (root / "a" / "b" / "new").touch()
    listener.hears(("a", "b"), "new")


def test_an_existing_watch_costs_no_system_call(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert store.watch(("a",), listener)
    monkeypatch.setattr(os, "open", None)
    monkeypatch.setattr(INotify, "add_watch", None)
    assert store.watch(("a",), listener)


def test_stores_share_what_they_watch(store: LocalStore, root: Path, listener: Listener) -> None:
    other, second = LocalStore(root / "a"), Listener()
    assert store.watch(("a", "b"), listener)
    assert other.watch(("b",), second)
    store.close()
    (root / "a" / "b" / "new").touch()
    second.hears(("b",), "new")
    assert listener.heard == []
    other.close()


# Deleted and replaced folders.


def exchange(place: Path) -> None:
    """Replace a folder by a copy."""
    shutil.copytree(place, place.parent / "other", symlinks=True)
    place.rename(place.parent / "old")
    (place.parent / "other").rename(place)


def exchange_with(place: Path, other: Path) -> None:
    """Exchange two folders in one step, so that neither name is ever missing."""
    done = LIBC.renameat2(AT_FDCWD, os.fsencode(place), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    if done:
        pytest.skip("this system exchanges no names")


@pytest.mark.parametrize("which", ["root", "root/a", "root/a/b", "."])
def test_a_replaced_folder_on_the_way_is_reported(
    store: LocalStore, root: Path, tmp_path: Path, listener: Listener, which: str,
) -> None:
    path = ("a", "b")
    assert store.watch(path, listener)
    exchange((tmp_path / which).resolve())
    listener.hears(path, "")
    watches_again(store, path, listener)
    assert store.entry(path).file_id == f"{os.stat(root / 'a/b').st_dev}:{os.stat(root / 'a/b').st_ino}"
    (root / "a" / "b" / "new").touch()
    listener.hears(path, "new")


def test_a_watched_folder_is_the_one_that_is_read(store: LocalStore, root: Path, listener: Listener) -> None:
    """The store switches to a new root before ``watch`` returns True."""
    for number in range(20):
        store.close()
        store.entry(())
        exchange(root)
        (root / "a" / f"{number}").touch()
        shutil.rmtree(root.parent / "old")
        watches_again(store, ("a",), listener)
        assert [name for name, _ in store.list(("a",))] == sorted(os.listdir(root / "a"))


def test_a_notification_of_a_new_root_comes_after_the_switch(store: LocalStore, root: Path) -> None:
    found: list[bool] = []

    def notify(path: Names, name: str) -> None:
        found.append("new" in dict(store.list(("a",))))

    for number in range(20):
        wait_until(lambda: store.watch(("a",), notify))
        shutil.copytree(root, root.parent / "other")
        (root.parent / "other" / "a" / "new").touch()
        store.entry(())
        exchange_with(root, root.parent / "other")
        wait_until(lambda number=number: len(found) > number)
        shutil.rmtree(root.parent / "other")
        (root / "a" / "new").unlink()
        store.close()
    assert all(found)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_deleted_folder_is_reported_once(
    store: LocalStore, root: Path, listener: Listener, is_open: bool,
) -> None:
    """inotify reports the deletion of an open folder only when it is closed."""
    assert store.watch(("a", "b"), listener)
    with ExitStack() as stack:
        if is_open:
            stack.callback(os.close, os.open(root / "a" / "b", os.O_RDONLY))
        (root / "a" / "b").rmdir()
        wait_until(lambda: listener.heard)
        assert not store.watch(("a", "b"), listener)
        (root / "a" / "b").mkdir()
        watches_again(store, ("a", "b"), listener)
        (root / "a" / "b" / "new").touch()
        wait_until(lambda: (("a", "b"), "new") in listener.heard)
        assert listener.count(("a", "b"), "") == 1


def test_a_folder_replaced_during_watch_is_not_watched(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is replaced after it was opened and before it is watched."""
    add_watch = INotify.add_watch

    def late(self: INotify, path: str, mask: int) -> int:
        if os.readlink(path) == str(root / "a" / "b"):
            exchange(root / "a" / "b")
        number: int = add_watch(self, path, mask)
        return number

    monkeypatch.setattr(INotify, "add_watch", late)
    assert not store.watch(("a", "b"), listener)
    monkeypatch.undo()


@pytest.mark.parametrize("is_right", [True, False])
def test_a_watch_that_ends_at_once_is_refused(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch, is_right: bool,
) -> None:
    """The folder was replaced at once, or the store has another root."""

    def has_root(self: LocalStore, identity: tuple[int, int]) -> bool:
        if is_right:
            exchange(root / "a")
            listener.hears(("a", "b"), "")
        return is_right

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "_has_root", has_root)
        assert not store.watch(("a", "b"), listener)
    watches_again(store, ("a", "b"), listener)


def test_links_are_not_followed(store: LocalStore, root: Path, tmp_path: Path, listener: Listener) -> None:
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "outside")
    assert not store.watch(("link",), listener)
    assert not store.watch(("link", "inner"), listener)
    assert store.watch(("a", "b"), listener)
    (root / "a").rename(root / "old")
    (root / "a").symlink_to(root / "old")
    listener.hears(("a", "b"), "")
    assert not store.watch(("a", "b"), listener)


@pytest.mark.parametrize("path", [("missing",), ("a", "file"), ("a\0b",), ("\ud800",), ("x" * 300,), ("a", "b") * 50])
def test_only_folders_can_be_watched(store: LocalStore, listener: Listener, path: Names) -> None:
    assert not store.watch(path, listener)
    assert store.watch(("a",), listener)


# Cleanup.


def test_close_leaves_no_thread_and_no_descriptor(store: LocalStore, root: Path, listener: Listener) -> None:
    store.entry(())
    no_threads()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert store.watch(("a",), listener)
        assert store.watch(("a", "b"), listener)
        store.close()
        store.entry(())
    no_threads()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_collected_store_watches_nothing(pool: watching.Watches, root: Path) -> None:
    store = LocalStore(root)
    if not store.watch((), Listener()):
        pytest.skip("nothing can be watched here")
    del store
    gc.collect()
    no_threads()


def test_a_listener_may_watch_and_close(store: LocalStore, root: Path, listener: Listener) -> None:
    def notify(path: Names, name: str) -> None:
        store.close()
        assert store.watch(("a", "b"), listener)
        listener(path, name)

    assert store.watch(("a",), notify)
    (root / "a" / "new").touch()
    listener.hears(("a",), "new")
    (root / "a" / "b" / "new").touch()
    listener.hears(("a", "b"), "new")


@pytest.mark.slow
def test_threads_watch_and_close_concurrently(store: LocalStore, root: Path, listener: Listener) -> None:
    """Folders on the way are renamed meanwhile; the last watch reports changes."""
    names = [(), ("a",), ("a", "b")]
    is_over = threading.Event()

    def ask(first: int) -> None:
        for step in range(first, first + 300):
            store.watch(names[step % 3], listener)
            if step % 50 == 0:
                store.close()

    def rename() -> None:
        while not is_over.is_set():
            (root / "a").rename(root / "c")
            (root / "c").rename(root / "a")

    with ThreadPoolExecutor(7) as pool:
        renaming = pool.submit(rename)
        try:
            list(pool.map(ask, range(6)))
        finally:
            is_over.set()
        renaming.result()

    def is_heard() -> bool:
        store.watch(("a", "b"), listener)  # the event of the last renaming may have ended it
        (root / "a" / "b" / "new").touch()
        return (("a", "b"), "new") in listener.heard

    wait_until(is_heard)
