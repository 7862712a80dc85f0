"""Episodes as datasets of LeRobot, format 3.0, as ``LeRobotDataset`` reads them: ``lerobot/NAME/``.

Episodes of one embodiment with the same signals, cameras and rate are one dataset, in the view ``lerobot-splits`` those
of each split. What LeRobot calls these is in ``plan``. ``data/`` has Parquet files of up to 100 MB. ``videos/`` has MP4
files of up to 17 minutes for each camera, as LeRobot keeps open what it has read. Sizes follow from the rows of the
table of episodes, without opening a container, but for ``stats.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Content, Data, Group, Member, Memory, Omitted, Part, Rendered, Table
from glassfs.content.episodes import EPISODES_KEY
from glassfs.errors import Changed
from glassfs.names import raw
from glassfs.sizes import PIECE
from glassfs.view.contract import Key, Shown, View
from glassfs.view.known import Known
from glassfs.view.lerobot import meta
from glassfs.view.lerobot.dataset import CHUNKS_SIZE, Datasets, EpisodeSet, datasets_of
from glassfs.view.lerobot.frames import data_file
from glassfs.view.lerobot.plan import Film
from glassfs.view.lerobot.stats import EpisodeStatistics
from glassfs.view.lerobot.videos import VideoFile

NAME = b"lerobot"


def show(table: Table, cache: BlockCache, key: Key, is_by_split: bool = False) -> Iterator[Shown]:
    if table.key == EPISODES_KEY and table.has_recordings:
        find = partial(datasets_of, table, cache.budget, is_by_split)
        known = Known(cache, find, lambda datasets: datasets.cost)
        group = Group(NAME, lambda: _directories(table, known, cache, key))
        yield Shown(group, name=NAME)


def _directories(table: Table, known: Known[Datasets], cache: BlockCache, key: Key) -> Iterator[Member]:
    """Yield the directories of all datasets."""
    datasets = known.get()
    for name in datasets.by_name:
        shown = _Shown(table, known, name, cache, (*key, name))
        yield Member((raw(name),), Group(raw(name), shown.members))
    for reason, count in datasets.omitted.items():
        yield Member((b"",), Omitted(b"", f"{count} episodes: {reason}"))


class _Shown(NamedTuple):
    """One dataset as a directory."""

    table: Table
    known: Known[Datasets]
    name: str
    cache: BlockCache
    key: Key

    @property
    def dataset(self) -> EpisodeSet:
        # What is known of all datasets may have been dropped since the listing, and found again with other episodes.
        dataset = self.known.get().by_name.get(self.name)
        if dataset is None:
            raise Changed("has other episodes than when it was listed", part=self.name)
        return dataset

    def members(self) -> Iterator[Member]:
        """Yield the directories of a dataset, and the files that every one has."""
        yield _member(b"meta/info.json", Memory(meta.info(self.dataset)))
        yield _member(b"meta/tasks.parquet", meta.tasks(self.dataset, self.cache, (*self.key, "tasks")))
        statistics = EpisodeStatistics(self.table, self.dataset, self.cache, (*self.key, "statistics"))
        episodes = meta.episodes(self.dataset, statistics, self.cache, (*self.key, "episodes"))
        yield _member(b"meta/episodes/chunk-000/file-000.parquet", episodes)
        # The size of this file alone is found by a pass over the data.
        totals = Rendered(self.cache, (*self.key, "stats"), statistics.as_json, cost=8 * PIECE)
        yield _member(b"meta/stats.json", totals)
        yield from self._chunks((b"data",), len(self.dataset.files), b".parquet", self._data)
        for film in self.dataset.plan.films:
            names = b"videos", film.name.encode()
            yield from self._chunks(names, len(self.dataset.videos), b".mp4", partial(self._video, film))
        for reason in self.dataset.omitted:
            yield Member((b"",), Omitted(b"", reason))

    def _chunks(
        self, above: tuple[bytes, ...], count: int, suffix: bytes, file: Callable[[int], Data],
    ) -> Iterator[Member]:
        """Yield the directories of ``count`` files."""
        for chunk in range(-(-count // CHUNKS_SIZE)):
            name = b"chunk-%03d" % chunk
            numbers = range(chunk * CHUNKS_SIZE, min(count, (chunk + 1) * CHUNKS_SIZE))
            yield Member((*above, name), Group(name, partial(_files, numbers, suffix, file)))

    def _data(self, number: int) -> Data:
        return data_file(self.table, self.dataset, number, self.cache, (*self.key, "data", number))

    def _video(self, film: Film, number: int) -> Data:
        return VideoFile(self.table, self.dataset, number, film, self.cache, (*self.key, film.name))


def _files(numbers: range, suffix: bytes, file: Callable[[int], Data]) -> Iterator[Member]:
    for number in numbers:
        yield _member(b"file-%03d%s" % (number % CHUNKS_SIZE, suffix), file(number))


def _member(path: bytes, data: Data) -> Member:
    content: Content = Part(path.rpartition(b"/")[2], data)
    return Member(tuple(path.split(b"/")), content)


SPLITS = View(
    "lerobot-splits", "the same, a dataset for each split such as train and valid", (Table,),
    partial(show, is_by_split=True),
)
VIEW = View("lerobot", "episodes as datasets of LeRobot: Parquet, MP4 and their index", (Table,), show, (SPLITS,))
