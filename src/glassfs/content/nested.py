"""Files inside a container that may be containers themselves, and their bytes as a source. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glassfs.content.data import Data
from glassfs.content.model import Part
from glassfs.source import Source, inner_version


@dataclass
class Nested(Part):
    """A file that a container stores under a name of its own, and that may be a container itself.

    Members of a group that have a container's name and first bytes are shown as directories, all others as files.
    ``container`` is the source in which ``data`` are stored, and ``ident`` distinguishes these bytes from all others in
    it. ``stored`` is their size there, if they are compressed. ``head`` returns the first bytes, at most as many as its
    argument, and is given if reading them costs less than reading so much of ``data``; it may raise Damaged.
    """

    container: Source
    ident: str
    stored: int | None = None
    head: Callable[[int], bytes] | None = None

    def first_bytes(self, size: int) -> bytes:
        """Return the first bytes, about ``size`` of them at most. Raises Damaged."""
        return self.data.read(0, min(size, self.data.size)) if self.head is None else self.head(size)


class NestedSource(Source):
    """The bytes of a nested file. It is of the same version as its container, and open as long as that is.

    ``depth`` is the number of containers around it. ``expansion`` is the number of its bytes for each byte that the
    outermost container stores of it.
    """

    def __init__(self, nested: Nested) -> None:
        data, container = nested.data, nested.container
        # Limits against archives that expand without end, one in the other, multiply along the way from the outermost
        # file.
        stored = data.size if nested.stored is None else nested.stored
        version = inner_version(container.version, nested.ident)
        self.name = f"{container.name}/{nested.key.decode('utf-8', 'backslashreplace')}"
        self.entry = container.entry._replace(version=version, file_id=version, stamp=version, size=data.size)
        self.is_remote = container.is_remote
        self.depth, self.expansion = 1, data.size / max(1, stored)
        if isinstance(container, NestedSource):
            self.depth += container.depth
            self.expansion *= container.expansion
        self._data: Data = data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._demand_inside(offset, len(buffer))
        self._data.read_into(buffer, offset)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        self._demand_inside(offset, size)
        whole = self._data.mapped()
        return None if whole is None else whole[offset : offset + size]

    def _demand_inside(self, offset: int, size: int) -> None:
        if offset < 0 or offset + size > self.size:
            raise self.outside(offset, size)
