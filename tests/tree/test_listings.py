"""The children of directories that are remembered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.content import Fields, Group, Member, Null, Outline, Series
from glassfs.tree import Directory
from glassfs.tree.build import LISTING_COST, MEMBER_COST, NODE_COST, container_root
from glassfs.tree.listings import Listings
from glassfs.tree.nodes import Settled
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
    listings: Listings[Kept] = Listings()
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
@settings(deadline=None)
def test_there_is_room_for_so_many_bytes(looks: list[tuple[int, int, int]], forgotten: int) -> None:
    """Against a model: those looked at last, as many as have room, one at least; a large one leaves a third of it."""
    listings: Listings[Kept] = Listings(limit=90)
    owners = [origin(str(number)) for number in range(3)]
    model: dict[tuple[int, int], int] = {}
    for owner, ino, cost in looks:
        weight = model.pop((owner, ino), None)
        listings.children(owners[owner], ino, lambda cost=cost: Kept(cost))  # type: ignore[misc]
        model[owner, ino] = min(cost, 60) if weight is None else weight
        while sum(model.values()) > 90 and len(model) > 1:
            del model[next(iter(model))]
    listings.forget(owners[forgotten].lease)
    for owner in range(3):
        for ino in range(10):
            is_kept = owner != forgotten and (owner, ino) in model
            assert (listings.known(owners[owner], ino) is not None) == is_kept


def test_kept_series_and_deeper_members_count() -> None:
    series = Series(b"s", 2, lambda number: Null(b""), kept=123_456)
    below = [Member((b"d", b"%d" % number), Null(b"")) for number in range(100)]
    root = container_root(Group(b"", lambda: [Member((b"s",), series), *below]), origin())
    deep = root.child("d")
    assert isinstance(deep, Settled) and deep.count == 100
    known = [root.origin.services.listings.known(root.origin, ino) for ino in (root.ino, deep.ino)]
    costs = [0 if children is None else children.cost for children in known]
    assert costs[0] - 123_456 == LISTING_COST + 2 * NODE_COST + 100 * MEMBER_COST
    assert costs[1] == LISTING_COST + 100 * NODE_COST


def test_a_rebuilt_directory_still_reports_its_errors() -> None:
    """The error is found when the directory is listed; the group is gone by then."""

    def broken(name: bytes) -> Group:
        def members() -> list[Member]:
            group.error = "breaks off"
            return nulls(2)

        group = Group(name, members)
        return group

    root = container_root(Fields(b"", Outline([b"images"]), broken), origin())
    assert "user.glassfs.error" not in root.child("images").xattrs()
    images = root.child("images")
    assert isinstance(images, Directory) and len(images.listing()) == 2
    assert root.child("images").xattrs()["user.glassfs.error"] == b"breaks off"
    root.origin.services.listings.clear()
    assert "user.glassfs.error" not in root.child("images").xattrs()
