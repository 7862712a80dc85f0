"""Cache keys are plain values that begin with the version of the container, and keep no source alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable
from enum import Enum
from pathlib import Path
from typing import Any

import make_samples
import numpy as np
import pytest
from writers.wshard import write_chunked, write_streamed

from glassfs.cache import BlockCache, Recipe
from glassfs.formats.registry import Opening, open_container
from glassfs.view import data_of, folder_of
from tests.helpers import walk
from tests.memory_store import MemoryStore


class KeyedCache(BlockCache):
    """A cache that remembers the keys that it is given."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.keys: set[Hashable] = set()

    def read_into(self, recipe: Recipe, buffer: memoryview, offset: int) -> None:
        self.keys.add(recipe.key)
        super().read_into(recipe, buffer, offset)

    def size_of(self, recipe: Recipe) -> int:
        self.keys.add(recipe.key)
        return super().size_of(recipe)

    def prefetch(self, recipe: Recipe) -> bool:
        self.keys.add(recipe.key)
        return super().prefetch(recipe)


def write_parts(path: Path) -> None:
    video = np.zeros((6, 8, 9, 3), np.uint8)
    write_chunked(path.parent, "parts", {"signal/rgb": video}, 2, codec="zstd").rename(path)


def write_streamed_video(path: Path) -> None:
    write_streamed(path, {"signal/rgb": np.zeros((20, 8, 9, 3), np.uint8)}, flush=7, codec="zstd")


WRITERS: dict[str, Callable[[Path], Any]] = {
    "kinodb": make_samples.write_kinodb, "wshard": make_samples.write_wshard, "wshard in parts": write_parts,
    "wshard streamed": write_streamed_video, "idv": make_samples.write_idv,
    "ikv": make_samples.write_ikv, "tree sequence": make_samples.write_tree_sequence,
}


@pytest.fixture(params=WRITERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore:
    """A container of one of the formats, called ``it``, and its parts."""
    WRITERS[request.param](tmp_path / "it")
    return MemoryStore({path.name: path.read_bytes() for path in tmp_path.iterdir()})


@pytest.mark.parametrize("budget", [64 << 20, 4 << 10], ids=["kept", "spooled"])
def test_cache_keys_are_plain_and_keep_no_container_alive(store: MemoryStore, budget: int) -> None:
    cache = KeyedCache(budget)
    container = open_container(Opening(store.open(("it",)), cache, store, ("it",)))
    versions = {source.version for source in container.sources}
    assert read_all(container.root, cache, container.sources[0].version)
    assert cache.keys
    for key in cache.keys:
        assert isinstance(key, tuple) and key[0] in versions, key
        assert is_plain(key), key
    sources = [weakref.ref(source) for source in container.sources]
    container.close()
    store.held.clear()
    del container
    gc.collect()
    assert [source for source in sources if source() is not None] == []


def read_all(root: Any, cache: BlockCache, version: str) -> int:
    """Read each file in two parts, and videos frame by frame as well; return the number of files."""
    count = 0
    for name, content in walk(root):
        folder = folder_of(content)
        frames = [] if folder is None else [folder.item(number) for number in folder.numbers]
        for number, one in enumerate([content, *frames]):
            data = data_of(one, cache, (version, name, number))
            half = data.size // 2
            data.read(0, half)
            data.read(half, data.size - half)
            count += 1
    return count


def is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (str, int, float, bytes, Enum))
