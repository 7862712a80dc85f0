"""The callbacks of libfuse 2, called through the C function pointers that libfuse would call; nothing is mounted."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
from collections.abc import Callable
from typing import Any

import pytest

from glassfs.formats import registry
from glassfs.mount.engines import load
from glassfs.mount.engines.contract import MountPoint
from glassfs.mount.engines.libfuse2 import Callbacks, Libfuse2
from glassfs.mount.errors import Failures, MountError
from glassfs.mount.operations import Stale
from tests.memory_store import MemoryStore
from tests.mount.mounts import LIBRARIES
from tests.mount_unit.kernel import operations_of
from tests.tree.made import FORMAT, made
from tests.tree.trees import sources_of

LONG = bytes(range(256)) * 1000


class Kernel:
    """What libfuse does with the callbacks of a mount of a store."""

    def __init__(self, binding: Any, store: MemoryStore) -> None:
        sources = sources_of(store)
        self.operations = operations_of(sources)
        self.started = 0
        self.callbacks = Callbacks(binding, self.operations, Failures(), self._begin, lambda: (0, 0, 0))
        self.table = self.callbacks.table()
        self._binding = binding
        self._refresh = sources.refresh

    def _begin(self) -> None:
        self.started += 1

    def info(self, handle: int = 0) -> Any:
        return self._binding.fuse_file_info(fh=handle)

    def stat(self, path: bytes) -> tuple[int, Any]:
        found = self._binding.c_stat()
        return self.table.getattr(path, ctypes.byref(found)), found

    def open(self, path: bytes, flags: int = os.O_RDONLY) -> tuple[int, Any]:
        info = self._binding.fuse_file_info(flags=flags)
        return self.table.open(path, ctypes.byref(info)), info

    def read(self, info: Any, size: int, offset: int) -> int | bytes:
        buffer = (ctypes.c_byte * (size + 1))()
        buffer[size] = 77
        count = self.table.read(None, buffer, size, offset, ctypes.byref(info))
        assert buffer[size] == 77
        return bytes(buffer)[:count] if count >= 0 else count

    def list(self, info: Any, offset: int, room: int) -> tuple[int, list[tuple[bytes, int, int]]]:
        """What comes of a directory from a position on, for which there is room."""
        types = {field[0]: field[1] for field in self.table._fields_}
        taken: list[tuple[bytes, int, int]] = []

        def take(_buffer: int, name: bytes, status: Any, position: int) -> int:
            if len(taken) == room:
                return 1
            taken.append((name, status.contents.st_mode if status else 0, position))
            return 0

        filler = types["readdir"]._argtypes_[2](take)
        return self.table.readdir(None, None, filler, offset, ctypes.byref(info)), taken

    def text(self, function: Callable[..., int], *arguments: Any, size: int) -> int | bytes:
        """What getxattr, listxattr and readlink put into a buffer."""
        buffer = (ctypes.c_byte * (size + 1))()
        buffer[size] = 77
        count = function(*arguments, buffer, size)
        assert buffer[size] == 77
        return bytes(buffer)[:count] if count > 0 and size else count


@pytest.fixture(scope="module")
def engine() -> Libfuse2:
    for name in LIBRARIES["2"]:
        try:
            return Libfuse2(name, Failures())
        except OSError:
            continue
    if os.environ.get("GLASSFS_REQUIRE_FUSE") == "1":
        pytest.fail("libfuse 2 is not installed, and GLASSFS_REQUIRE_FUSE=1")
    pytest.skip("libfuse 2 is not installed")


@pytest.fixture
def kernel(engine: Libfuse2, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    store = MemoryStore({"some": made({"a": LONG, "dir/b": b"b"}), "folder/plain": b"text", "odd\udcff": b"1"})
    store.link("link", "über/\udcff")
    return Kernel(engine._binding, store)


def test_engine(engine: Libfuse2) -> None:
    assert engine.generation == 2 and not engine.can_invalidate
    engine.invalidate(Stale([(1, "x")], [1]))
    engine.tick()
    assert engine.requests() == {}


def test_choice_of_library_leaves_the_environment(engine: Libfuse2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFS_FUSE", "2")
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "of the user")
    assert isinstance(load(Failures()), Libfuse2)
    assert os.environ["FUSE_LIBRARY_PATH"] == "of the user"
    monkeypatch.delenv("FUSE_LIBRARY_PATH")
    load(Failures())
    assert "FUSE_LIBRARY_PATH" not in os.environ


def test_command_line_for_libfuse(engine: Libfuse2) -> None:
    words = engine._words(MountPoint("/mnt/\udcff", {"ro": True, "fsname": "a\\,b"}))
    assert words[:2] == [b"glassfs", b"-f"] and words[-1] == b"/mnt/\xff"
    options = words[3:-1:2]
    assert {*words[2:-1:2]} == {b"-o"}
    assert {b"ro", b"fsname=a\\,b", b"use_ino", b"entry_timeout=0.5", b"attr_timeout=0.5"} < {*options}


def test_attributes(kernel: Kernel) -> None:
    result, found = kernel.stat(b"/some/a.bin")
    assert (result, found.st_mode, found.st_size, found.st_nlink) == (0, 0o100444, len(LONG), 1)
    assert found.st_blocks == 500 and found.st_ino and found.st_mtimespec.tv_sec == 1
    assert stat.S_ISDIR(kernel.stat(b"/")[1].st_mode)
    assert kernel.stat(b"/none")[0] == -errno.ENOENT
    assert kernel.stat(b"/\xff\xfe/\xff")[0] == -errno.ENOENT
    assert kernel.stat(b"/some/a.bin/x")[0] == -errno.ENOTDIR


def test_reading(kernel: Kernel) -> None:
    result, info = kernel.open(b"/some/a.bin")
    assert (result, info.direct_io, info.keep_cache) == (0, 0, 0)
    for offset, size in ((0, 10), (1000, 131_072), (len(LONG) - 5, 100), (len(LONG), 10), (1 << 62, 10)):
        assert kernel.read(info, size, offset) == LONG[offset : offset + size]
    status = kernel._binding.c_stat()
    assert kernel.table.fgetattr(None, ctypes.byref(status), ctypes.byref(info)) == 0
    assert status.st_size == len(LONG)
    assert kernel.open(b"/some/a.bin")[1].keep_cache == 1
    assert kernel.table.release(None, ctypes.byref(info)) == 0
    assert kernel.read(info, 10, 0) == -errno.EBADF


def test_listing_in_parts(kernel: Kernel) -> None:
    info = kernel.info()
    assert kernel.table.opendir(b"/", ctypes.byref(info)) == 0
    names, position = [], 0
    while True:
        result, taken = kernel.list(info, position, 2)
        assert result == 0
        if not taken:
            break
        names += [(name, stat.S_IFMT(mode)) for name, mode, _ in taken]
        position = taken[-1][2]
    assert names == [
        (b".", 0), (b"..", 0), (b".glassfs", stat.S_IFDIR), (b"folder", stat.S_IFDIR), (b"link", stat.S_IFLNK),
        (b"odd%FF", stat.S_IFREG), (b"some", stat.S_IFDIR),
    ]
    assert kernel.table.releasedir(None, ctypes.byref(info)) == 0
    assert kernel.table.opendir(b"/folder/plain", ctypes.byref(info)) == -errno.ENOTDIR


def test_unknown_handles_are_refused(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for handle in (0, 99, (1 << 64) - 1):
            info = kernel.info(handle)
            assert kernel.read(info, 10, 0) == -errno.EBADF
            assert kernel.list(info, 0, 10) == (-errno.EBADF, [])
            for function in (kernel.table.release, kernel.table.releasedir):
                assert function(None, ctypes.byref(info)) == -errno.EBADF
            status = kernel._binding.c_stat()
            assert kernel.table.fgetattr(None, ctypes.byref(status), ctypes.byref(info)) == -errno.EBADF
    assert not caplog.records


def test_extended_attributes(kernel: Kernel) -> None:
    get, listed = kernel.table.getxattr, kernel.table.listxattr
    path, name = b"/some/dir/b.bin", b"user.glassfs.key"
    assert kernel.text(get, path, name, size=0) == 5
    assert kernel.text(get, path, name, size=5) == b"dir/b"
    assert kernel.text(get, path, name, size=4) == -errno.ERANGE
    assert kernel.text(get, path, b"user.\xff", size=10) == -errno.ENODATA
    assert kernel.text(get, path, b"security.selinux", size=10) == -errno.ENOTSUP
    names = kernel.text(listed, path, size=1000)
    assert isinstance(names, bytes) and name in names.split(b"\0") and names.endswith(b"\0")
    assert kernel.text(listed, path, size=len(names) - 1) == -errno.ERANGE
    assert kernel.text(listed, path, size=0) == len(names)


def test_links(kernel: Kernel) -> None:
    for size in (100, 6, 1):
        buffer = (ctypes.c_byte * (size + 1))()
        buffer[size] = 77
        assert kernel.table.readlink(b"/link", buffer, size) == 0
        assert ctypes.string_at(buffer) == b"\xc3\xbcber/\xff"[: size - 1]
        assert buffer[size] == 77
    assert kernel.text(kernel.table.readlink, b"/folder/plain", size=9) == -errno.EINVAL


def test_unexpected_exception_is_an_eio(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("unexpected")

    kernel.operations.look_up = fail  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.ERROR):
        assert kernel.stat(b"/some")[0] == -errno.EIO
        assert kernel.open(b"/some")[0] == -errno.EIO
    assert [record.getMessage() for record in caplog.records] == ["ZeroDivisionError: unexpected"]


def test_requests_are_counted_and_started_is_called(kernel: Kernel) -> None:
    kernel.table.init(None)
    for path in (b"/some", b"/none"):
        kernel.stat(path)
    assert kernel.started == 1
    assert kernel.callbacks.counts() == {"init": 1, "getattr": 2}


def test_mount_failure_raises(engine: Libfuse2, kernel: Kernel, tmp_path: Any) -> None:
    place = MountPoint(str(tmp_path / "none"), {"fsname": "x"})
    with pytest.raises(MountError, match="libfuse cannot mount"):
        engine.serve(kernel.operations, place, lambda: None)
