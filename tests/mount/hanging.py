"""A disk that can be made to hang: a small FUSE file system that shows one folder of files.

It runs in its own process, which speaks to /dev/fuse. While that process is stopped, requests wait in the kernel, as
with a lost server or a failing disk. Names and attributes are valid for ``ttl_seconds``; reads always reach the
process. Needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.mount.mounts import is_mounted
from tests.waiting import wait_until

MS_RDONLY, MNT_FORCE, MNT_DETACH = 1, 1, 2
ROOT_NODE = 1
FOREVER = 10**6
LONGEST = 1 << 20
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, INIT, OPENDIR, READDIR, RELEASEDIR = (
    1, 2, 3, 14, 15, 17, 18, 26, 27, 28, 29,
)
INTERRUPT, BATCH_FORGET = 36, 42
UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)
DIRECT_IO = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class HangingDisk:
    """The files of ``folder``, shown at ``path``."""

    def __init__(self, folder: Path, path: Path, ttl_seconds: int = 0) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mount.hanging", folder, path, str(ttl_seconds)],
            cwd=Path(__file__).parent.parent.parent, stdin=subprocess.DEVNULL,
        )
        wait_until(lambda: is_mounted(path) or self._process.poll() is not None)
        assert is_mounted(path)
        for file in path.iterdir():
            file.open("rb").close()  # the kernel learns that closing a file needs no request

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        wait_until(lambda: _state(self._process.pid) == "T")

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill the process, so that waiting readers get an error, and unmount."""
        self._process.kill()
        self._process.wait()
        while is_mounted(self.path):
            _LIBC.umount2(os.fsencode(self.path), MNT_FORCE | MNT_DETACH)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class _Served:
    """The disk in its own process. The node of a file is its index among the names plus 2."""

    def __init__(self, folder: str, path: str, ttl_seconds: int) -> None:
        self._names = sorted(os.listdir(folder))
        self._files = [os.open(os.path.join(folder, name), os.O_RDONLY) for name in self._names]
        self._folder = os.open(folder, os.O_RDONLY)
        self._ttl_seconds = ttl_seconds
        self._device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _LIBC.mount(b"hanging", os.fsencode(path), b"fuse.hanging", MS_RDONLY, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        self._handlers: dict[int, Callable[[int, bytes], bytes]] = {
            INIT: self._init, LOOKUP: self._lookup, GETATTR: self._getattr, OPEN: self._open, READ: self._read,
            OPENDIR: self._open, READDIR: self._readdir, STATFS: lambda node, body: struct.pack("=5Q4I24x", *[0] * 9),
            RELEASE: lambda node, body: b"", RELEASEDIR: lambda node, body: b"",
        }

    def run(self) -> None:
        while True:
            try:
                message = os.read(self._device, LONGEST + 8192)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue
            _, opcode, unique, node = struct.unpack_from("=IIQQ", message)
            if opcode in UNANSWERED:
                continue
            try:
                failure, answer = 0, self._handlers[opcode](node, message[40:])
            except KeyError:
                failure, answer = -errno.ENOSYS, b""
            except FileNotFoundError:
                failure, answer = -errno.ENOENT, b""
            try:
                os.write(self._device, struct.pack("=IiQ", 16 + len(answer), failure, unique) + answer)
            except OSError:  # the request was interrupted
                select.select([], [], [], 0.001)

    def _init(self, _node: int, body: bytes) -> bytes:
        major, _minor = struct.unpack_from("=II", body)
        return struct.pack("=4I2H2I2H8I", major, 31, LONGEST, 0, FOREVER & 0xFFF, 0xFFF, LONGEST, 1, 0, 0, *[0] * 8)

    def _attributes(self, node: int) -> bytes:
        status = os.fstat(self._folder if node == ROOT_NODE else self._files[node - 2])
        mode = stat.S_IFDIR | 0o755 if node == ROOT_NODE else stat.S_IFREG | 0o644
        whole, rest = divmod(status.st_mtime_ns, 10**9)
        return struct.pack(
            "=6Q10I", node, status.st_size, 0, whole, whole, whole, rest, rest, rest, mode, 1, 0, 0, 0, 4096, 0,
        )

    def _lookup(self, _node: int, body: bytes) -> bytes:
        name = os.fsdecode(body[: body.index(0)])
        if name not in self._names:
            raise FileNotFoundError
        node = 2 + self._names.index(name)
        return struct.pack("=4Q2I", node, 0, self._ttl_seconds, self._ttl_seconds, 0, 0) + self._attributes(node)

    def _getattr(self, node: int, _body: bytes) -> bytes:
        return struct.pack("=QII", self._ttl_seconds, 0, 0) + self._attributes(node)

    def _open(self, _node: int, _body: bytes) -> bytes:
        return struct.pack("=QII", 0, DIRECT_IO, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        return os.pread(self._files[node - 2], size, offset)

    def _readdir(self, _node: int, body: bytes) -> bytes:
        _, offset, _size = struct.unpack_from("=QQI", body)
        answer = b""
        for number, name in list(enumerate(self._names))[offset:]:
            encoded = os.fsencode(name)
            answer += struct.pack("=QQII", 2 + number, number + 1, len(encoded), 8) + encoded + bytes(-len(encoded) % 8)
        return answer


if __name__ == "__main__":
    _Served(sys.argv[1], sys.argv[2], int(sys.argv[3])).run()
