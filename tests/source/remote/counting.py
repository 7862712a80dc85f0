"""A server without a network: it counts what it is asked for, and is as slow, broken or changed as a test wants it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from glassfs.errors import Changed, NotFound
from glassfs.source.contract import Path
from glassfs.source.remote.server import Facts, Listed, Server

PERIOD = 1_000_003


class CountingServer(Server):
    """Objects whose bytes follow from their ETag, of any size. ``requests`` are those of ``fetch``: offset and size.

    ``answer``, if there is one, is called for each with the future that is to be settled, and what belongs into it. By
    default that happens before ``fetch`` returns.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        self.name = self.identity = "fake://server"
        self.timeout = timeout
        self.objects: dict[Path, Facts] = {}
        self.requests: list[tuple[int, int]] = []
        self.answer: Callable[[Future[bytes], bytes], None] | None = None
        self.lock = threading.Lock()

    def put(self, size: int, etag: str = "one", path: Path = ("run.kdb",)) -> Facts:
        self.objects[path] = Facts(size, etag, 0)
        return self.objects[path]

    @property
    def fetched(self) -> int:
        return sum(size for _, size in self.requests)

    def list(self, path: Path) -> Sequence[Listed]:
        raise NotImplementedError

    def begin(self, path: Path, size: int, known: Facts | None = None) -> tuple[Facts, bytes] | None:
        raise NotImplementedError

    def fetch(self, path: Path, offset: int, size: int, facts: Facts) -> Future[bytes]:
        with self.lock:
            self.requests.append((offset, size))
        assert offset >= 0 and size > 0 and offset + size <= facts.size
        future: Future[bytes] = Future()
        current = self.objects.get(path)
        if current is None:
            future.set_exception(NotFound("is not there"))
        elif current != facts:
            future.set_exception(Changed("has other bytes now"))
        elif self.answer is None:
            future.set_result(content(facts, offset, size))
        else:
            self.answer(future, content(facts, offset, size))
        return future

    def close(self) -> None:
        pass


class Gate:
    """Answers nothing before it is ``open``, and then all, in the order of the requests."""

    def __init__(self, server: CountingServer) -> None:
        self.waiting: list[tuple[Future[bytes], bytes]] = []
        self._server = server
        server.answer = lambda future, data: self.waiting.append((future, data))

    def open(self, error: Exception | None = None) -> None:
        """From now on. What waits fails with ``error``, if there is one."""
        self._server.answer = None
        waiting, self.waiting = self.waiting, []
        for future, data in waiting:
            if error is not None:
                future.set_exception(error)
            elif future.set_running_or_notify_cancel():
                future.set_result(data)


class Line:
    """Answers as a network does: each request after ``latency``, and all together ``bandwidth`` bytes a second."""

    def __init__(self, server: CountingServer, latency: float, bandwidth: float) -> None:
        self._latency = latency
        self._bandwidth = bandwidth
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._threads = ThreadPoolExecutor(64)
        server.answer = self._answer

    def _answer(self, future: Future[bytes], data: bytes) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic() + self._latency) + len(data) / self._bandwidth
            at = self._free_at
        self._threads.submit(self._settle, future, data, at)

    def _settle(self, future: Future[bytes], data: bytes, at: float) -> None:
        time.sleep(max(0.0, at - time.monotonic()))
        future.set_result(data)


@lru_cache
def _table(etag: str) -> bytes:
    return np.random.default_rng([*etag.encode()]).bytes(PERIOD)


def content(facts: Facts, offset: int, size: int) -> bytes:
    """The bytes of an object."""
    table = _table(facts.etag)
    start = offset % PERIOD
    if start + size <= PERIOD:
        return table[start : start + size]
    return (table[start:] + table * -(-size // PERIOD))[:size]
