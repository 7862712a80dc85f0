"""Random faults and concurrent readers: right bytes or an error."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed
from glassfs.settings import settings as times
from glassfs.source.remote import blocks as module
from glassfs.source.remote.blocks import RemoteBlocks
from glassfs.source.remote.server import Facts
from tests.source.remote.counting import CountingServer, content, remote_source

PATH = ("run.kdb",)
PAGE = 1 << 10
READERS = 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks small, so that an object has many."""
    monkeypatch.setattr(module, "BLOCK", PAGE)
    monkeypatch.setattr(module, "SHORT", 3 * PAGE)
    monkeypatch.setattr(module, "NEAR", 4 * PAGE)


class Wild(CountingServer):
    """A server that does the next of ``faults`` for each request, later and in any order; none of them afterwards."""

    FAULTS = ("short", "long", "empty", "failing", "refusing", "raising", "changing", "silent", "given up")

    def __init__(self, faults: list[str], seed: int) -> None:
        super().__init__()
        self.threads = ThreadPoolExecutor(6)
        self.answer = self._answer
        self.silent: list[Future[bytes]] = []
        self._faults = iter(faults)
        self._chance = random.Random(seed)
        self._versions = 0

    def change(self, size: int) -> Facts:
        self._versions += 1
        return self.put(size, f"version {self._versions}")

    def _answer(self, future: Future[bytes], data: bytes) -> None:
        with self.lock:
            fault, delay = next(self._faults, ""), self._chance.choice((0, 0, 0.0005, 0.003))
        if fault == "raising":
            raise DeviceFailed("cannot be asked")
        if fault == "changing":
            self.change(self.objects[PATH].size)
        if fault == "silent":
            self.silent.append(future)
        else:
            self.threads.submit(self._settle, future, data, fault, delay)

    def _settle(self, future: Future[bytes], data: bytes, fault: str, delay: float) -> None:
        time.sleep(delay)
        if fault == "given up" or not future.set_running_or_notify_cancel():
            future.cancel()
        elif fault == "failing":
            future.set_exception(DeviceFailed("is broken"))
        elif fault == "refusing":
            future.set_exception(NotAllowed("is not for you"))
        else:
            lengths = {"short": len(data) - 1, "long": len(data) + 1, "empty": 0}
            future.set_result((data + b"x")[: lengths.get(fault, len(data))])


class Read(NamedTuple):
    offset: float
    size: int


reads = st.lists(
    st.builds(Read, st.floats(0, 1), st.one_of(st.integers(1, 200), st.integers(1, 40 * PAGE))),
    min_size=1, max_size=12,
)
"""Parts of an object, of any size."""
walks = st.builds(
    lambda start, step, count: [Read(start, -step)] * count,
    st.floats(0, 1), st.integers(100, 3 * PAGE), st.integers(1, 60),
)
"""Sequential reads."""


@settings(max_examples=300)
@given(
    size=st.integers(1, 200 * PAGE), budget=st.sampled_from([0, PAGE, 10 * PAGE, 60 * PAGE, 1000 * PAGE]),
    work=st.lists(st.one_of(reads, walks), min_size=READERS, max_size=READERS),
    faults=st.lists(st.sampled_from(("", "", "", *Wild.FAULTS)), max_size=40), seed=st.integers(0, 1 << 16),
)
def test_reads_return_right_bytes_or_raise(
    size: int, budget: int, work: list[list[Read]], faults: list[str], seed: int,
) -> None:
    server = Wild(faults, seed)
    server.timeout = 0.1 if "silent" in faults else 60.0
    blocks = RemoteBlocks(BlockCache(budget))
    server.change(size)
    start = threading.Barrier(READERS)

    def run(reads: list[Read]) -> list[str]:
        start.wait()
        wrong = []
        position = int(reads[0].offset * size)
        for one in reads:
            facts = server.objects[PATH]
            remote = remote_source(blocks, server, PATH, facts)
            offset = min(position if one.size < 0 else int(one.offset * size), size - 1)
            buffer = bytearray(min(abs(one.size), size - offset))
            position = offset + len(buffer)
            try:
                remote.read_into(memoryview(buffer), offset)
            except Changed:
                if facts == server.objects[PATH]:
                    wrong.append("Changed")
            except GlassfsError as error:
                if not isinstance(error, (DeviceFailed, NotAllowed)) or not str(error).startswith(server.name):
                    wrong.append(repr(error))
            else:
                if buffer != content(facts, offset, len(buffer)):
                    wrong.append(f"bytes {offset} to {position}")
        return wrong

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(READERS) as readers:
        patch.setattr(times, "server_grace", 0.0)
        assert [wrong for wrong in readers.map(run, work) if wrong] == []
    server.threads.shutdown()
    for future in server.silent:
        future.cancel()
    # No reader waits, and no request is under way.
    assert blocks._cache.used <= budget  # type: ignore[attr-defined]
    server.answer = None
    facts = server.change(size)
    buffer = bytearray(size)
    remote_source(blocks, server, PATH, facts).read_into(memoryview(buffer), 0)
    assert buffer == content(facts, 0, size)
    assert not blocks._requests


def test_reads_after_a_timeout_fail_fast_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel retries at once. Later reads make requests again."""
    monkeypatch.setattr(times, "server_grace", 0.0)
    monkeypatch.setattr(times, "server_fail_fast", 1000.0)
    server = Wild(["silent"], 1)
    server.timeout = 0.1
    facts = server.change(8 * PAGE)
    buffer = bytearray(100)

    remote = remote_source(RemoteBlocks(BlockCache(10 * PAGE)), server, PATH, facts)

    def read(offset: int) -> None:
        remote.read_into(memoryview(buffer), offset)

    for offset in (PAGE, PAGE, 5 * PAGE):
        with pytest.raises(DeviceFailed, match="no answer within"):
            read(offset)
    assert len(server.silent) == 1
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 1000.0)
    server.timeout = 60.0
    read(PAGE)
    assert buffer == content(facts, PAGE, 100)
    server.silent[0].cancel()
    server.threads.shutdown()
