"""Blocks on disk: the stored bytes or nothing, within the budget."""

from __future__ import annotations

import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.persistent import cache as cache_module
from glassfs.source.remote.blocks import DiskCache
from tests.conftest import Scale

LEAST = 512 << 10
"""The smallest budget."""

BLOCK = 64 << 10
BUDGET = 1 << 20
LARGE = 64 << 20


class Cache(DiskCache):
    """One that can be closed, as at the end of its process."""

    def close(self) -> None:
        self._cache.close()


def opened(folder: Path, budget: int = LARGE) -> Cache:
    return Cache(os.fspath(folder), budget)


def block(cache: DiskCache, key: str, tag: str, number: int, size: int) -> bytes | None:
    found = cache.get(key, tag, {number: size})
    return None if found is None else found[0]


def content(number: int, size: int = BLOCK) -> bytes:
    """Return the data of a block, different for each number."""
    return random.Random(number).randbytes(size)


def fill(cache: DiskCache, numbers: range) -> None:
    for number in numbers:
        cache.put("key", "tag", number, content(number))


def taken(folder: Path) -> int:
    """Return the bytes of all files in the folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total


def cached(cache: DiskCache, numbers: range, key: str = "key", size: int = BLOCK) -> list[int]:
    """Return the numbers of the blocks that are cached, after comparing their data."""
    found = []
    for number in numbers:
        data = block(cache, key, "tag", number, size)
        if data is not None:
            assert data == content(number, size)
            found.append(number)
    return found


# Contents

KEYS = st.sampled_from(["s3://bucket/a", "s3://bucket/b", "", "\udc80", "a" * 5000])
TAGS = st.sampled_from(['"1"', '"2"', "3", 'W/"1"', "", "*"])
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, TAGS, st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.just("get"), KEYS, TAGS, st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.just("again"), KEYS, TAGS, st.none(), st.none()),
)


@settings(max_examples=300)
@given(steps=st.lists(st.tuples(st.booleans(), STEPS), max_size=30))
def test_caches_of_one_folder_behave_as_one_mapping(
    steps: list[tuple[bool, tuple[str, str, str, int, int]]], tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("model") / "cache"
    caches = [opened(folder), opened(folder)]
    data: dict[tuple[str, str, int], bytes] = {}
    for which, (step, key, tag, number, value) in steps:
        cache = caches[which]
        is_strong = tag not in ("", "*", 'W/"1"')
        if step == "put":
            data_of = content(number, value) if value else b""
            cache.put(key, tag, number, data_of)
            if is_strong and value:
                data[key, tag, number] = data_of
        elif step == "get":
            found = block(cache, key, tag, number, value)
            known = data.get((key, tag, number))
            assert found == (known if known is not None and len(known) == value else None)
        else:
            cache.close()
            assert block(cache, key, tag, 0, 1) is None
            caches[which] = opened(folder)
    for cache in caches:
        for (key, tag, number), known in data.items():
            assert block(cache, key, tag, number, len(known)) == known
        cache.close()
    shutil.rmtree(folder)


def test_key_and_validator_are_not_concatenated(folder: Path) -> None:
    cache = opened(folder)
    cache.put("ab", "c", 0, b"1")
    assert block(cache, "a", "bc", 0, 1) is None
    assert block(cache, "ab", "d", 0, 1) is None


# The budget

OVERHEAD = 16 * cache_module.PAGE + cache_module.JOURNAL
"""Bytes of the file and its journal beside blocks."""


@settings(max_examples=100)
@given(sizes=st.lists(st.integers(1, 300_000), min_size=1, max_size=25))
def test_oldest_blocks_are_evicted(sizes: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bound") / "cache"
    cache = opened(folder, BUDGET)
    for number, size in enumerate(sizes):
        cache.put("key", "tag", number, bytes(size))
        assert taken(folder) <= BUDGET + OVERHEAD
        there = [block(cache, "key", "tag", known, sizes[known]) is not None for known in range(number + 1)]
        first = there.index(True)
        assert all(there[first:])
        if first:  # the block evicted last would not have fitted
            assert sum(sizes[first - 1:number + 1]) > BUDGET - OVERHEAD - (number + 1) * cache_module.PAGE
    cache.close()
    shutil.rmtree(folder)


def test_budget_holds_with_many_threads(folder: Path, scale: Scale) -> None:
    cache = opened(folder, BUDGET)
    whole = {number: content(number) for number in range(scale(60, 1000))}

    def work(thread: int) -> None:
        key = f"key {thread // 2}"
        for number, data in whole.items():
            cache.put(key, "tag", number, data)
            found = block(cache, key, "tag", number // 2, BLOCK)
            assert found is None or found == whole[number // 2]
            assert taken(folder) <= BUDGET + OVERHEAD

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert taken(folder) > BUDGET // 2


def test_block_beyond_the_budget_is_not_stored(folder: Path) -> None:
    cache = opened(folder, LEAST)
    cache.put("key", "tag", 0, b"1")
    cache.put("key", "tag", 1, bytes(LEAST + 1))
    assert block(cache, "key", "tag", 0, 1) == b"1"
    assert block(cache, "key", "tag", 1, LEAST + 1) is None
    cache.put("key", "tag", 2, bytes(LEAST))
    assert block(cache, "key", "tag", 2, LEAST) == bytes(LEAST)
    assert taken(folder) <= LEAST + OVERHEAD


def test_smaller_budget_holds_from_the_first_block_on(folder: Path) -> None:
    cache = opened(folder)
    fill(cache, range(60))
    cache.close()
    assert taken(folder) > 3 * BUDGET
    cache = opened(folder, BUDGET)
    cache.put("key", "tag", 60, content(60))
    assert taken(folder) <= BUDGET + OVERHEAD
    assert cached(cache, range(61))[-2:] == [59, 60]
