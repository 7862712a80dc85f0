"""The episode rows of containers, from the catalogue on disk or from the containers. Any thread.

The catalogue has only containers of one file whose version is unique for good. Its key covers what else the rows depend
on: the version of glassfs and the formats that other packages add.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache, partial
from typing import NamedTuple

import xxhash

from glassfs import work
from glassfs.cache.catalogue import Part, searched
from glassfs.content.join import LAYOUT, Piece, pieces_of
from glassfs.errors import Unrecognised
from glassfs.formats.registry import GROUP
from glassfs.names import component
from glassfs.source import Entry, Path
from glassfs.threads import DaemonPool
from glassfs.tree.containers.containers import Containers
from glassfs.tree.sources.timed_calls import TimedCalls
from glassfs.tree.sources.walk import PUBLIC_FILE, File
from glassfs.work import Work

AT_ONCE = 500
"""Files looked up in the catalogue together."""
MOST_KEPT, MOST_NOTED = 16 << 20, 4 << 20
"""Bytes of one container's rows that the catalogue accepts, and of all rows that are stored together."""
ALONGSIDE = 16
"""Remote files read at a time."""
SETTLED_NANOSECONDS = 2 * 10**9


class Episodes(NamedTuple):
    """Piece ``number`` of a container's table, the directory of its episodes, and whether every user may read it.

    ``parts`` are the paths and stamps of its further files.
    """

    number: int
    piece: Piece
    directory: str
    is_public: bool
    parts: Sequence[tuple[Path, str]] = ()


class Rows:
    """One pass over the rows of many files. With ``calls``, a file that hangs raises DeviceFailed."""

    def __init__(self, containers: Containers, calls: TimedCalls | None = None) -> None:
        self._containers = containers
        self._calls = calls
        self._catalogue = containers.catalogue
        self._cache = containers.services.cache
        self._prefetches = DaemonPool("rows")
        self._ahead: set[Work] = set()
        """The work of files that are read ahead."""
        self._lock = threading.Lock()
        self._noted: dict[bytes, Sequence[Part]] = {}
        self._size = 0

    def of_all(self, files: Sequence[File]) -> Iterator[tuple[int, Iterator[Episodes]]]:
        """Yield the number of each file and its pieces, which must be consumed before the next file.

        Iterating over the pieces raises why a container cannot be read. Files that are not containers have none.
        """
        try:
            yield from self._of_all(files)
        finally:
            for ahead in list(self._ahead):
                ahead.cancel()
            self._prefetches.close()
            self.flush()

    def _of_all(self, files: Sequence[File]) -> Iterator[tuple[int, Iterator[Episodes]]]:
        start = 0
        while start < len(files):
            some = files[start : start + AT_ONCE]
            known = self._known(some, 0)
            keys = [_key(file) for file in some]
            pairs = [(file, known.get(key)) for file, key in zip(some, keys[: searched(keys, known)], strict=False)]
            begun: dict[int, Iterator[Episodes]] = {}
            for number, (file, kept) in enumerate(pairs):
                for ahead, (other, other_kept) in enumerate(pairs[number : number + ALONGSIDE], number):
                    if other_kept is None and other.location.store.is_remote and ahead not in begun:
                        begun[ahead] = self._prefetched(other)
                yield start, self._of(file, kept, begun.pop(number, None))
                start += 1

    def again(self, wanted: Sequence[tuple[File, int, int]]) -> Iterator[Piece | None]:
        """Yield pieces again, each given by file, number and first block; None for a piece that no longer exists.

        A file is opened once for consecutive pieces.
        """
        known: dict[tuple[bytes, int], Part] = {}
        for number in {number for _, number, _ in wanted}:
            files = [file for file, one, _ in wanted if one == number]
            known |= {(key, number): kept for key, kept in self._known(files, number).items()}
        following: tuple[File, int] | None = None
        with ExitStack() as opened:
            for file, number, block in wanted:
                kept = known.get((_key(file), number))
                if kept is not None:
                    yield Piece(kept.rows, kept.data, kept.block)
                    continue
                if following != (file, number):
                    opened.close()
                    pieces = opened.enter_context(closing(self._read(file, block)))
                following = file, number + 1
                yield next((one.piece for one in pieces), None)

    def flush(self) -> None:
        """Store the rows read so far in the catalogue."""
        with self._lock:
            noted, self._noted, self._size = self._noted, {}, 0
        if noted and self._catalogue is not None:
            self._catalogue.put(noted)

    def _known(self, files: Sequence[File], number: int) -> Mapping[bytes, Part]:
        keys = [_key(file) for file in files if file.location.store.has_lasting_versions]
        return self._catalogue.find(keys, number) if self._catalogue is not None and keys else {}

    def _of(self, file: File, kept: Part | None, begun: Iterator[Episodes] | None) -> Iterator[Episodes]:
        if kept is None:
            yield from self._timed(file, begun or self._read(file))
            return
        directory = kept.head.decode()
        for number in range(kept.parts):
            if number:
                more = self._known([file], number).get(_key(file))
                if more is None:  # evicted meanwhile
                    yield from self._rest(file, number, kept.block)
                    return
                kept = more
            yield Episodes(number, Piece(kept.rows, kept.data, kept.block), directory, file.is_public)

    def _timed(self, file: File, pieces: Iterator[Episodes]) -> Iterator[Episodes]:
        """Yield the pieces of a file, each read with a timeout."""
        if self._calls is None:
            yield from pieces
            return
        probe = partial(file.location.store.entry, file.location.path)
        while True:
            with self._cache.memory.waiting():  # or the other thread would wait for memory that this one reserves
                episodes = self._calls.call(file.location, file.volume, partial(self._next, pieces), probe)
            if episodes is None:
                return
            yield episodes

    def _prefetched(self, file: File) -> Iterator[Episodes]:
        """Return the pieces of a remote file. The first is read ahead on another thread; most files have only one."""
        pieces = self._read(file)
        ahead = work.derived()
        self._ahead.add(ahead)
        first = self._prefetches.submit(partial(work.done_for, ahead, partial(self._next, pieces)))
        first.add_done_callback(lambda _: self._ahead.discard(ahead))

        def begun() -> Iterator[Episodes]:
            try:
                work.is_done(first)
            except BaseException:  # the only reader has gone
                ahead.cancel()
                raise
            episodes = first.result()
            if episodes is not None:
                yield episodes
                yield from pieces

        return begun()

    def _next(self, pieces: Iterator[Episodes]) -> Episodes | None:
        with self._cache.memory.nested():
            return next(pieces, None)

    def _rest(self, file: File, first: int, after: int) -> Iterator[Episodes]:
        """Yield the pieces from number ``first`` on, given the first block of the previous piece."""
        for episodes in self._read(file, after):
            if episodes.number:
                yield episodes._replace(number=first - 1 + episodes.number)

    def _read(self, file: File, block: int = 0) -> Generator[Episodes, None, None]:
        """Read the pieces from a block of the table on; all of them are also noted for the catalogue."""
        is_kept = not block and self._catalogue is not None and _is_lasting(file)
        noted: list[Part] = []
        size = 0
        try:
            with self._containers.glimpsed(file.location, file.version) as (container, files):
                is_kept = is_kept and len(container.sources) == len(files) == 1 and files[0][1].stamp == file.stamp
                is_public = file.is_public and all(_is_readable(entry) for _, entry in files)
                parts = [(path, entry.stamp) for path, entry in files[1:]]
                table = container.episodes()
                directory = table.directory if table is not None else b""
                shown = component(directory) if directory else ""
                for number, piece in enumerate(pieces_of(table, self._cache, block) if table is not None else ()):
                    size += len(piece.data)
                    if is_kept and size <= MOST_KEPT:
                        noted.append(Part(number, 0, piece.rows, piece.block, shown.encode(), piece.data))
                    else:
                        noted.clear()
                    yield Episodes(number, piece, shown, is_public, parts)
        except Unrecognised:
            if not is_kept:
                return
        if is_kept and size <= MOST_KEPT:
            noted = [kept._replace(parts=len(noted)) for kept in noted] or [Part(0, 0, 0, 0, b"", b"")]
            with self._lock:
                self._noted[_key(file)] = noted
                self._size += size
                is_much = self._size > MOST_NOTED or len(self._noted) >= AT_ONCE
            if is_much:
                self.flush()


def _is_readable(entry: Entry) -> bool:
    return entry.permissions & PUBLIC_FILE == PUBLIC_FILE


def _is_lasting(file: File) -> bool:
    """Whether the version is unique for good: any further change gives the file another mtime."""
    return file.location.store.has_lasting_versions and abs(time.time_ns() - file.mtime_ns) > SETTLED_NANOSECONDS


def _key(file: File) -> bytes:
    return xxhash.xxh128_digest(f"{_dependencies()}\0{file.stamp}".encode())


@cache
def _dependencies() -> str:
    """Return what else the rows depend on."""
    from importlib.metadata import entry_points, version

    added = [f"{one.name}={one.value}@{one.dist.version if one.dist else ''}" for one in entry_points(group=GROUP)]
    return "\0".join([version("glassfs"), f"{LAYOUT}", *sorted(added)])
