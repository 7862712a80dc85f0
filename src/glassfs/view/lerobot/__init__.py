"""Episodes as datasets of LeRobot, format 3.0, as ``LeRobotDataset`` reads them: ``lerobot/NAME/``.

Episodes of one embodiment with the same features and rate are one dataset, in the view ``lerobot-splits`` those
of each split. ``data/`` has Parquet files of up to 100 MB, ``videos/`` MP4 files of up to 17 minutes for each camera,
as LeRobot keeps open what it has read. Sizes follow from the table of episodes, without opening a container, but for
``stats.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from glassfs.cache import BlockCache
from glassfs.codec import h264
from glassfs.content import (
    Array,
    Column,
    Data,
    Group,
    Member,
    Memory,
    Omitted,
    Part,
    RaggedText,
    Records,
    Rendered,
    Table,
)
from glassfs.content.allowance import OBJECT
from glassfs.content.episodes import EPISODES_KEY
from glassfs.errors import Changed
from glassfs.lazy import NDArray, np
from glassfs.names import raw
from glassfs.sizes import PIECE
from glassfs.view.contract import Key, Known, Shown, View
from glassfs.view.json import render
from glassfs.view.lerobot.dataset import (
    CHUNKS_SIZE,
    DEFAULTS,
    FILE_BYTES,
    Datasets,
    EpisodeSet,
    NumberFeature,
    datasets_of,
)
from glassfs.view.lerobot.files import VideoFile, data_file
from glassfs.view.lerobot.statistics import EpisodeStatistics
from glassfs.view.parquet import Parquet

NAME = b"lerobot"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
VIDEO_MEGABYTES = 200
"""What LeRobot's own datasets say of their video files. Readers do not use it; here the duration decides."""
ROWS_A_BLOCK, ROW_COST = 1024, 256


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
        members = partial(_members, table, known, name, cache, (*key, name))
        yield Member((raw(name),), Group(raw(name), members))
    for reason in datasets.omitted:
        yield Member((b"",), Omitted(b"", reason))


def _members(table: Table, known: Known[Datasets], name: str, cache: BlockCache, key: Key) -> Iterator[Member]:
    """Yield the directories of a dataset, and the files that every one has."""
    # What is known of all datasets may have been dropped since the listing, and found again with other episodes.
    dataset = known.get().by_name.get(name)
    if dataset is None:
        raise Changed("has other episodes than when it was listed", part=name)
    yield _member(b"meta/info.json", Memory(info(dataset)))
    yield _member(b"meta/tasks.parquet", tasks(dataset, cache, (*key, "tasks")))
    statistics = EpisodeStatistics(table, dataset, cache, (*key, "statistics"))
    found = episodes(dataset, statistics, cache, (*key, "episodes"))
    yield _member(b"meta/episodes/chunk-000/file-000.parquet", found)
    # The size of this file alone is found by a pass over the data.
    yield _member(b"meta/stats.json", Rendered(cache, (*key, "stats"), statistics.as_json, cost=8 * PIECE))
    steps = partial(data_file, table, dataset, cache, (*key, "data"))
    yield from _chunks((b"data",), len(dataset.files), b".parquet", steps)
    for number, film in enumerate(dataset.plan.films):
        video = partial(VideoFile, table, dataset, number, cache, (*key, film.name))
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


def info(dataset: EpisodeSet) -> bytes:
    """Return ``info.json``."""
    fps = int(dataset.fps) if dataset.fps.is_integer() else dataset.fps
    return bytes(render({
        "codebase_version": "v3.0",
        "robot_type": dataset.embodiment,
        "total_episodes": dataset.episodes,
        "total_frames": dataset.frames,
        "total_tasks": len(dataset.tasks),
        "chunks_size": CHUNKS_SIZE,
        "data_files_size_in_mb": FILE_BYTES >> 20,
        "video_files_size_in_mb": VIDEO_MEGABYTES,
        "fps": fps,
        "splits": dataset.splits,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": VIDEO_PATH if dataset.plan.films else None,
        "features": _features(dataset, fps),
    }))


def _features(dataset: EpisodeSet, fps: float) -> dict[str, Any]:
    def numbers(columns: Iterable[NumberFeature]) -> dict[str, Any]:
        return {
            one.name: {"dtype": np.dtype(one.dtype).name, "shape": [one.length], "names": None} for one in columns
        }

    features = numbers(dataset.plan.columns)
    for name, camera in dataset.plan.films:
        width, height = h264.shown(camera.width), h264.shown(camera.height)
        features[name] = {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.fps": fps,
                "video.height": height,
                "video.width": width,
                "video.channels": 3,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "has_audio": False,
            },
        }
    return features | numbers(DEFAULTS)


def tasks(dataset: EpisodeSet, cache: BlockCache, key: Key) -> Data:
    """Return ``tasks.parquet``, for pandas a table whose index is the text of the task."""
    texts = [task.encode("utf-8", "replace") for task in dataset.tasks]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.uint64)
    count = len(texts)
    columns = [
        _numbers("task_index", np.arange(count)),
        Column(b"task", RaggedText(b"", Memory(b"".join(texts)), Memory(offsets.tobytes()), "<u8", count)),
    ]
    # LeRobot looks tasks up by the index of the data frame, so pandas must make the text its index.
    types = ("task_index", "int64", "int64"), ("task", "unicode", "object")
    described = [
        {"name": name, "field_name": name, "pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": None}
        for name, pandas_type, numpy_type in types
    ]
    pandas = json.dumps({
        "index_columns": ["task"], "column_indexes": [], "columns": described, "creator": {"library": "glassfs"},
    })
    return Parquet(Table(b"tasks", count, lambda: columns), cache, key, ((b"pandas", pandas.encode()),))


def episodes(dataset: EpisodeSet, statistics: EpisodeStatistics, cache: BlockCache, key: Key) -> Data:
    """Return the table of the episodes. Reading statistics in it takes a pass over the data."""
    columns = partial(_episode_columns, dataset, statistics)
    return Parquet(Table(b"episodes", dataset.episodes, columns, shared_width=statistics.width), cache, key)


def _episode_columns(dataset: EpisodeSet, statistics: EpisodeStatistics) -> Sequence[Column]:
    count = dataset.episodes
    numbers = np.arange(count)
    files, videos = [np.frombuffer(one.of, np.uint32) for one in (dataset.files, dataset.videos)]
    starts = np.frombuffer(dataset.starts, np.uint64).astype(np.int64)
    lengths = starts[1:] - starts[:-1]
    columns = [
        _numbers("episode_index", numbers),
        Column(b"tasks", _tasks(dataset), is_list=True),
        _numbers("length", lengths),
        _numbers("data/chunk_index", files // CHUNKS_SIZE),
        _numbers("data/file_index", files % CHUNKS_SIZE),
        _numbers("dataset_from_index", starts[:-1]),
        _numbers("dataset_to_index", starts[1:]),
    ]
    # Times count from the first frame of the MP4 file, which has several episodes.
    begun = (starts[:-1] - starts[np.searchsorted(videos, videos)]) / dataset.fps
    for film in dataset.plan.films:
        place = f"videos/{film.name}/"
        columns += [
            _numbers(f"{place}chunk_index", videos // CHUNKS_SIZE),
            _numbers(f"{place}file_index", videos % CHUNKS_SIZE),
            _numbers(f"{place}from_timestamp", begun, "<f8"),
            _numbers(f"{place}to_timestamp", begun + lengths / dataset.fps, "<f8"),
        ]
    zeros = np.zeros(count)
    columns += statistics.columns()
    return [*columns, _numbers("meta/episodes/chunk_index", zeros), _numbers("meta/episodes/file_index", zeros)]


def _tasks(dataset: EpisodeSet) -> Records:
    """Return the tasks of each episode, a list of one."""
    texts = list(dataset.tasks)

    def block(number: int) -> list[list[str]]:
        return [[texts[task]] for task in dataset.task_of[number * ROWS_A_BLOCK : (number + 1) * ROWS_A_BLOCK]]

    blocks = -(-dataset.episodes // ROWS_A_BLOCK)
    return Records(b"", blocks, block, cost=lambda number: 2 * OBJECT * ROWS_A_BLOCK)


def _numbers(name: str, values: NDArray[Any], dtype: str = "<i8") -> Column:
    return Column(name.encode(), Array(b"", Memory(values.astype(dtype).tobytes()), dtype, (len(values),)))
