"""A server that gives no parts of objects: ``rclone serve s3``, which says 200 for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs.errors import Refused
from glassfs.library import open_tree
from glassfs.source import Connection
from glassfs.tree import File
from tests.conftest import DATA
from tests.remote import servers


@pytest.mark.slow
def test_small_containers_are_read_and_large_ones_refused(tmp_path: Path) -> None:
    bucket = tmp_path / "served/bucket"
    bucket.mkdir(parents=True)
    small = next(path for path in sorted(DATA.glob("kastore/*.kas")) if path.stat().st_size < 10_000)
    (bucket / small.name).write_bytes(small.read_bytes())
    large = bucket / "large.kas"
    large.write_bytes(small.read_bytes())
    os.truncate(large, 1 << 20)
    with servers.rclone("s3", bucket.parent, tmp_path) as port:
        connection = Connection(
            endpoint=f"http://127.0.0.1:{port}", key=servers.CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret=servers.CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )
        here = open_tree(small)
        for name in ("s3://bucket", f"s3://bucket/{small.name}"):
            with open_tree(name, connection=connection) as tree:
                place = f"/{small.name}" if name == "s3://bucket" else ""
                for path, node in here.walk():
                    if isinstance(node, File):
                        assert tree.file(place + path).read(0, node.size) == node.read(0, node.size)
        with pytest.raises(Refused, match="cannot be read in parts"):
            open_tree("s3://bucket/large.kas", connection=connection)
