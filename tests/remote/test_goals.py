"""What reading remote containers costs, in requests and bytes: in this process and through mounts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter

import glassfs
from glassfs.library.session import open_tree
from glassfs.tree import File
from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.optional import package
from tests.remote.conftest import Serving
from tests.remote.containers import FRAME, write_each_format, write_sparse_episode
from tests.remote.s3 import PAGE, Bucket, S3Server

BLOCK = 512 << 10
MOST_REQUESTS = {"kastore": 2, "kinodb": 2, "wshard": 3, "ikv": 4, "idv": 4, "npz": 5, "safetensors": 1}
LONG_POLL = "poll=3600"


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_each_format(tmp_path_factory.mktemp("containers"))


@pytest.fixture
def each(containers: dict[str, Path], serving: Serving) -> Iterator[S3Server]:
    with serving(Bucket({path.name: path for path in containers.values()})) as server:
        yield server


def listed(folder: Path | str) -> list[str]:
    """Return the lines of ``ls -l``, without the total and .glassfs."""
    done = subprocess.run(["ls", "-l", str(folder)], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines()[1:] if not line.endswith(" .glassfs")]


@pytest.mark.parametrize("name", MOST_REQUESTS)
def test_listing_a_container_costs_few_requests(name: str, containers: dict[str, Path], each: S3Server) -> None:
    path = containers[name]
    assert path.stat().st_size > BLOCK
    tree = open_tree(f"s3://bucket/{path.name}")
    found = tree.root.listing()
    assert found and all(node.size >= 0 for node in found if isinstance(node, File))
    assert each.count("GET") == each.count() <= MOST_REQUESTS[name]
    tree.close()


def test_a_tensor_costs_a_request(containers: dict[str, Path], each: S3Server) -> None:
    """The header comes with the first request; each tensor, read as a whole, with one more."""
    path = containers["safetensors"]
    with glassfs.open(f"s3://bucket/{path.name}") as model:
        assert len(model["tensors"]) == 3 and each.count() == 1
        for number in (1, 2):
            expected = package("safetensors.numpy", "test").load_file(path)[f"layers.{number}.weight"]
            before = each.count()
            assert np.array_equal(model[f"tensors/layers.{number}.weight"].numpy(), expected)
            assert each.count("GET") - before == each.count() - before == 1


@pytest.mark.slow
def test_first_image_of_a_long_episode_costs_few_requests(
    tmp_path: Path, serving: Serving, mounted: Mounted,
) -> None:
    path = tmp_path / "long.kdb"
    count = write_sparse_episode(path, 10 * 10**9)
    assert path.stat().st_size > 9.9e9
    with serving(Bucket({"long.kdb": path})) as server, mounted("s3://bucket/long.kdb", options=[LONG_POLL]) as mount:
        folder = mount.path / "episodes/0/images/front"
        data = (folder / "000000.png").read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) > FRAME
        assert server.count("GET") == server.count() <= 6
        assert server.sent <= 2_000_000
        last = sorted(os.listdir(folder))[-1]
        assert int(last.partition(".")[0]) == count - 1
        assert (folder / last).read_bytes() == data


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an array of 256 MiB."""
    path = tmp_path_factory.mktemp("large") / "large.kas"
    with KastoreWriter(path) as store:
        store.add_chunks("data", "uint8", 256 << 20, (np.full(1 << 20, number, np.uint8) for number in range(256)))
    return path


@pytest.mark.slow
def test_sequential_reads_fetch_each_byte_once(large: Path, serving: Serving, mounted: Mounted) -> None:
    with serving(Bucket({"large.kas": large})) as server, mounted("s3://bucket/large.kas") as mount:
        file = mount.path / "data.npy"
        size = file.stat().st_size
        with file.open("rb", buffering=0) as reader:
            reader.seek(size - (256 << 20))
            for number in range(256):
                read = 0
                while read < 1 << 20:
                    piece = reader.read((1 << 20) - read)
                    assert piece == bytes([number]) * len(piece) and piece
                    read += len(piece)
        assert server.sent <= 1.1 * size


def test_large_folder_costs_one_request_a_page(
    tmp_path: Path, serving: Serving, mounted: Mounted, scale: Scale,
) -> None:
    """And entering a small container costs one more."""
    pages = scale(2, 10)
    with KastoreWriter(tmp_path / "one.kas") as store:
        store.add("array", [1.0])
    one = (tmp_path / "one.kas").read_bytes()
    with serving(Bucket({f"data/{number:05d}.kas": one for number in range(pages * PAGE)})) as server:
        with mounted("s3://bucket/data", options=[LONG_POLL]) as mount:
            assert len(listed(mount.path)) == pages * PAGE
            assert len(listed(mount.path)) == pages * PAGE
            assert server.count() == server.count("GET", lambda request: request.is_listing) == pages
            assert np.load(mount.path / "00077.kas/array.npy") == 1.0
        assert server.count() == pages + 1
