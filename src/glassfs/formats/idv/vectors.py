"""The vectors of a block, dense or sparse, by row or expanded (docs/formats/idv.md §8.4).

Nothing decoded is kept: elements are expanded only for the requested range, so a row of 2^31 slots with one entry costs
no more than any other. Any thread may use this module.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from glassfs.formats.idv.codecs import Codec
from glassfs.formats.idv.runs import Block, Item, Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_AT_ONCE = 16384
INDICES_AT_ONCE = 1 << 17
ROW_WEIGHT, SUM_WEIGHT = 57, 192  # bytes of memory per row, and per sum
TEXT_SHIFT = 12  # a run of texts keeps 16 bytes per 64 KiB
DENSE = b"\xff\xff\xff\xff"  # the count -1


class Vectors:
    """The vectors of a block: lengths and counts, indices, and one run of stored elements.

    Only running totals per ROWS_AT_ONCE rows are kept. With ``is_header``, the block may end after the counts and only
    the totals may be used.
    """

    def __init__(self, block: Block, codec: Codec, is_header: bool = False) -> None:
        self.block = block
        self._codec = codec
        self._length = block.integer(4)
        if block.integer(0) != block.rows:
            raise block.damage(f"declares {block.integer(0)} vectors, but has {block.rows} rows")
        if self._length < 0 or (codec.size and self._length != codec.size):
            raise block.damage(f"declares vectors of {self._length} slots, but its column declares {codec.size}")
        self._counts_at = 8 if self._length else 8 + 4 * block.rows
        self._indices_at = self._counts_at + 4 * block.rows + 4
        self._sums = [(0, 0, 0)]
        self._last: tuple[int, _Rows] | None = None
        self._runs: dict[str, Run] = {}
        block.demand(self._indices_at)
        self.is_dense = self._length > 0 and self._has_only_dense_counts()
        for number in range(-(-block.rows // ROWS_AT_ONCE)):
            if self.is_dense:
                elements = min((number + 1) * ROWS_AT_ONCE, block.rows) * self._length
                self._sums.append((elements, elements, 0))
            else:
                rows = self._rows(number)
                self._sums.append((int(rows.ends[-1]), int(rows.stored_ends[-1]), int(rows.index_ends[-1])))
        self.elements, self.stored, indices = self._sums[-1]
        total = block.integer(self._indices_at - 4)
        if total < indices:
            raise block.damage(f"declares {total} indices, but its rows use {indices}")
        self.unused_indices = total - indices
        self.base = self._indices_at + 4 * total
        block.demand(self.base + codec.item.form.stored_size(codec.item, self.stored))
        if not self.is_dense and not is_header:
            for number in range(len(self._sums) - 1):
                self._check_indices(self._rows(number))

    @property
    def weight(self) -> int:
        """The approximate bytes of memory used."""
        rows = ROW_WEIGHT * min(self.block.rows, ROWS_AT_ONCE)
        return 2048 + rows + SUM_WEIGHT * len(self._sums) + (self.block.size >> TEXT_SHIFT)

    def run(self, item: Item) -> Run:
        """Return the stored elements as values of ``item``."""
        run = self._runs.get(item.label)
        if run is None:
            run = self._runs[item.label] = item.form(item, self.block, self.base, self.stored)
        return run

    def _has_only_dense_counts(self) -> bool:
        # Compares bytes: most vectors are dense, and importing NumPy takes longer than decoding a block.
        for first in range(0, self.block.rows, ROWS_AT_ONCE):
            size = 4 * min(ROWS_AT_ONCE, self.block.rows - first)
            if self.block.read(self._counts_at + 4 * first, size) != DENSE * (size // 4):
                return False
        return True

    def starts(self, row: int, count: int, is_stored: bool = False) -> NDArray[Any]:
        """Return the number of (stored) elements before each of ``count`` rows from ``row`` on."""
        import numpy as np

        found, end = [], row + count
        while row < end:
            number, inside = divmod(row, ROWS_AT_ONCE)
            taken = min(end - row, ROWS_AT_ONCE - inside)
            rows = self._rows(number)
            starts = rows.stored_ends - rows.stored if is_stored else rows.starts
            found.append(starts[inside : inside + taken])
            row += taken
        return np.concatenate(found)

    def stored_at(self, element: int) -> int:
        """Return how many of the elements before this one are stored."""
        if self.is_dense or element == self.elements:
            return element if self.is_dense else self.stored
        return self._stored_in(self._rows(bisect_right(self._sums, element, key=lambda sums: sums[0]) - 1), element)

    def spread(self, run: Run, first: int, count: int) -> NDArray[Any]:
        """Return elements ``[first, first + count)`` of the block, with fill values where none is stored."""
        shown = run.filled(count)
        for rows, start, end in self._groups(first, first + count, 0):
            a, b = self._stored_in(rows, start), self._stored_in(rows, end)
            values = run.values(a, b - a)
            if b - a == end - start:
                shown[start - first : end - first] = values
            elif b > a:
                slots, starts = self._slots(rows, a, b)
                shown[slots + (starts - first)] = values
        return shown

    def indices(self, first: int, count: int) -> NDArray[Any]:
        """Return the slots of stored elements ``[first, first + count)``, as int32."""
        import numpy as np

        shown = np.zeros(count, np.int32)
        for rows, start, end in self._groups(first, first + count, 1):
            shown[start - first : end - first] = self._slots(rows, start, end)[0]
        return shown

    def _groups(self, first: int, end: int, kind: int) -> Iterator[tuple[_Rows, int, int]]:
        """Yield the rows that have elements ``[first, end)`` of a kind (0 all, 1 stored), and their range of these."""
        while first < end:
            number = bisect_right(self._sums, first, key=lambda sums: sums[kind]) - 1
            stop = min(end, self._sums[number + 1][kind])
            yield self._rows(number), first, stop
            first = stop

    def _rows(self, number: int) -> _Rows:
        last = self._last
        if last is not None and last[0] == number:
            return last[1]
        rows = self._read_rows(number)
        self._last = number, rows
        return rows

    def _read_rows(self, number: int) -> _Rows:
        import numpy as np

        first = number * ROWS_AT_ONCE
        count = min(ROWS_AT_ONCE, self.block.rows - first)
        counts = self.block.integers(self._counts_at + 4 * first, count).astype(np.int64)
        if self._length:
            lengths = np.full(count, self._length, np.int64)
        else:
            lengths = self.block.integers(8 + 4 * first, count).astype(np.int64)
        if (lengths < 0).any() or (counts < -1).any():
            raise self.block.damage("has a vector of negative length")
        if (counts >= lengths).any():
            raise self.block.damage("has a sparse vector with no fewer entries than slots")
        is_sparse = counts >= 0
        stored = np.where(is_sparse, counts, lengths)
        indices = np.where(is_sparse, counts, 0)
        elements, stored_elements, index = self._sums[number]
        return _Rows(
            is_sparse, lengths, np.cumsum(lengths) + elements, stored, np.cumsum(stored) + stored_elements,
            indices, np.cumsum(indices) + index,
        )

    def _check_indices(self, rows: _Rows) -> None:
        """Raise Damaged unless the indices of each row rise within its length."""
        import numpy as np

        has_indices = rows.indices > 0
        ends, lengths = rows.index_ends[has_indices], rows.lengths[has_indices]
        starts = ends - rows.indices[has_indices]
        if not len(starts):
            return
        for first in range(int(starts[0]), int(ends[-1]), INDICES_AT_ONCE):
            end = min(first + INDICES_AT_ONCE, int(ends[-1]))
            before = max(first - 1, int(starts[0]))
            slots = self._stored_indices(before, end)
            is_right = slots[1:] > slots[:-1]
            a, b = np.searchsorted(starts, (first, end))
            firsts = starts[a:b] - before
            is_right[firsts[firsts > 0] - 1] = True
            c, d = np.searchsorted(ends, (first, end), "right")
            lasts = ends[c:d] - 1 - before
            if not is_right.all() or (slots[firsts] < 0).any() or (slots[lasts] >= lengths[c:d]).any():
                raise self.block.damage("has a sparse vector whose indices do not rise within its length")

    def _stored_indices(self, first: int, end: int) -> NDArray[Any]:
        return self.block.integers(self._indices_at + 4 * first, end - first)

    def _stored_in(self, rows: _Rows, element: int) -> int:
        """Return how many of the block's elements before this one are stored; it is in ``rows``, or their end."""
        row = bisect_right(rows.ends, element)
        if row == len(rows.ends):
            return int(rows.stored_ends[-1])
        stored = int(rows.stored_ends[row] - rows.stored[row])
        slot = element - int(rows.starts[row])
        if slot == 0 or not rows.is_sparse[row]:
            return stored + slot
        end = int(rows.index_ends[row])
        start = end - int(rows.indices[row])
        return stored + bisect_left(range(end), slot, start, key=self._stored_index) - start

    def _stored_index(self, position: int) -> int:
        return self.block.integer(self._indices_at + 4 * position)

    def _slots(self, rows: _Rows, first: int, end: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the slots of stored elements ``[first, end)`` of the block, and the first element of their rows."""
        import numpy as np

        a, b = np.searchsorted(rows.stored_ends, first, "right"), np.searchsorted(rows.stored_ends, end) + 1
        rows = _Rows(*(column[a:b] for column in rows))
        starts = rows.stored_ends - rows.stored
        counts = np.minimum(rows.stored_ends, end) - np.maximum(starts, first)
        is_index = np.repeat(rows.is_sparse, counts)
        slots: NDArray[Any] = np.arange(first, end) - np.repeat(starts, counts)
        index = int(rows.index_ends[0] - rows.indices[0]) + (first - int(starts[0]) if rows.is_sparse[0] else 0)
        slots[is_index] = self._stored_indices(index, index + int(is_index.sum()))
        return slots, np.repeat(rows.starts, counts)


class _Rows(NamedTuple):
    """Up to ROWS_AT_ONCE rows of vectors. Ends count from the beginning of the block."""

    is_sparse: NDArray[Any]
    lengths: NDArray[Any]
    ends: NDArray[Any]
    stored: NDArray[Any]
    stored_ends: NDArray[Any]
    indices: NDArray[Any]
    index_ends: NDArray[Any]

    @property
    def starts(self) -> NDArray[Any]:
        starts: NDArray[Any] = self.ends - self.lengths
        return starts
