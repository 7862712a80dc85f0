"""The C side of the callbacks: structs in, structs out, with as little Python as can be on the way.

``fuse_class`` derives from the binding's own FUSE class and replaces the methods that matter, so that payload goes
straight from the tree into libfuse's buffer and a directory listing carries the attributes along (readdirplus).
Callbacks run on libfuse's threads; nothing here notifies the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Callable
from typing import Any

from glassfs.mount.binding import Binding
from glassfs.mount.errors import Answer, Failures
from glassfs.mount.operations import Attributes, Operations

LONGEST_REQUEST = 1 << 20
FILL_PLUS = 2
CAP_READDIRPLUS_AUTO = 1 << 14
TYPE_MASK = 0o170000
BLOCK_SIZE = 4096

# The callbacks that are registered; libfuse answers all others by itself. The kernel refuses everything that writes,
# as the mount is read-only.
REGISTERED = (
    "getattr", "readlink", "open", "read", "release", "opendir", "readdir", "releasedir", "getxattr", "listxattr",
    "statfs", "init",
)


class Registration:
    """What the binding looks at to find out which callbacks there are. ``started`` is told the ``struct fuse *``."""

    use_ns = True

    def __init__(self, started: Callable[[int], None], timeout: float) -> None:
        self.started = started
        self.timeout = timeout
        for name in REGISTERED:
            setattr(self, name, self._never_called)

    def _never_called(self, *arguments: object) -> None:
        raise AssertionError("the binding's own method was not replaced")


def fuse_class(binding: Binding, operations: Operations, failures: Failures) -> type[Any]:
    """A FUSE class for this binding whose callbacks answer from ``operations``."""
    module = binding.module
    base: type[Any] = module.FUSE
    c_stat = module.c_stat
    pin_thread = _thread_pin() if binding.keeps_threads else _no_pin

    def guarded(function: Callable[..., int | None], *arguments: Any) -> int:
        pin_thread()
        try:
            return function(*arguments) or 0
        except BaseException as error:
            return -failures.errno_of(error)

    def fill_stat(status: Any, found: Attributes) -> None:
        status.st_mode, status.st_nlink, status.st_ino = found.mode, found.nlink, found.ino
        status.st_uid, status.st_gid = found.uid, found.gid
        status.st_size, status.st_blocks, status.st_blksize = found.size, found.blocks, BLOCK_SIZE
        seconds, nanoseconds = divmod(found.mtime_ns, 10**9)
        for time in (status.st_atimespec, status.st_mtimespec, status.st_ctimespec):
            time.tv_sec, time.tv_nsec = seconds, nanoseconds

    def get_attributes(path: bytes | None, status: Any, info: Any) -> None:
        # No path: asked by somebody who has the file open.
        node = operations.opened(info.contents.fh) if path is None else operations.node(_text(path))
        fill_stat(status.contents, operations.attributes(node))

    class Callbacks(base):  # type: ignore[misc]
        _wrapper = staticmethod(guarded)

        def readlink(self, path: bytes, buffer: Any, size: int) -> None:
            target = _bytes(operations.readlink(_text(path)))[: size - 1]
            ctypes.memmove(buffer, target + b"\0", len(target) + 1)

        def open(self, path: bytes, info: Any) -> None:
            fields = info.contents
            fields.fh, fields.direct_io, fields.keep_cache = operations.open(_text(path), fields.flags)

        def read(self, path: bytes | None, buffer: Any, size: int, offset: int, info: Any) -> int:
            target = (ctypes.c_char * size).from_address(ctypes.addressof(buffer.contents))
            return operations.read_into(info.contents.fh, memoryview(target).cast("B"), offset)

        def release(self, path: bytes | None, info: Any) -> None:
            operations.release(info.contents.fh)

        def opendir(self, path: bytes, info: Any) -> None:
            info.contents.fh = operations.opendir(_text(path))

        def releasedir(self, path: bytes | None, info: Any) -> None:
            operations.releasedir(info.contents.fh)

        def getxattr(self, path: bytes, name: bytes, value: Any, size: int, *position: int) -> int:
            return _give(operations.getxattr(_text(path), _text(name)), value, size)

        def listxattr(self, path: bytes, names: Any, size: int) -> int:
            return _give(b"".join(_bytes(name) + b"\0" for name in operations.listxattr(_text(path))), names, size)

        def statfs(self, path: bytes, buffer: Any) -> None:
            fields = buffer.contents
            for name, value in operations.statfs().items():
                setattr(fields, name, value)

    if binding.generation == 3:

        class Callbacks3(Callbacks):
            def getattr_fuse_3(self, path: bytes | None, status: Any, info: Any) -> None:
                get_attributes(path, status, info)

            def readdir_fuse_3(self, path: bytes, buffer: Any, filler: Any, offset: int, info: Any, flags: int) -> None:
                listing = operations.listing(info.contents.fh)
                for number in range(offset, 2):
                    if filler(buffer, b".."[: number + 1], None, number + 1, 0):
                        return
                status = c_stat()
                pointer = ctypes.byref(status)
                origin = None
                first = max(0, offset - 2)
                for number, (name, node, found) in enumerate(listing.entries(first), first):
                    if found is None:
                        status.st_mode, status.st_ino = node.mode & TYPE_MASK, node.ino
                    elif node.origin is origin:
                        # Owners and times are those of the entry before, and each field takes its time.
                        status.st_mode, status.st_ino = found.mode, found.ino
                        status.st_size, status.st_blocks = found.size, found.blocks
                    else:
                        fill_stat(status, found)
                        origin = node.origin
                    if filler(buffer, name, pointer, number + 3, 0 if found is None else FILL_PLUS):
                        listing.expect(number, number - first)
                        return

            def init_fuse_3(self, connection: Any, config: Any) -> None:
                connection.contents.max_write = LONGEST_REQUEST
                # Attributes with every listing: left to itself, the kernel stops asking for them midway.
                connection.contents.want &= ~CAP_READDIRPLUS_AUTO
                fields = config.contents
                registration = self.operations
                fields.entry_timeout = fields.attr_timeout = fields.negative_timeout = registration.timeout
                fields.use_ino = fields.nullpath_ok = 1
                registration.started(_fuse_pointer(module))

        return Callbacks3

    class Callbacks2(Callbacks):
        def getattr(self, path: bytes, status: Any) -> None:
            get_attributes(path, status, None)

        def fgetattr(self, path: bytes, status: Any, info: Any) -> None:
            get_attributes(None, status, info)

        def readdir(self, path: bytes, buffer: Any, filler: Any, offset: int, info: Any) -> None:
            status = c_stat()
            pointer = ctypes.byref(status)
            for number in range(offset, 2):
                if filler(buffer, b".."[: number + 1], None, number + 1):
                    return
            first = max(0, offset - 2)
            for number, (name, node, _) in enumerate(operations.listing(info.contents.fh).entries(first), first):
                status.st_mode, status.st_ino = node.mode & TYPE_MASK, node.ino
                if filler(buffer, name, pointer, number + 3):
                    return

        def init(self, connection: Any) -> None:
            self.operations.started(_fuse_pointer(module))

    return Callbacks2


def _fuse_pointer(module: Any) -> int:
    """The ``struct fuse *`` of the running file system. Only inside a callback."""
    return int(module._libfuse.fuse_get_context().contents.fuse)


def _thread_pin() -> Callable[[], None]:
    """A function that keeps the Python state of the calling libfuse thread alive between callbacks.

    Without it every callback makes and frees a thread state. That of a thread that ends would never be freed.
    """
    pinned = threading.local()
    ensure = ctypes.pythonapi.PyGILState_Ensure

    def pin() -> None:
        if not hasattr(pinned, "done"):
            pinned.done = True
            ensure()

    return pin


def _no_pin() -> None:
    """For libraries that end their threads."""


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _give(value: bytes, buffer: Any, size: int) -> int:
    """A value for getxattr and listxattr: its size where no buffer is given."""
    if size:
        if len(value) > size:
            raise Answer(errno.ERANGE)
        ctypes.memmove(buffer, value, len(value))
    return len(value)
