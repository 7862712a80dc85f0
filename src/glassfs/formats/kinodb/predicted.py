"""Images located by prediction, as frames of a remote episode are usually alike. Any thread may read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassfs.content import Extent
from glassfs.source import Source


class PredictedImage(Extent):
    """An image at the offset that it has if all frames are alike: then ``header`` precedes it.

    Otherwise ``find`` scans all frames and returns the image's offset, or None if there is no such image, which raises
    Damaged. ``place`` names the images in messages.
    """

    __slots__ = ("_find", "_header", "_place")

    def __init__(
        self, source: Source, offset: int, size: int, header: bytes, place: str, find: Callable[[], int | None],
    ) -> None:
        super().__init__(source, offset, size)
        self._header = header
        self._place = place
        self._find = find

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.source.read_into(buffer, self._start() + offset)

    def scatter_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        self.source.scatter(buffers, self._start() + offset)

    def mapped(self) -> None:
        """Return None, as remote bytes are not in memory."""

    def _start(self) -> int:
        """Return the image's actual offset."""
        start = self.offset - len(self._header)
        if self.source.read(start, len(self._header)) == self._header:
            return self.offset
        found = self._find()
        if found is None:
            raise self.source.damage(f"there is no image at {start}, where one was expected", self._place)
        return found
