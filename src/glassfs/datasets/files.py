"""All files below some folders at one moment, with their access rights, and the tables to which they may give rows.

A folder on a dead server or disk may hang, so calls have a timeout.

Links to folders are not followed, mounts of glassfs not entered, and the depth is limited, so that walks end.
Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple, TypeVar

from glassfs import work
from glassfs.content import ARRAYS, EPISODES
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.errors import DeviceFailed, GlassfsError, NotADirectory, NotAllowed, NotFound, TooLarge, Unavailable
from glassfs.formats.registry import joined_by
from glassfs.names import raw
from glassfs.settings import settings
from glassfs.source import Entry, Kind, Path, Version
from glassfs.threads import DaemonPool
from glassfs.tree.containers.containers import Containers
from glassfs.tree.containers.lease import Location
from glassfs.tree.sources.folder import shown_entries
from glassfs.tree.sources.sources import Start
from glassfs.tree.sources.walk import DEEPEST, Branch, Listed, Visit, walk

PUBLIC_FOLDER, PUBLIC_FILE = 0o555, 0o444
"""Permissions of what every user can reach: for owner and group too: what only others may read is denied to those."""

_GONE = (NotFound, NotADirectory, NotAllowed)
Result = TypeVar("Result")


class TimedCalls:
    """Runs calls on other threads and waits up to ``timeout_seconds`` for each.

    A call that still hangs is not tried again, nor are others of a volume on which several hang: on a dead disk all
    would. The more calls hang, the shorter the timeout.
    """

    most, most_of_volume = 32, 4
    """Calls that may hang at a time before further ones fail at once: in all, and of one volume."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._pool = DaemonPool("timed-calls")
        self._hanging: dict[Hashable, str | None] = {}
        """The keys of hanging calls, and the volume if that is to blame."""

    def call(
        self, key: Hashable, volume: str, do: Callable[[], Result], probe: Callable[[], object] | None = None,
    ) -> Result:
        """Return or raise what ``do`` does. Raises DeviceFailed if it times out, or if a call with this key hangs.

        A call that times out, or whose caller is stopped, is canceled. Calls that may take long for reasons other than
        their volume pass a ``probe`` that should return at once, and shows whether the volume is to blame.
        """
        with self._lock:
            hanging = self._hanging
            # Threads that hang cannot be ended, so their number is bounded, in all and of one volume.
            is_too_much = len(hanging) >= self.most or list(hanging.values()).count(volume) >= self.most_of_volume
            if key in hanging or is_too_much:
                raise DeviceFailed("does not answer")
            timeout_seconds = self.timeout_seconds / (1 + len(hanging))
        called = work.derived()
        future = self._pool.submit(partial(work.done_for, called, do))
        try:
            if work.is_done(future, timeout_seconds):
                return future.result()
            # Not when the caller is stopped: that says nothing about the call, and others may want to make it.
            with self._lock:
                self._hanging[key] = None if probe else volume
            future.add_done_callback(lambda _: self._hanging.pop(key, None))
        finally:
            if not future.done():
                called.cancel()
                future.cancel()
            del future  # its exception refers to this frame
        # The call may be slow for a reason of its own. If the probe of its volume hangs, too, that is noted as well.
        if probe is not None:
            with suppress(GlassfsError):
                self.call((key, "probe"), volume, probe)
        raise DeviceFailed("does not answer")


class SnapshotFile(NamedTuple):
    """A file of a snapshot, with ``above`` folders on the way to it, from the one where the snapshot begins.

    ``is_public`` says whether every user can reach and read it.
    """

    path: str
    location: Location
    version: Version
    stamp: str
    volume: str
    mtime_ns: int
    uid: int
    above: int
    is_public: bool


class Gap(NamedTuple):
    """What is left out of a snapshot, and why; ``is_public`` as of a file.

    It is missing in the tables called ``tables``, or in all if there are none.
    """

    path: str
    error: GlassfsError
    is_public: bool = True
    tables: Sequence[str] = ()


class FileSnapshot:
    """The ``files`` below some starts, sorted by path, and ``gaps`` for what is left out.

    Left out are folders that cannot be listed, hang or are too deep, and what exceeds the ``allowance`` of memory or
    the time. In remote stores only names of containers count. If ``is_strict``, ``is_public`` is certain even if
    another process exchanges folders meanwhile.
    """

    def __init__(
        self, starts: Iterable[Start], calls: TimedCalls, allowance: Allowance, is_strict: bool = False,
    ) -> None:
        self._calls = calls
        self._allowance = allowance
        self._is_strict = is_strict
        self._begun = time.monotonic()
        self._is_over = False
        self.files: list[SnapshotFile] = []
        self.gaps: list[Gap] = []
        self.mtime_ns = 0
        self.is_public = True
        """Whether all files and folders are public."""
        self._public: dict[str, bool] = {}
        """Which folders are public, by path."""
        for start in starts:
            if not self._take_below(start):
                break
        self.files.sort(key=lambda file: raw(file.path))

    def _take_below(self, start: Start) -> bool:
        """Take a start and everything below it; return whether there is time and memory for more."""
        path, location, _ = start
        try:
            entry = self._calls.call(location, "", lambda: location.entry())
        except GlassfsError as error:
            self.gaps.append(Gap(path, error))
            return True
        if location.store.hides(location.path):
            return True
        if not self._take(path, location, entry, None):
            return False
        if entry.kind is not Kind.FOLDER:
            return True
        for one in walk(Branch(path, location, (entry,)), partial(self._listed, start), DEEPEST):
            if isinstance(one, Visit):
                # Nothing else is walked once the allowance is spent: what is left out would depend on chance otherwise.
                if not self._take(one.path, one.location, one.entry, one.folder):
                    return False
            else:
                gap = Gap(one.folder.path, one.error, self._public[one.folder.path])
                if self._is_over:
                    self.gaps.insert(0, gap)
                    return False
                self.gaps.append(gap)
        return True

    def _take(self, path: str, location: Location, entry: Entry, folder: Branch | None) -> bool:
        if entry.kind not in (Kind.FILE, Kind.FOLDER):
            return True
        is_public = folder is None or self._public[folder.path]
        try:
            # A file has a tuple of nine, a path in the tree and one in the store, a stamp and a version.
            self._allowance.take(4 * OBJECT + 2 * len(path), "files and folders")
        except TooLarge as error:
            self.gaps.append(Gap(path, GlassfsError(f"it and others are left out: {error.reason}"), is_public))
            return False
        self.mtime_ns = max(self.mtime_ns, entry.mtime_ns)
        needed = PUBLIC_FOLDER if entry.kind is Kind.FOLDER else PUBLIC_FILE
        is_public = is_public and entry.permissions & needed == needed
        self.is_public = self.is_public and is_public
        if entry.kind is Kind.FOLDER:
            self._public[path] = is_public
        # In a remote store each file that is opened costs requests, so only names of containers count.
        elif folder is None or location.may_be_container:
            facts = entry.version, entry.stamp, entry.volume, entry.mtime_ns, entry.uid
            self.files.append(SnapshotFile(path, location, *facts, 0 if folder is None else len(folder.way), is_public))
        return True

    def _listed(self, start: Start, folder: Branch) -> Listed:
        seconds = settings.walk_longest
        self._is_over = time.monotonic() > self._begun + seconds
        if self._is_over:
            raise Unavailable(f"it and others are left out: listing folders took longer than {seconds:g} seconds")
        is_mount_root = start.is_mount_root and len(folder.way) == 1

        def list_now() -> tuple[bool, Listed]:
            if self._is_strict and self._public[folder.path]:
                return _listed_surely(folder, is_mount_root)
            return True, list(shown_entries(folder.location, is_mount_root))

        # On another thread with a timeout: a folder on a dead disk costs its own part of the table, and no caller.
        is_sure, listed = self._calls.call(folder.location, folder.way[-1].volume, list_now)
        self._public[folder.path] = self._public[folder.path] and is_sure
        return listed


def _listed_surely(folder: Branch, is_mount_root: bool) -> tuple[bool, Listed]:
    """List a folder, and return whether every user sees the same there.

    A folder on the way to it may be exchanged for another one while it is listed: compare them before and after.
    """
    store, path = folder.location

    def entries() -> list[Entry]:
        return [store.entry(path[: len(path) - back]) for back in reversed(range(len(folder.way)))]

    before = entries()
    for _ in range(4):  # a folder that changes more often than that is not certain
        listed = list(shown_entries(folder.location, is_mount_root))
        now = entries()
        if [entry.stamp for entry in before] == [entry.stamp for entry in now]:
            return list(map(_access, now)) == list(map(_access, folder.way)), listed
        before = now
    return False, listed


def closed_files(files: Iterable[SnapshotFile], parts: Mapping[str, Sequence[Path]], calls: TimedCalls) -> set[str]:
    """Return the paths of the public files that not every user can reach and read any more.

    ``parts`` are the further files of their containers, by path. A file that replaced one must have the same owner, as
    another one may have had no right to read the rows. Files on a disk that does not answer keep their rights.
    """
    closed: set[str] = set()
    by_volume: dict[str, list[SnapshotFile]] = {}
    for file in files:
        # The objects of one server always have the same rights.
        if file.is_public and not file.location.store.is_remote:
            by_volume.setdefault(file.volume, []).append(file)
    for volume, some in by_volume.items():
        with suppress(GlassfsError):
            closed |= calls.call(("rights", volume), volume, partial(_closed_of, some, parts))
    return closed


def _closed_of(files: Iterable[SnapshotFile], parts: Mapping[str, Sequence[Path]]) -> set[str]:
    """Return the paths of the files of one volume that are closed."""
    folders: dict[Location, list[SnapshotFile]] = {}
    for file in files:
        store, path = file.location
        folders.setdefault(Location(store, path[:-1]), []).append(file)
    closed = set[str]()

    @cache
    def is_open(location: Location, needed: int) -> bool:
        try:
            return location.entry().permissions & needed == needed
        except _GONE:
            return False

    for folder, some in folders.items():
        store, path = folder
        try:
            found = store.entries(path, ["".join(file.location.path[-1:]) for file in some])
        except _GONE:
            found = [None] * len(some)
        for file, entry in zip(some, found, strict=True):
            place = file.location.path
            # Folders above the start of the walk are not the source's, and the kernel checks them for each reader.
            way = (Location(store, place[:length]) for length in range(len(place) - file.above, len(place)))
            is_same = entry is not None and (entry.stamp == file.stamp or (
                (entry.version == file.version or entry.uid == file.uid)
                and entry.permissions & PUBLIC_FILE == PUBLIC_FILE
            ))
            if not (
                is_same and all(is_open(one, PUBLIC_FOLDER) for one in way)
                and all(is_open(Location(store, part), PUBLIC_FILE) for part in parts.get(file.path, ()))
            ):
                closed.add(file.path)
    return closed


def _access(entry: Entry) -> tuple[str, int]:
    return entry.file_id, entry.permissions


def expected_tables(
    containers: Containers, files: Iterable[SnapshotFile],
    kept_of: Callable[[Sequence[SnapshotFile]], Iterable[str]],
) -> list[str]:
    """Return the names of the joined tables to which files may give rows, without opening them as containers.

    The tree knows this of files that were opened. For others the suffix decides; where it promises no rows,
    ``kept_of``, which returns the tables of rows that an earlier process found.
    """
    names: set[str] = set()
    unsure: list[SnapshotFile] = []
    for file in files:
        tables, usual = containers.tables_of(file.location, file.version), joined_by(file.path)
        if tables is not None:
            names.update(name for name in tables if name != ARRAYS or usual is None or ARRAYS in usual)
        else:
            names.update(usual or ())
            if usual != joined_by(file.path, True) or (usual is None and not file.location.store.is_remote):
                unsure.append(file)
    return in_order(names.union(kept_of(unsure) if unsure else ()))


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of tables in the order in which they are shown."""
    return sorted(names, key=lambda name: (name != EPISODES, name == ARRAYS, raw(name)))
