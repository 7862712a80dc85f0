"""A server in memory with versions, errors and listings that block."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from glassfs.errors import Changed, GlassfsError, NotFound
from glassfs.source import Path
from glassfs.source.remote.server import Facts, Listed, Server
from tests.waiting import wait_for


class FakeServer(Server):
    """``lists``, ``begins`` and ``fetches`` count requests; each raises ``failure``. Listings wait for ``gate``."""

    name = "fake://bucket"
    identity = "fake"
    timeout = 5.0
    has_lasting_versions = True

    def __init__(self) -> None:
        self.objects: dict[Path, tuple[Facts, bytes]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.failure: GlassfsError | None = None
        self.lists = self.begins = self.fetches = self.same = 0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(8)

    def put(self, path: str, data: bytes) -> None:
        number = next(self._numbers)
        self.objects[tuple(path.split("/"))] = Facts(len(data), f'"{number}"', number * 10**9), data

    def list(self, path: Path) -> Sequence[Listed]:
        self._asked("lists")
        wait_for(self.gate)
        below = [known for known in list(self.objects) if known[: len(path)] == path and len(known) > len(path)]
        folders = {known[len(path)] for known in below if len(known) > len(path) + 1}
        objects = [Listed(known[-1], self.objects[known][0]) for known in below if len(known) == len(path) + 1]
        return [*reversed(objects), *(Listed(name, None) for name in folders)]

    def begin(self, path: Path, size: int, known: Facts | None = None) -> tuple[Facts, bytes] | None:
        self._asked("begins")
        if path not in self.objects:
            raise NotFound("there is no such object", self.shown(path))
        facts, data = self.objects[path]
        if known is not None and known.fits(facts):
            self.same += 1
            return None
        return facts, data[:size]

    def fetch(self, path: Path, offset: int, size: int, facts: Facts) -> Future[bytes]:
        return self._pool.submit(self._part, path, offset, size, facts)

    def _part(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        self._asked("fetches")
        if path not in self.objects or not facts.fits(self.objects[path][0]):
            raise Changed("has been replaced by another object", self.shown(path))
        return self.objects[path][1][offset : offset + size]

    def _asked(self, counter: str) -> None:
        with self._lock:
            setattr(self, counter, getattr(self, counter) + 1)
        if self.failure is not None:
            raise self.failure
