"""Bytes of a known size, readable in any range: those of a source, and the contract of all data derived from them.

Data are immutable and may be read from any thread. ``read_into`` fills the whole buffer, or raises Damaged or Changed;
the range must lie inside ``[0, size)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from glassfs.codec import compression
from glassfs.errors import GlassfsError
from glassfs.sizes import PIECE
from glassfs.source import Source


class Location(NamedTuple):
    """Where bytes are stored in their container. ``stored`` is their size there, ``source`` the file if it is known."""

    offset: int
    stored: int
    codec: str = compression.NONE
    checksum: str | None = None
    source: Source | None = None


class Data(ABC):
    """``size`` bytes. The first use of the size may need work, and that may raise Damaged."""

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    def is_sized(self) -> bool:
        """Whether the size is known without reading blocks."""
        return True

    @property
    def is_cheap(self) -> bool:
        """Whether finding the size takes little, whatever a container holds."""
        return self.is_sized

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None: ...

    def mapped(self) -> memoryview | None:
        """Return all bytes if they are available without reading (see ``Source.mapped``), else None."""
        return None

    def location(self) -> Location | None:
        """Return where the bytes are stored, if they are contiguous."""
        return None

    def written(self) -> Iterator[Data] | None:
        """Yield the parts that are stored, if most of the bytes are not stored anywhere; None for all other data."""
        return None

    def read(self, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def whole(self) -> bytes | bytearray:
        return self.read(0, self.size)

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, at most PIECE at a time."""
        for offset in range(0, self.size, PIECE):
            yield self.read(offset, min(PIECE, self.size - offset))


class SizedData(Data):
    """Base of data whose size is known when they are made."""

    size: int = 0  # not a property, as there are many data
    is_sized = True

    def __init__(self, size: int) -> None:
        self.size = size


class Memory(SizedData):
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data))
        self._bytes = data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = self._bytes[offset : offset + len(buffer)]


class Extent(SizedData):
    """The bytes ``[offset, offset + size)`` of a source, unchanged.

    Reading an extent that exceeds the source raises Damaged; making one does not.
    """

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self.size = size
        self.source = source
        self.offset = offset

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.source.read_into(buffer, self.offset + offset)

    def mapped(self) -> memoryview | None:
        return self.source.mapped(self.offset, self.size)

    def location(self) -> Location:
        return Location(self.offset, self.size, source=self.source)


class Zeros(SizedData):
    """``size`` zero bytes."""

    def written(self) -> Iterator[Data]:
        return iter(())

    def read_into(self, buffer: memoryview, offset: int) -> None:
        for start in range(0, len(buffer), PIECE):
            piece = buffer[start : start + PIECE]
            piece[:] = bytes(len(piece))


class Unreadable(SizedData):
    """``size`` bytes that are missing, cannot be trusted or not be decoded here: every read raises ``fault``."""

    def __init__(self, size: int, fault: GlassfsError) -> None:
        super().__init__(size)
        self._fault = fault

    def read_into(self, buffer: memoryview, offset: int) -> None:
        raise self._fault.at()


class Slice(SizedData):
    """The bytes ``[offset, offset + size)`` of other data."""

    def __init__(self, data: Data, offset: int, size: int) -> None:
        super().__init__(size)
        self._data, self._offset = data, offset

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._data.read_into(buffer, self._offset + offset)

    def mapped(self) -> memoryview | None:
        whole = self._data.mapped()
        return None if whole is None else whole[self._offset : self._offset + self.size]
