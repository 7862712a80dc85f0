"""The statistics of a dataset: those of each episode, as columns of the table of episodes, and ``stats.json`` of all.

They are found by a pass over the data, when a range that has some is read, or the size of ``stats.json`` is needed. Any
thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Data, Parted, Recording, Regular, Rendered, Table
from glassfs.content.features import decoded
from glassfs.content.video import video_of
from glassfs.errors import LASTING
from glassfs.once import once
from glassfs.view import mp4, planes
from glassfs.view.contract import Key
from glassfs.view.known import Known
from glassfs.view.lerobot import plan
from glassfs.view.lerobot.dataset import Dataset
from glassfs.view.lerobot.frames import Steps
from glassfs.view.lerobot.plan import BOOLEAN, Film, Plan
from glassfs.view.lerobot.statistics import (
    CHANNELS,
    MOMENTS,
    NAMES,
    QUANTILE_ROWS,
    Pictures,
    Statistics,
    aggregate,
    aggregated,
    demand_few,
    of_defaults,
    of_numbers,
    sampled,
    stats_json,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from glassfs.view.lerobot.statistics import Floats

LAYOUT = 3
"""Raise this when the same episodes give other statistics than before."""
CHUNK_BYTES = 4 << 20
BLOCK_BYTES = 1 << 20
ITEM = 8
"""Bytes of a number."""
EXTREMES = ("min", "max")
LARGEST = (1 << 63) - 1024
"""The largest float64 that is an int64."""


class Feature(NamedTuple):
    """A feature with statistics: its dimensions, and the dtype in which LeRobot has its least and largest value."""

    name: str
    dimensions: int
    dtype: str
    is_camera: bool = False

    @property
    def width(self) -> int:
        """The numbers of an episode: how many samples, and the statistics of each dimension."""
        return 1 + len(NAMES) * self.dimensions


_DEFAULTS = (Feature("timestamp", 1, "<f8"), *(
    Feature(name, 1, "<i8") for name in ("frame_index", "episode_index", "index", "task_index")
))


def _features(plan: Plan) -> Iterator[Feature]:
    """Yield the features that are in the container."""
    for column in plan.columns:
        yield Feature(column.name, column.length, {"f": "<f8", "b": BOOLEAN}.get(column.dtype[1], "<i8"))
    for film in plan.films:
        yield Feature(film.name, CHANNELS, "<f8", is_camera=True)


class EpisodeStatistics:
    """The statistics of each episode of a dataset, in blocks of episodes that the cache keeps.

    A block is made of pieces, consecutive episodes of one container, which the catalogue keeps where the table has one:
    a dataset to which containers are added reads only these. All numbers are float64.
    """

    def __init__(self, table: Table, dataset: Dataset, cache: BlockCache, key: Key) -> None:
        self._table = table
        self._dataset = dataset
        self._cache = cache
        self._key = key
        self._found = tuple(_features(dataset.plan))
        self.features = (*self._found, *_DEFAULTS)
        self.rows = dataset.episodes
        self.width = sum(feature.width for feature in self.features) * ITEM
        """The bytes of an episode."""
        self.rows_a_block = 1 << max(1, BLOCK_BYTES // self.width).bit_length() - 1

    def columns(self) -> Iterator[Column]:
        """Yield the columns that LeRobot has for each episode, in its order."""
        first = 0
        for feature in self.features:
            rows = {"count": (first, 1)} | {
                name: (first + 1 + number * feature.dimensions, feature.dimensions)
                for number, name in enumerate(NAMES)
            }
            first += feature.width
            for name in (*NAMES[MOMENTS], "count", *NAMES[QUANTILE_ROWS]):
                begin, count = rows[name]
                dtype = "<i8" if name == "count" else feature.dtype if name in EXTREMES else "<f8"
                shape = (self.rows, count, 1, 1) if feature.is_camera and name != "count" else (self.rows, count)
                values = Array(b"", _Statistic(self, begin, count, dtype), dtype, shape)
                yield Column(f"stats/{feature.name}/{name}".encode(), values, is_list=True)

    def totals(self) -> dict[str, Statistics]:
        """Return the statistics of all episodes together. Takes a pass over them."""
        found: dict[str, Statistics] = {}
        for number in range(-(-self.rows // self.rows_a_block)):
            rows, first = self.read(number, 0, self.width // ITEM), 0
            for feature in self.features:
                counts, values = rows[:, first], rows[:, first + 1 : first + feature.width]
                first += feature.width
                one = aggregated(counts, values.reshape(len(rows), len(NAMES), -1))
                found[feature.name] = aggregate([found[feature.name], one]) if feature.name in found else one
        return found

    def read(self, number: int, begin: int, count: int) -> Floats:
        """Return ``count`` numbers of each episode of a block, from number ``begin`` on, [episodes, count]."""
        import numpy as np

        first = number * self.rows_a_block
        rows = min(self.rows_a_block, self.rows - first)
        size = rows * self.width
        block = Rendered(
            self._cache, (*self._key, number), partial(self._block, first, first + rows), size, cost=4 * size,
        )
        read = block.read(begin * rows * ITEM, count * rows * ITEM)
        return np.frombuffer(read, "<f8").reshape(count, rows).T

    def _block(self, first: int, end: int) -> bytes:
        """Return the numbers of episodes, those of the same meaning one after another."""
        import numpy as np

        dataset, made = self._dataset, np.empty((end - first, self.width // ITEM))
        inside = sum(feature.width for feature in self._found)
        pieces = self._pieces
        with self._cache.waiting():
            for at in range(bisect_right(pieces, first) - 1, bisect_left(pieces, end)):
                begin, stop = pieces[at], pieces[at + 1]
                size = (stop - begin) * inside * ITEM
                piece = Rendered(
                    self._cache, (*self._key, "piece", begin), partial(self._piece, begin, stop), size, cost=2 * size,
                )
                low, high = max(begin, first), min(stop, end)
                read = piece.read((low - begin) * inside * ITEM, (high - low) * inside * ITEM)
                made[low - first : high - first, :inside] = np.frombuffer(read, "<f8").reshape(high - low, -1)
            for episode in range(first, end):
                start, length = dataset.starts[episode], dataset.length(episode)
                defaults = of_defaults(start, length, dataset.fps, episode, dataset.task_of[episode])
                made[episode - first, inside:] = _numbers(defaults[feature.name] for feature in _DEFAULTS)
        return made.T.tobytes()

    @once
    def _pieces(self) -> array[int]:
        """The first episode of each piece, and the end. Their sizes do not depend on other containers."""
        dataset, found = self._dataset, array("I")
        for episode in range(self.rows):
            is_next = found and dataset.place(episode).container == dataset.place(found[-1]).container
            if not is_next or episode - found[-1] == self.rows_a_block:
                found.append(episode)
        found.append(self.rows)
        return found

    def _piece(self, first: int, end: int) -> bytes:
        """Return the numbers of the features that are in the container, episode by episode."""
        table, dataset = self._table, self._dataset
        container = dataset.place(first).container
        places = [(dataset.place(episode).number, dataset.length(episode)) for episode in range(first, end)]
        described = repr((LAYOUT, dataset.plan, places)).encode("utf-8", "surrogatepass")
        name = b"lerobot statistics " + xxhash.xxh128_digest(described)
        kept = table.found(container, name)
        if kept is not None and len(kept) == (end - first) * sum(feature.width for feature in self._found) * ITEM:
            return kept
        made = []
        with table.recordings(container, is_kept=False) as recording_of:
            for number, length in places:
                work.check()
                recording = recording_of(number)
                steps = Steps(recording, length, container)
                made.append(_numbers(_of_episode(steps, recording, dataset, length, self._cache)).tobytes())
        found = b"".join(made)
        table.keep(container, name, found)
        return found


class _Statistic(Parted):
    """One column of the statistics of episodes: ``count`` numbers of each, from number ``begin`` on."""

    def __init__(self, statistics: EpisodeStatistics, begin: int, count: int, dtype: str) -> None:
        self._statistics = statistics
        self._begin, self._count, self._dtype = begin, count, dtype
        width = count * int(dtype[2:])
        self._bounds = Regular(statistics.rows_a_block * width, statistics.rows * width)

    @property
    def bounds(self) -> Sequence[int]:
        return self._bounds

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        import numpy as np

        values = self._statistics.read(number, self._begin, self._count)
        if self._dtype == "<i8":
            values = values.clip(-LARGEST, LARGEST)
        buffer[:] = np.ascontiguousarray(values, self._dtype).tobytes()[offset : offset + len(buffer)]


class StatsFile(Data):
    """``stats.json``. Its size is found by a pass when it is first needed."""

    def __init__(self, statistics: EpisodeStatistics, cache: BlockCache) -> None:
        self._known = Known(cache, partial(_stats, statistics), len)
        self._size: int | None = None

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = len(self._known.get())
        return self._size

    @property
    def is_sized(self) -> bool:
        return self._size is not None

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = self._known.get()[offset : offset + len(buffer)]


def _stats(statistics: EpisodeStatistics) -> bytes:
    demand_few(sum(feature.dimensions for feature in statistics.features))
    totals = statistics.totals()
    return stats_json({feature.name: (totals[feature.name], feature.is_camera) for feature in statistics.features})


def _numbers(found: Iterable[Statistics]) -> Floats:
    """Return statistics of an episode as numbers."""
    import numpy as np

    return np.concatenate([part for one in found for part in ([one.samples], one.values.ravel())])


def _of_episode(
    steps: Steps, recording: Recording, dataset: Dataset, length: int, cache: BlockCache,
) -> Iterator[Statistics]:
    for column in dataset.plan.columns:
        yield of_numbers(partial(_chunks, steps, column, length))
    videos = dict(recording.cameras()) if dataset.plan.films else {}
    by_name = {decoded(b"/".join(name)): content for name, content in videos.items()}
    for film in dataset.plan.films:
        yield _of_film(by_name.get(film.camera.name), film, length, cache)


def _chunks(steps: Steps, column: plan.Column, length: int) -> Iterator[NDArray[Any]]:
    import numpy as np

    rows = max(1, CHUNK_BYTES // column.width)
    for first in range(0, length, rows):
        values = np.empty((min(rows, length - first), column.length), column.dtype)
        steps.read(column, values, first)
        yield values


def _of_film(content: Any, film: Film, length: int, cache: BlockCache) -> Statistics:
    """Return the statistics of the frames that are sampled; frames that cannot be decoded are passed over.

    Pictures have the size of the film, and frames without one are gray, as in its MP4 file.
    """
    video, size = video_of(content), (film.camera.width, film.camera.height)
    pictures = Pictures()
    for number in sampled(length):
        work.check()
        shown = -1 if video is None else mp4.shown(video, number)
        if video is None or shown < 0:
            pictures.add_gray(*size)
            continue
        with suppress(*LASTING), planes.rgb(video.frame(shown), *size, cache) as picture:
            pictures.add(picture)
    if not pictures.count:
        pictures.add_gray(*size)
    return pictures.statistics()
