"""Columns of vectors as a column for each element. Any thread."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from glassfs.cache import BlockCache
from glassfs.content import Data, Parted, Regular, Rendered

TILE = 1 << 20


class Tiles:
    """Vectors transposed in tiles of about ``TILE`` bytes, which the cache keeps: columns are read one after another.

    ``values`` has ``rows`` vectors of ``length`` elements of ``width`` bytes.
    """

    def __init__(
        self, values: Data, width: int, length: int, rows: int, cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        self._values, self._length = values, length
        self._cache, self._key = cache, key
        self.width, self.rows = width, rows
        self.rows_a_tile = max(1, TILE // (width * length))

    def read_into(self, buffer: memoryview, number: int, element: int, offset: int) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on that tile ``number`` has of one element."""
        row, first = self.width * self._length, number * self.rows_a_tile
        count = min(self.rows_a_tile, self.rows - first)
        size = count * row
        make = partial(self._tile, first * row, size)
        tile = Rendered(self._cache, (*self._key, "tile", number), make, size, cost=3 * size)
        tile.read_into(buffer, element * count * self.width + offset)

    def _tile(self, start: int, size: int) -> bytes:
        import numpy as np

        values = np.frombuffer(self._values.read(start, size), f"V{self.width}").reshape(-1, self._length)
        return np.ascontiguousarray(values.T).tobytes()


class Element(Parted):
    """One element of every vector."""

    __slots__ = ("_bounds", "_number", "_tiles")

    def __init__(self, tiles: Tiles, number: int) -> None:
        self._tiles, self._number = tiles, number
        self._bounds = Regular(tiles.rows_a_tile * tiles.width, tiles.rows * tiles.width)

    @property
    def bounds(self) -> Sequence[int]:
        return self._bounds

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        self._tiles.read_into(buffer, number, self._number, offset)
