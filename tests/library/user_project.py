"""What a user of the library may write, for type checkers; it is not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import glassfs
from glassfs.errors import Damaged, NoSuchEntry


def load(path: Path | str, *more: str) -> list[NDArray[Any]]:
    found: list[NDArray[Any]] = []
    with glassfs.open(path, *more, cache_size=1 << 20, spool="/tmp", views="mp4+parquet") as data:
        state = data["run1.kdb/episodes/0/state"]
        found.append(state.numpy())
        found.append(state.numpy(copy=True))
        found.append(np.asarray(state))
        picture: Image.Image = state.image()
        shape: tuple[int, ...] = state.shape
        entry: glassfs.Entry = data["run1.kdb"]
        part: NDArray[Any] = state[2:9]
        found += [part, state[...], state[[1, 5]], state[part > 0]]
        value_at: float = state[3, 1]
        count: int = state.size + state.nbytes + state.ndim + state.file_size + len(state)
        rows_of: list[NDArray[Any]] = list(state)
        dtype: np.dtype[Any] = state.dtype
        for episode in data.glob("*/episodes/*"):
            names: list[str] = list(episode)
            entries: dict[str, glassfs.Entry] = dict(episode.items())
            print(episode.path, names, entries, len(episode), "state" in episode)
        raw: bytes = state.bytes()
        text: str = state.text()
        value: Any = state.json()
        with state.open() as file:
            head: bytes = file.read(8)
        table: glassfs.Table = data.episodes()
        rows: list[dict[str, Any]] = list(table)
        frame = table.to_pandas()
        other: glassfs.Entry | None = data.get("nothing")
        number: glassfs.Entry | int = data.get("nothing", 3)
        print(entry, value_at, count, rows_of)
        print(picture, shape, dtype, raw, text, value, head, rows, frame, other, number, data.closed)
    return found


def name(library: glassfs.Library) -> str:
    try:
        return library["a"].name
    except (Damaged, NoSuchEntry) as error:
        return error.reason
