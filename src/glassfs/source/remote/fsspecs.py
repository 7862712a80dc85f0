"""Read through fsspec the protocols that glassfs does not speak itself: SFTP, Hugging Face, FTP and others.

fsspec file systems may block, hang, raise anything and return anything. Each connection is therefore used by one call
at a time, on a daemon thread that is abandoned after the timeout (``retrying.BlockingCalls``), and replaced after an
error. Types and lengths of answers are checked. A read does not report its version, so the object's facts are compared
after it. Any thread, in the process that made the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from glassfs.errors import Changed, DeviceFailed, NotFound
from glassfs.settings import settings
from glassfs.source.contract import Path
from glassfs.source.remote.adapters import Adapter, FtpAdapter, MemoryAdapter, SshAdapter
from glassfs.source.remote.answers import Unbelievable, are_same, is_retryable, translated
from glassfs.source.remote.answers import facts as facts_of
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.hub import HubAdapter
from glassfs.source.remote.retrying import BlockingCalls, Call, Retryable, RetryingServer
from glassfs.source.remote.server import MOST_NAMES, Facts, Listed
from glassfs.source.remote.url import Url

Result = TypeVar("Result")

ADAPTERS: dict[str, type[Adapter]] = {
    "ftp": FtpAdapter, "hf": HubAdapter, "memory": MemoryAdapter, "sftp": SshAdapter, "ssh": SshAdapter,
}


class FsspecServer(RetryingServer):
    """Raises Refused for an unknown protocol and for missing packages."""

    def __init__(self, url: Url, connection: Connection) -> None:
        self._adapter = ADAPTERS.get(url.scheme, Adapter)(url, connection)
        self.name = self._adapter.name
        self.identity = self._adapter.identity
        self.has_lasting_versions = self._adapter.has_lasting_versions
        self.timeout = connection.timeout
        self._calls = BlockingCalls("fsspec", self._adapter.connections)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, Any]] = []
        """Connected file systems that no call uses, and when they were used last; the last one at the end."""

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, system in idle:
            self._disconnect(system)

    async def _list(self, path: Path) -> Sequence[Listed]:
        def work(system: Any, call: Call) -> Sequence[Listed]:
            found: dict[str, Listed] = {}
            for count, listed in enumerate(self._adapter.entries(system, path)):
                if count >= MOST_NAMES or call.is_abandoned:
                    raise Unbelievable("its listing does not end")
                if listed is not None:
                    found.setdefault(listed.name, listed)
            return list(found.values())

        return await self._run(path, work)

    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        def work(system: Any, call: Call) -> tuple[Facts, bytes] | None:
            key = self._adapter.pinned(system, self._adapter.key(path))
            facts = facts_of(self._adapter.info(system, key))
            if facts is None:
                raise NotFound("is a folder")
            if known is not None and are_same(facts, known):
                return None
            try:
                return facts, self._part(system, key, 0, min(size, facts.size), facts)
            except Changed as error:  # just now
                raise Retryable(error) from None

        return await self._run(path, work)

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        def work(system: Any, call: Call) -> bytes:
            return self._part(system, self._adapter.pinned(system, self._adapter.key(path)), offset, size, facts)

        return await self._run(path, work)

    def _part(self, system: Any, key: str, offset: int, size: int, facts: Facts) -> bytes:
        """Return a range of an object. Raises Changed if it is in another version."""
        # The object is opened for each range: one that stays open may be an old one, whose name has a new one.
        data = self._adapter.read(system, key, offset, size)
        now = facts_of(self._adapter.info(system, key))
        if now is None or not are_same(now, facts):
            raise Changed("has been replaced by another object")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise DeviceFailed(f"its file system returns {type(data).__name__} instead of bytes")
        if len(data) != size:
            raise DeviceFailed(f"the server sends {len(data)} bytes instead of {size}")
        return bytes(data)

    async def _run(self, path: Path, work: Callable[[Any, Call], Result]) -> Result:
        """Return what ``work`` does on a thread with a connected file system. Raises GlassfsError or Retryable."""
        shown = self.shown(path)

        def run(call: Call) -> Result:
            system, is_sound = None, False
            try:
                system = self._taken()
                found = work(system, call)
                is_sound = not call.is_abandoned
                return found
            except Retryable as error:
                raise Retryable(error.error.at(shown)) from None
            except BaseException as error:
                failed = translated(error, shown)
                # After any error but an answer of the server the state of the connection is unknown.
                is_sound = isinstance(failed, (NotFound, Changed)) and not call.is_abandoned
                raise (Retryable(failed) if is_retryable(error) else failed) from None
            finally:
                if is_sound:
                    with self._lock:
                        self._idle.append((time.monotonic(), system))
                elif system is not None:
                    self._disconnect(system)

        try:
            return await self._calls.run(run)
        except DeviceFailed as error:
            raise error.at(shown) from None

    def _taken(self) -> Any:
        """Return the file system that was used last, or a new one."""
        with self._lock:
            used_at, system = self._idle.pop() if self._idle else (0.0, None)
        if system is not None and used_at < time.monotonic() - settings.connection_idle:
            self._disconnect(system)
            system = None
        return self._adapter.connect() if system is None else system

    def _disconnect(self, system: Any) -> None:
        with suppress(BaseException):
            self._adapter.disconnect(system)
