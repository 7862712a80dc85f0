"""The steps of episodes as Parquet: a file is a table over the episodes that it has. Any thread.

Rows are made some at a time, all columns at once, as a recording has its signals side by side: such a block opens each
of its recordings once, and the cache keeps it while the columns of a group are read one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Data, Made, Parted, Recording, Regular, Rendered, Table
from glassfs.content.features import Signal, decoded
from glassfs.errors import Changed
from glassfs.view.contract import Key
from glassfs.view.lerobot import plan
from glassfs.view.lerobot.dataset import DEFAULT_BYTES, Dataset
from glassfs.view.parquet.file import Parquet

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20


def data_file(table: Table, dataset: Dataset, number: int, cache: BlockCache, key: Key) -> Data:
    """Return the data file with this number."""
    return Parquet(_Frames(table, dataset, number, cache, key).table(), cache, key)


class _Frames:
    """The frames of the episodes in one data file."""

    def __init__(self, table: Table, dataset: Dataset, number: int, cache: BlockCache, key: Key) -> None:
        self._table = table
        self._dataset = dataset
        self._cache = cache
        self._key = key
        episodes = dataset.files.episodes(number)
        self.first = dataset.starts[episodes.start]
        """The first frame, counted over the whole dataset."""
        self.rows = dataset.starts[episodes.stop] - self.first
        self._width = dataset.plan.width
        self.rows_a_block = 1 << max(1, BLOCK_BYTES // max(1, self._width)).bit_length() - 1

    def table(self) -> Table:
        columns: list[Column] = []
        offset = 0
        for column in self._dataset.plan.columns:
            shape = (self.rows, column.length) if column.is_vector else (self.rows,)
            data = _Stacked(self, offset, column.width)
            columns.append(Column(
                column.name.encode(), Array(b"", data, column.dtype, shape), is_list=column.is_vector,
            ))
            offset += column.width
        numbered = {
            "timestamp": "<f4", "frame_index": "<i8", "episode_index": "<i8", "index": "<i8", "task_index": "<i8",
        }
        for name, dtype in numbered.items():
            numbers = _Numbers(self._dataset, name, self.first, self.rows, dtype)
            columns.append(Column(name.encode(), Array(b"", numbers, dtype, (self.rows,))))
        return Table(b"data", self.rows, lambda: columns, shared_width=self._width + DEFAULT_BYTES)

    def block(self, number: int) -> tuple[Data, int]:
        """Return a block, in which each column is contiguous, and its number of rows."""
        first = number * self.rows_a_block
        rows = min(self.rows_a_block, self.rows - first)
        size = rows * self._width
        return Rendered(self._cache, (*self._key, number), partial(self._made, first, rows), size, cost=4 * size), rows

    def _made(self, first: int, rows: int) -> bytes:
        import numpy as np

        columns = self._dataset.plan.columns
        found = [np.empty((rows, column.length), column.dtype) for column in columns]
        dataset, row = self._dataset, 0
        frame = self.first + first
        episode = dataset.episode_at(frame)
        container, recording_of = None, None
        with self._cache.waiting(), ExitStack() as stack:
            while row < rows:
                place = dataset.place(episode)
                if place.container != container or recording_of is None:
                    stack.close()
                    container = place.container
                    recording_of = stack.enter_context(self._table.recordings(container, is_kept=False))
                skipped = frame + row - dataset.starts[episode]
                count = min(rows - row, dataset.length(episode) - skipped)
                steps = Steps(recording_of(place.number), dataset.length(episode), place.container)
                for column, values in zip(columns, found, strict=True):
                    steps.read(column, values[row : row + count], skipped)
                row += count
                episode += 1
        return b"".join([values.tobytes() for values in found])


class Steps:
    """The signals of a recording. Methods raise Changed if they are not what its container said."""

    def __init__(self, recording: Recording, steps: int, container: str) -> None:
        self._steps = steps
        self._container = container
        self._arrays: dict[str, Any] = {}
        for column in recording.steps.columns():
            self._arrays.setdefault(decoded(column.name), column.content)

    def read(self, column: plan.Column, values: NDArray[Any], first: int) -> None:
        """Fill ``values``, a row for each step from number ``first`` on, with those of a column."""
        import numpy as np

        at, count = 0, len(values)
        for signal in column.parts:
            length = 1 if signal.length is None else signal.length
            width = length * int(signal.dtype[2:])
            data = self._array(signal).data.read(first * width, count * width)
            read = np.frombuffer(data, signal.dtype).reshape(count, length)
            target = values[:, at : at + length]
            if column.dtype == plan.BOOLEAN:
                np.not_equal(read, 0, out=target)
            else:
                with np.errstate(over="ignore"):
                    target[...] = read
            at += length

    def _array(self, signal: Signal) -> Array:
        array = self._arrays.get(signal.name)
        shape = (self._steps,) if signal.length is None else (self._steps, signal.length)
        if not isinstance(array, Array) or array.dtype != signal.dtype or array.known_shape != shape:
            raise Changed("has another signal than when its episodes were listed", self._container, signal.name)
        return array


class _Stacked(Parted):
    """One column of all rows; each part is that of a block."""

    def __init__(self, frames: _Frames, offset: int, width: int) -> None:
        self._frames = frames
        self._offset, self._width = offset, width
        self._bounds = Regular(frames.rows_a_block * width, frames.rows * width)

    @property
    def bounds(self) -> Sequence[int]:
        return self._bounds

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        block, rows = self._frames.block(number)
        block.read_into(buffer, rows * self._offset + offset)


class _Numbers(Made):
    """A column that follows from the lengths of the episodes alone."""

    def __init__(self, dataset: Dataset, name: str, first: int, rows: int, dtype: str) -> None:
        self._dataset = dataset
        self._name = name
        self._first, self._rows = first, rows
        self._dtype = dtype

    @property
    def unit(self) -> int:
        return int(self._dtype[2:])

    @property
    def size(self) -> int:
        return self._rows * self.unit

    def make(self, first: int, count: int) -> memoryview:
        import numpy as np

        dataset = self._dataset
        frames = np.arange(self._first + first, self._first + min(first + count, self._rows), dtype=np.int64)
        starts = np.frombuffer(dataset.starts, np.uint64).astype(np.int64)
        episodes = np.searchsorted(starts, frames, "right") - 1
        found: NDArray[Any]
        if self._name == "index":
            found = frames
        elif self._name == "episode_index":
            found = episodes
        elif self._name == "task_index":
            found = np.frombuffer(dataset.task_of, np.uint32)[episodes]
        else:
            found = frames - starts[episodes]
            if self._name == "timestamp":
                found = found / dataset.fps
        return np.ascontiguousarray(found.astype(self._dtype)).data.cast("B")
