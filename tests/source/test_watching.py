"""Watched folders of this system, with the real inotify: what is told, what is refused, and what is left behind."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassfs.source import Path as Names
from glassfs.source import Source, Store, foreign, mountinfo
from glassfs.source.local import LocalStore
from tests.conftest import ROOT

if sys.platform != "linux":
    pytest.skip("inotify is Linux's", allow_module_level=True)

from inotify_simple import INotify, flags

from glassfs.source import inotify, watching

PATIENCE = 10.0


def until(is_so: Callable[[], object]) -> bool:
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "glassfs-watching"]


def instances() -> int:
    """How many descriptors this process has of what watching takes."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found += "inotify" in link or link.endswith("/mountinfo") or "eventfd" in link
    return found


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Names, str]] = []

    def __call__(self, path: Names, name: str) -> None:
        self.heard.append((path, name))

    def hears(self, path: Names, name: str) -> bool:
        """Waits until that has been told, and forgets everything."""
        has_heard = until(lambda: (path, name) in self.heard)
        self.heard = []
        return has_heard

    def count(self, path: Names, name: str) -> int:
        return self.heard.count((path, name))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[watching.Watches]:
    """Watches of this test alone, of which nothing may be left when all stores are closed."""
    pool = watching.Watches()
    monkeypatch.setattr(watching, "pool", pool)
    before = instances()
    yield pool
    assert until(lambda: not threads() and instances() == before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of the store, with a folder ``a`` and a folder ``a/b`` in it."""
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_bytes(b"one")
    return root


@pytest.fixture
def store(pool: watching.Watches, root: Path) -> Iterator[LocalStore]:
    store = LocalStore(root)
    if not store.watch((), lambda path, name: None):
        pytest.skip("nothing can be watched here")
    store.unwatch(())
    yield store
    store.close()


@pytest.fixture
def listener() -> Listener:
    return Listener()


def watches_again(store: Store, path: Names, listener: Listener) -> bool:
    """What is in the way of it is told within moments."""
    return until(lambda: store.watch(path, listener))


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
def test_each_kind_of_change_is_told(store: LocalStore, root: Path, listener: Listener, change: str) -> None:
    name, make = CHANGES[change]
    assert store.watch(("a",), listener)
    make(root / "a")
    assert listener.hears(("a",), name)
    assert store.watch(("a",), listener)


def test_the_root_of_a_store_is_a_folder_as_others(store: LocalStore, root: Path, listener: Listener) -> None:
    assert store.watch((), listener)
    (root / "new").touch()
    assert listener.hears((), "new")


def test_what_is_below_is_not_told(store: LocalStore, root: Path, listener: Listener) -> None:
    assert store.watch((), listener)
    assert store.watch(("a",), listener)
    (root / "a" / "b" / "deep").touch()
    (root / "last").touch()
    assert until(lambda: ((), "last") in listener.heard)
    assert {path for path, _ in listener.heard} == {()}


def test_many_writes_are_told_few_times_and_the_last_is_not_lost(
    store: LocalStore, root: Path, listener: Listener,
) -> None:
    file = root / "a" / "file"
    sizes = []

    def told(path: Names, name: str) -> None:
        listener(path, name)
        sizes.append(file.stat().st_size)

    assert store.watch(("a",), told)
    with file.open("ab", buffering=0) as stream:
        for _ in range(2000):
            stream.write(b"x")
    assert until(lambda: sizes and sizes[-1] == 2003)
    assert listener.count(("a",), "file") < 1000


def test_calls_come_from_a_thread_of_their_own(store: LocalStore, root: Path) -> None:
    seen: list[threading.Thread] = []
    assert store.watch(("a",), lambda path, name: seen.append(threading.current_thread()))
    (root / "a" / "new").touch()
    assert until(lambda: seen)
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon


def test_one_who_fails_to_listen_is_not_in_the_way(store: LocalStore, root: Path, listener: Listener) -> None:
    assert store.watch(("a",), lambda path, name: 1 / 0)
    assert store.watch(("a", "b"), listener)
    (root / "a" / "new").touch()
    (root / "a" / "b" / "new").touch()
    assert listener.hears(("a", "b"), "new")


def test_a_watch_that_is_there_costs_no_system_call(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert store.watch(("a",), listener)
    monkeypatch.setattr(os, "open", None)
    monkeypatch.setattr(INotify, "add_watch", None)
    assert store.watch(("a",), listener)


def test_nobody_is_told_after_unwatch(store: LocalStore, root: Path, listener: Listener) -> None:
    other = Listener()
    assert store.watch(("a",), listener)
    assert store.watch(("a", "b"), other)
    store.unwatch(("a",))
    store.unwatch(("a",))
    store.unwatch(("never",))
    (root / "a" / "new").touch()
    (root / "a" / "b" / "new").touch()
    assert other.hears(("a", "b"), "new")
    assert listener.heard == []
    assert store.watch(("a",), listener)
    (root / "a" / "newer").touch()
    assert listener.hears(("a",), "newer")


def test_stores_share_what_they_watch(store: LocalStore, root: Path, listener: Listener) -> None:
    other, second = LocalStore(root / "a"), Listener()
    assert store.watch(("a", "b"), listener)
    assert other.watch(("b",), second)
    store.close()
    (root / "a" / "b" / "new").touch()
    assert second.hears(("b",), "new")
    assert listener.heard == []
    other.close()


# Folders that go away, and others in their places.


def exchange(place: Path) -> None:
    """Another folder like it takes its place."""
    shutil.copytree(place, place.parent / "other", symlinks=True)
    place.rename(place.parent / "old")
    (place.parent / "other").rename(place)


@pytest.mark.parametrize("which", ["root", "root/a", "root/a/b", "."])
def test_another_folder_in_the_way_is_told(
    store: LocalStore, root: Path, tmp_path: Path, listener: Listener, which: str,
) -> None:
    """The folder itself, one before it in the store, its root, or one before that."""
    path = ("a", "b")
    assert store.watch(path, listener)
    exchange((tmp_path / which).resolve())
    assert listener.hears(path, "")
    assert watches_again(store, path, listener)
    assert store.entry(path).place == f"{os.stat(root / 'a/b').st_dev}:{os.stat(root / 'a/b').st_ino}"
    (root / "a" / "b" / "new").touch()
    assert listener.hears(path, "new")


def test_what_is_read_behind_a_watch_is_what_is_watched(store: LocalStore, root: Path, listener: Listener) -> None:
    """The store goes over to another root before it says that this is watched, not a moment later."""
    for _ in range(20):
        store.unwatch(())
        exchange(root)
        (root / f"{time.monotonic_ns()}").touch()
        shutil.rmtree(root.parent / "old")
        assert watches_again(store, (), listener)
        assert [name for name, _ in store.list(())] == sorted(os.listdir(root))


def test_a_folder_that_is_deleted_is_told_once(store: LocalStore, root: Path, listener: Listener) -> None:
    assert store.watch(("a", "b"), listener)
    (root / "a" / "b").rmdir()
    assert until(lambda: listener.heard)
    assert not store.watch(("a", "b"), listener)
    (root / "a" / "b").mkdir()
    assert watches_again(store, ("a", "b"), listener)
    (root / "a" / "b" / "new").touch()
    assert until(lambda: (("a", "b"), "new") in listener.heard)
    assert listener.count(("a", "b"), "") == 1


def test_a_deleted_folder_that_somebody_has_open_is_gone_too(
    store: LocalStore, root: Path, listener: Listener,
) -> None:
    """Of such a one inotify says nothing before it is closed."""
    assert store.watch(("a", "b"), listener)
    held = os.open(root / "a" / "b", os.O_RDONLY)
    try:
        (root / "a" / "b").rmdir()
        (root / "a" / "b").mkdir()
        assert listener.hears(("a", "b"), "")
        assert watches_again(store, ("a", "b"), listener)
        (root / "a" / "b" / "new").touch()
        assert listener.hears(("a", "b"), "new")
    finally:
        os.close(held)


def test_a_deleted_root_is_told(store: LocalStore, root: Path, listener: Listener) -> None:
    """The store itself has it open."""
    assert store.watch((), listener)
    shutil.rmtree(root)
    assert listener.hears((), "")
    assert not store.watch((), listener)
    root.mkdir()
    assert watches_again(store, (), listener)


def test_a_folder_exchanged_while_it_is_looked_for_is_not_watched(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the moment when it was opened and the one when it was watched."""
    add_watch = INotify.add_watch

    def late(self: INotify, path: str, mask: int) -> int:
        if os.readlink(path) == str(root / "a" / "b"):
            exchange(root / "a" / "b")
        number: int = add_watch(self, path, mask)
        return number

    monkeypatch.setattr(INotify, "add_watch", late)
    assert not store.watch(("a", "b"), listener)
    monkeypatch.undo()


def test_links_are_not_followed(store: LocalStore, root: Path, tmp_path: Path, listener: Listener) -> None:
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "outside")
    assert not store.watch(("link",), listener)
    assert not store.watch(("link", "inner"), listener)
    assert store.watch(("a", "b"), listener)
    (root / "a").rename(root / "old")
    (root / "a").symlink_to(root / "old")
    assert listener.hears(("a", "b"), "")
    assert not store.watch(("a", "b"), listener)


@pytest.mark.parametrize("path", [("missing",), ("a", "file"), ("a\0b",), ("\ud800",), ("x" * 300,), ("a", "b") * 50])
def test_what_is_no_folder_is_not_watched(store: LocalStore, listener: Listener, path: Names) -> None:
    assert not store.watch(path, listener)
    assert store.watch(("a",), listener)


def test_folders_that_swap_places_in_a_loop(store: LocalStore, root: Path) -> None:
    """Whoever asks what is there after having been told, or having asked to be told, ends up with what is there."""
    (root / "c").mkdir()
    (root / "a" / "b" / "is").touch()
    seen = ""

    def look(path: Names = (), name: str = "") -> None:
        nonlocal seen
        until(lambda: store.watch(("a",), look) or not (root / "a").exists())
        seen = ",".join(sorted(os.listdir(root / "a"))) if (root / "a").exists() else ""

    look()
    for _ in range(50):
        (root / "a").rename(root / "d")
        (root / "c").rename(root / "a")
        (root / "d").rename(root / "c")
    (root / "a" / "last").touch()
    assert until(lambda: "last" in seen or (look() or False))


# Limits.


def test_a_thousand_folders(store: LocalStore, root: Path, pool: watching.Watches, listener: Listener) -> None:
    for number in range(1000):
        (root / f"{number}").mkdir()
    assert all(store.watch((f"{number}",), listener) for number in range(1000))
    for number in range(1000):
        (root / f"{number}" / "new").touch()
    assert until(lambda: len(set(listener.heard)) >= 1000)
    assert set(listener.heard) == {((f"{number}",), "new") for number in range(1000)}
    assert len(threads()) == 1


def test_a_thousand_folders_that_go_away_are_all_told(store: LocalStore, root: Path, listener: Listener) -> None:
    for number in range(1000):
        (root / "a" / f"{number}").mkdir()
    assert all(store.watch(("a", f"{number}"), listener) for number in range(1000))
    (root / "a").rename(root / "c")
    assert until(lambda: len(listener.heard) >= 1000)
    assert sorted(listener.heard) == sorted((("a", f"{number}"), "") for number in range(1000))


@pytest.fixture
def few(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalStore]:
    """A store of which, besides the way to its root, five folders can be watched; ``0`` to ``19`` are there."""
    store = LocalStore(root)
    for number in range(20):
        (root / f"{number}").mkdir()
    way = len([name for name in str(root.resolve()).split("/") if name]) + 1
    monkeypatch.setattr(watching, "pool", watching.Watches(way + 5))
    monkeypatch.setattr(watching, "REFUSED", 0.0)
    yield store
    store.close()
    assert until(lambda: not threads())


def test_who_walks_through_everything_does_not_use_up_all_watches(
    store: LocalStore, few: LocalStore, listener: Listener,
) -> None:
    assert [few.watch((f"{number}",), listener) for number in range(20)] == [True] * 5 + [False] * 15
    assert listener.heard == []
    few.unwatch(("3",))
    assert until(lambda: few.watch(("19",), listener))


def test_old_watches_that_nobody_uses_make_room(
    store: LocalStore, few: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(few.watch((f"{number}",), listener) for number in range(5))
    assert few.watch(("0",), listener)
    monkeypatch.setattr(inotify, "YOUNG", 0.0)
    assert few.watch(("19",), listener)
    assert until(lambda: listener.heard == [(("1",), "")])
    (root / "0" / "new").touch()
    (root / "19" / "new").touch()
    assert until(lambda: {(("0",), "new"), (("19",), "new")} <= set(listener.heard))
    assert few.watch(("1",), listener)


def test_a_path_too_long_to_be_watched_leaves_nothing(
    store: LocalStore, few: LocalStore, root: Path, listener: Listener,
) -> None:
    path = tuple("abcdefghij")
    root.joinpath(*path).mkdir(parents=True)
    assert not few.watch(path, listener)
    assert until(lambda: not threads())
    assert all(few.watch((f"{number}",), listener) for number in range(5))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.ENOENT])
def test_where_no_watch_can_be_had_nothing_is_left(
    store: LocalStore, pool: watching.Watches, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    def fail(self: INotify, path: str, mask: int) -> int:
        raise OSError(number, os.strerror(number))

    assert until(lambda: not threads())
    with monkeypatch.context() as patch:
        patch.setattr(INotify, "add_watch", fail)
        patch.setattr(watching, "REFUSED", 0.0)
        assert not store.watch(("a",), listener)
        assert not threads()
    assert store.watch(("a",), listener)


def test_watches_run_out_one_by_one(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are there go on, and nobody asks again for a while."""
    asked = []

    def fail(self: INotify, path: str, mask: int) -> int:
        asked.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert store.watch(("a",), listener)
    with monkeypatch.context() as patch:
        patch.setattr(INotify, "add_watch", fail)
        assert not store.watch(("a", "b"), listener)
        assert not store.watch(("a", "b"), listener)
    assert len(asked) == 1
    assert store.watch(("a",), listener)
    (root / "a" / "new").touch()
    assert listener.hears(("a",), "new")


def test_no_more_instances_descriptors_or_threads(
    store: LocalStore, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def fail_to_start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(watching, "REFUSED", 0.0)
    assert until(lambda: not threads())
    before = instances()
    for where, name, way in (
        (INotify, "__init__", fail), (os, "eventfd", fail), (threading.Thread, "start", fail_to_start),
        (watching, "LIMIT_FILE", "/proc/missing"), (mountinfo, "MOUNTS", "/proc/missing"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, way)
            assert not store.watch(("a",), listener), name
        assert instances() == before
    assert store.watch(("a",), listener)


def test_without_the_package_nothing_is_watched(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import glassfs.source

    monkeypatch.delattr(glassfs.source, "watching")
    monkeypatch.setitem(sys.modules, "glassfs.source.watching", None)
    assert not store.watch(("a",), lambda path, name: None)


def test_a_start_loads_nothing_of_it(root: Path) -> None:
    program = (
        "import sys, glassfs.source.local as local; local.LocalStore(sys.argv[1]).entry(()); "
        "sys.exit('inotify_simple' in sys.modules or 'glassfs.source.inotify' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(root)], check=True, cwd=ROOT)


# Events that are lost, and too many of them.


def test_when_events_were_lost_everything_is_told(
    store: LocalStore, pool: watching.Watches, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert store.watch((), listener)
    assert store.watch(("a", "b"), listener)
    take = inotify.Inotify.take
    with monkeypatch.context() as patch:
        def overflow(self: inotify.Inotify) -> bool:
            self.happened(-1, flags.Q_OVERFLOW, "")
            return take(self)

        patch.setattr(inotify.Inotify, "take", overflow)
        patch.setattr(watching.Watches, "_refuse", lambda self, place, seconds: None)
        (root / "new").touch()
        assert until(lambda: len(listener.heard) >= 2)
    assert sorted(listener.heard) == [((), ""), (("a", "b"), "")]
    assert watches_again(store, (), listener)


def test_after_a_loss_nobody_watches_for_a_while(
    store: LocalStore, pool: watching.Watches, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inotify, "REFUSED", 3600.0)
    assert store.watch((), listener)
    assert pool._inotify is not None
    with pool._held():
        pool._inotify.happened(-1, flags.Q_OVERFLOW, "")
    assert listener.hears((), "")
    assert not store.watch((), listener)


def test_a_folder_with_too_many_events_is_given_up(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that has them, and not its neighbour."""
    monkeypatch.setattr(inotify, "NOISE", 100)
    (root / "quiet").mkdir()
    assert store.watch(("a",), listener)
    assert store.watch(("quiet",), listener)
    is_over = threading.Event()

    def make_noise() -> None:
        while not is_over.is_set():
            (root / "a" / "x").touch()
            (root / "a" / "x").unlink()

    noise = threading.Thread(target=make_noise)
    noise.start()
    try:
        assert until(lambda: (("a",), "") in listener.heard)
        assert not store.watch(("a",), listener)
    finally:
        is_over.set()
        noise.join()
    assert not store.watch(("a", "b"), listener)
    (root / "quiet" / "new").touch()
    assert until(lambda: (("quiet",), "new") in listener.heard)
    assert (("quiet",), "") not in listener.heard


# File systems and mounts.


def test_other_file_systems_are_refused(listener: Listener, pool: watching.Watches) -> None:
    """Nothing says what changes there, as in /proc."""
    store = LocalStore("/proc/self")
    assert not store.watch((), listener)
    assert not store.watch(("task",), listener)
    assert not threads()
    store.close()
    assert not watching.LOCAL & {b"nfs", b"nfs4", b"cifs", b"smb3", b"9p", b"fuse", b"fuse.glassfs", b"virtiofs", b"zfs"}


def test_a_mount_of_glassfs_is_not_entered(
    store: LocalStore, root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = foreign.device_of
    monkeypatch.setattr(foreign, "device_of", lambda folder, name=".": 77 if name == "b" else real(folder, name))
    monkeypatch.setattr(foreign, "is_on_glassfs", lambda device: device == 77)
    opened = []
    open_one = os.open
    monkeypatch.setattr(os, "open", lambda name, *more, **words: opened.append(name) or open_one(name, *more, **words))
    assert not store.watch(("a", "b"), listener)
    assert "a" in opened
    assert "b" not in opened


IN_A_NAMESPACE = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.source.test_watching"]


@pytest.mark.parametrize("script", ["overlay", "mounted", "unmounted", "bound"])
def test_mounts(tmp_path: Path, script: str) -> None:
    """In a mount namespace of its own; see ``main``."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("a mount namespace takes root and unshare(1)")
    done = subprocess.run(
        [*IN_A_NAMESPACE, script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
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
    """What is told when something is mounted; and that a file system of layers tells what is changed through it."""
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
    if script == "overlay":
        write(root / "a")
        assert listener.hears(("a",), "file")
        (root / "a" / "file").unlink()
        assert listener.hears(("a",), "file")
        return
    if script == "unmounted":
        subprocess.run(["umount", "--lazy", root / "a"], check=True)
        assert until(lambda: len(listener.heard) >= 3)
        assert set(listener.heard) == {((), "a"), (("a",), ""), (("a", "b"), "")}
    if script == "mounted":
        mount("-t", "tmpfs", "tmpfs", root / "a" / "b")
        assert until(lambda: len(listener.heard) >= 2)
        assert set(listener.heard) == {(("a",), "b"), (("a", "b"), "")}
    if script == "bound":
        (place / "other" / "b").mkdir(parents=True)
        mount("--bind", place / "other", root / "a")
        assert until(lambda: len(listener.heard) >= 3)
        assert set(listener.heard) == {((), "a"), (("a",), ""), (("a", "b"), "")}
    listener.heard = []
    assert watches_again(store, ("a", "b"), listener)
    (root / "a" / "b" / "new").touch()
    assert listener.hears(("a", "b"), "new")


# What is left behind.


def test_close_leaves_no_thread_and_no_descriptor(store: LocalStore, root: Path, listener: Listener) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert store.watch(("a",), listener)
        assert store.watch(("a", "b"), listener)
        store.close()
        store.entry(())
    assert until(lambda: not threads())
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_store_that_nobody_has_any_more_watches_nothing(pool: watching.Watches, root: Path) -> None:
    store = LocalStore(root)
    if not store.watch((), Listener()):
        pytest.skip("nothing can be watched here")
    del store
    gc.collect()
    assert until(lambda: not threads())


def test_who_is_told_may_watch_and_close(store: LocalStore, root: Path, listener: Listener) -> None:
    def told(path: Names, name: str) -> None:
        store.unwatch(path)
        assert store.watch(("a", "b"), listener)
        listener(path, name)

    assert store.watch(("a",), told)
    (root / "a" / "new").touch()
    assert listener.hears(("a",), "new")
    (root / "a" / "b" / "new").touch()
    assert listener.hears(("a", "b"), "new")


def test_threads_watch_and_give_back_at_once(store: LocalStore, root: Path, listener: Listener) -> None:
    """While folders on the way are renamed; what is watched in the end is told."""
    names = [(), ("a",), ("a", "b")]
    is_over = threading.Event()
    failures: list[BaseException] = []

    def ask(first: int) -> None:
        try:
            for step in range(first, first + 300):
                store.watch(names[step % 3], listener)
                if step % 5 == 0:
                    store.unwatch(names[step * 7 % 3])
                if step % 50 == 0:
                    store.close()
        except BaseException as error:
            failures.append(error)

    def rename() -> None:
        while not is_over.is_set():
            (root / "a").rename(root / "c")
            (root / "c").rename(root / "a")

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    renaming = threading.Thread(target=rename)
    for thread in (*asking, renaming):
        thread.start()
    for thread in asking:
        thread.join()
    is_over.set()
    renaming.join()
    assert failures == []
    assert watches_again(store, ("a", "b"), listener)
    (root / "a" / "b" / "new").touch()
    assert until(lambda: (("a", "b"), "new") in listener.heard or not store.watch(("a", "b"), listener))


class Silent(Store):
    """A store of another kind, which says nothing of watches."""

    def shown(self, path: Names) -> str:
        raise NotImplementedError

    entry = list = open = close = shown  # type: ignore[assignment]

    def source(self, path: Names, entry: object) -> Source:
        raise NotImplementedError


def test_a_store_need_not_be_able_to_tell(listener: Listener) -> None:
    assert not Silent().watch((), listener)
    Silent().unwatch(())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
