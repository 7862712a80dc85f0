"""Test shards: each path is in exactly one, always the same."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.batch.run import Shard

PATHS = st.lists(st.binary(min_size=1).map(os.fsdecode), unique=True)


@given(PATHS, st.integers(1, 50))
def test_shards_are_a_partition(paths: list[str], parts: int) -> None:
    shards = [Shard(number, parts) for number in range(parts)]
    found = [[path for path in paths if shard.has(path)] for shard in shards]
    assert sorted(path for some in found for path in some) == sorted(paths)


def test_a_path_stays_in_its_shard_in_all_versions() -> None:
    """Jobs of different versions of glassfs must agree on the shards."""
    paths = ["a.kdb", "folder/b.kas", "\udcff.wshard", "ü/c.ikv"]
    assert [next(n for n in range(7) if Shard(n, 7).has(path)) for path in paths] == [4, 4, 5, 0]


@pytest.mark.parametrize("text", [
    "", "1", "3/3", "-1/3", "1/0", "0/0", "a/3", "1/3/4", "1/ 3", "+1/3", "1/²", "1/9999999999",
])
def test_invalid_shards_are_refused(text: str) -> None:
    assert Shard.parsed("11/12") == Shard(11, 12)
    with pytest.raises(ValueError):
        Shard.parsed(text)
