"""Statistics of features, as LeRobot defines them (``compute_stats.py`` of LeRobot 0.4.4 and 0.6.1).

An episode has ``min max mean std q01 q10 q50 q90 q99 count`` of each feature, as columns of the table of episodes; a
dataset the aggregate of its episodes, weighted by their counts, in ``stats.json``. A quantile of a dataset is the mean
of those of its episodes. Of a camera some frames are sampled, and of large ones some pixels.

Means and deviations are computed in float64, deviations from the mean. LeRobot computes both in the dtype of the
feature, deviations as E[x²] - E[x]²: the same but for rounding, which may be all of a small deviation. LeRobot 0.4.4
also squares the bytes of pictures as bytes, so that their deviations are wrong; 0.6.1 does not. A quantile of an
episode is one of its values; LeRobot interpolates in a histogram of 5,000 bins, so its own may differ by such a width.

They are found by a pass over the data, when a range that has some is read, or the size of ``stats.json`` is needed.
``EpisodeStatistics`` is for any thread, ``Pictures`` for one.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Column, Recording, Rendered, Table
from glassfs.content.table import ColumnBlocks
from glassfs.content.video import video_of
from glassfs.errors import LASTING, TooLarge
from glassfs.lazy import NDArray, np
from glassfs.names import text
from glassfs.once import once
from glassfs.sizes import PIECE
from glassfs.view import mp4, planes
from glassfs.view.contract import Key
from glassfs.view.json import LIMIT
from glassfs.view.lerobot.dataset import BOOLEAN, DEFAULTS, EpisodeSet, Film, NumberFeature, Plan
from glassfs.view.lerobot.files import Steps

if TYPE_CHECKING:
    from PIL import Image as Pillow

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
NAMES = ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99")
LEAST, LARGEST, MEAN, DEVIATION = range(4)
QUANTILE_ROWS = slice(4, None)
MOST_BYTES = 64 << 20
"""Limit of the values of an episode that are sorted."""
GRAY = 128
LAYOUT = 5
"""Raise this when the same episodes give other statistics than before."""
ITEM = 8
"""Bytes of a number."""


class Statistics(NamedTuple):
    """Statistics of one feature: ``values`` float64 [9, dimensions] in the order of ``NAMES``."""

    samples: int
    values: Floats


def of_numbers(chunks: Iterable[NDArray[Any]], rows: int) -> Statistics:
    """Return the statistics of a feature of numbers in one episode. Raises ValueError if there are no rows.

    ``chunks`` yields arrays [n, dimensions] of bool, integers or floats, ``rows`` rows in all. Takes memory for one
    chunk, its values in float64, and twice ``MOST_BYTES``, beyond which quantiles are those of every second row, third
    row … Values that are not finite do not count; a dimension without others has zeros, as JSON has no NaN.
    """
    parts, sample, passed = [], [], 0
    for chunk in filter(len, chunks):
        work.check()
        # One pass: the values that are sorted later are taken on the way, at even distances if there are too many.
        step = -(-rows * chunk[0].nbytes // MOST_BYTES)
        sample.append(np.ascontiguousarray(chunk[-passed % step :: step]))
        parts.append(_moments(chunk))
        passed += len(chunk)
    with np.errstate(invalid="ignore"):
        count, values = aggregate(parts)
    ordered = np.ascontiguousarray(np.concatenate(sample).T)
    ordered.sort(1)
    for number, column in enumerate(ordered):
        finite = column[np.isfinite(column)]
        found = _of_sorted(finite, np.ones(len(finite), np.int64))
        # Of finite values, all rows count for what is no quantile, and not only those that are sorted.
        taken = QUANTILE_ROWS if len(finite) == len(column) else slice(None)
        values[taken, number] = found[taken]
    return Statistics(count, values)


def _moments(chunk: NDArray[Any]) -> Statistics:
    """Return the statistics of some rows, with zeros for quantiles."""
    values = np.zeros((len(NAMES), chunk.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        values[LEAST], values[LARGEST] = chunk.min(0), chunk.max(0)
        # Rounding must not take the mean of a constant away from it, and so give it a deviation.
        values[MEAN] = np.clip(chunk.mean(0, np.float64), values[LEAST], values[LARGEST])
        values[DEVIATION] = np.sqrt(np.square(chunk - values[MEAN]).mean(0))
    return Statistics(len(chunk), values)


def sampled(frames: int) -> list[int]:
    """Return the numbers of the frames that are sampled of an episode (``sample_indices``)."""
    count = max(min(100, frames), min(int(frames**0.75), 10_000))
    return [int(number) for number in np.round(np.linspace(0, frames - 1, count))]


def stride(width: int, height: int) -> int:
    """Return the distance of the rows and columns that are sampled of a picture (``auto_downsample_height_width``)."""
    longest = max(width, height)
    return 1 if longest < 300 else longest // 150


class Pictures:
    """Counts the pixels of the frames that are sampled of one camera in one episode."""

    def __init__(self) -> None:
        self.count = 0
        self._levels: Counts = np.zeros((3, 256), np.int64)

    def add(self, picture: Pillow.Image) -> None:
        """Count the pixels of a picture in the mode RGB."""
        from PIL import Image as Pillow

        step = stride(*picture.size)
        seen = picture if step == 1 else Pillow.fromarray(np.asarray(picture)[::step, ::step])
        self.count += 1
        self._levels += np.array(seen.histogram()).reshape(self._levels.shape)

    def add_gray(self, width: int, height: int) -> None:
        """Count a gray picture of a size."""
        step = stride(width, height)
        self.count += 1
        self._levels[:, GRAY] += len(range(0, width, step)) * len(range(0, height, step))

    def statistics(self) -> Statistics:
        """Return the statistics of the pixels from 0 to 1, three dimensions. The samples are pictures, one at least."""
        levels = [np.flatnonzero(counts) for counts in self._levels]
        found = [
            _of_sorted(some.astype(np.uint8), counts[some]) for some, counts in zip(levels, self._levels, strict=True)
        ]
        return Statistics(self.count, np.stack(found, 1) / 255)


def _of_sorted(values: NDArray[Any], times: Counts) -> Floats:
    """Return the nine statistics of finite values, each of which occurs so many times; zeros if there are none."""
    if not len(values):
        return np.zeros(len(NAMES))
    upto = np.cumsum(times)
    wide = values.astype(np.float64)
    mean = np.clip(times @ wide / upto[-1], wide[0], wide[-1])
    deviation = np.sqrt(times @ np.square(wide - mean) / upto[-1])
    # The first value that has so large a part of all below it or like it.
    quantiles = wide[np.searchsorted(upto, np.array(QUANTILES) * upto[-1])]
    return np.array([wide[0], wide[-1], mean, deviation, *quantiles])


def aggregate(parts: Sequence[Statistics]) -> Statistics:
    """Return the statistics of several episodes together, or of several datasets. Raises ValueError if there are none.

    Aggregates may be aggregated again.
    """
    if not parts:
        raise ValueError("there are no statistics")
    counts, values = np.array([part.samples for part in parts]), np.stack([part.values for part in parts])
    weights = (counts / counts.sum()).reshape(-1, 1, 1)
    # Distances from the first episode: rounding must not give a deviation to what is constant.
    apart = values - values[0]
    shift = (apart * weights).sum(0)
    together = values[0] + shift
    variances = values[:, DEVIATION] ** 2 + (apart[:, MEAN] - shift[MEAN]) ** 2
    together[DEVIATION] = np.sqrt((variances * weights[:, 0]).sum(0))
    together[LEAST], together[LARGEST] = values[:, LEAST].min(0), values[:, LARGEST].max(0)
    return Statistics(int(counts.sum()), together)


def of_defaults(first: int, frames: int, fps: float, episode: int, task: int) -> Sequence[Statistics]:
    """Return the statistics of the features that every dataset has (``DEFAULTS``), for one episode.

    ``first`` is the number of its first frame in the dataset. All follows from these numbers, without a pass.
    """
    indices, timestamps = _of_steps(frames, fps)
    zeros = Statistics(frames, np.zeros_like(indices.values))
    return timestamps, indices, _moved(zeros, episode), _moved(indices, first), _moved(zeros, task)


@lru_cache(1024)
def _of_steps(frames: int, fps: float) -> tuple[Statistics, Statistics]:
    """Return the statistics of ``frame_index`` and ``timestamp``: episodes often have the same length."""
    def indices() -> Iterator[NDArray[Any]]:
        for first in range(0, frames, PIECE // 8):
            yield np.arange(first, min(first + PIECE // 8, frames)).reshape(-1, 1)

    return of_numbers(indices(), frames), of_numbers(((some / fps).astype(np.float32) for some in indices()), frames)


def _moved(found: Statistics, distance: int) -> Statistics:
    """Return the statistics of values that are greater by a distance."""
    values = found.values + distance
    values[DEVIATION] = found.values[DEVIATION]
    return Statistics(found.samples, values)


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


def _of_column(column: NumberFeature) -> StatisticsFeature:
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
        self.features = (*inside, *map(_of_column, DEFAULTS))
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
        dataset, pieces = self._dataset, self._pieces
        lowest, highest = bisect_right(pieces, first) - 1, bisect_left(pieces, end)
        found, defaults = [], []
        for begin, stop in pairwise(pieces[lowest : highest + 1]):
            size = (stop - begin) * self._numbers_inside * ITEM
            made = partial(self._piece, begin, stop)
            piece = Rendered(self._cache, (*self._key, "piece", begin), made, size, cost=2 * size)
            found.append(np.frombuffer(piece.whole(), "<f8").reshape(stop - begin, -1))
        for episode in range(first, end):
            start, length = dataset.starts[episode], dataset.length(episode)
            of_episode = of_defaults(start, length, dataset.fps, episode, dataset.task_of[episode])
            defaults.append(_as_numbers(of_episode))
        inside = np.concatenate(found)[first - pieces[lowest] :][: end - first]
        return np.hstack([inside, defaults])

    @once
    def _pieces(self) -> array[int]:
        """The first episode of each piece, whose episodes have one plan, and the end."""
        # Where a piece ends depends on its container alone, so it is found again if others come or go.
        dataset, pieces = self._dataset, array("I")
        last: object = None
        for episode in range(dataset.episodes):
            own = dataset.place(episode)[0], dataset.plan_of[episode]
            if own != last or episode - pieces[-1] == self._blocks.rows_a_block:
                pieces.append(episode)
            last = own
        pieces.append(dataset.episodes)
        return pieces

    def _piece(self, first: int, end: int) -> bytes:
        """Return the numbers of the features that are in the container, episode by episode."""
        table, dataset, plan = self._table, self._dataset, self._dataset.plan_of[first]
        container, made = dataset.place(first)[0], list[bytes]()
        with ExitStack() as stack:
            recording_of: Callable[[int], Recording] | None = None
            for episode in range(first, end):
                work.check()
                number, length = dataset.place(episode)[1], dataset.length(episode)
                # All that the numbers depend on beside the bytes of the container, which the catalogue knows. They are
                # kept for each episode, so that what is known of all serves each selection.
                described = repr((LAYOUT, plan, number, length)).encode("utf-8", "surrogatepass")
                name = b"lerobot statistics " + xxhash.xxh128_digest(described)
                kept = table.found(container, name)
                if kept is None or len(kept) != self._numbers_inside * ITEM:
                    recording_of = recording_of or stack.enter_context(table.recordings(container, is_kept=False))
                    recording = recording_of(number)
                    steps = Steps(recording, length, container)
                    kept = _as_numbers(_of_episode(steps, recording, plan, length, self._cache)).tobytes()
                    table.keep(container, name, kept)
                made.append(kept)
        return b"".join(made)


def _as_numbers(found: Iterable[Statistics]) -> Floats:
    """Return statistics of an episode as numbers."""
    return np.concatenate([part for one in found for part in ([one.samples], one.values.ravel())])


def _of_episode(
    steps: Steps, recording: Recording, own: Plan, length: int, cache: BlockCache,
) -> Iterator[Statistics]:
    for column in own.columns:
        yield of_numbers(_chunks(steps, column, length), length)
    videos = recording.cameras() if own.films else ()
    by_name = {text(b"/".join(name)): content for name, content in videos}
    for film in own.films:
        yield _of_film(by_name.get(film.camera.name), film, length, cache)


def _chunks(steps: Steps, column: NumberFeature, length: int) -> Iterator[NDArray[Any]]:
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
