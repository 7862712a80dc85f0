"""A store in memory for tests: it can be slow, fail and change."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from glassfs.errors import Changed, GlassfsError, NotADirectory, NotFound
from glassfs.names import raw
from glassfs.source.contract import Entry, Kind, Path, Source, Store, Version


class MemoryStore(Store):
    """Bytes of ``files`` by path, such as ``runs/a.kdb``; folders follow from the paths.

    Each read waits ``delay`` seconds. ``opening`` and ``reading`` have the errors to raise, by path. ``put``,
    ``rewrite``, ``remove`` and ``set_permissions`` notify watchers before they return. If ``can_watch`` is false,
    ``watch`` returns False.
    """

    def __init__(self, files: Mapping[str, bytes] = {}, name: str = "memory", is_remote: bool = False) -> None:
        self.is_remote = is_remote
        self.delay = 0.0
        self.opening: dict[str, GlassfsError] = {}
        self.reading: dict[str, GlassfsError] = {}
        self.opens = self.reads = self.bytes_read = 0
        self.can_watch = True
        self.watched: dict[Path, Callable[[Path, str], None]] = {}
        self.held: set[MemorySource] = set()
        """Sources for which a local store would hold a descriptor."""
        self._name = name
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._files: dict[Path, tuple[bytes, Entry]] = {}
        self._links: dict[Path, Entry] = {}
        self._rewritten: set[Version] = set()
        for path, data in files.items():
            self.put(path, data)

    def put(self, path: str, data: bytes, permissions: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        """Create or replace the file at ``path``."""
        number = next(self._numbers)
        version = Version(f"memory:{number}")
        entry = Entry(
            Kind.FILE, version, f"{number}", f"{version}:0", len(data), permissions, uid, gid, number * 10**9,
            volume=self._name,
        )
        with self._changing(path):
            self._files[_parts(path)] = data, entry

    def rewrite(self, path: str, data: bytes) -> None:
        """Write other bytes to the same file; sources that have it open raise Changed."""
        number = next(self._numbers)
        version = Version(f"memory:{number}")
        with self._changing(path):
            entry = self._files[_parts(path)][1]
            self._rewritten.add(entry.version)
            self._files[_parts(path)] = data, entry._replace(
                version=version, stamp=f"{version}:0", size=len(data), mtime_ns=number * 10**9,
            )

    def link(self, path: str, target: str) -> None:
        with self._changing(path):
            self._links[_parts(path)] = self._folder(next(self._numbers))._replace(kind=Kind.LINK, target=target)

    def remove(self, path: str) -> None:
        with self._changing(path):
            del self._files[_parts(path)]

    def set_permissions(self, path: str, permissions: int) -> None:
        with self._changing(path):
            data, entry = self._files[_parts(path)]
            stamp = f"{entry.version}:{next(self._numbers)}"
            self._files[_parts(path)] = data, entry._replace(permissions=permissions, stamp=stamp)

    def shown(self, path: Path) -> str:
        return "/".join((self._name, *path))

    def entry(self, path: Path) -> Entry:
        with self._lock:
            if path in self._files:
                return self._files[path][1]
            if path in self._links:
                return self._links[path]
            if not path or any(known[: len(path)] == path for known in (*self._files, *self._links)):
                return self._folder(0, path)
            if any(path[:length] in (*self._files, *self._links) for length in range(1, len(path))):
                raise NotADirectory("is not a folder", self.shown(path))
        raise NotFound("no such file", self.shown(path))

    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        if self.entry(path).kind is not Kind.FOLDER:
            raise NotADirectory("is not a folder", self.shown(path))
        with self._lock:
            names = {known[len(path)] for known in (*self._files, *self._links) if known[: len(path)] == path}
        return ((name, self.entry((*path, name))) for name in sorted(names, key=raw))

    def open(self, path: Path) -> Source:
        entry = self.entry(path)
        if entry.kind is Kind.LINK:
            raise NotFound("is a link", self.shown(path))
        source = MemorySource(self, path, entry)
        source.keep()
        source.read_into(memoryview(bytearray()), 0)
        return source

    def source(self, path: Path, entry: Entry) -> Source:
        return MemorySource(self, path, entry)

    def watch(self, path: Path, notify: Callable[[Path, str], None]) -> bool:
        with self._lock:
            if self.can_watch and path in self._folders():
                self.watched.setdefault(path, notify)
            return path in self.watched

    def is_watched(self, path: Path) -> bool:
        return path in self.watched

    def close(self) -> None:
        with self._lock:
            self.watched = {}

    def opened(self, path: Path, entry: Entry) -> bytes:
        """Return the bytes of a version. Raises Changed if the file is another one."""
        with self._lock:
            self.opens += 1
            failure = self.opening.get("/".join(path))
            found = self._files.get(path)
        if failure is not None:
            raise failure
        if found is None or found[1].version != entry.version:
            raise Changed("has been replaced by another file", self.shown(path))
        return found[0]

    def wait(self, path: Path, entry: Entry, size: int) -> None:
        """Count a read and wait. Raises Changed if the file was rewritten."""
        with self._lock:
            self.reads += 1
            self.bytes_read += size
            failure = self.reading.get("/".join(path))
        if self.delay:
            time.sleep(self.delay)
        if failure is not None:
            raise failure
        if entry.version in self._rewritten:
            raise Changed("was changed while it was open", self.shown(path))

    @contextmanager
    def _changing(self, name: str) -> Iterator[None]:
        """Change ``name`` in a ``with``, then notify watchers of it and of the folders created or removed with it."""
        path = _parts(name)
        with self._lock:
            before = self._folders()
            yield
            now = self._folders()
            changed = {path, *(before ^ now)}
            calls = [(self.watched[one[:-1]], one[:-1], one[-1]) for one in changed if one[:-1] in self.watched]
            calls += [(self.watched.pop(one), one, "") for one in before - now if one in self.watched]
        for notify, folder, inner in calls:
            notify(folder, inner)

    def _folders(self) -> set[Path]:
        return {(), *(path[:length] for path in (*self._files, *self._links) for length in range(1, len(path)))}

    def _folder(self, number: int, path: Path = ()) -> Entry:
        place = f"folder:{number}:{'/'.join(path)}"
        return Entry(Kind.FOLDER, Version(place), place, place, 0, 0o755, 0, 0, number * 10**9, volume=self._name)


class MemorySource(Source):
    """A file of a MemoryStore. While it is kept, it reads the bytes that its first read has opened."""

    def __init__(self, store: MemoryStore, path: Path, entry: Entry) -> None:
        self.name = store.shown(path)
        self.entry = entry
        self.is_remote = store.is_remote
        self._store = store
        self._path = path
        self._lock = threading.Lock()
        self._data: bytes | None = None
        self._is_parked = True
        self._is_closed = False

    def read_into(self, buffer: memoryview, offset: int) -> None:
        size = len(buffer)
        with self._lock:
            if self._is_closed:
                raise Changed("was closed", self.name)
            data = self._data
            if data is None:
                data = self._store.opened(self._path, self.entry)
                if not self._is_parked:
                    self._data = data
                    self._store.held.add(self)
        if not size:
            return
        self._store.wait(self._path, self.entry, size)
        if not 0 <= offset <= len(data) - size:
            raise self.outside(offset, size)
        buffer[:] = data[offset : offset + size]

    def keep(self) -> None:
        with self._lock:
            self._is_parked = False

    def park(self) -> None:
        with self._lock:
            self._is_parked, self._data = True, None
            self._store.held.discard(self)

    def close(self) -> None:
        self.park()
        with self._lock:
            self._is_closed = True


def _parts(path: str) -> Path:
    return tuple(path.split("/"))
