"""As in PyTorch: a loader whose workers are processes that get the dataset pickled, once each."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import numpy as np


class Dataset:
    """Items by their numbers."""


class DataLoader:
    """Batches of items."""

    def __init__(
        self, dataset: Any, batch_size: int, shuffle: bool, num_workers: int, multiprocessing_context: str | None,
    ) -> None:
        self._dataset = dataset
        self._numbers = list(range(len(dataset)))
        if shuffle:
            random.Random(1).shuffle(self._numbers)
        self._batches = [self._numbers[start : start + batch_size] for start in range(0, len(dataset), batch_size)]
        self._workers = num_workers
        self._context = multiprocessing.get_context(multiprocessing_context)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        if not self._workers:
            _begin(self._dataset)
            yield from map(_batch, self._batches)
            return
        with self._context.Pool(self._workers, _begin, (self._dataset,)) as pool:
            yield from pool.imap(_batch, self._batches)


_dataset: Any = None


def _begin(dataset: Any) -> None:
    global _dataset
    _dataset = dataset


def _batch(numbers: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(map(np.stack, zip(*(_dataset[number] for number in numbers), strict=True)))
