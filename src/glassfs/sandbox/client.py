"""The sandbox of one container: requests to a worker that reads it with a library. Any thread, one request at a time.

A worker that crashes, takes too much processor time or sends nonsense has read something that makes it do so: this and
all later requests raise Damaged. Nothing else is a verdict on the container: all else is tried again, or Unavailable.
"""

from __future__ import annotations

import json
import select
import threading
import time
from dataclasses import dataclass
from typing import Any

from glassfs import __version__, work
from glassfs.errors import GlassfsError, Unavailable
from glassfs.sandbox.pool import SandboxWorker, evidence, pool
from glassfs.sandbox.server import (
    ANSWER,
    BYTES,
    DATA,
    ERROR,
    FAILED,
    HEADER,
    LARGEST_ANSWER,
    LARGEST_ERROR,
    NOT_NOW,
    RANGE,
    READ,
    READY,
    REQUEST,
)
from glassfs.settings import settings
from glassfs.sizes import PIECE
from glassfs.source import Source
from glassfs.terminal import printable

Outcome = tuple[Any, bytearray] | GlassfsError


@dataclass
class Sandbox:
    """Requests on the container ``source`` to a worker.

    ``library`` names the module of this room that answers. It may take ``memory`` more bytes than every worker, and
    time in proportion.
    """

    _source: Source
    _library: str = "hdf5"
    _memory: int = 0
    _verdict: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any], most: int = 0) -> tuple[Any, bytearray]:
        """Return the worker's answer: a JSON value, and at most ``most`` bytes. Both are untrusted.

        Raises Damaged with the library's reason, or if the worker fails due to what it reads; Unavailable if it fails
        otherwise; and what the source raises.
        """
        message = json.dumps(request).encode()
        killed = 0
        with work.holding(self._lock):
            while not self._verdict and killed < 2:
                worker = pool().acquire(self, self._source.size, self._library, self._memory)
                outcome: Outcome | None = None
                try:
                    outcome = _Conversation(worker, self._source, most, self._memory).run(message)
                except _Nonsense as nonsense:
                    self._verdict = f"sends {nonsense}"
                except _Disconnected:
                    self._verdict = evidence(pool().discard(worker))
                finally:
                    # Canceled work leaves a worker that still computes.
                    if outcome is None:
                        pool().discard(worker)
                    else:
                        pool().release(worker)
                if isinstance(outcome, GlassfsError):
                    raise outcome
                if outcome is not None:
                    return outcome
                # A worker that was ended for another user says nothing about the container, and its request is tried
                # again without end. One that another process killed is tried twice.
                killed += not worker.was_taken
            if self._verdict:
                raise self._source.damage(f"cannot be read: its worker process {self._verdict}")
            raise Unavailable("its worker process was killed", self._source.name)


class _Disconnected(Exception):
    """The worker has closed its socket."""


class _Nonsense(Exception):
    """The worker sends what no worker sends that the container has not taken over."""


@dataclass
class _Conversation:
    """One request to a worker: serves its reads until it answers. ``fault`` is the first error of the source."""

    worker: SandboxWorker
    source: Source
    most: int
    memory: int
    until: float = 0.0
    fault: GlassfsError | None = None

    def run(self, request: bytes) -> Outcome:
        """Return the answer, or the error that the library or the source reports.

        Raises Unavailable if the worker is not ready or silent, _Disconnected and _Nonsense.
        """
        self._send(REQUEST, request)
        if not self.worker.process:
            self._greet()  # it has the request already, and loses no time
        data = bytearray()
        while True:
            kind, payload = self._message()
            if kind == READ:
                self._serve(payload)
            elif kind == DATA:
                if len(data) + len(payload) > self.most:
                    raise _Nonsense("more than was asked for")
                data += payload
            # The library reports a failed read of the source as its own error, which may look like damage. The error of
            # the source is the cause.
            elif self.fault is not None:
                return self.fault
            elif kind == ERROR:
                return self.source.damage(_text(payload))
            elif kind == NOT_NOW:
                return self._not_now(_text(payload))
            else:
                return _parsed(payload), data

    def _greet(self) -> None:
        """Wait until the worker is ready. Raises Unavailable with the reason if it is not."""
        server = self.worker.server
        self.until = time.monotonic() + server.patience
        reason = "is of another version: glassfs was upgraded; mount, or start this program, again"
        try:
            kind, payload = self._message()
            greeting: Any = _parsed(payload) if kind == READY else None
        except _Disconnected:
            if self.worker.was_taken:
                raise
            reason = f"cannot be started: {server.why_ended()}"
        except _Nonsense:
            pass
        except Unavailable:
            reason = "does not start in time"
        else:
            if kind == NOT_NOW:
                raise self._not_now(_text(payload))
            if isinstance(greeting, list) and greeting[:1] == [__version__]:  # an upgrade may come between
                self.worker.process = greeting[1]
                self._wait_longer()
                return
        pool().discard_server(server)
        raise self._not_now(reason)

    def _not_now(self, reason: str) -> Unavailable:
        return Unavailable(f"its worker process {reason}", self.source.name)

    def _message(self) -> tuple[bytes, bytearray]:
        """Return kind and payload of the next message. Raises _Nonsense if it is no message of a worker's."""
        kind, size = HEADER.unpack(self._receive(HEADER.size))
        if size > _LARGEST.get(kind, -1):
            raise _Nonsense("a wrong message")
        return kind, self._receive(size)

    def _serve(self, payload: bytearray) -> None:
        """Send the bytes that the worker wants."""
        if len(payload) != RANGE.size:
            raise _Nonsense("a wrong message")
        offset, size = RANGE.unpack(payload)
        if size > PIECE:
            raise _Nonsense("a wrong message")
        kind, found = FAILED, bytearray()
        self.worker.waits_since = time.monotonic()
        try:
            kind, found = BYTES, self.source.buffer(offset, size)
        except GlassfsError as error:
            self.fault = self.fault or error
        finally:
            self.worker.waits_since = None
        self._send(kind, found)

    def _send(self, kind: bytes, payload: bytes | bytearray) -> None:
        view = memoryview(HEADER.pack(kind, len(payload)) + payload)
        self._wait_longer()
        while view:
            try:
                view = view[self.worker.connection.send(view) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError:
                raise _Disconnected from None

    def _wait_longer(self) -> None:
        """Let the next message of the worker take as long as it may."""
        self.until = time.monotonic() + settings.worker_silent + self.memory / settings.worker_fill

    def _receive(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            try:
                count = self.worker.connection.recv_into(view)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError:
                raise _Disconnected from None
            if not count:
                raise _Disconnected
            view = view[count:]
        return buffer

    def _wait(self, event: int) -> None:
        """Wait until the socket is ready. Raises Unavailable if the worker is silent for too long.

        Computing too long ends it before, so then it was stopped, or the machine has no time for it.
        """
        poll = select.poll()
        poll.register(self.worker.connection, event)
        left = self.until - time.monotonic()
        if left <= 0 or not work.patiently(lambda seconds: bool(poll.poll(seconds * 1000)), left):
            raise self._not_now("does not answer in time")


_LARGEST = {
    READ: RANGE.size, DATA: PIECE, ANSWER: LARGEST_ANSWER,
    ERROR: LARGEST_ERROR, NOT_NOW: LARGEST_ERROR, READY: LARGEST_ERROR,
}


def _text(payload: bytearray) -> str:
    return printable(payload.decode("utf-8", "replace"))


def _parsed(payload: bytearray) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise _Nonsense("a wrong message") from None


