"""Helpers of the tests of protocols."""

from __future__ import annotations

import random

from glassfs.source.remote.fsspecs import FsspecServer
from glassfs.source.remote.open import server_of
from glassfs.source.remote.server import Facts, is_name
from glassfs.source.remote.url import Connection, parsed

PATIENT = Connection(timeout=60)


def server(url: str, connection: Connection = PATIENT) -> FsspecServer:
    found = server_of(parsed(url), connection)
    assert isinstance(found, FsspecServer)
    return found


def listed(server: FsspecServer, path: tuple[str, ...]) -> dict[str, Facts | None]:
    """Return what is shown of a folder."""
    return {one.name: one.facts for one in server.list(path) if not one.omitted and is_name(one.name)}


def check_reads(server: FsspecServer, path: tuple[str, ...], data: bytes, count: int) -> None:
    """Check the head and many concurrent reads of random ranges."""
    begun = server.begin(path, 1000)
    assert begun is not None and begun[1] == data[:1000]
    facts = begun[0]
    assert facts.size == len(data)
    assert server.begin(path, 1000, facts) is None
    choose = random.Random(1)
    ranges = [(0, len(data)), (len(data) - 1, 1)]
    for _ in range(count):
        offset = choose.randrange(len(data))
        ranges.append((offset, choose.randrange(len(data) - offset) + 1))
    answers = [server.fetch(path, offset, size, facts) for offset, size in ranges]
    for (offset, size), answer in zip(ranges, answers, strict=True):
        assert answer.result() == data[offset : offset + size]
