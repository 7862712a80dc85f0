"""A server without a network that counts requests, and is slow, faulty or changed on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache

import numpy as np

from glassfs.cache import BlockCache
from glassfs.errors import Changed, NotFound
from glassfs.source.contract import Entry, Kind, Path
from glassfs.source.remote.blocks import RemoteBlocks, RemoteSource, version_of
from glassfs.source.remote.server import Facts, Listed, Server

PERIOD = 1_000_003
K, M = 1 << 10, 1 << 20
PAGE = 256 * K
BLOCK = 512 * K
PATH = ("run.kdb",)


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

    def put(self, size: int, etag: str = "one", path: Path = PATH) -> Facts:
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
        current, answer = self.objects.get(path), self.answer
        if current is None:
            future.set_exception(NotFound("is not there"))
        elif current != facts:
            future.set_exception(Changed("has other bytes now"))
        elif answer is None:
            future.set_result(content(facts, offset, size))
        else:
            answer(future, content(facts, offset, size))
        return future


class Gate:
    """Holds back all answers until ``open``, then gives them in the order of the requests."""

    def __init__(self, server: CountingServer) -> None:
        self.waiting: list[tuple[Future[bytes], bytes]] = []
        self._server = server
        self._lock = threading.Lock()
        self._is_open = False
        server.answer = self._answer

    def open(self, error: Exception | None = None) -> None:
        """From now on. What waits fails with ``error``, if there is one."""
        with self._lock:
            self._is_open = True
        self._server.answer = None
        for future, data in self.waiting:
            if error is not None:
                future.set_exception(error)
            elif future.set_running_or_notify_cancel():
                future.set_result(data)

    def _answer(self, future: Future[bytes], data: bytes) -> None:
        with self._lock:
            if not self._is_open:
                self.waiting.append((future, data))
                return
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


def remote_source(blocks: RemoteBlocks, server: Server, path: Path, facts: Facts) -> RemoteSource:
    version = version_of(server, path, facts)
    return RemoteSource(blocks, server, path, Entry(Kind.FILE, version, "", "", facts.size, 0, 0, 0, 0), lambda: None)


def read(remote: RemoteSource, offset: int, size: int) -> bytes:
    buffer = bytearray(size)
    remote.read_into(memoryview(buffer), offset)
    return bytes(buffer)


def opened(server: CountingServer, facts: Facts, budget: int = 64 * M) -> RemoteSource:
    """Return an object as after the request for its facts, which brought its head."""
    blocks = RemoteBlocks(BlockCache(budget))
    blocks.put_head(server, PATH, facts, content(facts, 0, min(PAGE, facts.size)))
    return remote_source(blocks, server, PATH, facts)


def used(remote: RemoteSource) -> int:
    """Return the bytes that its cache has, once nothing is under way."""
    return remote._blocks._cache.used  # type: ignore[attr-defined]


def read_all(remote: RemoteSource, facts: Facts, step: int, start: int = 0, end: int | None = None) -> None:
    for offset in range(start, facts.size if end is None else end, step):
        size = min(step, facts.size - offset)
        assert read(remote, offset, size) == content(facts, offset, size)
