"""Reading by blocks: which requests it costs."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.source.remote.counting import BLOCK, PAGE, CountingServer, Gate, K, M, content, opened, read, read_all, used
from tests.waiting import wait_until


@pytest.fixture
def server() -> CountingServer:
    return CountingServer()


@pytest.mark.parametrize(("step", "size"), [(128 * K, 60 * M), (M, 60 * M), (4 * K, 12 * M), (20_000, 12 * M)])
def test_sequential_reads_make_few_large_requests(server: CountingServer, step: int, size: int) -> None:
    facts = server.put(size + 12345)
    read_all(opened(server, facts), facts, step)
    assert server.fetched == facts.size - PAGE
    assert len(server.requests) <= size // (2 * M) + 18
    assert max(size for _, size in server.requests) == 2 * M


def test_read_ahead_doubles_up_to_16_mib(server: CountingServer) -> None:
    facts = server.put(100 * M)
    remote = opened(server, facts)
    before = 0
    for end in range(128 * K, 60 * M, 128 * K):
        read(remote, end - 128 * K, 128 * K)
        ahead = PAGE + server.fetched - end
        assert ahead <= max(2 * BLOCK, min(2 * end, 16 * M) + PAGE)
        before = max(before, ahead)
    assert before > 14 * M


@pytest.mark.parametrize("budget", [M, 4 * M, 10 * M])
def test_small_budget_limits_the_read_ahead(server: CountingServer, budget: int) -> None:
    facts = server.put(24 * M)
    remote = opened(server, facts, budget)
    for offset in range(0, facts.size, 64 * K):
        read(remote, offset, 64 * K)
        assert used(remote) <= budget
    assert server.fetched == facts.size - PAGE


def test_shuffled_sequential_reads_are_one_reader(server: CountingServer) -> None:
    facts = server.put(60 * M)
    remote, chance = opened(server, facts), random.Random(2)
    for start in range(0, facts.size, M):
        steps = list(range(start, start + M, 128 * K))
        chance.shuffle(steps)
        for offset in steps:
            assert read(remote, offset, 128 * K) == content(facts, offset, 128 * K)
    assert server.fetched == facts.size - PAGE
    assert len(server.requests) <= 60


def test_readers_at_several_offsets_are_distinguished(server: CountingServer) -> None:
    facts = server.put(400 * M)
    remote = opened(server, facts, 128 * M)
    for step in range(0, 10 * M, 128 * K):
        for place in range(20 * M, 400 * M, 100 * M):
            assert read(remote, place + step, 128 * K) == content(facts, place + step, 128 * K)
    assert len(server.requests) <= 4 * 25
    assert server.fetched <= 4 * (10 * M + 16 * M + BLOCK)


def test_single_read_ahead_of_a_reader_costs_a_block(server: CountingServer) -> None:
    facts = server.put(300 * M)
    remote = opened(server, facts, 16 * M)
    read_all(remote, facts, 128 * K, 0, 40 * M)
    before = server.fetched
    read(remote, 54 * M, 100 * K)
    assert server.fetched - before == BLOCK


def test_small_random_reads_cost_a_block_each(server: CountingServer) -> None:
    facts = server.put(256 * M)
    remote, chance = opened(server, facts), random.Random(1)
    for _ in range(100):
        offset = chance.randrange(facts.size - 4 * K)
        assert read(remote, offset, 4 * K) == content(facts, offset, 4 * K)
    assert len(server.requests) <= 100
    assert {size for _, size in server.requests} <= {BLOCK, PAGE}


def test_read_across_two_blocks_costs_one_request(server: CountingServer) -> None:
    facts = server.put(100 * M)
    remote = opened(server, facts)
    border = PAGE + 20 * BLOCK
    assert read(remote, border - 2 * K, 4 * K) == content(facts, border - 2 * K, 4 * K)
    assert server.requests == [(border - PAGE, BLOCK)]


def test_large_random_reads_fetch_little_more(server: CountingServer) -> None:
    facts = server.put(800 * M)
    remote, chance = opened(server, facts), random.Random(1)
    for _ in range(60):
        offset = chance.randrange(PAGE, facts.size - M)
        del server.requests[:]
        assert read(remote, offset, M) == content(facts, offset, M)
        assert server.fetched <= M + 2 * PAGE


def test_large_read_makes_concurrent_requests_of_2_mib(server: CountingServer) -> None:
    facts = server.put(64 * M)
    remote = opened(server, facts, 256 * M)
    gate = Gate(server)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read, remote, 10 * M, 32 * M)
        wait_until(lambda: len(gate.waiting) >= 9)
        assert server.fetched == 18 * M
        assert {size for _, size in server.requests} == {2 * M}
        gate.open()
        assert reader.result() == content(facts, 10 * M, 32 * M)
    assert server.fetched == 32 * M


def test_reader_that_steps_back_keeps_its_read_ahead(server: CountingServer) -> None:
    facts = server.put(200 * M)
    remote = opened(server, facts)
    read_all(remote, facts, 128 * K, 0, 40 * M)
    before = len(server.requests)
    read_all(remote, facts, 128 * K, 39 * M, 59 * M)
    assert len(server.requests) - before <= (20 * M + 16 * M) // (2 * M) + 2


def test_repeated_reads_are_not_sequential(server: CountingServer) -> None:
    facts = server.put(100 * M)
    remote = opened(server, facts)
    for _ in range(300):
        read(remote, 30 * M, 4 * K)
        read(remote, 30 * M + 100 * K, 4 * K)
    assert server.fetched == BLOCK
