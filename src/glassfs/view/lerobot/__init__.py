"""Episodes as datasets of LeRobot, format 3.0, as ``LeRobotDataset`` reads them: ``lerobot/NAME/``.

Episodes of one embodiment with the same signals, cameras and rate are one dataset, in the view ``lerobot-splits`` those
of each split. ``data/`` has Parquet files of up to 100 MB, ``videos/`` MP4 files of up to 17 minutes for each camera,
as LeRobot keeps open what it has read. Sizes follow from the table of episodes, without opening a container, but for
``stats.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from glassfs.cache import BlockCache
from glassfs.content import Data, Group, Member, Memory, Omitted, Part, Rendered, Table
from glassfs.content.episodes import EPISODES_KEY
from glassfs.errors import Changed
from glassfs.names import raw
from glassfs.sizes import PIECE
from glassfs.view.contract import Key, Shown, View
from glassfs.view.known import Known
from glassfs.view.lerobot import meta
from glassfs.view.lerobot.dataset import CHUNKS_SIZE, Datasets, datasets_of
from glassfs.view.lerobot.files import VideoFile, data_file
from glassfs.view.lerobot.statistics import EpisodeStatistics

NAME = b"lerobot"


def show(table: Table, cache: BlockCache, key: Key, is_by_split: bool = False) -> Iterator[Shown]:
    if table.key == EPISODES_KEY and table.has_recordings:
        find = partial(datasets_of, table, cache.budget, is_by_split)
        known = Known(cache, find, lambda datasets: sum(one.cost for one in datasets.by_name.values()))
        group = Group(NAME, lambda: _directories(table, known, cache, key))
        yield Shown(group, name=NAME)


def _directories(table: Table, known: Known[Datasets], cache: BlockCache, key: Key) -> Iterator[Member]:
    """Yield the directories of all datasets."""
    datasets = known.get()
    for name in datasets.by_name:
        members = partial(_members, table, known, name, cache, (*key, name))
        yield Member((raw(name),), Group(raw(name), members))
    for reason, count in datasets.omitted.items():
        yield Member((b"",), Omitted(b"", f"{count} episodes: {reason}"))


def _members(table: Table, known: Known[Datasets], name: str, cache: BlockCache, key: Key) -> Iterator[Member]:
    """Yield the directories of a dataset, and the files that every one has."""
    # What is known of all datasets may have been dropped since the listing, and found again with other episodes.
    dataset = known.get().by_name.get(name)
    if dataset is None:
        raise Changed("has other episodes than when it was listed", part=name)
    yield _member(b"meta/info.json", Memory(meta.info(dataset)))
    yield _member(b"meta/tasks.parquet", meta.tasks(dataset, cache, (*key, "tasks")))
    statistics = EpisodeStatistics(table, dataset, cache, (*key, "statistics"))
    episodes = meta.episodes(dataset, statistics, cache, (*key, "episodes"))
    yield _member(b"meta/episodes/chunk-000/file-000.parquet", episodes)
    # The size of this file alone is found by a pass over the data.
    yield _member(b"meta/stats.json", Rendered(cache, (*key, "stats"), statistics.as_json, cost=8 * PIECE))
    steps = partial(data_file, table, dataset, cache, (*key, "data"))
    yield from _chunks((b"data",), len(dataset.files), b".parquet", steps)
    for film in dataset.plan.films:
        video = partial(VideoFile, table, dataset, film, cache, (*key, film.name))
        yield from _chunks((b"videos", film.name.encode()), len(dataset.videos), b".mp4", video)
    for reason in dataset.omitted:
        yield Member((b"",), Omitted(b"", reason))


def _chunks(above: tuple[bytes, ...], count: int, suffix: bytes, file: Callable[[int], Data]) -> Iterator[Member]:
    """Yield the directories of ``count`` files."""
    for chunk in range(-(-count // CHUNKS_SIZE)):
        name = b"chunk-%03d" % chunk
        numbers = range(chunk * CHUNKS_SIZE, min(count, (chunk + 1) * CHUNKS_SIZE))
        yield Member((*above, name), Group(name, partial(_files, numbers, suffix, file)))


def _files(numbers: range, suffix: bytes, file: Callable[[int], Data]) -> Iterator[Member]:
    for number in numbers:
        yield _member(b"file-%03d%s" % (number % CHUNKS_SIZE, suffix), file(number))


def _member(path: bytes, data: Data) -> Member:
    return Member(tuple(path.split(b"/")), Part(path.rpartition(b"/")[2], data))


SPLITS = View(
    "lerobot-splits", "the same, a dataset for each split such as train and valid", (Table,),
    partial(show, is_by_split=True),
)
VIEW = View("lerobot", "episodes as datasets of LeRobot: Parquet, MP4 and their index", (Table,), show, (SPLITS,))
