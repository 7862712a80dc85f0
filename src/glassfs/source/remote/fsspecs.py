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


class _FileSystem:
    """A connected file system and the object that it has open, for one thread at a time."""

    def __init__(self, adapter: Adapter) -> None:
        self.used_at = 0.0
        self.opened: tuple[str, Facts] | None = None
        self._adapter = adapter
        self._system: Any = None
        self._file: Any = None
        self._pinned = ""

    @property
    def system(self) -> Any:
        if self._system is None:
            self._system = self._adapter.connect()
        return self._system

    def part(self, call: Call, key: str, offset: int, size: int, facts: Facts) -> bytes | None:
        """Return a range of an object in that version; None if it is in another one."""
        # A file that is open may still be the old one while its path has a new one. So a version that does not fit is
        # asked for once more with a file that was opened now, and only that one proves the change.
        is_new = False
        while not is_new:
            is_new = self.opened != (key, facts)
            if is_new:
                self._close_file()
                self._pinned = self._adapter.pinned(self.system, key)
                self._file = self._adapter.open(self.system, self._pinned)
                self.opened = key, facts
            data = _read_all(self._file, offset, size, call)
            now = facts_of(self._adapter.info(self.system, self._pinned))
            if now is not None and are_same(now, facts):
                if len(data) != size:
                    raise DeviceFailed(f"the server sends {len(data)} bytes instead of {size}")
                return data
            self._close_file()
        return None

    def close(self) -> None:
        """Close everything; the next use connects again."""
        system, self._system = self._system, None
        self._close_file()
        if system is not None:
            with suppress(BaseException):
                self._adapter.disconnect(system)

    def _close_file(self) -> None:
        file, self._file, self.opened = self._file, None, None
        if file is not None:
            with suppress(BaseException):
                file.close()


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
        self._idle: list[_FileSystem] = []
        """Connections that no call uses, the one used last at the end."""

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connected in idle:
            connected.close()

    async def _list(self, path: Path) -> Sequence[Listed]:
        def work(connected: _FileSystem, call: Call) -> Sequence[Listed]:
            found: dict[str, Listed] = {}
            for count, listed in enumerate(self._adapter.entries(connected.system, path)):
                if count >= MOST_NAMES or call.is_abandoned:
                    raise Unbelievable("its listing does not end")
                if listed is not None:
                    found.setdefault(listed.name, listed)
            return list(found.values())

        return await self._run(path, work)

    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        key = self._adapter.key(path)

        def work(connected: _FileSystem, call: Call) -> tuple[Facts, bytes] | None:
            for _ in range(3):  # it may change while its first bytes are read
                facts = facts_of(self._adapter.info(connected.system, key))
                if facts is None:
                    raise NotFound("is a folder")
                if known is not None and are_same(facts, known):
                    return None
                data = connected.part(call, key, 0, min(size, facts.size), facts)
                if data is not None:
                    return facts, data
            raise Changed("changes again and again")

        return await self._run(path, work)

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        def work(connected: _FileSystem, call: Call) -> bytes:
            data = connected.part(call, self._adapter.key(path), offset, size, facts)
            if data is None:
                raise Changed("has been replaced by another object")
            return data

        return await self._run(path, work)

    async def _run(self, path: Path, work: Callable[[_FileSystem, Call], Result]) -> Result:
        """Run ``work`` on a thread with a connection. Raises GlassfsError or Retryable."""
        key, shown = self._adapter.key(path), self.shown(path)

        def run(call: Call) -> Result:
            connected = self._take(key)
            try:
                return work(connected, call)
            except BaseException as error:
                found = translated(error, shown)
                # After any error but an answer of the server the state of the connection is unknown.
                if not isinstance(found, (NotFound, Changed)):
                    connected.close()
                if is_retryable(error):
                    raise Retryable(found) from None
                raise found from None
            finally:
                if call.is_abandoned:
                    connected.close()
                else:
                    self._give_back(connected)

        try:
            return await self._calls.run(run)
        except DeviceFailed as error:
            raise error.at(shown) from None

    def _take(self, key: str) -> _FileSystem:
        """Return an idle connection, preferably one that has the object open, or a new one."""
        with self._lock:
            near = [one for one in self._idle if one.opened is not None and one.opened[0] == key]
            connected = (near or self._idle or [_FileSystem(self._adapter)])[-1]
            if connected in self._idle:
                self._idle.remove(connected)
        if connected.used_at < time.monotonic() - settings.connection_idle:
            connected.close()
        return connected

    def _give_back(self, connected: _FileSystem) -> None:
        connected.used_at = time.monotonic()
        with self._lock:
            self._idle.append(connected)


def _read_all(file: Any, offset: int, size: int, call: Call) -> bytes:
    """Return the bytes of a range that the object has; they may be too few."""
    pieces: list[bytes] = []
    rest = size
    while rest and not call.is_abandoned:
        file.seek(offset + size - rest)
        piece = file.read(rest)
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            raise DeviceFailed(f"its file system returns {type(piece).__name__} instead of bytes")
        piece = bytes(piece)
        if len(piece) > rest:
            raise DeviceFailed(f"the server sends {len(piece)} bytes instead of {rest}")
        if not piece:
            break
        pieces.append(piece)
        rest -= len(piece)
    return b"".join(pieces)
