"""Test limits of watched folders: resources, lost events, other file systems, and mounts."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from glassfs.source import mountinfo, system
from glassfs.source.local import LocalStore
from tests.conftest import ROOT

if sys.platform != "linux":
    pytest.skip("inotify is Linux's", allow_module_level=True)

from inotify_simple import INotify, flags

from glassfs.settings import settings
from glassfs.source import watching
from tests.source.watching_lab import Listener, instances, no_threads, threads, watches_again
from tests.waiting import wait_until


def failing(number: int) -> mock.Mock:
    return mock.Mock(side_effect=OSError(number, os.strerror(number)))


# Limits.


def test_a_thousand_removed_folders_are_all_reported(store: LocalStore, root: Path, listener: Listener) -> None:
    for number in range(1000):
        (root / "a" / f"{number}").mkdir()
    assert all(store.watch(("a", f"{number}"), listener) for number in range(1000))
    (root / "a").rename(root / "c")
    wait_until(lambda: len(listener.heard) >= 1000)
    assert sorted(listener.heard) == sorted((("a", f"{number}"), "") for number in range(1000))
    assert len(threads()) <= 1


@pytest.fixture
def few(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalStore]:
    """Return a store with folders ``0`` to ``19`` in its root, of which five can be watched."""
    store = LocalStore(root)
    for number in range(20):
        (root / f"{number}").mkdir()
    way = len([name for name in str(root.resolve()).split("/") if name]) + 1
    monkeypatch.setattr(watching, "pool", watching.Watches(way + 5))
    monkeypatch.setattr(settings, "watching_refused", 0.0)
    yield store
    store.close()
    no_threads()


def test_a_walk_does_not_use_up_all_watches(
    store: LocalStore, few: LocalStore, listener: Listener,
) -> None:
    assert [few.watch((f"{number}",), listener) for number in range(20)] == [True] * 5 + [False] * 15
    assert listener.heard == []
    few.close()
    wait_until(lambda: few.watch(("19",), listener))


def test_existing_watches_survive_when_no_more_are_granted(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New watches are refused for a while without a system call."""
    add_watch = failing(errno.ENOSPC)
    assert store.watch(("a",), listener)
    with monkeypatch.context() as patch:
        patch.setattr(INotify, "add_watch", add_watch)
        assert not store.watch(("a", "b"), listener)
        assert not store.watch(("a", "b"), listener)
    assert add_watch.call_count == 1
    assert store.watch(("a",), listener)
    (root / "a" / "new").touch()
    listener.hears(("a",), "new")


def test_watching_fails_cleanly_without_resources(
    store: LocalStore, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail, fail_to_start = failing(errno.EMFILE), mock.Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(settings, "watching_refused", 0.0)
    no_threads()
    before = instances()
    for where, name, way in (
        (INotify, "__init__", fail), (os, "eventfd", fail), (threading.Thread, "start", fail_to_start),
        (watching, "LIMIT_FILE", "/proc/missing"), (mountinfo, "MOUNTS", "/proc/missing"),
        *((INotify, "add_watch", failing(one)) for one in (errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.ENOENT)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, way)
            assert not store.watch(("a",), listener), name
        assert instances() == before and not threads()
    assert store.watch(("a",), listener)


@pytest.mark.parametrize("is_another_system", [True, False])
def test_without_inotify_nothing_is_watched(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, is_another_system: bool,
) -> None:
    import glassfs.source

    if is_another_system:
        monkeypatch.setattr(sys, "platform", "darwin")
    else:
        monkeypatch.delattr(glassfs.source, "watching")
        monkeypatch.setitem(sys.modules, "glassfs.source.watching", None)
    assert not store.watch(("a",), lambda path, name: None)


# Events that are lost, and too many of them.


@pytest.mark.parametrize("is_overflow", [True, False])
def test_lost_and_unreadable_events_end_all_watches(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch, is_overflow: bool,
) -> None:
    assert store.watch((), listener)
    assert store.watch(("a", "b"), listener)
    take, now = watching._Inotify.take, time.monotonic
    monkeypatch.setattr(settings, "watching_refused", 3600.0)
    with monkeypatch.context() as patch:
        def overflow(self: watching._Inotify, ready: set[int]) -> bool:
            self.happened(-1, flags.Q_OVERFLOW, "")
            return take(self, ready)

        if is_overflow:
            patch.setattr(watching._Inotify, "take", overflow)
        else:
            patch.setattr(watching, "parse_events", mock.Mock(side_effect=ValueError("not an event")))
        (root / "new").touch()
        wait_until(lambda: len(listener.heard) >= 2)
    assert sorted(listener.heard) == [((), ""), (("a", "b"), "")]
    assert not store.watch((), listener)
    monkeypatch.setattr(time, "monotonic", lambda: now() + 3600)
    watches_again(store, (), listener)


# File systems and mounts.


def test_other_file_systems_are_refused(listener: Listener, pool: watching.Watches) -> None:
    """inotify does not report changes in /proc."""
    store = LocalStore("/proc/self")
    assert not store.watch((), listener)
    assert not store.watch(("task",), listener)
    assert not threads()
    store.close()
    assert not watching.LOCAL & {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuse.glassfs", "virtiofs"}


def test_a_mount_of_glassfs_is_not_entered(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = system.device_of
    monkeypatch.setattr(system, "device_of", lambda folder, name=".": 77 if name == "b" else real(folder, name))
    monkeypatch.setattr(system, "is_on_glassfs", lambda device: device == 77)
    opened = []
    open_one = os.open
    monkeypatch.setattr(os, "open", lambda name, *more, **words: opened.append(name) or open_one(name, *more, **words))
    assert not store.watch(("a", "b"), listener)
    assert "a" in opened
    assert "b" not in opened


IN_A_NAMESPACE = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", __name__]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["overlay", "mounted", "unmounted", "twice"])
def test_mounts_on_watched_folders_are_reported(tmp_path: Path, script: str) -> None:
    """Run ``main`` in a mount namespace of its own."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("a mount namespace takes root and unshare(1)")
    done = subprocess.run(
        [*IN_A_NAMESPACE, script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr


def mount(*words: object) -> None:
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        sys.exit(77)


def main(script: str, place: Path) -> None:
    """Check notifications about mounts, and about changes through an overlay."""
    mount("-t", "tmpfs", "tmpfs", place)
    root, listener = place / "root", Listener()
    (root / "a" / "b").mkdir(parents=True)
    if script == "overlay":
        for name in ("upper", "work"):
            (place / name).mkdir()
        (root / "a" / "file").write_bytes(b"lower")
        options = f"lowerdir={root},upperdir={place / 'upper'},workdir={place / 'work'}"
        mount("-t", "overlay", "overlay", "-o", options, root)
    if script == "unmounted":
        mount("-t", "tmpfs", "tmpfs", root / "a")
        (root / "a" / "b").mkdir()
    store = LocalStore(root)
    assert store.watch((), listener)
    assert store.watch(("a",), listener)
    assert store.watch(("a", "b"), listener)
    if script == "twice":
        (root / "a" / "b" / "deep").mkdir()
        (root / "c").mkdir()
        listener.hears((), "c")
        mount("--bind", root / "a", root / "c")
        listener.hears((), "c")
        watches_again(store, ("c", "b", "deep"), listener)
        watches_again(store, ("c",), listener)
        listener.heard = []
        (root / "a" / "b" / "new").touch()
        listener.hears(("a", "b"), "new")
        (root / "a" / "new").touch()
        wait_until(lambda: len(listener.heard) >= 2)
        assert set(listener.heard) == {(("a",), "new"), (("c",), "new")}
        listener.heard = []
        store.close()
        watches_again(store, ("c",), listener)
        (root / "c" / "newer").touch()
        listener.hears(("c",), "newer")
        return
    if script == "overlay":
        (root / "a" / "file").write_bytes(b"upper")
        listener.hears(("a",), "file")
        (root / "a" / "file").unlink()
        listener.hears(("a",), "file")
        return
    if script == "unmounted":
        subprocess.run(["umount", "--lazy", root / "a"], check=True)
        wait_until(lambda: len(listener.heard) >= 3)
        assert set(listener.heard) == {((), "a"), (("a",), ""), (("a", "b"), "")}
    if script == "mounted":
        mount("-t", "tmpfs", "tmpfs", root / "a" / "b")
        wait_until(lambda: len(listener.heard) >= 2)
        assert set(listener.heard) == {(("a",), "b"), (("a", "b"), "")}
    listener.heard = []
    watches_again(store, ("a", "b"), listener)
    (root / "a" / "b" / "new").touch()
    listener.hears(("a", "b"), "new")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
