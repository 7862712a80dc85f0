"""The sandbox of one container: requests to a worker that reads it with a library. Any thread, one request at a time.

A worker that dies, hangs or sends nonsense makes this and all later requests raise Damaged. Only if another process
killed it the next request starts another one, up to MOST_FAILURES times.
"""

from __future__ import annotations

import json
import select
import threading
import time
from typing import Any

from glassfs import work
from glassfs.errors import GlassfsError
from glassfs.sandbox import wire
from glassfs.sandbox.pool import Worker, how_ended, pool, was_killed
from glassfs.source import Source
from glassfs.terminal import printable

SILENT_SECONDS = 20.0
"""How long a worker may take for its next message, which is either an answer or a read of the container."""
MOST_FAILURES = 2


class Sandbox:
    """Requests on the container ``source`` to a worker with the library ``library``, a module of this package."""

    def __init__(self, source: Source, library: str) -> None:
        self._source = source
        self._library = f"glassfs.sandbox.{library}"
        self._lock = threading.Lock()
        self._failures = 0
        self._failure = ""

    def ask(self, request: dict[str, Any], most: int = 0) -> tuple[Any, bytearray]:
        """Return the worker's answer: a JSON value, and at most ``most`` bytes. Both are untrusted.

        Raises Damaged with the library's reason, or if the worker fails; Unavailable if none can be started; and what
        the source raises.
        """
        with work.holding(self._lock):
            if self._failures >= MOST_FAILURES:
                raise self._source.damage(self._failure)
            worker, _ = pool().acquire(self, self._library, self._source.size)
            answer = None
            try:
                answer = _Conversation(worker, self._source, most).run(json.dumps(request).encode())
            except _Failure as failure:
                status = pool().discard(worker)
                # After a kill by another process, a new worker may succeed. What the container caused happens again.
                self._failures += 1 if not failure.reason and was_killed(status) else MOST_FAILURES
                self._failure = f"cannot be read: its worker process {failure.reason or how_ended(status)}"
                raise self._source.damage(self._failure) from None
            finally:
                # Canceled work leaves a worker that still computes.
                if answer is None:
                    pool().discard(worker)
                else:
                    pool().release(worker)
            if isinstance(answer, GlassfsError):
                raise answer
            return answer


class _Failure(Exception):
    """A worker cannot be used any more. ``reason`` is empty if it has ended by itself."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class _Conversation:
    """One request to a worker: serves its reads until it answers."""

    def __init__(self, worker: Worker, source: Source, most: int) -> None:
        self._socket = worker.connection
        self._source = source
        self._most = most
        self._until = 0.0
        self._fault: GlassfsError | None = None

    def run(self, request: bytes) -> tuple[Any, bytearray] | GlassfsError:
        """Return the answer, or the error that the library or the source reports. Raises _Failure."""
        self._send(wire.REQUEST, request)
        data = bytearray()
        while True:
            kind, size = wire.HEADER.unpack(self._receive(wire.HEADER.size))
            if size > _LARGEST.get(kind, -1):
                raise _Failure("sends a wrong message")
            payload = self._receive(size)
            if kind == wire.READ:
                self._serve(payload)
            elif kind == wire.DATA:
                if len(data) + size > self._most:
                    raise _Failure("sends more than was asked for")
                data += payload
            elif self._fault is not None:
                return self._fault
            elif kind == wire.ERROR:
                return self._source.damage(printable(payload.decode("utf-8", "replace")))
            else:
                return _parsed(payload), data

    def _serve(self, payload: bytearray) -> None:
        """Send the bytes that the worker wants."""
        if len(payload) != wire.RANGE.size:
            raise _Failure("sends a wrong message")
        offset, size = wire.RANGE.unpack(payload)
        if size > wire.LARGEST_READ:
            raise _Failure("sends a wrong message")
        try:
            found: bytes | bytearray = self._source.buffer(offset, size)
        except GlassfsError as error:
            self._fault = self._fault or error
            self._send(wire.FAILED, b"")
        else:
            self._send(wire.BYTES, found)

    def _send(self, kind: bytes, payload: bytes | bytearray) -> None:
        view = memoryview(wire.HEADER.pack(kind, len(payload)) + payload)
        self._until = time.monotonic() + SILENT_SECONDS
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError:
                raise _Failure from None

    def _receive(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            try:
                count = self._socket.recv_into(view)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError:
                raise _Failure from None
            if not count:
                raise _Failure
            view = view[count:]
        return buffer

    def _wait(self, event: int) -> None:
        """Wait until the socket is ready. Raises _Failure if the worker is silent for too long."""
        poll = select.poll()
        poll.register(self._socket, event)
        left = self._until - time.monotonic()
        if left <= 0 or not work.patiently(lambda seconds: bool(poll.poll(seconds * 1000)), left):
            raise _Failure(f"does not answer within {SILENT_SECONDS:.0f} seconds")


_LARGEST = {
    wire.READ: wire.RANGE.size, wire.DATA: wire.LARGEST_DATA, wire.ANSWER: wire.LARGEST_ANSWER,
    wire.ERROR: wire.LARGEST_ERROR,
}


def _parsed(payload: bytearray) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise _Failure("sends a wrong message") from None


