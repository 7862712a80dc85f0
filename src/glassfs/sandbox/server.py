"""The process that imports one library and forks a worker for each container; and the loop of a worker.

The server has one thread and never sees bytes of a container. It ends when the process that started it closes the
socket or dies. A worker is confined (``confinement``) before it greets its sandbox and reads anything. It has limits of
memory and processor time, and ends when the socket to its sandbox is closed, or with the server.

Messages between a container's sandbox and its worker are a kind, a length, and as many bytes. A worker's first message
is ``READY`` (JSON: version of glassfs, process id): the library is imported, and the process confined. Then the sandbox
sends requests (JSON). The worker answers each with any number of ``DATA`` and one ``ANSWER`` (JSON) or ``ERROR`` (text,
a verdict on the container); before that it sends ``READ`` for each range of the container that it needs, and gets
``BYTES`` or ``FAILED``. Instead of ``READY`` or an answer it may send ``NOT_NOW`` (text): the machine is the reason.
"""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

from glassfs import __version__
from glassfs.sandbox.confinement import OF_SERVER, confine, keep_capabilities, why_impossible
from glassfs.settings import settings
from glassfs.sizes import PIECE

READY, NOT_NOW = b"Y", b"N"
REQUEST, BYTES, FAILED = b"Q", b"B", b"F"
READ, DATA, ANSWER, ERROR = b"R", b"D", b"A", b"E"
HEADER = struct.Struct("<cI")
RANGE = struct.Struct("<QI")
"""Offset and size of a range that a worker reads."""

LARGEST_ANSWER = 16 << 20
LARGEST_ERROR = 1 << 10

START, END = b"S", b"E"
"""Commands to the server: start a worker with the attached socket; end one, and send how it ended to the attached
socket. The caller may have closed the other side of it: none has to wait for a server.
"""
COMMAND = struct.Struct("<cqqq")
"""A command, the number that the caller gave the worker, the size of its container, and the bytes of memory that it may
take beside those of every worker.
"""
STATUS = struct.Struct("<i")
"""How a worker ended, as of waitpid(2)."""
PAGE = 64 << 10
"""Bytes read at once, at aligned offsets."""
_MACHINE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.EPERM)
"""Errors of system calls, which a worker makes for no container. What the library raises for one has no such number."""

Answer = tuple[Any, Iterable[bytes | bytearray]]
"""A JSON value, and bytes."""


Handler = Callable[[dict[str, Any]], Answer]
"""What a worker does: answers requests on one container. The module of a library has ``open_container``, which returns
it for a file.
"""


class RemoteFile(io.RawIOBase):
    """A read-only file object over the container, which reads through the socket."""

    def __init__(self, connection: socket.socket, size: int) -> None:
        super().__init__()
        self._connection = connection
        self._size = size
        self._position = 0
        self._page = lru_cache(64)(self._read_page)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._size)
        start = at = self._position
        while at < end:
            number, inside = divmod(at, PAGE)
            piece = self._page(number)[inside : inside + end - at]
            view[at - start : at - start + len(piece)] = piece
            at += len(piece)
        self._position = max(start, at)
        return max(0, at - start)

    def _read_page(self, number: int) -> bytes:
        size = min(PAGE, self._size - number * PAGE)
        send(self._connection, READ, RANGE.pack(number * PAGE, size))
        kind, page = receive(self._connection)
        if kind != BYTES or len(page) != size:
            raise OSError("the container cannot be read")
        return page


def send(connection: socket.socket, kind: bytes, payload: bytes | bytearray | memoryview) -> None:
    connection.sendall(HEADER.pack(kind, len(payload)))
    connection.sendall(payload)


def receive(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return kind and payload of the next message. Raises EOFError if the other side has closed the socket."""
    header = connection.recv(HEADER.size, socket.MSG_WAITALL)
    if len(header) < HEADER.size:
        raise EOFError
    kind, size = HEADER.unpack(header)
    return kind, connection.recv(size, socket.MSG_WAITALL)  # short at the end: the next call raises EOFError


def main() -> None:
    """Serve the socket with the descriptor in the first argument; the second one is the module of the library."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    library = import_module(sys.argv[2])
    if not why_impossible():  # else no worker will serve
        keep_capabilities(OF_SERVER, OF_SERVER)
    gc.collect()
    gc.freeze()  # or collecting in a worker copies the pages that it shares with this process
    workers: dict[int, int] = {}
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, COMMAND.size, 1)
        if len(command) != COMMAND.size:
            return
        kind, number, size, memory = COMMAND.unpack(command)
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            if kind == START:
                workers[number] = _start(library, control, connection, size, memory)
            else:
                status = _end(workers.pop(number, 0))
                with suppress(OSError):
                    connection.sendall(STATUS.pack(status))
            connection.close()


def _start(library: Any, control: socket.socket, connection: socket.socket, size: int, memory: int) -> int:
    """Fork a worker for a container of ``size`` bytes, and return its process id; 0, and say why, if that fails."""
    parent = os.getpid()
    try:
        # The server has one thread and has read nothing of any container, so a fork is safe and inherits nothing that
        # another container could have changed.
        child = os.fork()
    except OSError as error:
        with suppress(OSError):
            send(connection, NOT_NOW, f"cannot be started: {error.strerror}".encode())
        return 0
    if child:
        return child
    status = 1
    try:
        control.close()
        try:
            confine(parent, memory)
        except OSError as error:
            send(connection, NOT_NOW, f"cannot be confined: {error.strerror or error}".encode())
        else:
            send(connection, READY, json.dumps([__version__, os.getpid()]).encode())
            _serve(library, connection, size, settings.worker_processor + memory // settings.worker_fill)
    except (EOFError, OSError):
        status = 0
    finally:
        os._exit(status)  # 1 for what no answer could be made of, mostly MemoryError


def _end(process: int) -> int:
    """Kill a worker, and return how it ended, or has ended before; -1 if there is none."""
    if process:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
            return os.waitpid(process, 0)[1]
    return -1


def _serve(library: Any, connection: socket.socket, size: int, seconds: int) -> None:
    """Answer requests, each in so much processor time, until the sandbox closes the socket."""
    handler: Handler | None = None
    file = RemoteFile(connection, size)
    while True:
        _, payload = receive(connection)
        # The limit of processor time counts from the start of the process, so it is raised for each request. The hard
        # limit may be lower, as the user has set one.
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        most = int(used) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
        try:
            if handler is None:
                handler = library.open_container(file)
            value, data = handler(json.loads(payload))
            for piece in data:
                for start in range(0, len(piece), PIECE):
                    send(connection, DATA, piece[start : start + PIECE])
            kind, answer = ANSWER, json.dumps(value, ensure_ascii=False).encode()
            if len(answer) > LARGEST_ANSWER:
                kind, answer = ERROR, b"its description is too long"
        except MemoryError:
            kind, answer = ERROR, b"reading it takes more memory than a worker may have"
        except EOFError:
            raise
        except Exception as error:
            text = " ".join(str(error).split()) or type(error).__name__
            # An error with a number of the system is one of the machine: a worker makes no such calls for a container.
            is_passing = isinstance(error, ImportError) or getattr(error, "errno", None) in _MACHINE
            kind = NOT_NOW if is_passing else ERROR
            answer = text.encode("utf-8", "replace")[: LARGEST_ERROR]
        send(connection, kind, answer)
