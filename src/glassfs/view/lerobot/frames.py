"""The steps of episodes as Parquet: a file is a table over the episodes that it has. Any thread.

Rows are made some at a time, all columns at once, as a recording has its signals side by side: such a block opens each
of its recordings once.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Data, Recording, Table
from glassfs.content.columns import ColumnBlocks
from glassfs.content.features import Signal, decoded
from glassfs.errors import Changed
from glassfs.view.contract import Key
from glassfs.view.lerobot import plan
from glassfs.view.lerobot.dataset import EpisodeSet
from glassfs.view.parquet import Parquet

if TYPE_CHECKING:
    from numpy.typing import NDArray


def data_file(table: Table, dataset: EpisodeSet, cache: BlockCache, above: Key, number: int) -> Data:
    """Return the data file with this number."""
    episodes, key = dataset.files.episodes(number), (*above, number)
    first = dataset.starts[episodes.start]
    rows = dataset.starts[episodes.stop] - first
    blocks = ColumnBlocks(rows, dataset.step_width, partial(_made, table, dataset, cache, first), cache, key)

    def columns() -> list[Column]:
        features = (*dataset.plan.columns, *plan.DEFAULTS)
        return list(blocks.columns((one.name, one.dtype, (one.length,) if one.length > 1 else ()) for one in features))

    return Parquet(Table(b"data", rows, columns, shared_width=dataset.step_width), cache, key)


def _made(table: Table, dataset: EpisodeSet, cache: BlockCache, before: int, first: int, rows: int) -> bytes:
    """Return ``rows`` rows of a file, one column after another; ``before`` frames are in the files before it."""
    import numpy as np

    columns = dataset.plan.columns
    made = [np.empty((rows, column.length), column.dtype) for column in columns]
    row, frame = 0, before + first
    episode = dataset.episode_at(frame)
    container, recording_of = None, None
    with cache.waiting(), ExitStack() as stack:
        while row < rows:
            place = dataset.place(episode)
            # Episodes of one container follow each other, so it is opened once for all of them, and closed before the
            # next one: a block may have steps of hundreds of containers.
            if place.container != container or recording_of is None:
                stack.close()
                container = place.container
                recording_of = stack.enter_context(table.recordings(container, is_kept=False))
            skipped = frame + row - dataset.starts[episode]
            count = min(rows - row, dataset.length(episode) - skipped)
            steps = Steps(recording_of(place.number), dataset.length(episode), place.container)
            for column, values in zip(columns, made, strict=True):
                steps.read(column, values[row : row + count], skipped)
            row += count
            episode += 1
    return b"".join([values.tobytes() for values in (*made, *_defaults(dataset, frame, rows))])


def _defaults(dataset: EpisodeSet, frame: int, rows: int) -> list[NDArray[Any]]:
    """Return the columns that follow from the lengths of the episodes alone, from a frame of the dataset on."""
    import numpy as np

    frames = np.arange(frame, frame + rows, dtype=np.int64)
    # The episode of each step, found for all of them at once.
    starts = np.frombuffer(dataset.starts, np.uint64).astype(np.int64)
    episodes = np.searchsorted(starts, frames, "right") - 1
    inside = frames - starts[episodes]
    tasks = np.frombuffer(dataset.task_of, np.uint32)[episodes]
    columns: list[NDArray[Any]] = [inside / dataset.fps, inside, episodes, frames, tasks]
    return [values.astype(one.dtype) for values, one in zip(columns, plan.DEFAULTS, strict=True)]


class Steps:
    """The signals of a recording. Methods raise Changed if they are not what its container said."""

    def __init__(self, recording: Recording, steps: int, container: str) -> None:
        self._steps = steps
        self._container = container
        self._arrays: dict[str, Any] = {}
        for column in recording.steps.columns():
            self._arrays.setdefault(decoded(column.name), column.content)

    def read(self, column: plan.NumberFeature, values: NDArray[Any], first: int) -> None:
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
                with np.errstate(over="ignore", invalid="ignore"):  # signaling NaN
                    target[...] = read
            at += length

    def _array(self, signal: Signal) -> Array:
        array = self._arrays.get(signal.name)
        shape = (self._steps,) if signal.length is None else (self._steps, signal.length)
        if not isinstance(array, Array) or array.dtype != signal.dtype or array.known_shape != shape:
            raise Changed("has another signal than when its episodes were listed", self._container, signal.name)
        return array
