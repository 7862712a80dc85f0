"""Images that nobody has looked for, as all frames of an episode are like the first. Any thread."""

from __future__ import annotations

from collections.abc import Sequence

from glassfs.content import Extent
from glassfs.source import Source


class Foreseen(Extent):
    """An image where it must be if all frames are alike. Damaged if ``told`` does not stand before it."""

    __slots__ = ("_place", "_told")

    def __init__(self, source: Source, offset: int, size: int, told: bytes, place: str) -> None:
        super().__init__(source, offset, size)
        self._told = told
        self._place = place

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._look()
        super().read_into(buffer, offset)

    def scatter_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._look()
        super().scatter_into(buffers, offset)

    def mapped(self) -> None:
        """What is far away is in no memory."""

    def _look(self) -> None:
        start = self.offset - len(self._told)
        if self.source.read(start, len(self._told)) != self._told:
            raise self.source.damage(f"there is no image at {start}, where one was to be expected", self._place)
