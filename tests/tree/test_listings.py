"""The children of directories that are remembered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import Fields, Group, Member, Null, Omitted, Outline, Series
from glassfs.content.allowance import held_by_content, held_by_member
from glassfs.settings import settings
from glassfs.tree import Directory
from glassfs.tree.build import LISTING_COST, NODE_COST, container_root
from glassfs.tree.listings import Listings
from glassfs.tree.nodes import Origin, Settled
from glassfs.tree.omissions import Omission
from tests.tree.trees import origin


def nulls(count: int) -> list[Member]:
    return [Member((b"%d" % number,), Null(b"")) for number in range(count)]


def test_they_are_made_once_by_many_threads() -> None:
    started = threading.Barrier(8)
    asked: list[int] = []

    def members() -> Iterator[Member]:
        asked.append(1)
        yield from nulls(200)

    root = container_root(Group(b"", members), origin())

    def look(_: int) -> int:
        started.wait(120)
        return len(root.listing())

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(look, range(8))) == [200] * 8
    assert len(asked) == 1


def test_nothing_is_kept_of_what_was_retired() -> None:
    """Somebody still walks through a container that was closed: what that makes must not stay for good."""
    listings: Listings[Kept] = Listings(BlockCache().memory)
    owner = origin(listings=listings)
    asked = []

    def make() -> Kept:
        asked.append(1)
        owner.lease.retire(is_replaced=False)
        return Kept(1)

    for _ in range(2):
        assert listings.children(owner, 1, make) == Kept(1)
    assert asked == [1, 1]


class Kept(NamedTuple):
    cost: int


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 150)), max_size=40), st.integers(0, 2))
@hypothesis_settings(deadline=None)
def test_there_is_room_for_so_many_bytes(looks: list[tuple[int, int, int]], forgotten: int) -> None:
    """Against a model: those looked at last, as many as fit, at least one; large ones weigh a quarter."""
    listings: Listings[Kept] = Listings(BlockCache().memory, 90)
    owners = [origin(str(number)) for number in range(3)]
    model: dict[tuple[int, int], int] = {}
    for owner, ino, cost in looks:
        weight = model.pop((owner, ino), min(cost, 90 // 4))
        listings.children(owners[owner], ino, lambda cost=cost: Kept(cost))  # type: ignore[misc]
        model[owner, ino] = weight
        while sum(model.values()) > 90 and len(model) > 1:
            del model[next(iter(model))]
    listings.forget(owners[forgotten].lease)
    for owner in range(3):
        for ino in range(10):
            is_kept = owner != forgotten and (owner, ino) in model
            assert (listings.known(owners[owner], ino) is not None) == is_kept


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that listings see, as the only item."""
    now = [0.0]
    monkeypatch.setattr("glassfs.tree.listings.monotonic", lambda: now[0])
    return now


def budgeted(cache: BlockCache) -> Listings[Kept]:
    """Return listings of 90 bytes that count in the budget of ``cache``."""
    listings: Listings[Kept] = Listings(cache.memory, 90)
    cache.share(listings.evict)
    return listings


def filled(listings: Listings[Kept], owner: Origin, *costs: int) -> list[int]:
    """Return the numbers of directories with these costs, after all were asked for."""
    for ino, cost in enumerate(costs):
        listings.children(owner, ino, lambda cost=cost: Kept(cost))  # type: ignore[misc]
    return cached(listings, owner, len(costs))


def cached(listings: Listings[Kept], owner: Origin, count: int) -> list[int]:
    return [ino for ino in range(count) if listings.known(owner, ino) is not None]


def test_children_count_in_the_memory_budget(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "memory", 0.05)
    cache, owner = BlockCache(4000), origin()
    listings = budgeted(cache)
    assert filled(listings, owner, 400, 30, 1000) == [0, 1, 2]
    assert cache.used == 400 + 30 + 1000
    with cache.reserved(2900):
        assert cached(listings, owner, 3) == [1, 2], "those used last stay"
    with held_elsewhere(cache, 500):
        with cache.reserved(3400):
            assert cached(listings, owner, 3) == [2], "while they are in use"
        now[0] += settings.listing_in_use
        with cache.reserved(3400):
            assert cached(listings, owner, 3) == []
    assert cache.used == 0


def test_listings_in_use_delay_no_request_that_nobody_else_holds_up(now: list[float]) -> None:
    cache, owner = BlockCache(4000), origin()
    listings = budgeted(cache)
    for size in (3900, 5000):
        assert filled(listings, owner, 1000) == [0]
        assert cache.memory.reserve_now(size)
        assert cached(listings, owner, 1) == []
        cache.memory.release(size)
    assert cache.used == 0


@contextmanager
def held_elsewhere(cache: BlockCache, size: int) -> Iterator[None]:
    """Reserve so many bytes on another thread for a ``with``."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.reserved(size):
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(60)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_several_very_large_listings_take_no_more_than_the_budget(now: list[float]) -> None:
    """A single one may be larger than the budget, as it could not be listed otherwise."""
    cache, owner = BlockCache(4000), origin()
    listings = budgeted(cache)
    assert filled(listings, owner, *[1500] * 8) == [6, 7]
    assert cache.used == 3000
    assert filled(listings, origin("other"), *[5000] * 8) == [7]
    assert cache.used <= 2000 + 1500
    with cache.reserved(3900):  # others do not wait for a reader of that directory
        assert filled(listings, origin("other"), 60) == [0]
    assert cache.used == 60


@pytest.mark.parametrize("is_retired", [False, True])
def test_forgotten_children_do_not_count(now: list[float], is_retired: bool) -> None:
    cache, owner = BlockCache(4000), origin()
    listings = budgeted(cache)
    if is_retired:
        owner.lease.retire(is_replaced=False)
    assert filled(listings, owner, 500, 600) == ([] if is_retired else [0, 1])
    assert cache.used == (0 if is_retired else 1100)
    listings.forget(owner.lease)
    assert cache.used == 0 and not cached(listings, owner, 2)
    listings.clear()
    assert cache.used == 0


def test_children_are_dropped_when_idle(now: list[float]) -> None:
    cache, owner = BlockCache(4000), origin()
    listings = budgeted(cache)
    assert filled(listings, owner, 200, 30, 300) == [0, 1, 2]
    now[0] = settings.listing_idle - 1
    assert not listings.drop_idle() and listings.known(owner, 0) == Kept(200)
    now[0] = settings.listing_idle + 1
    assert listings.drop_idle() and cache.used == 200
    assert cached(listings, owner, 3) == [0]
    listings.clear()
    assert cache.used == 0


def test_kept_series_and_deeper_members_count() -> None:
    series = Series(b"s", range(2), lambda number: Null(b""), kept=123_456)
    below = [Member((b"d", b"%03d" % number), Null(b"k" * 1000)) for number in range(100)]
    root = container_root(Group(b"", lambda: [Member((b"s",), series), *below]), origin())
    deep = root.child("d")
    assert isinstance(deep, Settled) and deep.count == 100
    known = [root.origin.services.listings.known(root.origin, ino) for ino in (root.ino, deep.ino)]
    costs = [0 if children is None else children.cost for children in known]
    members = sum(map(held_by_member, below))
    assert members > 100 * 1000
    assert costs[0] == LISTING_COST + 2 * NODE_COST + held_by_content(series) + members
    assert costs[1] == LISTING_COST + 100 * (NODE_COST + 1000)
    assert held_by_content(series) > 123_456


def test_a_directory_lists_what_it_omits_and_its_cheap_attributes_do_not() -> None:
    def broken(name: bytes) -> Group:
        return Group(name, lambda: [*nulls(2), Member((b"x",), Omitted(b"x", "breaks off", is_damage=True))])

    root = container_root(Fields(b"", Outline([b"images"]), broken), origin())
    assert "user.glassfs.error" not in root.child("images").xattrs()
    images = root.child("images")
    assert isinstance(images, Directory) and len(images.listing()) == 2
    assert root.child("images").xattrs()["user.glassfs.error"] == b"x: breaks off"
    root.origin.services.listings.clear()
    assert "user.glassfs.error" not in root.child("images").xattrs()
    assert images.omitted() == [Omission("x", "breaks off", is_damage=True)]
