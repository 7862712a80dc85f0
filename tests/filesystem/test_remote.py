"""Remote containers: the same file system over remote sources."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from glassfs.filesystem import GlassfsFileSystem
from tests.helpers import in_fork
from tests.optional import package
from tests.remote.s3 import Bucket, S3Server

pytest.importorskip("obstore")
KEYS = {"key": "glass", "secret": "see-through"}


@pytest.fixture
def server(place: Path) -> Iterator[S3Server]:
    bucket = Bucket()
    bucket.put_folder(place, "runs/")
    with S3Server({"data": bucket}) as running:
        yield running


@pytest.fixture
def options(server: S3Server) -> dict[str, Any]:
    return KEYS | {"client_kwargs": {"endpoint_url": server.url}, "timeout": 20}


@pytest.mark.parametrize("fo", [
    {"fo": "s3://data/runs/robot.kdb"}, {"fo": "data/runs/robot.kdb", "target_protocol": "s3"},
])
def test_a_bucket_is_read_as_a_folder_is(robot: GlassfsFileSystem, options: dict[str, Any], fo: dict[str, Any]) -> None:
    there = fsspec.filesystem("glassfs", **fo, target_options=options)
    names = robot.find("")
    assert there.find("") == names and repr(there) == "<GlassfsFileSystem of s3://data/runs/robot.kdb>"
    assert there.cat_ranges(names, 3, -3) == robot.cat_ranges(names, 3, -3)
    assert [there.size(name) for name in names] == [robot.size(name) for name in names]


def test_many_ranges_are_read_at_once(place: Path, options: dict[str, Any], server: S3Server) -> None:
    there = GlassfsFileSystem("s3://data/runs", target_options=options)
    here = GlassfsFileSystem(place)
    names = here.glob("**/*.npy")
    got = there.cat_ranges([*names, "nowhere", "robot.kdb"], 0, None)
    assert got[:-2] == here.cat_ranges(names, 0, None)
    assert isinstance(got[-2], FileNotFoundError) and isinstance(got[-1], IsADirectoryError)
    assert server.count("HEAD") == 0


def test_a_chain_is_not_read_through_what_fsspec_has_for_its_parts(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3fs = package("s3fs")
    monkeypatch.setattr(s3fs.S3FileSystem, "__init__", None)
    with fsspec.open("glassfs://episodes/0/state.npy::s3://data/runs/robot.kdb", s3=options) as file:
        assert file.read(6) == b"\x93NUMPY"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pickles_and_forked_processes_open_it_again(options: dict[str, Any], robot: GlassfsFileSystem) -> None:
    there = GlassfsFileSystem("s3://data/runs/robot.kdb", target_options=options)
    pickled = pickle.dumps(there)
    assert len(pickled) < 2000 and pickle.loads(pickled) == there
    names = robot.glob("episodes/*/*.npy")
    expected = robot.cat_ranges(names, 0, None)
    assert there.cat_ranges(names, 0, None) == expected

    def child() -> bool:
        nonlocal there
        assert there.cat_ranges(names, 0, None) == pickle.loads(pickled).cat_ranges(names, 0, None) == expected
        del there
        return True

    assert in_fork(child)
    assert there.cat_file(names[0]) == expected[0]
