"""Where containers live: stores of files under paths, and the sources that they open.

A ``Store`` answers for names, a ``Source`` is a run of bytes of one version; reads are positional and complete. Every
method may be called from any thread. Nothing above this room knows which kind of store it has before it.

Errors: NotFound, NotAllowed and NotADirectory as their names say; Damaged where a source ends too early, DeviceFailed
where a device does not give its bytes; Changed where a source is no longer what was opened; Unavailable where this
process has no descriptors or no memory left, which says nothing about the source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple, NewType

from glassfs.errors import Damaged
from glassfs.source.scattered import total

Version = NewType("Version", str)
"""Opaque: equal for the same bytes of the same file, different after any change of them that can be noticed."""

Path = tuple[str, ...]
"""The components of a name below the root of a store; empty for the root. Bytes that are not UTF-8 are surrogates."""


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    MOUNT = "mount"
    """A mount of glassfs, which is not looked into."""
    OTHER = "other"
    """What has no bytes to show: devices, FIFOs, sockets."""


class Entry(NamedTuple):
    """What a store says of a name. Times are nanoseconds since 1970, UTC.

    ``file_id`` identifies the file: it stays the same when the file is changed in place and differs after a
    replacement.
    ``stamp`` changes whenever bytes or attributes may have changed. ``permissions`` are those that everybody may rely
    on, nine bits: never more than what the store itself grants. ``target`` is that of a link. ``volume`` is opaque: the
    same for what lies on the same disk, so to speak, and may be slow or fail together. ``has_other_names``: a file may
    be changed under another name, of which who watches its folder is not told.
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


class Source(ABC):
    """A readable run of ``size`` bytes: one version of one file, called ``name`` in messages."""

    name: str
    entry: Entry
    is_remote = False
    """Whether each look at another place of it takes as long as reading much in one place."""
    is_needed = False
    """Whether somebody has it in use: what it holds is given up last, if nobody could get it again."""
    _head = b""

    @property
    def size(self) -> int:
        return self.entry.size

    @property
    def version(self) -> Version:
        return self.entry.version

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills ``buffer`` (bytes, writable) from ``offset`` on."""

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fills ``buffers``, one after another, from ``offset`` on, in one read where that can be."""
        distribute(self.buffer(offset, total(buffers)), buffers)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        """The bytes ``[offset, offset + size)`` as they are in memory, read-only, or None where they are not there.

        They stay those of this file whatever stands at its place later, for as long as somebody has the view. Where
        somebody writes to the file itself they change with it, and where it is cut short, whoever touches what is gone
        dies of it (SIGBUS): so nothing here works on them, and only who asks for them has them.
        """
        return None

    @abstractmethod
    def keep(self) -> None:
        """Holds on to what the next read opens, until ``park``."""

    @abstractmethod
    def park(self) -> None:
        """Gives back what the source holds; a later read gets it again for itself, if it is still the same file."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the source holds; later reads raise Changed."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes ``[offset, offset + size)``. Nothing is allocated for a range outside the source."""
        return bytes(self.buffer(offset, size))

    def buffer(self, offset: int, size: int) -> bytearray:
        """The same for those who need no ``bytes``, with one copy less."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise self.outside(offset, size)
        head = self._head
        if offset + size <= len(head):
            return bytearray(head[offset : offset + size])
        buffer = bytearray(size)
        self.read_into(memoryview(buffer), offset)
        return buffer

    @contextmanager
    def ahead(self, size: int) -> Iterator[bytes]:
        """The first ``size`` bytes, or all. As long as the ``with`` lasts, ``read`` gives them again from memory."""
        head = self._head = self.read(0, min(size, self.size))
        try:
            yield head
        finally:
            self._head = b""

    def damage(self, reason: str, part: str = "") -> Damaged:
        """An exception that names this source."""
        return Damaged(reason, self.name, part)

    def outside(self, offset: int, size: int) -> Damaged:
        return self.damage(f"bytes {offset} to {offset + size} lie outside the file of {self.size} bytes")


class Store(ABC):
    """Files under paths. No method follows a link, and none reaches anything outside the store."""

    has_lasting_versions = False
    """Whether what an entry says of a version tells it from all others for good, also in another process."""
    is_remote = False
    """Whether looking into a file costs so much that its name has to tell, until somebody wants what is in it, whether
    it may be a container. Entries and listings cost little, once they were asked for."""

    @abstractmethod
    def shown(self, path: Path) -> str:
        """The name of what is at ``path``, as the person who named the store would say it."""

    @abstractmethod
    def entry(self, path: Path) -> Entry:
        """What is at ``path`` now."""

    @abstractmethod
    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        """What is in the folder at ``path`` now, sorted by name as bytes. What vanishes meanwhile is left out."""

    @abstractmethod
    def open(self, path: Path) -> Source:
        """The file at ``path``, opened. Its facts are those of what was opened, whatever stood there before."""

    @abstractmethod
    def source(self, path: Path, entry: Entry) -> Source:
        """The file at ``path`` in the version of ``entry``, parked: it is opened by the first read."""

    def watch(self, path: Path, told: Callable[[Path, str], None]) -> bool:
        """From now on ``told`` is called when something changes in the folder at ``path``, and not below it.

        It gets ``path`` and the name of what was made, removed, renamed, written or changed its attributes, from a
        thread of the store's own, which it must not keep waiting for a store. The name is empty when the folder itself
        changed, is gone, or anything in it may have changed; the watch may be over then, and the next call makes a new
        one. False where changes cannot be told, as other machines may make them or there are no means left; that may be
        asked again at any time. It costs a look into a dictionary where the folder is watched; ``told`` is then the one
        that was given first.

        What is never told: changes of a file made under a name that it has in another folder. Those through a mapping
        are told when the writer closes it.
        """
        return False

    def finish(self) -> None:  # noqa: B027
        """The process is about to end: waits for what is to stay of what was read, if it does not take long."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the store itself holds, until it is asked again, and ends all watches.

        Sources belong to those who have them.
        """


class Named(NamedTuple):
    """What a person named: ``path`` in ``store``, and the last component of what was typed."""

    store: Store
    path: Path
    name: str


def distribute(data: bytes | bytearray | memoryview, buffers: Sequence[memoryview]) -> None:
    """Copies ``data`` into ``buffers``, which have as many bytes together, one after another."""
    rest = memoryview(data)
    for buffer in buffers:
        size = len(buffer)
        buffer[:] = rest[:size]
        rest = rest[size:]
