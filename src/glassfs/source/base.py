"""The contract of a source.

Every method may be called from any thread. A read gives all the bytes asked for or raises: ``Damaged``
where the source ends too early or the device fails, ``Changed`` where it is no longer what was opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class Identity(NamedTuple):
    """What tells one version of a source from another. Times are nanoseconds since 1970, UTC."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class Source(ABC):
    """A readable run of ``size`` bytes, called ``name`` in messages."""

    name: str
    size: int
    identity: Identity
    mode: int
    uid: int
    gid: int

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills ``buffer`` (bytes, writable) from ``offset`` on. Raises Damaged or Changed."""

    @abstractmethod
    def sibling(self, name: str) -> Source:
        """Opens the source called ``name`` in the same folder. Raises FileNotFoundError; never leaves the folder."""

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
        buffer = bytearray(size)
        self.read_into(memoryview(buffer), offset)
        return buffer

    def outside(self, offset: int, size: int) -> Exception:
        from glassfs.errors import Damaged

        return Damaged(f"{self.name}: bytes {offset} to {offset + size} lie outside the file of {self.size} bytes")
