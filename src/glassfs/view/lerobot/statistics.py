"""Statistics of features, as LeRobot defines them (``compute_stats.py`` of LeRobot 0.4.4 and 0.6.1).

An episode has ``min max mean std q01 q10 q50 q90 q99 count`` of each feature, and a dataset the aggregate of its
episodes, weighted by their counts. A quantile is interpolated within a histogram of 5,000 bins from the least to the
largest value of an episode; that of a dataset is the mean of those of its episodes. Of a camera some frames are
sampled, and of large ones some pixels.

Means and deviations are computed in float64, deviations from the mean. LeRobot computes both in the dtype of the
feature, deviations as E[x²] - E[x]²: the same but for rounding, which may be all of a small deviation. LeRobot 0.4.4
also squares the bytes of pictures as bytes, so that their deviations are wrong; 0.6.1 does not.

Pure functions, and classes for one thread each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from glassfs import work
from glassfs.errors import TooLarge
from glassfs.view.json import LIMIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image as Pillow

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
NAMES = ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99")
LEAST, LARGEST, MEAN, DEVIATION = range(4)
MOMENTS, QUANTILE_ROWS = slice(4), slice(4, None)
BINS = 5000
PADDING = 1e-10
"""What a histogram is wider than the range of its values, on each side."""
MOST_ROWS, MOST_BYTES = 1 << 23, 64 << 20
"""Limits of the values that are sorted at a time, in one column and in all."""
STEPS = 1 << 16
"""Numbers of frames in memory at a time."""
FEWEST_SAMPLES, MOST_SAMPLES, SAMPLING_POWER = 100, 10_000, 0.75
LARGE_SIDE, REDUCED_SIDE = 300, 150
CHANNELS, LEVELS, GRAY, WHITE = 3, 256, 128, 255.0


class Statistics(NamedTuple):
    """Statistics of one feature: ``values`` float64 [9, dimensions] in the order of ``NAMES``."""

    samples: int
    values: Floats


def of_numbers(chunks: Callable[[], Iterable[NDArray[Any]]]) -> Statistics:
    """Return the statistics of a feature of numbers in one episode. Raises ValueError if there are no rows.

    ``chunks`` returns an iterable over the rows: arrays [rows, dimensions] of bool, integers or floats. It is called
    again for each further pass if there are several chunks. Takes memory for one chunk, its values in float64, and
    twice ``MOST_BYTES``. The quantiles of more than ``MOST_ROWS`` rows are those of every second row, third row …
    Values that are not finite do not count; a dimension that has no others has zeros, as JSON has no NaN.
    """
    import numpy as np

    given = list(islice(filter(len, chunks()), 2))
    if not given:
        raise ValueError("there are no values")
    again = (lambda: given[:1]) if len(given) == 1 else (lambda: filter(len, chunks()))
    dimensions = given[0].shape[1]
    least, largest = given[0].min(0), given[0].max(0)
    count, total = 0, np.zeros(dimensions)
    with np.errstate(invalid="ignore", over="ignore"):
        for chunk in again():
            work.check()
            least, largest = np.minimum(least, chunk.min(0)), np.maximum(largest, chunk.max(0))
            count += len(chunk)
            total += chunk.sum(0, np.float64)
        values = np.empty((len(NAMES), dimensions))
        values[LEAST], values[LARGEST] = least, largest
        # Rounding must not take the mean of a constant away from it, and so give it a deviation.
        values[MEAN] = np.clip(total / count, least, largest)
        squares = np.zeros(dimensions)
        for chunk in again():
            work.check()
            squares += np.square(chunk - values[MEAN]).sum(0)
        values[DEVIATION] = np.sqrt(squares / count)
    lacks_some = ~(np.isfinite(least) & np.isfinite(largest))
    if count == 1:
        values[QUANTILE_ROWS] = values[MEAN]
        values[:, lacks_some] = 0
        return Statistics(count, values)
    step = -(-count // MOST_ROWS)
    rows = -(-count // step)
    below = np.arange(rows + 1)
    width = max(1, MOST_BYTES // (rows * least.itemsize))
    for start in range(0, dimensions, width):
        columns = slice(start, start + width)
        ordered = _columns(again(), columns, step, np.empty((len(least[columns]), rows), least.dtype))
        ordered.sort(1)
        values[QUANTILE_ROWS, columns] = _quantiles(ordered, below, least[columns], largest[columns]).T
        for column in np.flatnonzero(lacks_some[columns]):
            some = ordered[column][np.isfinite(ordered[column])]
            values[:, start + column] = _of_sorted(some, np.ones(len(some), np.int64))
    return Statistics(count, values)


def _columns(
    chunks: Iterable[NDArray[Any]], columns: slice, step: int, found: NDArray[Any],
) -> NDArray[Any]:
    """Fill ``found`` [columns, rows] with some columns of every ``step``-th row."""
    passed = at = 0
    for chunk in chunks:
        work.check()
        rows = chunk[-passed % step :: step, columns]
        found[:, at : at + len(rows)] = rows.T
        passed, at = passed + len(chunk), at + len(rows)
    return found


def _quantiles(
    ordered: NDArray[Any], below: Counts, least: NDArray[Any], largest: NDArray[Any],
) -> Floats:
    """Return the quantiles [columns, 5] of columns of sorted values, [columns, n]: NaN where values are not finite.

    ``below[i]`` is how many values come before value ``i``, and ``below[n]`` how many there are. ``least`` and
    ``largest`` are the ends of the histogram. It is never made: only the bins that have a quantile are looked for.
    """
    import numpy as np

    # Floats keep their dtype, in which the padding may be nothing; others become float64. So do those of LeRobot.
    with np.errstate(all="ignore"):
        start, stop = (least - PADDING)[:, None], (largest + PADDING)[:, None]
        step = (stop - start) / BINS
        wanted = np.array(QUANTILES) * below[-1]
        reached = ordered[:, np.searchsorted(below, np.ceil(wanted)) - 1]
        bins, last = np.zeros(reached.shape, np.int64), np.full(reached.shape, BINS - 1)
        while (bins < last).any():
            middle = (bins + last) // 2
            is_above = (middle + 1).astype(step.dtype) * step + start > reached
            bins, last = np.where(is_above, bins, np.minimum(middle + 1, last)), np.where(is_above, middle, last)
        low = bins.astype(step.dtype) * step + start
        high = np.where(bins == BINS - 1, stop, (bins + 1).astype(step.dtype) * step + start)
        before, until = np.empty_like(bins), np.empty_like(bins)
        for number, column in enumerate(ordered):
            before[number] = below[np.searchsorted(column, low[number])]
            until[number] = below[np.searchsorted(column, high[number])]
        # A bin has its lower edge, and the last one both.
        until[bins == BINS - 1] = below[-1]
        within = low + (wanted - before) / (until - before) * (high - low)
        found: Floats = np.where(bins == 0, low, within).astype(np.float64)
        found[~np.isfinite(stop - start)[:, 0]] = np.nan
        return found


def sampled(frames: int) -> list[int]:
    """Return the numbers of the frames that are sampled of an episode."""
    import numpy as np

    least = min(FEWEST_SAMPLES, frames)
    count = max(least, min(int(frames**SAMPLING_POWER), MOST_SAMPLES))
    return [int(number) for number in np.round(np.linspace(0, frames - 1, count))]


def stride(width: int, height: int) -> int:
    """Return the distance of the rows and columns that are sampled of a picture."""
    longest = max(width, height)
    return 1 if longest < LARGE_SIDE else longest // REDUCED_SIDE


class Pictures:
    """Counts the pixels of the frames that are sampled of one camera in one episode."""

    def __init__(self) -> None:
        import numpy as np

        self.count = 0
        self._levels: Counts = np.zeros((CHANNELS, LEVELS), np.int64)

    def add(self, picture: Pillow.Image) -> None:
        """Count the pixels of a picture in the mode RGB."""
        import numpy as np
        from PIL import Image as Pillow

        step = stride(*picture.size)
        seen = picture if step == 1 else Pillow.fromarray(np.asarray(picture)[::step, ::step])
        self.count += 1
        self._levels += np.array(seen.histogram()).reshape(CHANNELS, LEVELS)

    def add_gray(self, width: int, height: int) -> None:
        """Count a gray picture of a size."""
        step = stride(width, height)
        self.count += 1
        self._levels[:, GRAY] += len(range(0, width, step)) * len(range(0, height, step))

    def statistics(self) -> Statistics:
        """Return the statistics of the pixels from 0 to 1, three dimensions. The samples are pictures."""
        import numpy as np

        if not self.count:
            raise ValueError("there are no pictures")
        levels = [np.flatnonzero(counts) for counts in self._levels]
        found = [
            _of_sorted(some.astype(np.uint8), counts[some]) for some, counts in zip(levels, self._levels, strict=True)
        ]
        return Statistics(self.count, np.stack(found, 1) / WHITE)


def _of_sorted(values: NDArray[Any], times: Counts) -> Floats:
    """Return the nine statistics of finite values, each of which occurs so many times; zeros if there are none."""
    import numpy as np

    if not len(values):
        return np.zeros(len(NAMES))
    below = np.cumsum([0, *times])
    total = int(below[-1])
    wide = values.astype(np.float64)
    mean = np.clip(times @ wide / total, wide[0], wide[-1])
    deviation = np.sqrt(times @ np.square(wide - mean) / total)
    if total == 1:
        return np.array([mean, mean, mean, deviation, *[mean] * len(QUANTILES)])
    quantiles = _quantiles(values.reshape(1, -1), below, values[:1], values[-1:])[0]
    return np.array([wide[0], wide[-1], mean, deviation, *quantiles])


def aggregate(parts: Sequence[Statistics]) -> Statistics:
    """Return the statistics of several episodes together, or of several datasets. Raises ValueError if there are none.

    Aggregates may be aggregated again.
    """
    import numpy as np

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


def demand_few(dimensions: int) -> None:
    """Raise TooLarge if statistics of so many dimensions are too many for JSON."""
    if dimensions * len(NAMES) * len(" -0.12345678901234567e-300,") > LIMIT:
        raise TooLarge(f"statistics of {dimensions:,} dimensions are too many for JSON")


def stats_json(features: Mapping[str, tuple[Statistics, bool]]) -> bytes:
    """Return ``stats.json``: for each feature its statistics, and whether it is a camera. All numbers are finite."""
    found = {name: _shown(*one) for name, one in features.items()}
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def _shown(statistics: Statistics, is_camera: bool) -> dict[str, Any]:
    shape = (-1, 1, 1) if is_camera else (-1,)
    found: dict[str, Any] = {
        name: values.reshape(shape).tolist() for name, values in zip(NAMES, statistics.values, strict=True)
    }
    return found | {"count": [statistics.samples]}


def of_defaults(first: int, frames: int, fps: float, episode: int, task: int) -> dict[str, Statistics]:
    """Return the statistics of the five features that every dataset has, for one episode.

    ``first`` is the number of its first frame in the dataset. All follows from these numbers, without a pass.
    """
    indices, timestamps = _of_steps(frames, fps)
    moved = indices.values + first
    moved[DEVIATION] = indices.values[DEVIATION]
    return {
        "timestamp": timestamps,
        "frame_index": indices,
        "episode_index": _of_constant(episode, frames),
        "index": Statistics(frames, moved),
        "task_index": _of_constant(task, frames),
    }


@lru_cache(1024)
def _of_steps(frames: int, fps: float) -> tuple[Statistics, Statistics]:
    """Return the statistics of ``frame_index`` and ``timestamp``: episodes often have the same length."""
    import numpy as np

    def indices() -> Iterator[NDArray[Any]]:
        for first in range(0, frames, STEPS):
            yield np.arange(first, min(first + STEPS, frames)).reshape(-1, 1)

    return of_numbers(indices), of_numbers(lambda: ((some / fps).astype(np.float32) for some in indices()))


def _of_constant(value: int, frames: int) -> Statistics:
    import numpy as np

    values = np.full((len(NAMES), 1), float(value))
    values[DEVIATION] = 0
    return Statistics(frames, values)
