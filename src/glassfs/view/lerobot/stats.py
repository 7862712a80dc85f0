"""The statistics of a dataset: those of each episode, as columns of the table of episodes, and ``stats.json`` of all.

They are found by a pass over the data, when a range that has some is read, or the size of ``stats.json`` is needed. Any
thread.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Column, Recording, Rendered, Table
from glassfs.content.columns import ColumnBlocks
from glassfs.content.features import decoded
from glassfs.content.video import video_of
from glassfs.errors import LASTING, TooLarge
from glassfs.once import once
from glassfs.sizes import PIECE
from glassfs.view import mp4, planes
from glassfs.view.contract import Key
from glassfs.view.json import LIMIT
from glassfs.view.lerobot import plan
from glassfs.view.lerobot.dataset import EpisodeSet
from glassfs.view.lerobot.frames import Steps
from glassfs.view.lerobot.plan import BOOLEAN, Film
from glassfs.view.lerobot.statistics import NAMES, Pictures, Statistics, aggregate, of_defaults, of_numbers, sampled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from glassfs.view.lerobot.statistics import Floats

LAYOUT = 3
"""Raise this when the same episodes give other statistics than before."""
ITEM = 8
"""Bytes of a number."""


class StatisticsFeature(NamedTuple):
    """A feature with statistics: its dimensions, and the dtype in which LeRobot has its least and largest value."""

    name: str
    dimensions: int
    dtype: str
    is_camera: bool = False

    @property
    def width(self) -> int:
        """The numbers of an episode: how many samples, and the statistics of each dimension."""
        return 1 + len(NAMES) * self.dimensions

    def columns(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Yield the columns of the table of episodes in the order of the numbers: names, dtypes and shapes of a row."""
        yield f"stats/{self.name}/count", "<i8", (1,)
        shape = (self.dimensions, 1, 1) if self.is_camera else (self.dimensions,)
        for name in NAMES:
            yield f"stats/{self.name}/{name}", self.dtype if name in ("min", "max") else "<f8", shape


def _of_column(column: plan.NumberFeature) -> StatisticsFeature:
    return StatisticsFeature(column.name, column.length, {"f": "<f8", "b": BOOLEAN}.get(column.dtype[1], "<i8"))


class EpisodeStatistics:
    """The statistics of each episode of a dataset.

    They are found in pieces, consecutive episodes of one container, which the catalogue keeps where the table has one:
    a dataset to which containers are added reads only these. All numbers are float64 until they are columns.
    """

    def __init__(self, table: Table, dataset: EpisodeSet, cache: BlockCache, key: Key) -> None:
        self._table = table
        self._dataset = dataset
        self._cache = cache
        self._key = key
        videos = [StatisticsFeature(film.name, 3, "<f8", is_camera=True) for film in dataset.plan.films]
        inside = [*map(_of_column, dataset.plan.columns), *videos]
        self._numbers_inside = sum(feature.width for feature in inside)
        self.features = (*inside, *map(_of_column, plan.DEFAULTS))
        self._columns = [column for feature in self.features for column in feature.columns()]
        self.width = sum(prod(shape) * int(dtype[2:]) for _, dtype, shape in self._columns)
        """The bytes of an episode in all columns."""
        self._blocks = ColumnBlocks(dataset.episodes, self.width, self._columns_of, cache, key)

    def columns(self) -> Iterator[Column]:
        """Return the columns that LeRobot has for each episode."""
        return self._blocks.columns(self._columns)

    def as_json(self) -> bytes:
        """Return ``stats.json``: the statistics of all episodes together. Takes a pass over them.

        Raises TooLarge if they are too many for JSON.
        """
        dimensions = sum(feature.dimensions for feature in self.features)
        if dimensions * len(NAMES) * len(" -0.12345678901234567e-300,") > LIMIT:
            raise TooLarge(f"statistics of {dimensions:,} dimensions are too many for JSON")
        totals: dict[str, Statistics] = {}
        for begin, end in pairwise(self._pieces):
            rows, first = self._numbers(begin, end), 0
            for feature in self.features:
                counts, values = rows[:, first], rows[:, first + 1 : first + feature.width]
                first += feature.width
                shaped = values.reshape(len(rows), len(NAMES), -1)
                parts = [Statistics(*one) for one in zip(counts, shaped, strict=True)]
                before = [totals[feature.name]] if feature.name in totals else []
                totals[feature.name] = aggregate([*before, *parts])
        found: dict[str, Any] = {}
        for feature in self.features:
            samples, total = totals[feature.name]
            shape = (-1, 1, 1) if feature.is_camera else (-1,)
            shown = {name: values.reshape(shape).tolist() for name, values in zip(NAMES, total, strict=True)}
            found[feature.name] = shown | {"count": [samples]}
        text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "replace") + b"\n"

    def _columns_of(self, first: int, count: int) -> bytes:
        """Return the columns of some episodes, one after another."""
        import numpy as np

        numbers, at, made = self._numbers(first, first + count), 0, []
        for _, dtype, shape in self._columns:
            values = numbers[:, at : at + prod(shape)]
            at += prod(shape)
            if dtype == "<i8":  # the ends are the float64 next to those of int64, which a float64 cannot have
                values = values.clip(-(1 << 63), (1 << 63) - 1024)
            made.append(np.ascontiguousarray(values, dtype).tobytes())
        return b"".join(made)

    def _numbers(self, first: int, end: int) -> Floats:
        """Return the numbers of episodes, [episodes, numbers]: those of each feature one after another."""
        import numpy as np

        dataset, pieces = self._dataset, self._pieces
        lowest, highest = bisect_right(pieces, first) - 1, bisect_left(pieces, end)
        found, defaults = [], []
        with self._cache.waiting():
            for begin, stop in pairwise(pieces[lowest : highest + 1]):
                size = (stop - begin) * self._numbers_inside * ITEM
                made = partial(self._piece, begin, stop)
                piece = Rendered(self._cache, (*self._key, "piece", begin), made, size, cost=2 * size)
                found.append(np.frombuffer(piece.whole(), "<f8").reshape(stop - begin, -1))
        for episode in range(first, end):
            start, length = dataset.starts[episode], dataset.length(episode)
            of_episode = of_defaults(start, length, dataset.fps, episode, dataset.task_of[episode])
            defaults.append(_as_numbers(of_episode.values()))
        inside = np.concatenate(found)[first - pieces[lowest] :][: end - first]
        return np.hstack([inside, defaults])

    @once
    def _pieces(self) -> array[int]:
        """The first episode of each piece, and the end."""
        # Where a piece ends depends on its container alone, so it is found again if others come or go.
        dataset, pieces = self._dataset, array("I")
        for episode in range(dataset.episodes):
            is_next = pieces and dataset.place(episode).container == dataset.place(pieces[-1]).container
            if not is_next or episode - pieces[-1] == self._blocks.rows_a_block:
                pieces.append(episode)
        pieces.append(dataset.episodes)
        return pieces

    def _piece(self, first: int, end: int) -> bytes:
        """Return the numbers of the features that are in the container, episode by episode."""
        table, dataset = self._table, self._dataset
        container = dataset.place(first).container
        places = [(dataset.place(episode).number, dataset.length(episode)) for episode in range(first, end)]
        # All that the numbers depend on beside the bytes of the container, which the catalogue knows.
        described = repr((LAYOUT, dataset.plan, places)).encode("utf-8", "surrogatepass")
        name = b"lerobot statistics " + xxhash.xxh128_digest(described)
        kept = table.found(container, name)
        if kept is not None and len(kept) == (end - first) * self._numbers_inside * ITEM:
            return kept
        made = []
        with table.recordings(container, is_kept=False) as recording_of:
            for number, length in places:
                work.check()
                recording = recording_of(number)
                steps = Steps(recording, length, container)
                made.append(_as_numbers(_of_episode(steps, recording, dataset, length, self._cache)).tobytes())
        numbers = b"".join(made)
        table.keep(container, name, numbers)
        return numbers


def _as_numbers(found: Iterable[Statistics]) -> Floats:
    """Return statistics of an episode as numbers."""
    import numpy as np

    return np.concatenate([part for one in found for part in ([one.samples], one.values.ravel())])


def _of_episode(
    steps: Steps, recording: Recording, dataset: EpisodeSet, length: int, cache: BlockCache,
) -> Iterator[Statistics]:
    for column in dataset.plan.columns:
        yield of_numbers(_chunks(steps, column, length), length)
    videos = dict(recording.cameras()) if dataset.plan.films else {}
    by_name = {decoded(b"/".join(name)): content for name, content in videos.items()}
    for film in dataset.plan.films:
        yield _of_film(by_name.get(film.camera.name), film, length, cache)


def _chunks(steps: Steps, column: plan.NumberFeature, length: int) -> Iterator[NDArray[Any]]:
    import numpy as np

    rows = max(1, 4 * PIECE // column.width)
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
        # One frame that is damaged must not cost the statistics of a dataset, which training needs.
        with suppress(*LASTING), planes.rgb(video.frame(shown), *size, cache) as picture:
            pictures.add(picture)
    if not pictures.count:
        pictures.add_gray(*size)
    return pictures.statistics()
