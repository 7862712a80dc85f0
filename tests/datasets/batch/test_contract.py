"""Test values exchanged with workers, whose size is bounded, and shards: each path is in exactly one."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.cli.episodes import Rows
from glassfs.cli.export import Exporting
from glassfs.cli.exporting import ExportJob, Links
from glassfs.cli.target import Existing
from glassfs.cli.verify import Verification
from glassfs.datasets.batch.contract import MOST_FAULTS, Problem, Problems
from glassfs.datasets.batch.run import Shard
from glassfs.source import Connection

PATHS = st.lists(st.binary(min_size=1).map(os.fsdecode), unique=True)


def test_only_the_first_faults_are_reported() -> None:
    faults = Problems()
    assert all(faults.add(Problem("/x", f"{number}")) for number in range(MOST_FAULTS))
    assert (len(faults.all), faults.others) == (MOST_FAULTS, ())
    assert not any(faults.add(Problem("/x", "more")) for _ in range(234))
    assert [str(fault) for fault in faults.all[-2:]] == [f"/x: {MOST_FAULTS - 1}", "and 234 more"]
    assert faults.all[-1:] == faults.others


def test_work_is_pickled_with_its_connection() -> None:
    connection = Connection(endpoint="http://127.0.0.1:9", key="known")
    for work in (
        Verification(connection, 2), Rows(connection, "csv", "success"),
        Exporting(ExportJob("/a", "a", "/b", "b", Existing.RESUME, Links.KEEP, {"/": "/"}, "jsonl", connection)),
    ):
        found = pickle.loads(pickle.dumps(work))
        assert found == work
        assert (found.job if isinstance(found, Exporting) else found).connection.key == "known"


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
