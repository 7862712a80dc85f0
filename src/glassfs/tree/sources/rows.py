"""What containers tell of their episodes: from the catalogue where it is known there, or from the containers.

Only what is of one file and has a version that tells it from all others for good is kept in the catalogue, by that and
by whatever else the rows rest on: glassfs itself, and the formats that other packages add. Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import NamedTuple

import xxhash

from glassfs.cache.budget import MemoryBudget
from glassfs.cache.catalogued import Kept, looked_for
from glassfs.content.join import LAYOUT, Piece, pieces_of
from glassfs.errors import Unrecognised
from glassfs.formats.registry import GROUP
from glassfs.names import component
from glassfs.source import Entry
from glassfs.tree.containers.containers import Containers
from glassfs.tree.sources.helper import Helper
from glassfs.tree.sources.walk import File

AT_ONCE = 500
"""Files that the catalogue is asked for together."""
MOST_KEPT, MOST_NOTED = 16 << 20, 4 << 20
"""Bytes of the rows of a container that are kept in the catalogue, and of all that are put there together."""
ALONGSIDE = 16
"""Files far away that are looked into at a time."""
SETTLED = 2 * 10**9
"""Nanoseconds."""
_EVERYBODY = 0o444


class Told(NamedTuple):
    """Piece ``number`` of the table of a container, the directory of its episodes, and who may see that."""

    number: int
    piece: Piece
    directory: str
    is_public: bool


class Rows:
    """For one who goes through the rows of many files, or of some of them once more.

    With a ``helper``, a file that hangs is DeviceFailed.
    """

    def __init__(self, containers: Containers, helper: Helper | None = None) -> None:
        self._containers = containers
        self._helper = helper
        self._catalogue = containers.catalogue
        self._cache = containers.services.cache
        self._lock = threading.Lock()
        self._noted: dict[bytes, Sequence[Kept]] = {}
        self._size = 0

    def of_all(self, files: Sequence[File]) -> Iterator[tuple[int, Iterator[Told]]]:
        """The number of each file, and its pieces, to be taken before those of the next one.

        Taking them raises what keeps a container from being read. Files that are none have no pieces.
        """
        try:
            yield from self._of_all(files)
        finally:
            self.flush()

    def _of_all(self, files: Sequence[File]) -> Iterator[tuple[int, Iterator[Told]]]:
        start = 0
        while start < len(files):
            some = files[start : start + AT_ONCE]
            known = self._known(some, 0)
            keys = [_key(file) for file in some]
            pairs = [(file, known.get(key)) for file, key in zip(some, keys[: looked_for(keys, known)], strict=False)]
            begun: dict[int, _Begun] = {}
            for number, (file, kept) in enumerate(pairs):
                for ahead, (other, other_kept) in enumerate(pairs[number : number + ALONGSIDE], number):
                    if other_kept is None and other.location.store.is_remote and ahead not in begun:
                        begun[ahead] = _Begun(self._read(other), self._cache.memory)
                yield start, self._of(file, kept, begun.pop(number, None))
                start += 1

    def again(self, wanted: Sequence[tuple[File, int, int]]) -> Iterator[Piece | None]:
        """Pieces of files once more, each by its number and its first block; None where there is no such piece."""
        known: dict[tuple[bytes, int], Kept] = {}
        for number in {number for _, number, _ in wanted}:
            files = [file for file, one, _ in wanted if one == number]
            known |= {(key, number): kept for key, kept in self._known(files, number).items()}
        for file, number, block in wanted:
            kept = known.get((_key(file), number))
            if kept is not None:
                yield Piece(kept.rows, kept.data, kept.block)
                continue
            told = self._read(file, block)
            yield next((one.piece for one in told), None)
            told.close()

    def flush(self) -> None:
        """Has what was read kept."""
        with self._lock:
            noted, self._noted, self._size = self._noted, {}, 0
        if noted and self._catalogue is not None:
            self._catalogue.put(noted)

    def _known(self, files: Sequence[File], number: int) -> Mapping[bytes, Kept]:
        keys = [_key(file) for file in files if file.location.store.has_lasting_versions]
        return self._catalogue.find(keys, number) if self._catalogue is not None and keys else {}

    def _of(self, file: File, kept: Kept | None, begun: _Begun | None) -> Iterator[Told]:
        if kept is None:
            yield from self._patiently(file, self._read(file) if begun is None else begun.pieces())
            return
        directory = kept.head.decode()
        for number in range(kept.parts):
            if number:
                more = self._known([file], number).get(_key(file))
                if more is None:  # it was dropped meanwhile
                    yield from self._rest(file, number, kept.block)
                    return
                kept = more
            yield Told(number, Piece(kept.rows, kept.data, kept.block), directory, file.is_public)

    def _patiently(self, file: File, pieces: Iterator[Told]) -> Iterator[Told]:
        """What is read of a file, a piece at a time on the thread of the helper."""
        if self._helper is None:
            yield from pieces
            return
        memory = self._cache.memory
        probe = partial(file.location.store.entry, file.location.path)

        def take() -> Told | None:
            with memory.nested():
                return next(pieces, None)

        while True:
            with memory.waiting():  # or it would wait for what this thread holds
                told = self._helper.call(file.location, file.volume, take, probe)
            if told is None:
                return
            yield told

    def _rest(self, file: File, first: int, after: int) -> Iterator[Told]:
        """The pieces from one number on, where only the block is known that the one before begins with."""
        for told in self._read(file, after):
            if told.number:
                yield told._replace(number=first - 1 + told.number)

    def _read(self, file: File, block: int = 0) -> Generator[Told, None, None]:
        """The pieces from that block of the table on, read from the container, and noted if that is all of it."""
        is_kept = not block and self._catalogue is not None and _is_lasting(file)
        noted: list[Kept] = []
        size = 0
        try:
            with self._containers.glimpsed(file.location, file.version) as (container, entries):
                is_kept = is_kept and len(entries) == 1 and container.sources[0].entry.stamp == file.stamp
                is_public = file.is_public and all(_may_everybody(entry) for entry in entries)
                table = container.episodes()
                directory = table.directory if table is not None else b""
                shown = component(directory) if directory else ""
                for number, piece in enumerate(pieces_of(table, self._cache, block) if table is not None else ()):
                    size += len(piece.data)
                    if is_kept and size <= MOST_KEPT:
                        noted.append(Kept(number, 0, piece.rows, piece.block, shown.encode(), piece.data))
                    yield Told(number, piece, shown, is_public)
        except Unrecognised:
            if not is_kept:
                return
        if is_kept and size <= MOST_KEPT:
            noted = [kept._replace(parts=len(noted)) for kept in noted] or [Kept(0, 0, 0, 0, b"", b"")]
            with self._lock:
                self._noted[_key(file)] = noted
                self._size += size
                is_much = self._size > MOST_NOTED or len(self._noted) >= AT_ONCE
            if is_much:
                self.flush()


class _Begun:
    """Pieces of a file far away, of which the first is read on a thread of its own: most have no other.

    The next ones are read by who wants them.
    """

    def __init__(self, pieces: Iterator[Told], memory: MemoryBudget) -> None:
        self._pieces = pieces
        self._memory = memory
        self._first: Future[Told | None] = Future()
        threading.Thread(target=self._run, name="glassfs-rows", daemon=True).start()

    def pieces(self) -> Iterator[Told]:
        first = self._first.result()
        if first is not None:
            yield first
            yield from self._pieces

    def _run(self) -> None:
        try:
            with self._memory.nested():
                self._first.set_result(next(self._pieces, None))
        except BaseException as error:
            self._first.set_exception(error)


def _may_everybody(entry: Entry) -> bool:
    return entry.permissions & _EVERYBODY == _EVERYBODY


def _is_lasting(file: File) -> bool:
    """Whether the same words will never be said of other bytes: the next change is sure to give it another mtime."""
    return file.location.store.has_lasting_versions and abs(time.time_ns() - file.mtime_ns) > SETTLED


def _key(file: File) -> bytes:
    return xxhash.xxh128_digest(f"{_rests_on()}\0{file.stamp}".encode())


@cache
def _rests_on() -> str:
    """What makes other rows of the same bytes."""
    from importlib.metadata import entry_points, version

    added = [f"{one.name}={one.value}@{one.dist.version if one.dist else ''}" for one in entry_points(group=GROUP)]
    return "\0".join([version("glassfs"), f"{LAYOUT}", *sorted(added)])
