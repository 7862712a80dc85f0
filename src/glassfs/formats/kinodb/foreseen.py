"""Images that nobody has looked for, as all frames of an episode are like the first. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassfs.content import Extent
from glassfs.source import Source


class Foreseen(Extent):
    """An image where it must be if all frames are alike: then ``told`` stands before it.

    Where something else does, ``look`` tells where the image is, after all frames have been looked at; None if there is
    none like it, which is Damaged. ``place`` names the images in messages.
    """

    __slots__ = ("_look", "_place", "_told")

    def __init__(
        self, source: Source, offset: int, size: int, told: bytes, place: str, look: Callable[[], int | None],
    ) -> None:
        super().__init__(source, offset, size)
        self._told = told
        self._place = place
        self._look = look

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.source.read_into(buffer, self._start() + offset)

    def scatter_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        self.source.scatter(buffers, self._start() + offset)

    def mapped(self) -> None:
        """What is far away is in no memory."""

    def _start(self) -> int:
        """Where the image really is."""
        start = self.offset - len(self._told)
        if self.source.read(start, len(self._told)) == self._told:
            return self.offset
        found = self._look()
        if found is None:
            raise self.source.damage(f"there is no image at {start}, where one was to be expected", self._place)
        return found
