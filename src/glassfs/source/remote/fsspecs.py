"""Servers that speak what fsspec has a file system for, and glassfs does not know itself: SFTP, Hugging Face, FTP …

The file systems are strangers' code with connections of their own: they block, hang, raise anything, and answer what
they like. So each is used by one thread only, on a line that others cannot disturb (``lines.py``); whoever waits gives
up in time. What fails in passing is tried again on a new connection, with pauses, within the time. Of an answer the
type and the length are checked; and as a read does not say of which version it is, the object is asked about after it.

Everything may be called from any thread, and in a process that was forked off, which gets connections of its own.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from glassfs.errors import Changed, DeviceFailed, NotFound
from glassfs.source.contract import Path
from glassfs.source.remote.answers import Unbelievable, are_same, fault, is_passing
from glassfs.source.remote.answers import facts as facts_of
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.lines import Crew, Task
from glassfs.source.remote.protocols import system_for
from glassfs.source.remote.server import Facts, Listed, Server
from glassfs.source.remote.systems import Reader, System
from glassfs.source.remote.url import Url

T = TypeVar("T")
Listing = list[Listed]

PAUSES = (0.1, 0.4, 1.6)
"""Before what failed is tried again, in seconds."""
MOST_OPEN = 4
"""Objects that a line has open."""
MOST_CHANGES = 3
"""How often an object may change while it is looked at for the first time."""
LONGEST_LISTING = 1_000_000


class _GivenUp(DeviceFailed):
    """Nobody waits for it any more; the line is as good as before."""


class _Line:
    """A connection and what is open on it. Only its own thread uses it."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._connected: Any = None
        self._readers: OrderedDict[tuple[str, Facts], Reader] = OrderedDict()
        self._open: frozenset[str] = frozenset()

    def serves(self, near: str) -> bool:
        return near in self._open

    @property
    def connected(self) -> Any:
        if self._connected is None:
            self._connected = self._system.connect()
        return self._connected

    def facts(self, key: str) -> Facts | None:
        return self._system.facts(self.connected, key)

    def has(self, key: str, facts: Facts) -> bool:
        return (key, facts) in self._readers

    def reader(self, key: str, facts: Facts) -> Reader:
        """The object, opened, or as it was opened in that version before."""
        reader = self._readers.pop((key, facts), None)
        while reader is None and len(self._readers) >= MOST_OPEN:
            self.forget(*next(iter(self._readers)))
        self._readers[key, facts] = reader or self._system.reader(self.connected, key)
        self._open = frozenset(key for key, _ in self._readers)
        return self._readers[key, facts]

    def forget(self, key: str, facts: Facts) -> None:
        """Closes an object, if it is open."""
        reader = self._readers.pop((key, facts), None)
        self._open = frozenset(key for key, _ in self._readers)
        if reader is not None:
            _quietly(reader.close)

    def close(self) -> None:
        connected, self._connected = self._connected, None
        for key in list(self._readers):
            self.forget(*key)
        if connected is not None:
            _quietly(lambda: self._system.disconnect(connected))


class FsspecServer(Server):
    """What a file system of fsspec has. Raises Refused for a protocol that there is none for, or not installed."""

    def __init__(self, url: Url, connection: Connection) -> None:
        self._system = system_for(url, connection)
        self.name = self._system.name
        self.identity = self._system.identity
        self.has_lasting_versions = self._system.has_lasting_versions
        self.timeout = connection.timeout
        self._inherited: list[Crew[_Line]] = []
        """Those of processes that this one was forked off, which nobody may touch, not even to give them up."""
        self._crew = self._new_crew()

    def list(self, path: Path) -> Listing:
        found: Listing = self._begin(path, self._list).result()
        return found

    def begin(self, path: Path, size: int, known: Facts | None = None) -> tuple[Facts, bytes] | None:
        def look(path: Path, line: _Line, task: Task[_Line]) -> tuple[Facts, bytes] | None:
            return self._look(path, size, known, line, task)

        found: tuple[Facts, bytes] | None = self._begin(path, look).result()
        return found

    def fetch(self, path: Path, offset: int, size: int, facts: Facts) -> Future[bytes]:
        def read(path: Path, line: _Line, task: Task[_Line]) -> bytes:
            return self._read(path, offset, size, facts, line, task)

        return self._begin(path, read)

    def close(self) -> None:
        if self._pid == os.getpid():
            self._crew.close()

    def _new_crew(self) -> Crew[_Line]:
        self._pid = os.getpid()
        return Crew(lambda: _Line(self._system), self._system.lines, self.timeout)

    def _begin(self, path: Path, work: Callable[[Path, _Line, Task[_Line]], Any]) -> Future[Any]:
        if self._pid != os.getpid():
            self._inherited.append(self._crew)
            self._crew = self._new_crew()
        shown = self.shown(path)

        def tried(line: _Line, task: Task[_Line]) -> Any:
            return self._tried(shown, line, task, lambda: work(path, line, task))

        return self._crew.submit(tried, shown, self._system.key(path))

    def _tried(self, shown: str, line: _Line, task: Task[_Line], work: Callable[[], T]) -> T:
        """Does ``work``, more than once where it fails in passing."""
        for pause in (*PAUSES, None):
            try:
                _check_awaited(task)
                return work()
            except BaseException as error:
                found = fault(error, shown, self._system.secrets)
                if not isinstance(found, (NotFound, Changed, _GivenUp)):
                    line.close()
                if pause is None or not is_passing(error) or task.left <= pause:
                    raise found from None
            time.sleep(pause)
        raise AssertionError("the last try ends this")

    def _list(self, path: Path, line: _Line, task: Task[_Line]) -> Listing:
        found: dict[str, Listed] = {}
        for count, listed in enumerate(self._system.entries(line.connected, path)):
            if count >= LONGEST_LISTING or task.left <= 0:
                raise Unbelievable("has a listing that does not end")
            if listed is not None:
                found.setdefault(listed.name, listed)
        return [*found.values()]

    def _look(
        self, path: Path, size: int, known: Facts | None, line: _Line, task: Task[_Line],
    ) -> tuple[Facts, bytes] | None:
        key = self._system.key(path)
        for _ in range(MOST_CHANGES):
            facts = line.facts(key)
            if facts is None:
                raise NotFound("is a folder")
            if known is not None and are_same(facts, known):
                return None
            data = self._data(key, 0, min(size, facts.size), facts, line, task)
            if data is not None:
                return facts, data
        raise Changed("is changed again and again")

    def _read(self, path: Path, offset: int, size: int, facts: Facts, line: _Line, task: Task[_Line]) -> bytes:
        data = self._data(self._system.key(path), offset, size, facts, line, task)
        if data is None:
            raise Changed("was changed")
        return data

    def _data(
        self, key: str, offset: int, size: int, facts: Facts, line: _Line, task: Task[_Line],
    ) -> bytes | None:
        """A range of an object in that version; None if it is in another one."""
        is_new = False
        while not is_new:
            is_new = not line.has(key, facts)
            reader = line.reader(key, facts)
            data = _given(reader, offset, size, task)
            seen = facts_of(reader.info())
            if seen is not None and are_same(seen, facts):
                if len(data) != size:
                    raise DeviceFailed(f"gives {len(data)} bytes where {size} were asked for")
                return data
            line.forget(key, facts)
        return None


def _given(reader: Reader, offset: int, size: int, task: Task[_Line]) -> bytes:
    """What an object gives of a range, which may be too little."""
    pieces: list[bytes] = []
    rest = size
    while rest:
        _check_awaited(task)
        piece = reader.read(offset + size - rest, rest)
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            raise DeviceFailed(f"gives {type(piece).__name__} for bytes")
        piece = bytes(piece)
        if len(piece) > rest:
            raise DeviceFailed(f"gives {len(piece)} bytes where {rest} were asked for")
        if not piece:
            break
        pieces.append(piece)
        rest -= len(piece)
    return b"".join(pieces)


def _check_awaited(task: Task[_Line]) -> None:
    if task.left <= 0:
        raise _GivenUp("is not waited for")


def _quietly(close: Callable[[], object]) -> None:
    """Closes what may be broken, or anything else."""
    with suppress(BaseException):
        close()
