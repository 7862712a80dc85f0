"""The children of directories that are remembered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from glassfs.content import Group, Member, Null
from glassfs.tree import Directory
from glassfs.tree.build import container_root
from glassfs.tree.listings import Listings
from tests.tree.trees import origin, tree_of


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
        started.wait(10)
        return len(root.listing())

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(look, range(8))) == [200] * 8
    assert len(asked) == 1


def test_those_used_last_are_kept() -> None:
    asked: list[int] = []

    def group(number: int) -> Group:
        def members() -> list[Member]:
            asked.append(number)
            return nulls(9)

        return Group(b"g", members)

    tree = tree_of([Member((b"%d" % number,), group(number)) for number in range(20)], limit=60)
    for number in (0, 1, 0, 2, 0, 3):  # ten nodes each, and the root's 21
        tree.directory(f"/{number}").listing()
    assert asked == [0, 1, 2, 3]
    tree.directory("/0").listing()
    assert asked == [0, 1, 2, 3]
    tree.directory("/1").listing()
    assert asked[-1] == 1


def test_forgetting_one_container_leaves_the_others() -> None:
    listings = Listings()
    asked: list[str] = []

    def root(name: str) -> Directory:
        def members() -> list[Member]:
            asked.append(name)
            return []

        return container_root(Group(b"", members), origin(name, listings))

    first, second = root("first"), root("second")
    for _ in range(2):
        first.listing()
        second.listing()
    assert asked == ["first", "second"]
    listings.forget(first.origin)
    first.listing()
    second.listing()
    assert asked == ["first", "second", "first"]


def test_nothing_is_kept_of_what_was_retired() -> None:
    """Somebody still walks through a container that was closed: what that makes must not stay for good."""
    listings: Listings[list[int]] = Listings()
    owner = origin(listings=listings)
    asked = []

    def make() -> list[int]:
        asked.append(1)
        owner.lease.retire(is_replaced=False)
        return [1]

    for _ in range(2):
        assert listings.children(owner, 1, make) == [1]
    assert asked == [1, 1]
