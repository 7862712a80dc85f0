"""Test local files: the contract of a store, containment in its folder, ACLs, and mounts of glassfs."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Unavailable
from glassfs.source import Kind, Store, locate, mountinfo, system
from glassfs.source.local import LocalStore
from glassfs.source.local_source import translated
from glassfs.source.mountinfo import Mount
from glassfs.source.system import ACL
from tests.source.store_suite import CONTENT, Lab, StoreSuite, parts
from tests.waiting import wait_until

T = TypeVar("T")


class LocalLab(Lab):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: Store = LocalStore(folder, "shown")

    def put(self, path: str, data: bytes) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.parent / ".new"
        new.write_bytes(data)
        new.replace(place)

    def rewrite(self, path: str, data: bytes) -> None:
        before = (self.folder / path).stat().st_mtime_ns
        with (self.folder / path).open("r+b") as file:
            file.write(data)
            file.truncate()
        os.utime(self.folder / path, ns=(0, before + 1000))

    def remove(self, path: str) -> None:
        (self.folder / path).unlink()

    def link(self, path: str, target: str) -> None:
        (self.folder / path).symlink_to(target)

    def set_permissions(self, path: str, permissions: int) -> None:
        before = (self.folder / path).stat().st_ctime_ns
        while (self.folder / path).stat().st_ctime_ns == before:  # the clock of the kernel has coarse ticks
            (self.folder / path).chmod(permissions)


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        (tmp_path / "root").mkdir()
        return LocalLab(tmp_path / "root")


def held(folder: Path) -> int:
    """Return how many descriptors below ``folder`` this process has."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(str(folder)) for link in links if os.path.lexists(link))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    return path


def test_entries_have_the_attributes_of_the_file(path: Path) -> None:
    path.chmod(0o640)
    status, entry = path.stat(), LocalStore(path.parent).entry((path.name,))
    assert (entry.permissions, entry.uid, entry.gid, entry.size, entry.mtime_ns) == (
        0o640, status.st_uid, status.st_gid, len(CONTENT), status.st_mtime_ns,
    )


@pytest.mark.parametrize("length", [100, 0, len(CONTENT) + 5])
def test_a_truncated_file_raises_changed(path: Path, length: int) -> None:
    source = LocalStore(path.parent).open((path.name,))
    os.truncate(path, length)
    for offset in (0, 50, 5000):
        with pytest.raises(Changed, match=r"file\.bin"):
            source.read(offset, 100)
        with pytest.raises(Changed, match=r"file\.bin"):
            source.read_into(memoryview(bytearray(100)), offset)


@pytest.mark.parametrize("call", ["preadv", "fstat"])
def test_a_device_that_fails_is_reported_with_the_offset(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    source = LocalStore(path.parent).open((path.name,))
    with monkeypatch.context() as patch, pytest.raises(DeviceFailed, match="cannot be read at 50"):
        patch.setattr(os, call, fail)
        source.read(50, 100)
    assert source.read(50, 100) == CONTENT[50:150]
    source.park()
    assert held(path.parent) == 1  # the root: no reader of the file is left


@pytest.mark.parametrize("most", [1, 7, 100, 4096])
def test_short_reads_of_the_system_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    read = os.preadv

    def read_little(number: int, buffers: list[memoryview], offset: int) -> int:
        return read(number, [buffer[:most] for buffer in buffers], offset)

    source = LocalStore(path.parent).open((path.name,))
    monkeypatch.setattr(os, "preadv", read_little)
    assert source.read(10, 500) == CONTENT[10:510]
    buffer = bytearray(500)
    source.read_into(memoryview(buffer), 10)
    assert buffer == CONTENT[10:510]


def test_a_fifo_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a FIFO without a writer must not block."""
    os.mkfifo(tmp_path / "pipe")
    store = LocalStore(tmp_path)
    assert store.entry(("pipe",)).kind is Kind.OTHER
    with pytest.raises(Changed, match="not a regular file"):
        store.open(("pipe",))
    with pytest.raises(Changed, match="not a regular file"):
        LocalStore("/dev").open(("null",))
    store.close()
    assert held(tmp_path) == 0


def test_collected_stores_and_sources_hold_nothing(path: Path) -> None:
    for _ in range(50):
        LocalStore(path.parent).open((path.name,)).read(0, 1)
    assert held(path.parent) == 0


def test_a_closed_store_and_parked_sources_hold_nothing(path: Path) -> None:
    store = LocalStore(path.parent)
    source = store.open((path.name,))
    assert held(path.parent) == 2
    source.park()
    store.close()
    assert held(path.parent) == 0
    assert source.read(0, 3) == CONTENT[:3]
    store.close()
    assert held(path.parent) == 0


# First bytes.


def test_first_bytes_are_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = LocalStore(path.parent).open((path.name,))
    assert source.read_ahead(100) == CONTENT[:100]
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", None)
        assert source.read_ahead(100) == source.read(0, 100) == CONTENT[:100]
        assert source.read_ahead(50) == CONTENT[:50]
    assert source.read(90, 20) == CONTENT[90:110]
    assert source.read_ahead(200) == CONTENT[:200]
    source.drop_ahead()
    assert source.read(0, 300) == CONTENT[:300]
    source.close()


# Users who may write in the folder replace files by links.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_bytes(b"public")
    return tmp_path / "root"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_bytes(b"secret")
    return place


@pytest.mark.parametrize("which", ["file", "folder", "inner folder"])
def test_a_component_replaced_by_a_link_is_refused(tmp_path: Path, secret: Path, which: str) -> None:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(b"public")
    store = LocalStore(root)
    place = parts("a/b/file")
    source = store.source(place, store.entry(place))
    exchanged = {"file": root / "a/b/file", "folder": root / "a", "inner folder": root / "a/b"}[which]
    exchanged.rename(tmp_path / "moved")
    if which == "folder":
        (secret / "b").mkdir()
        (secret / "b" / "file").write_bytes(b"secret")
    exchanged.symlink_to(secret / "file" if which == "file" else secret)
    with pytest.raises(GlassfsError):
        source.read(0, 1)
    with pytest.raises(GlassfsError):
        store.open(place)
    if which != "file":
        for ask in (store.entry, store.list):
            with pytest.raises(GlassfsError):
                ask(place[:-1] if ask == store.list else place)


def test_a_root_replaced_by_a_link_is_not_found(root: Path, secret: Path) -> None:
    store = LocalStore(root)
    root.rename(root.with_name("moved"))
    root.symlink_to(secret)
    for ask in (store.entry, store.list):
        with pytest.raises(GlassfsError):
            ask(())
    with pytest.raises(GlassfsError):
        store.open(("file",))


def test_a_link_in_the_name_of_the_root_is_followed_once(root: Path, secret: Path) -> None:
    link = root.with_name("link")
    link.symlink_to("root")
    store = LocalStore(link)
    link.unlink()
    link.symlink_to(secret)
    store.close()
    assert store.open(("file",)).read(0, 6) == b"public"


def test_a_folder_that_replaced_the_root_is_shown(root: Path) -> None:
    store = LocalStore(root)
    kept = store.open(("file",))
    assert store.entry(("file",)).size == 6
    root.rename(root.with_name("moved"))

    def size() -> int | None:
        try:
            return store.entry(("file",)).size
        except NotFound:
            return None

    wait_until(lambda: size() is None)
    for ask in (store.entry, store.list):
        with pytest.raises(NotFound):
            ask(())
    root.mkdir()
    (root / "file").write_bytes(b"newer")
    assert wait_until(size) == 5
    assert store.open(("file",)).read(0, 5) == b"newer"
    assert [name for name, _ in store.list(())] == ["file"]
    assert kept.read(0, 6) == b"public"


# Access lists.


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """Return an ACL as the kernel stores it: tag, permissions and id of each entry; see acl(5)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NAMED = access_list((1, 6, 0xFFFFFFFF), (2, 0, 1234), (4, 4, 0xFFFFFFFF), (16, 4, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF))


def test_a_file_with_an_acl_is_shown_to_its_owner_only(path: Path) -> None:
    """Permissions of others would include users whom the ACL denies. The ctime has coarse ticks and may stay."""
    store = LocalStore(path.parent)
    for _ in range(20):
        assert store.entry((path.name,)).permissions == 0o644
        try:
            os.setxattr(path, ACL, NAMED)
        except OSError as error:
            pytest.skip(f"this file system has no access lists: {error}")
        assert path.stat().st_mode & 0o777 == 0o644
        assert store.entry((path.name,)).permissions == 0o600
        assert store.open((path.name,)).entry.permissions == 0o600
        assert next(store.list(()))[1].permissions == 0o600
        os.removexattr(path, ACL)


def test_a_folder_that_others_write_to_stays_open_to_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new file changes the folder's ctime, also between two looks at the folder."""
    calls = 0

    def changing(function: Callable[..., T]) -> Callable[..., T]:
        def called(*arguments: Any, **named: Any) -> T:
            nonlocal calls
            calls += 1
            if calls % 7 == 0:
                time.sleep(0.02)  # the clock of ctimes has coarse ticks
                (root / f"new{calls}").touch()
            return function(*arguments, **named)

        return called

    store = LocalStore(root)
    for name in ("stat", "fstat", "getxattr"):
        monkeypatch.setattr(os, name, changing(getattr(os, name)))
    root.chmod(0o755)
    assert {store.entry(()).permissions for _ in range(50)} == {0o755}
    assert calls > 100


# Mounts of glassfs are not entered.


@pytest.fixture
def foreign_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the mount at /proc look like one of glassfs."""
    root = os.open("/", os.O_RDONLY)
    device = system.device_of(root, "proc")
    os.close(root)
    if device is None or device == os.stat("/").st_dev:
        pytest.skip("/proc is not a mount, or statx(2) is missing")
    number = f"{os.major(device)}:{os.minor(device)}"
    monkeypatch.setattr(mountinfo, "mounts", lambda: iter([Mount("/proc", number, "fuse.glassfs", "some")]))


def test_a_mount_of_glassfs_is_an_empty_folder(foreign_proc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request reaches its daemon, which may be this process."""
    store = LocalStore("/")
    asked = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda name, **more: asked.append(name) or stat(name, **more))
    assert store.entry(("proc",)).kind is Kind.MOUNT
    assert dict(store.list(()))["proc"].kind is Kind.MOUNT
    assert "proc" not in asked
    assert "etc" in asked
    for inner in ("proc/version", "proc/sys/kernel"):
        for ask in (store.entry, store.open, store.list):
            with pytest.raises(NotFound):
                ask(parts(inner))
    with pytest.raises(NotFound):
        store.list(("proc",))


def test_a_new_mount_of_glassfs_above_the_root_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    store = LocalStore(tmp_path)
    monkeypatch.setattr(system, "is_glassfs", lambda folder, name, device: name == tmp_path.name)
    assert [name for name, _ in store.list(())] == ["file"]
    assert store.open(("file",)).read(0, 1) == b"x"


# Names that the user typed.


def test_names_are_located_in_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a", "b"):
        (tmp_path / "folder" / name).write_bytes(name.encode())
    (tmp_path / "link").symlink_to("folder/a")
    monkeypatch.chdir(tmp_path)
    found = locate(["folder/a", "folder/b", "link", "folder", "folder/", "."])
    assert [named.name for named in found] == ["a", "b", "link", "folder", "folder", tmp_path.name]
    assert [named.path for named in found] == [("a",), ("b",), ("a",), (), (), ()]
    assert [named.store.shown(named.path) for named in found] == [
        "folder/a", "folder/b", str(tmp_path / "folder/a"), "folder", "folder/", ".",
    ]
    assert found[0].store is found[1].store


def test_missing_names_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "loop"):
        with pytest.raises(NotFound) as raised:
            locate([str(tmp_path / name)])
        assert raised.value.source == str(tmp_path / name)


@pytest.mark.parametrize(("number", "kind"), [
    (2, NotFound), (5, DeviceFailed), (13, NotAllowed), (24, Unavailable), (12, Unavailable), (116, Changed),
])
def test_errors_of_the_system_are_translated(number: int, kind: type[GlassfsError]) -> None:
    error = translated(OSError(number, os.strerror(number)), "some/file")
    assert type(error) is kind
    assert str(error) == f"some/file: {os.strerror(number)}"
