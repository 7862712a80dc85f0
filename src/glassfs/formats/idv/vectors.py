"""The vectors of a block, dense or sparse, by row or expanded (docs/formats/idv.md §8.4).

Of a block only where its rows begin is kept. Elements are expanded for the requested range, so a row of 2^31 slots with
one entry costs no more than any other. Any thread may use this module.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from glassfs.formats.idv.codecs import Codec
from glassfs.formats.idv.runs import Block, Item, ValueRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

INDICES_AT_ONCE = 1 << 17
ROW_COST = 64
"""Bytes of memory for each row while a block is opened."""
DENSE = b"\xff\xff\xff\xff"  # the count -1


class Vectors:
    """The vectors of a block: lengths and counts, indices, and one run of stored elements.

    Single values are vectors of one slot, of which only the run is stored.
    With ``is_header``, the block may end after the counts and only the sums may be used. The caller has counted
    ROW_COST for each row.
    """

    def __init__(self, block: Block, codec: Codec, is_header: bool = False) -> None:
        self.block = block
        self._runs: dict[str, ValueRun] = {}
        if codec.dimensions is None:
            self.is_dense, self._length, self.base, self.unused_indices = True, 1, 0, 0
            self.elements = self.stored = block.rows
            return
        self._length = block.integer(4)
        if block.integer(0) != block.rows:
            raise block.damage(f"declares {block.integer(0)} vectors, but has {block.rows} rows")
        if self._length < 0 or (codec.size and self._length != codec.size):
            raise block.damage(f"declares vectors of {self._length} slots, but its column declares {codec.size}")
        counts_at = 8 if self._length else 8 + 4 * block.rows
        self._indices_at = counts_at + 4 * block.rows + 4
        block.demand(self._indices_at)
        # Compares bytes: most vectors are dense, and importing NumPy takes longer than decoding a block.
        self.is_dense = self._length > 0 and block.read(counts_at, 4 * block.rows) == DENSE * block.rows
        self.elements = self.stored = block.rows * self._length
        indices = 0
        if not self.is_dense:
            self._find_rows(counts_at)
            self.elements, self.stored, indices = (int(starts[-1]) for starts in self._starts)
        total = block.integer(self._indices_at - 4)
        if total < indices:
            raise block.damage(f"declares {total} indices, but its rows use {indices}")
        self.unused_indices = total - indices
        self.base = self._indices_at + 4 * total
        block.demand(self.base + codec.item.form.stored_size(codec.item, self.stored))
        if not self.is_dense and not is_header:
            self._check_indices()

    def _find_rows(self, counts_at: int) -> None:
        """Find which rows are sparse, and where each row begins, and the last one ends.

        ``_starts`` has these positions among all elements, the stored ones, and the indices.
        """
        import numpy as np

        rows = self.block.rows
        counts = self.block.integers(counts_at, rows).astype(np.int64)
        lengths = self.block.integers(8, rows).astype(np.int64) if not self._length else np.full(rows, self._length)
        if (lengths < 0).any() or (counts < -1).any():
            raise self.block.damage("has a vector of negative length")
        if (counts >= lengths).any():
            raise self.block.damage("has a sparse vector with no fewer entries than slots")
        # A dense row has the count -1. Its elements are all stored, and it has no indices.
        self._is_sparse = counts >= 0
        numbers = lengths, np.where(self._is_sparse, counts, lengths), np.maximum(counts, 0)
        self._starts = [np.concatenate(([0], np.cumsum(number))) for number in numbers]

    @property
    def weight(self) -> int:
        """The approximate bytes of memory used."""
        return 2048 + (0 if self.is_dense else 25 * self.block.rows)

    def run(self, item: Item) -> ValueRun:
        """Return the stored elements as values of ``item``."""
        run = self._runs.get(item.label)
        if run is None:
            run = self._runs[item.label] = item.form(item, self.block, self.base, self.stored)
        return run

    def starts(self, row: int, count: int, is_stored: bool = False) -> NDArray[Any]:
        """Return the number of (stored) elements before each of ``count`` rows from ``row`` on."""
        import numpy as np

        if self.is_dense:
            return np.arange(row, row + count) * self._length
        starts: NDArray[Any] = self._starts[is_stored][row : row + count]
        return starts

    def stored_at(self, element: int) -> int:
        """Return how many of the elements before this one are stored."""
        if self.is_dense:
            return element
        starts, stored, indices = self._starts
        row = int(starts.searchsorted(element, "right")) - 1
        slot = element - int(starts[row])
        before = int(stored[row])
        if slot == 0 or not self._is_sparse[row]:
            return before + slot
        # The indices of a row rise, so the number of those below the slot is found by bisection, a few reads of four
        # bytes each.
        start, end = int(indices[row]), int(indices[row + 1])
        return before + bisect_left(range(end), slot, start, key=self._stored_index) - start

    def _stored_index(self, position: int) -> int:
        return self.block.integer(self._indices_at + 4 * position)

    def spread(self, run: ValueRun, first: int, count: int) -> NDArray[Any]:
        """Return elements ``[first, first + count)`` of the block, with fill values where none is stored."""
        start, end = self.stored_at(first), self.stored_at(first + count)
        values = run.values(start, end - start)
        if end - start == count:
            return values
        shown = run.filled(count)
        if end > start:
            slots, starts = self._slots(start, end)
            shown[slots + (starts - first)] = values
        return shown

    def indices(self, first: int, count: int) -> NDArray[Any]:
        """Return the slots of stored elements ``[first, first + count)``, as int32."""
        return self._slots(first, first + count)[0].astype("<i4")

    def _slots(self, first: int, end: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the slots of stored elements ``[first, end)`` of the block, and the first element of their rows."""
        import numpy as np

        slots: NDArray[Any] = np.arange(first, end)
        if self.is_dense:
            return slots % self._length, slots // self._length * self._length
        starts, stored, indices = self._starts
        rows = stored.searchsorted(slots, "right") - 1
        slots -= stored[rows]
        is_index = self._is_sparse[rows]
        if is_index.any():
            # Of the first row only the last elements may be wanted.
            index = int(indices[rows[0]]) + (int(slots[0]) if is_index[0] else 0)
            slots[is_index] = self._stored_indices(index, index + int(is_index.sum()))
        return slots, starts[rows]

    def _check_indices(self) -> None:
        """Raise Damaged unless the indices of each row rise within its length."""
        import numpy as np

        starts, _, indices = self._starts
        last = -1
        for first in range(0, int(indices[-1]), INDICES_AT_ONCE):
            end = min(first + INDICES_AT_ONCE, int(indices[-1]))
            slots = self._stored_indices(first, end)
            rows = indices.searchsorted(np.arange(first, end), "right") - 1
            # Rows follow one another, so that the elements of the block rise if the indices of each row do.
            elements = starts[rows] + slots
            is_rising = (np.diff(elements, prepend=last) > 0).all()
            if not is_rising or (slots < 0).any() or (elements >= starts[rows + 1]).any():
                raise self.block.damage("has a sparse vector whose indices do not rise within its length")
            last = int(elements[-1])

    def _stored_indices(self, first: int, end: int) -> NDArray[Any]:
        return self.block.integers(self._indices_at + 4 * first, end - first)
