"""The files of a dataset with the steps and the videos of consecutive episodes: Parquet and MP4. Any thread.

Their sizes follow from the features. A container is opened at the first read of one of its episodes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from glassfs.cache import BlockCache
from glassfs.codec import h264
from glassfs.content import Array, Column, Data, Parted, Recording, Table
from glassfs.content.allowance import OBJECT
from glassfs.content.episodes import Signal
from glassfs.content.table import ColumnBlocks
from glassfs.content.video import video_of
from glassfs.errors import Changed
from glassfs.lazy import NDArray, np
from glassfs.names import text
from glassfs.view import mp4
from glassfs.view.contract import Key, Known
from glassfs.view.lerobot.dataset import BOOLEAN, DEFAULTS, EpisodeSet, NumberFeature
from glassfs.view.parquet import Parquet


def data_file(table: Table, dataset: EpisodeSet, cache: BlockCache, above: Key, number: int) -> Data:
    """Return the data file with this number: a table over the steps of its episodes.

    Rows are made some at a time, all columns at once: such a block opens each of its recordings once.
    """
    episodes, key = dataset.files.episodes(number), (*above, number)
    first = dataset.starts[episodes.start]
    rows = dataset.starts[episodes.stop] - first
    blocks = ColumnBlocks(rows, dataset.step_width, partial(_made, table, dataset, first), cache, key)

    def columns() -> list[Column]:
        features = (*dataset.plan.columns, *DEFAULTS)
        return list(blocks.columns((one.name, one.dtype, (one.length,) if one.length > 1 else ()) for one in features))

    return Parquet(Table(b"data", rows, columns, shared_width=dataset.step_width), cache, key)


def _made(table: Table, dataset: EpisodeSet, before: int, first: int, rows: int) -> bytes:
    """Return ``rows`` rows of a file, one column after another; ``before`` frames are in the files before it."""
    made = [np.empty((rows, column.length), column.dtype) for column in dataset.plan.columns]
    row, frame = 0, before + first
    episode = dataset.episode_at(frame)
    container, recording_of = None, None
    with ExitStack() as stack:
        while row < rows:
            place, number = dataset.place(episode)
            # Episodes of one container follow each other, so it is opened once for all of them, and closed before the
            # next one: a block may have steps of hundreds of containers.
            if place != container or recording_of is None:
                stack.close()
                container = place
                recording_of = stack.enter_context(table.recordings(container, is_kept=False))
            skipped = frame + row - dataset.starts[episode]
            count = min(rows - row, dataset.length(episode) - skipped)
            steps = Steps(recording_of(number), dataset.length(episode), place)
            for column, values in zip(dataset.plan_of[episode].columns, made, strict=True):
                steps.read(column, values[row : row + count], skipped)
            row += count
            episode += 1
    return b"".join([values.tobytes() for values in (*made, *_defaults(dataset, frame, rows))])


def _defaults(dataset: EpisodeSet, frame: int, rows: int) -> list[NDArray[Any]]:
    """Return the columns that follow from the lengths of the episodes alone, from a frame of the dataset on."""
    frames = np.arange(frame, frame + rows, dtype=np.int64)
    # The episode of each step, found for all of them at once.
    starts = np.frombuffer(dataset.starts, np.uint64).astype(np.int64)
    episodes = np.searchsorted(starts, frames, "right") - 1
    inside = frames - starts[episodes]
    tasks = np.frombuffer(dataset.task_of, np.uint32)[episodes]
    columns: list[NDArray[Any]] = [inside / dataset.fps, inside, episodes, frames, tasks]
    return [values.astype(one.dtype) for values, one in zip(columns, DEFAULTS, strict=True)]


class Steps:
    """The signals of a recording. Methods raise Changed if they are not what its container said."""

    def __init__(self, recording: Recording, steps: int, container: str) -> None:
        self._steps = steps
        self._container = container
        self._arrays: dict[str, Any] = {}
        for column in recording.steps.columns():
            self._arrays.setdefault(text(column.name), column.content)

    def read(self, column: NumberFeature, values: NDArray[Any], first: int) -> None:
        """Fill ``values``, a row for each step from number ``first`` on, with those of a column."""
        at, count = 0, len(values)
        for signal in column.parts:
            length = 1 if signal.length is None else signal.length
            width = length * int(signal.dtype[2:])
            data = self._array(signal).data.read(first * width, count * width)
            read = np.frombuffer(data, signal.dtype).reshape(count, length)
            target = values[:, at : at + length]
            if column.dtype == BOOLEAN:
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


class VideoFile(Parted):
    """The MP4 file with this number, of the feature that is number ``film`` in plans. A recording in use is kept.

    An error costs its episode's ranges.
    """

    def __init__(
        self, table: Table, dataset: EpisodeSet, film: int, cache: BlockCache, key: Key, number: int,
    ) -> None:
        camera, episodes = dataset.plan.films[film].camera, dataset.videos.episodes(number)
        self._first, end = dataset.starts[episodes.start], dataset.starts[episodes.stop]
        self._head = camera.width, camera.height, dataset.fps, end - self._first
        self._frame = h264.size_of(camera.width, camera.height)
        self._table = table
        self._dataset = dataset
        self._film = film
        self._cache = cache
        self._key = key
        # An open video, and for each frame where its image is, which formats may keep.
        self._known = Known(cache, self._opened, lambda frames: OBJECT * (32 + len(frames.bounds) - 1))

    @property
    def size(self) -> int:
        return mp4.size_of(*self._head)

    def part_at(self, offset: int) -> tuple[int, int, int]:
        """Return the episode whose frames have the byte, -1 for the head, and where they begin and end."""
        head = len(mp4.head(*self._head))
        if offset < head:
            return -1, 0, head
        episode = self._dataset.episode_at(self._first + (offset - head) // self._frame)
        start = head + (self._dataset.starts[episode] - self._first) * self._frame
        return episode, start, start + self._dataset.length(episode) * self._frame

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        # The size and the head follow from the features alone. A container is opened only for frames.
        if number < 0:
            buffer[:] = mp4.head(*self._head)[offset : offset + len(buffer)]
            return
        # A shared mount must not show what was closed to others since, even from a recording that is open.
        self._table.demand_readable(self._dataset.place(number)[0])
        self._known.get(number).read_into(buffer, offset)

    def _opened(self, episode: int) -> mp4.EncodedFrames:
        """Return the frames of an episode. Raises Changed if its video is not what its container said."""
        camera = self._dataset.plan_of[episode].films[self._film].camera
        container, number = self._dataset.place(episode)
        with self._table.recordings(container, is_kept=True) as recording_of:
            for name, content in recording_of(number).cameras():
                if text(b"/".join(name)) != camera.name:
                    continue
                video = video_of(content)
                if video is not None and video.count == self._dataset.length(episode):
                    shown = replace(video, width=camera.width, height=camera.height, fps=self._dataset.fps)
                    first = self._dataset.starts[episode] - self._first
                    return mp4.EncodedFrames(shown, first, self._cache, (*self._key, episode))
        raise Changed("has other cameras than when its episodes were listed", container, camera.name)
