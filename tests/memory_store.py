"""A store in memory that can be slow, fail and change: for tests of what must hold whatever a store does."""

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
    """``files`` are the bytes by path, such as ``runs/a.kdb``; folders follow from the paths.

    ``delay`` is waited for, in seconds, before each read, ``failures`` raised instead: by path, ``opening`` and
    ``reading``. ``opens`` and ``reads`` count. ``put``, ``rewrite``, ``remove`` and ``set_permissions`` change what is
    there, and tell those who watch before they return. ``can_watch`` is whether anything can be watched, and
    ``end_watches`` ends what is. ``is_remote`` is what it says of itself.
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
        """The sources that hold what a local one would need a descriptor for."""
        self._name = name
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._files: dict[Path, tuple[bytes, Entry]] = {}
        self._links: dict[Path, Entry] = {}
        self._rewritten: set[Version] = set()
        for path, data in files.items():
            self.put(path, data)

    def put(self, path: str, data: bytes, permissions: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        """A new file at ``path``, or another in the place of the one that is there."""
        number = next(self._numbers)
        version = Version(f"memory:{number}")
        entry = Entry(
            Kind.FILE, version, f"{number}", f"{version}:0", len(data), permissions, uid, gid, number * 10**9,
            volume=self._name,
        )
        with self._changing(path):
            self._files[_parts(path)] = data, entry

    def rewrite(self, path: str, data: bytes) -> None:
        """Other bytes in the same file: whoever has it open reads no more of the old ones."""
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
        """The same bytes under other permissions."""
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
        return self._source(path, entry, is_parked=False)

    def source(self, path: Path, entry: Entry) -> Source:
        return self._source(path, entry, is_parked=True)

    def watch(self, path: Path, notify: Callable[[Path, str], None]) -> bool:
        with self._lock:
            if self.can_watch and path in self._folders():
                self.watched.setdefault(path, notify)
            return path in self.watched

    def end_watches(self) -> None:
        """As if they had been lost."""
        with self._lock:
            ended, self.watched = self.watched, {}
        for path, notify in ended.items():
            notify(path, "")

    def close(self) -> None:
        with self._lock:
            self.watched = {}

    def opened(self, path: Path, entry: Entry) -> bytes:
        """What a source of that entry reads from. Raises Changed where something else is there."""
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
        """What happens before each read. Raises Changed where the file has other bytes by now."""
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
        """While what is called ``name`` changes, and folders come and go with it; then those who watch are notify."""
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

    def _source(self, path: Path, entry: Entry, is_parked: bool) -> Source:
        source = MemorySource(self, path, entry)
        if not is_parked:
            source.keep()
            source.read_into(memoryview(bytearray()), 0)
        return source

    def _folder(self, number: int, path: Path = ()) -> Entry:
        place = f"folder:{number}:{'/'.join(path)}"
        return Entry(Kind.FOLDER, Version(place), place, place, 0, 0o755, 0, 0, number * 10**9, volume=self._name)


class MemorySource(Source):
    """A file of a MemoryStore. While it is kept it goes on giving the bytes that it has opened."""

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
        with self._lock:
            if self._is_closed:
                raise Changed("was closed", self.name)
            data = self._data
            if data is None:
                data = self._store.opened(self._path, self.entry)
                if not self._is_parked:
                    self._data = data
                    self._store.held.add(self)
        if not buffer:
            return
        self._store.wait(self._path, self.entry, len(buffer))
        if not 0 <= offset <= len(data) - len(buffer):
            raise self.outside(offset, len(buffer))
        buffer[:] = data[offset : offset + len(buffer)]

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
