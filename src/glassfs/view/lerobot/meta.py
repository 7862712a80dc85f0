"""The small files of a dataset: ``info.json``, the tasks and the episodes (LeRobot's dataset format 3.0)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Data, Memory, RaggedText, Records, Table
from glassfs.content.allowance import OBJECT
from glassfs.lazy import NDArray, np
from glassfs.view.contract import Key
from glassfs.view.json import render
from glassfs.view.lerobot.dataset import CHUNKS_SIZE, FILE_BYTES, EpisodeSet
from glassfs.view.lerobot.plan import DEFAULTS
from glassfs.view.lerobot.statistics import EpisodeStatistics
from glassfs.view.parquet import Parquet

VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
VIDEO_MEGABYTES = 200
"""What LeRobot's own datasets say of their video files. Readers do not use it; here the duration decides."""
ROWS_A_BLOCK, ROW_COST = 1024, 256


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
    features: dict[str, Any] = {}
    for column in dataset.plan.columns:
        features[column.name] = {"dtype": np.dtype(column.dtype).name, "shape": [column.length], "names": None}
    for film in dataset.plan.films:
        features[film.name] = {
            "dtype": "video",
            "shape": [film.height, film.width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.fps": fps,
                "video.height": film.height,
                "video.width": film.width,
                "video.channels": 3,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "has_audio": False,
            },
        }
    for column in DEFAULTS:
        features[column.name] = {"dtype": np.dtype(column.dtype).name, "shape": [1], "names": None}
    return features


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
