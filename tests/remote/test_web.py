"""Web servers: versions of objects with few or no headers that tell them."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from glassfs.errors import Changed
from glassfs.source import Connection, locate
from tests.remote import servers
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Object, answer_object

SIZE = 2_000_000
CONTENT = random.Random(3).randbytes(SIZE)
THEN = 1_700_000_000.0


store_of = partial(servers.store_of, poll=3600.0)


def answer(made: Object, request: Request) -> Reply:
    """Answer as S3 does, but without empty headers."""
    reply = answer_object(made, request)
    if not made.etag:
        reply.change("ETag", None)
    if not made.modified:
        reply.change("Last-Modified", None)
    return reply


@pytest.mark.parametrize("etag", ['W/"1"', ""])
def test_times_tell_versions_without_strong_etags(etag: str) -> None:
    made = [Object(CONTENT, etag, THEN)]
    with HttpServer(lambda request: answer(made[0], request)) as server:
        store = store_of(f"{server.url}/data")
        source = store.open(("data",))
        assert source.read(0, 10) == CONTENT[:10]
        assert source.read(1_000_000, 10) == CONTENT[1_000_000:1_000_010]
        made[0] = Object(CONTENT[::-1], etag, THEN + 1)
        with pytest.raises(Changed, match="/data: has been replaced"):
            source.read(SIZE - 10, 10)
        assert store.open(("data",)).read(SIZE - 10, 10) == CONTENT[:10][::-1]


@pytest.mark.parametrize("etag", ['"1"', 'W/"1"', ""])
def test_query_is_part_of_the_identity(etag: str) -> None:
    objects = {number: Object(bytes([number]) * 500_000, etag, 0.0) for number in (1, 2)}
    with HttpServer(lambda request: answer(objects[int(request.query["id"])], request)) as server:
        names = [f"{server.url}/data?id={number}" for number in objects]
        one, other = locate(names, Connection(timeout=20.0))
        entries = [found.store.entry(found.path) for found in (one, other)]
        versions = {(entry.version, entry.file_id) for entry in entries}
        assert len(versions) == 2
        assert {found.store.open(found.path).read(400_000, 1) for found in (one, other)} == {b"\1", b"\2"}


@pytest.mark.parametrize("etag", ['"1"', ""])
def test_query_is_part_of_the_identity_on_disk(etag: str, tmp_path: Path) -> None:
    objects = {number: Object(bytes([number]) * 500_000, etag, 0.0) for number in (1, 2)}
    with HttpServer(lambda request: answer(objects[int(request.query["id"])], request)) as server:
        for number in (1, 2, 1, 2):
            store = store_of(f"{server.url}/data?id={number}", disk_cache=str(tmp_path / "disk"))
            assert store.open(("data",)).read(0, 500_000) == bytes([number]) * 500_000
