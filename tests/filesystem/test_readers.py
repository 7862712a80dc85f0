"""Programs that read through fsspec, as they are. They are large, and each is loaded by its own test."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

import glassfs
from glassfs.filesystem import GlassfsFileSystem
from tests.filesystem.conftest import Range, ranges
from tests.optional import package

STATE = "episodes/0/state"


@pytest.fixture
def tasks(place: Path) -> list[str]:
    with glassfs.open(place / "robot.kdb") as data:
        return list(data.episodes()["language_instruction"])


@pytest.fixture
def state(place: Path) -> np.ndarray[Any, Any]:
    with glassfs.open(place / "robot.kdb") as data:
        return data[STATE].numpy(copy=True)


def test_pandas(place: Path, tasks: list[str]) -> None:
    import pandas as pd

    table = pd.read_parquet(f"glassfs://episodes.parquet::{place}/robot.kdb")
    assert table["language_instruction"].tolist() == tasks
    lines = pd.read_json(f"glassfs://episodes.jsonl::file://{place}/robot.kdb", lines=True)
    assert lines["language_instruction"].tolist() == tasks
    options = {"fo": str(place), "cache_size": 1 << 20}
    whole = pd.read_parquet("glassfs://episodes.parquet", storage_options=options)
    assert len(whole) > len(table) and set(tasks) <= set(whole["language_instruction"])
    steps = pd.read_parquet(f"glassfs://episodes/1/steps.parquet::{place}/robot.kdb", columns=["reward"])
    assert steps.shape == (24, 1)


@pytest.mark.slow
def test_pyarrow(robot: GlassfsFileSystem, tasks: list[str]) -> None:
    import pyarrow.dataset
    import pyarrow.fs
    import pyarrow.parquet

    assert pyarrow.parquet.read_table("episodes.parquet", filesystem=robot)["language_instruction"].to_pylist() == tasks
    steps = pyarrow.dataset.dataset([f"episodes/{number}/steps.parquet" for number in range(3)], filesystem=robot)
    assert steps.count_rows() == 72
    seen = GlassfsFileSystem(robot._shown, views="parquet")
    parts = pyarrow.dataset.dataset("episodes", filesystem=seen, format="parquet", exclude_invalid_files=True)
    assert parts.count_rows() == 72
    handler = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(robot))
    facts = handler.get_file_info([f"{STATE}.npy", "episodes", "nowhere"])
    assert [fact.type.name for fact in facts] == ["File", "Directory", "NotFound"]
    assert facts[0].size == robot.size(f"{STATE}.npy")
    assert abs(facts[0].mtime - robot.modified(f"{STATE}.npy")) < timedelta(microseconds=2)
    with handler.open_input_file(f"{STATE}.npy") as file:
        assert file.read_at(6, 0) == b"\x93NUMPY" and file.size() == facts[0].size


@pytest.mark.slow
def test_polars(place: Path, tasks: list[str], robot: GlassfsFileSystem) -> None:
    import polars as pl

    with robot.open("episodes.parquet") as file:
        assert pl.read_parquet(file)["language_instruction"].to_list() == tasks


@pytest.mark.slow
def test_duckdb(robot: GlassfsFileSystem, folder: GlassfsFileSystem, tasks: list[str]) -> None:
    import duckdb

    with duckdb.connect() as database:
        database.register_filesystem(robot)
        query = "select language_instruction from 'glassfs://episodes.parquet' order by position"
        assert [row[0] for row in database.execute(query).fetchall()] == tasks
        query = "select count(*), max(reward) from 'glassfs://episodes/0/steps.parquet'"
        assert database.execute(query).fetchall() == [(24, 1.0)]
    with duckdb.connect() as database:
        database.register_filesystem(folder)
        query = "select count(*) from read_json('glassfs://*.kdb/meta/file.json')"
        assert database.execute(query).fetchall() == [(1,)]


@pytest.mark.slow
def test_zarr_and_xarray(place: Path, robot: GlassfsFileSystem, state: np.ndarray[Any, Any]) -> None:
    import xarray
    import zarr
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from zarr.storage import FsspecStore

    url = f"::{place}/robot.kdb"
    array = zarr.open_array(f"glassfs://{STATE}.zarr{url}", mode="r")
    assert (array[:] == state).all() and (array[3:5, 2] == state[3:5, 2]).all()
    store = FsspecStore(AsyncFileSystemWrapper(robot, asynchronous=True), read_only=True, path="episodes/0/arrays.zarr")
    group = zarr.open_group(store, mode="r")
    assert (group["state"][:] == state).all() and (group["action"].shape, group["reward"].shape) == ((24, 7), (24,))
    with xarray.open_zarr(f"glassfs://episodes/0/arrays.zarr{url}") as found:
        assert (found["state"].values == state).all() and set(found) >= {"action", "reward", "is_terminal"}
    video = zarr.open_array(f"glassfs://signal/rgb.zarr::{place}/episode.wshard", mode="r")
    with glassfs.open(place / "episode.wshard") as data:
        assert (video[5] == data["signal/rgb"].numpy()[5]).all()


def test_numpy_and_pillow(robot: GlassfsFileSystem, state: np.ndarray[Any, Any]) -> None:
    with robot.open(f"{STATE}.npy") as file:
        assert (np.load(file) == state).all()
    with robot.open("episodes/0/images/front/000003.png") as file, Image.open(file) as image:
        assert image.size == (128, 96)


@pytest.mark.slow
def test_dask(place: Path, tasks: list[str], robot: GlassfsFileSystem) -> None:
    import dask.bytes

    with dask.config.set(scheduler="threads"):
        sample, blocks = dask.bytes.read_bytes(
            f"glassfs://episodes/*/state.npy::{place}/robot.kdb", blocksize=100, sample="100B",
        )
        assert sample == robot.cat_file(f"{STATE}.npy", 0, 100)
        read = [b"".join(dask.compute(*parts)) for parts in blocks]
        assert read == [robot.cat_file(f"episodes/{number}/state.npy") for number in range(3)]


@pytest.mark.slow
def test_dask_tables(place: Path, tasks: list[str]) -> None:
    import dask

    frames = package("dask.dataframe")
    with dask.config.set(scheduler="threads"):
        table = frames.read_parquet(f"glassfs://episodes.parquet::{place}/robot.kdb").compute()
        assert table["language_instruction"].tolist() == tasks


@pytest.fixture
def worker_processes() -> Iterator[Any]:
    distributed = package("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, host="127.0.0.1",
    ) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.slow
def test_dask_workers(folder: GlassfsFileSystem, files: dict[str, bytes], worker_processes: Any) -> None:
    wanted = ranges(files, 1000, 4)
    futures = worker_processes.map(lambda one, fs: fs.cat_file(*one), wanted, fs=folder)
    assert worker_processes.gather(futures) == [files[name][start:end] for name, start, end in wanted]


def read_both_ways(fs: GlassfsFileSystem, wanted: list[Range]) -> list[tuple[Range, bytes]]:
    found = []
    for number, (name, start, end) in enumerate(wanted):
        if number % 2:
            found.append(((name, start, end), fs.cat_file(name, start, end)))
            continue
        with fs.open(name) as file:
            file.seek(start)
            found.append(((name, start, end), file.read(end - start)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pytorch_workers(place: Path, files: dict[str, bytes], method: str) -> None:
    torch = package("torch", "torch")
    fs = GlassfsFileSystem(place, cache_size=1 << 20)
    wanted = {(name, start, end): files[name][start:end] for name, start, end in ranges(files, 1000, 5)}
    with ThreadPoolExecutor(4) as pool:  # there are threads, and all is in use, when workers are forked off
        assert list(pool.map(fs.cat_file, files)) == list(files.values())
    loader = torch.utils.data.DataLoader(
        list(wanted), batch_size=16, shuffle=True, num_workers=2, multiprocessing_context=method,
        persistent_workers=True, collate_fn=partial(read_both_ways, fs),
    )
    for _ in range(2):
        assert dict(item for batch in loader for item in batch) == wanted
    assert all(fs.cat_file(*one) == data for one, data in wanted.items())


def test_what_stands_on_it_can_be_stood_on(place: Path, robot: GlassfsFileSystem, tmp_path: Path) -> None:
    """Other file systems of fsspec over it, and what fsspec offers for all of them."""
    import zipfile

    (tmp_path / "files").mkdir()
    with zipfile.ZipFile(tmp_path / "files/pack.zip", "w") as pack:
        pack.writestr("inner.txt", "packed")
    with fsspec.open(f"zip://inner.txt::glassfs://pack.zip::{tmp_path}/files") as file:
        assert file.read() == b"packed"
    mapper = robot.get_mapper("episodes/0")
    assert mapper["state.npy"] == robot.cat_file(f"{STATE}.npy") and "meta/episode.json" in mapper
    assert mapper.getitems(["state.npy", "nothing"], on_error="omit").keys() == {"state.npy"}
    robot.get("episodes/0/images", str(tmp_path / "images"), recursive=True)
    copied = (tmp_path / "images/front/000003.png").read_bytes()
    assert copied == robot.cat_file("episodes/0/images/front/000003.png")
    with fsspec.open_files(f"glassfs://episodes/*/state.npy::{place}/robot.kdb") as files:
        assert [len(file.read()) for file in files] == [800] * 3
    into = io.BytesIO()
    robot.get_file(f"{STATE}.npy", into)
    assert into.getvalue() == mapper["state.npy"]
