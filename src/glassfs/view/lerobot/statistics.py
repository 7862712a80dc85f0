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

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from glassfs import work
from glassfs.sizes import PIECE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image as Pillow

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
NAMES = ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99")
LEAST, LARGEST, MEAN, DEVIATION = range(4)
QUANTILE_ROWS = slice(4, None)
BINS = 5000
PADDING = 1e-10
"""What a histogram is wider than the range of its values, on each side."""
MOST_BYTES = 64 << 20
"""Limit of the values of an episode that are sorted."""
GRAY = 128


class Statistics(NamedTuple):
    """Statistics of one feature: ``values`` float64 [9, dimensions] in the order of ``NAMES``."""

    samples: int
    values: Floats


def of_numbers(chunks: Iterable[NDArray[Any]], rows: int) -> Statistics:
    """Return the statistics of a feature of numbers in one episode. Raises ValueError if there are no rows.

    ``chunks`` yields arrays [n, dimensions] of bool, integers or floats, ``rows`` rows in all. Takes memory for one
    chunk, its values in float64, and twice ``MOST_BYTES``. The quantiles of more bytes are those of every second row,
    third row … Values that are not finite do not count; a dimension that has no others has zeros, as JSON has no NaN.
    """
    import numpy as np

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
    import numpy as np

    values = np.zeros((len(NAMES), chunk.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        values[LEAST], values[LARGEST] = chunk.min(0), chunk.max(0)
        # Rounding must not take the mean of a constant away from it, and so give it a deviation.
        values[MEAN] = np.clip(chunk.mean(0, np.float64), values[LEAST], values[LARGEST])
        values[DEVIATION] = np.sqrt(np.square(chunk - values[MEAN]).mean(0))
    return Statistics(len(chunk), values)


def _quantiles(values: NDArray[Any], below: Counts) -> Floats:
    """Return the five quantiles of sorted values: NaN if their range is not finite.

    ``below[i]`` is how many values come before value ``i``, and ``below[n]`` how many there are.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        # Floats keep their dtype, in which the padding may be nothing; others become float64. So do LeRobot's.
        start, stop = values[0] - PADDING, values[-1] + PADDING
        step = (stop - start) / BINS
        if not np.isfinite(step):
            return np.full(len(QUANTILES), np.nan)
        edges = np.append(np.arange(BINS).astype(step.dtype) * step + start, stop)
        # A bin has its lower edge, and the last one both.
        before = np.append(below[np.searchsorted(values, edges[:-1])], below[-1])
        wanted = np.array(QUANTILES) * below[-1]
        bins = np.minimum(np.searchsorted(before[1:], wanted), BINS - 1)
        parts = (wanted - before[bins]) / (before[bins + 1] - before[bins])
        found: Floats = np.where(bins == 0, start, edges[bins] + parts * (edges[bins + 1] - edges[bins]))
        return found


def sampled(frames: int) -> list[int]:
    """Return the numbers of the frames that are sampled of an episode (``sample_indices``)."""
    import numpy as np

    count = max(min(100, frames), min(int(frames**0.75), 10_000))
    return [int(number) for number in np.round(np.linspace(0, frames - 1, count))]


def stride(width: int, height: int) -> int:
    """Return the distance of the rows and columns that are sampled of a picture (``auto_downsample_height_width``)."""
    longest = max(width, height)
    return 1 if longest < 300 else longest // 150


class Pictures:
    """Counts the pixels of the frames that are sampled of one camera in one episode."""

    def __init__(self) -> None:
        import numpy as np

        self.count = 0
        self._levels: Counts = np.zeros((3, 256), np.int64)

    def add(self, picture: Pillow.Image) -> None:
        """Count the pixels of a picture in the mode RGB."""
        import numpy as np
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
        import numpy as np

        levels = [np.flatnonzero(counts) for counts in self._levels]
        found = [
            _of_sorted(some.astype(np.uint8), counts[some]) for some, counts in zip(levels, self._levels, strict=True)
        ]
        return Statistics(self.count, np.stack(found, 1) / 255)


def _of_sorted(values: NDArray[Any], times: Counts) -> Floats:
    """Return the nine statistics of finite values, each of which occurs so many times; zeros if there are none."""
    import numpy as np

    if not len(values):
        return np.zeros(len(NAMES))
    below = np.append(0, np.cumsum(times))
    total = int(below[-1])
    wide = values.astype(np.float64)
    mean = np.clip(times @ wide / total, wide[0], wide[-1])
    deviation = np.sqrt(times @ np.square(wide - mean) / total)
    # LeRobot repeats the value, for which a histogram has no width.
    if total == 1:
        return np.array([mean, mean, mean, deviation, *[mean] * len(QUANTILES)])
    return np.array([wide[0], wide[-1], mean, deviation, *_quantiles(values, below)])


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


def of_defaults(first: int, frames: int, fps: float, episode: int, task: int) -> dict[str, Statistics]:
    """Return the statistics of the five features that every dataset has, for one episode.

    ``first`` is the number of its first frame in the dataset. All follows from these numbers, without a pass.
    """
    import numpy as np

    indices, timestamps = _of_steps(frames, fps)
    zeros = Statistics(frames, np.zeros_like(indices.values))
    return {
        "timestamp": timestamps,
        "frame_index": indices,
        "episode_index": _moved(zeros, episode),
        "index": _moved(indices, first),
        "task_index": _moved(zeros, task),
    }


@lru_cache(1024)
def _of_steps(frames: int, fps: float) -> tuple[Statistics, Statistics]:
    """Return the statistics of ``frame_index`` and ``timestamp``: episodes often have the same length."""
    import numpy as np

    def indices() -> Iterator[NDArray[Any]]:
        for first in range(0, frames, PIECE // 8):
            yield np.arange(first, min(first + PIECE // 8, frames)).reshape(-1, 1)

    return of_numbers(indices(), frames), of_numbers(((some / fps).astype(np.float32) for some in indices()), frames)


def _moved(found: Statistics, distance: int) -> Statistics:
    """Return the statistics of values that are greater by a distance."""
    values = found.values + distance
    values[DEVIATION] = found.values[DEVIATION]
    return Statistics(found.samples, values)
