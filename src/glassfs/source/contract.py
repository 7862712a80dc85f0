"""Stores of files under paths, and the sources that they open.

A ``Store`` looks up and lists names; a ``Source`` is the bytes of one version of a file. Reads are positional and
complete. Every method may be called from any thread. Code above this package does not know the kind of a store.

Errors: NotFound, NotAllowed and NotADirectory; Damaged if a source ends too early; DeviceFailed if a device does not
deliver bytes; Changed if a source is no longer what was opened; Unavailable if this process has run out of descriptors
or memory, which says nothing about the source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, NewType

from glassfs.errors import Damaged, GlassfsError, NotADirectory, NotFound

Version = NewType("Version", str)
"""Opaque: equal for the same bytes of the same file, different after any change that can be detected."""

_INNER = "\0"


def inner_version(outer: Version, ident: str) -> Version:
    """Return the version of a file inside a container of that version; ``ident`` distinguishes it from others there."""
    return Version(f"{outer}{_INNER}{ident}")


def is_version_of(version: object, outer: object) -> bool:
    """Return whether a version is ``outer``, or that of a file inside it, at any depth."""
    return version == outer or (isinstance(version, str) and version.startswith(f"{outer}{_INNER}"))


Path = tuple[str, ...]
"""The components of a path below the root of a store; empty for the root. Surrogates stand for bytes not in UTF-8."""


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    MOUNT = "mount"
    """A mount of glassfs, which is never entered."""
    OTHER = "other"
    """Has no bytes to show: a device, FIFO or socket."""


class Entry(NamedTuple):
    """What a store reports about a path. Times are nanoseconds since 1970, UTC.

    - ``file_id`` identifies the file: equal when it is changed in place, different after a replacement.
    - ``stamp`` changes whenever bytes or attributes may have changed.
    - ``permissions``: nine mode bits that hold for every user, never more than the store itself grants.
    - ``target`` is the target of a link.
    - ``omitted`` says what is left out here, "" for nothing: a link that is not followed, an object without a name.
    - ``volume`` is opaque and equal for files on the same disk or server, which may be slow or fail together.
    - ``has_other_names``: hard links exist; changes through them are not reported to watchers of this folder.
    """

    kind: Kind
    version: Version
    file_id: str
    stamp: str
    size: int
    permissions: int
    uid: int
    gid: int
    mtime_ns: int
    target: str = ""
    volume: str = ""
    has_other_names: bool = False
    omitted: str = ""

    def is_readable_as(self, other: Entry) -> bool:
        """Return whether all users who may read ``other``, a file in the same folder, may read this one as well."""
        if (self.uid, self.gid) == (other.uid, other.gid):
            return not other.permissions & ~self.permissions & 0o444
        return self.permissions & other.permissions & 0o444 == 0o444


class Source(ABC):
    """The bytes of one version of one file. ``name`` is used in messages.

    A source that holds nothing inherits ``keep``, ``park`` and ``close``, which do nothing.
    """

    name: str
    entry: Entry
    is_remote = False
    """Whether a read at another offset takes as long as reading many bytes at one offset."""
    _head = b""

    @property
    def size(self) -> int:
        return self.entry.size

    @property
    def version(self) -> Version:
        return self.entry.version

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` (bytes, writable) from ``offset``, in one read if possible."""

    def mapped(self, offset: int, size: int) -> memoryview | None:
        """Return a read-only view of the bytes ``[offset, offset + size)`` mapped into memory, or None if impossible.

        It changes when the file is written. Touching a page beyond the end of a truncated file raises SIGBUS and kills
        the process: only callers that ask for a mapping get one, and glassfs itself reads through none.
        """
        return None

    def keep(self) -> None:  # noqa: B027
        """Keep what the next read opens, until ``park``: if the file cannot be opened again, it is released last."""

    def park(self) -> None:  # noqa: B027
        """Release what the source holds. A later read opens the file again if it is still the same version."""

    def close(self) -> None:  # noqa: B027
        """Release what the source holds. Later reads raise Changed if it held anything."""

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes ``[offset, offset + size)``. Nothing is allocated for a range outside the source."""
        if 0 <= offset <= offset + size <= len(self._head):
            return self._head[offset : offset + size]
        return bytes(self.buffer(offset, size))

    def buffer(self, offset: int, size: int) -> bytearray:
        """Return the same as ``read`` as a bytearray, with one copy less."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise self.outside(offset, size)
        head = self._head
        if offset + size <= len(head):
            return bytearray(head[offset : offset + size])
        buffer = bytearray(size)
        self.read_into(memoryview(buffer), offset)
        return buffer

    def read_ahead(self, size: int) -> bytes:
        """Return the first ``size`` bytes, or all; ``read`` serves them from memory until ``drop_ahead``."""
        # Parsers ask for the head again and again, in small pieces: memory answers these.
        wanted, known = min(size, self.entry.size), len(self._head)
        if known < wanted:
            self._head += self.read(known, wanted - known)
        return self._head[:wanted]

    def drop_ahead(self) -> None:
        self._head = b""

    def damage(self, reason: str, part: str = "") -> Damaged:
        """Return an exception that names this source."""
        return Damaged(reason, self.name, part)

    def outside(self, offset: int, size: int) -> Damaged:
        return self.damage(f"bytes {offset} to {offset + size} lie outside the file of {self.size} bytes")


class Store(ABC):
    """Files under paths. No method reaches anything outside the store, but for links that a store says it follows."""

    has_lasting_versions = False
    """Whether the version in an entry never recurs, also across processes."""
    follows_links = False
    """Whether links to files that belong to the user of this process are opened as these files."""
    is_remote = False
    """Whether reading a file costs so much that its name decides, until its content is needed, whether it may be a
    container. Repeated lookups and listings are cheap."""

    @abstractmethod
    def shown(self, path: Path) -> str:
        """Return the name of ``path`` for messages, based on the store's name as the user typed it."""

    def hides(self, path: Path) -> bool:
        """Return whether what is at ``path`` is not to be found by its name, only as a further file of a container."""
        return False

    @abstractmethod
    def entry(self, path: Path) -> Entry:
        """Return what is at ``path`` now."""

    def is_unchanged(self, path: Path, entry: Entry) -> bool:
        """Return whether what is at ``path`` certainly has the stamp of ``entry``."""
        try:
            return self.entry(path).stamp == entry.stamp
        except GlassfsError:
            return False

    def entries(self, folder: Path, names: Sequence[str]) -> list[Entry | None]:
        """Return what has these names in a folder, None for names that are not there.

        Raises what prevents access to the folder.
        """
        found: list[Entry | None] = []
        for name in names:
            try:
                found.append(self.entry((*folder, name)))
            except (NotFound, NotADirectory):
                found.append(None)
        return found

    @abstractmethod
    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        """List the folder at ``path``, sorted by name as bytes. Entries that vanish meanwhile are left out."""

    @abstractmethod
    def open(self, path: Path) -> Source:
        """Open the file at ``path``. The source's entry describes what was opened, even if it was just replaced."""

    @abstractmethod
    def source(self, path: Path, entry: Entry) -> Source:
        """Return a parked source for the version ``entry`` of the file at ``path``; its first read opens the file."""

    def watch(self, path: Path, notify: Callable[[Path, str], None]) -> bool:
        """Call ``notify`` from now on when something changes in the folder at ``path``, but not below it.

        It gets ``path`` and the name of what was created, removed, renamed or written or changed its attributes, on a
        thread of the store's own, and must not block on a store. The name is empty if the folder itself or anything in
        it may have changed; the watch may be over then, and the next call starts a new one.

        Returns False if changes cannot be reported: another machine may make them, or resources ran out; callers may
        retry at any time. A folder that is watched already keeps the first ``notify``. Changes through a hard link in
        another folder are never reported, those through a mapping when the writer closes it.
        """
        return False

    def is_watched(self, path: Path) -> bool:
        """Return whether changes in the folder at ``path`` are reported now, since an earlier call of ``watch``."""
        return False

    def finish(self) -> None:  # noqa: B027
        """Wait, for a short time, until data read so far is stored. Called before the process ends."""

    @abstractmethod
    def close(self) -> None:
        """Release what the store itself holds, until its next use, and end all watches. Sources stay usable."""


class ByteCache:
    """Where stores keep what they fetched: up to ``budget`` bytes. This one keeps nothing; callers may pass another.

    Keys are tuples that begin with the version of the file. No method waits.
    """

    @property
    def budget(self) -> int:
        return 0

    def known(self, key: Hashable) -> bytes | None:
        """Return what was added under a key, if it is still here, and mark it as used last."""
        return None

    def add(self, key: Hashable, data: bytes) -> None:
        """Keep bytes that nothing changes; the least recently used ones are dropped for them."""

    def forget(self, version: Hashable) -> None:
        """Drop what was added for this version of a file, and for files inside it."""


class Named(NamedTuple):
    """What the user named: ``path`` in ``store``, and the last component of the name as typed."""

    store: Store
    path: Path
    name: str
