"""``stats.json`` of a dataset: the only file of a dataset that takes a pass over the data. Any thread.

Statistics of a container's episodes are found together, and kept in the catalogue where the table has one: a dataset to
which containers are added reads only these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import xxhash

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Data, Recording, Table
from glassfs.content.features import decoded
from glassfs.content.video import video_of
from glassfs.errors import LASTING
from glassfs.view import mp4, planes
from glassfs.view.known import Known
from glassfs.view.lerobot.dataset import Dataset
from glassfs.view.lerobot.frames import Steps
from glassfs.view.lerobot.plan import Column, Film
from glassfs.view.lerobot.statistics import (
    Pictures,
    Statistics,
    aggregate,
    of_defaults,
    of_numbers,
    sampled,
    stats_json,
    unpacked,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYOUT = 2
"""Raise this when the same episodes give other statistics than before."""
CHUNK_BYTES = 4 << 20

_Found = dict[str, Statistics]


class StatsFile(Data):
    """The file. Its size is found by a pass when it is first needed."""

    def __init__(self, table: Table, dataset: Dataset, cache: BlockCache) -> None:
        self._known = Known(cache, lambda: _stats(table, dataset, cache), len)
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


def _stats(table: Table, dataset: Dataset, cache: BlockCache) -> bytes:
    totals: _Found = {}
    for first, end in _runs(dataset):
        for name, found in _of_container(table, dataset, first, end, cache).items():
            _add(totals, name, found)
        for episode in range(first, end):
            length, start = dataset.length(episode), dataset.starts[episode]
            of_episode = of_defaults(start, length, dataset.fps, episode, dataset.task_of[episode])
            for name, found in of_episode.items():
                _add(totals, name, found)
    cameras = {film.name for film in dataset.plan.films}
    return stats_json({name: (found, name in cameras) for name, found in totals.items()})


def _add(totals: _Found, name: str, found: Statistics) -> None:
    totals[name] = aggregate([totals[name], found]) if name in totals else found


def _runs(dataset: Dataset) -> Iterator[tuple[int, int]]:
    """Yield the first episode and the end of those that stand in one container, one after another."""
    first = 0
    for episode in range(1, dataset.episodes + 1):
        if episode == dataset.episodes or dataset.place(episode).container != dataset.place(first).container:
            yield first, episode
            first = episode


def _of_container(table: Table, dataset: Dataset, first: int, end: int, cache: BlockCache) -> _Found:
    """Return the statistics of the features that are in the container, over some of its episodes together."""
    container = dataset.place(first).container
    places = [(dataset.place(episode).number, dataset.length(episode)) for episode in range(first, end)]
    described = repr((LAYOUT, dataset.plan, places)).encode("utf-8", "surrogatepass")
    name = b"lerobot statistics " + xxhash.xxh128_digest(described)
    found = _unpacked(table.found(container, name))
    if found is None:
        found = {}
        with table.recordings(container, is_kept=False) as recording_of:
            for number, length in places:
                work.check()
                steps = Steps(recording_of(number), length, container)
                for one, statistics in _of_episode(steps, recording_of(number), dataset, length, cache):
                    _add(found, one, statistics)
        table.keep(container, name, _packed(found))
    return found


def _of_episode(
    steps: Steps, recording: Recording, dataset: Dataset, length: int, cache: BlockCache,
) -> Iterator[tuple[str, Statistics]]:
    for column in dataset.plan.columns:
        yield column.name, of_numbers(partial(_chunks, steps, column, length))
    videos = dict(recording.cameras()) if dataset.plan.films else {}
    by_name = {decoded(b"/".join(name)): content for name, content in videos.items()}
    for film in dataset.plan.films:
        yield film.name, _of_film(by_name.get(film.camera.name), film, length, cache)


def _chunks(steps: Steps, column: Column, length: int) -> Iterator[NDArray[Any]]:
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


def _packed(found: _Found) -> bytes:
    return json.dumps({name: one.packed.hex() for name, one in found.items()}).encode()


def _unpacked(packed: bytes | None) -> _Found | None:
    """Return what was kept, None if nothing was or it is not what is expected."""
    try:
        kept = None if packed is None else json.loads(packed)
        return kept and {name: unpacked(bytes.fromhex(one)) for name, one in kept.items()}
    except (ValueError, AttributeError):
        return None
