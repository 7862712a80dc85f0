"""The memory that names, rows and members hold."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Callable

import pytest

from glassfs.cache import BlockCache
from glassfs.content import Link, Member, Null, Series
from glassfs.content.growth import Growth, held, held_by_member
from glassfs.errors import TooLarge
from glassfs.sizes import PIECE

COUNT = 500


def link(number: int) -> Member:
    name = b"%0250d" % number
    return Member((b"w" * (1000 + number), name), Link(name * 2, (b"..", name * 3), "é" * (1000 + number)))


def series(number: int) -> Member:
    numbers = array("I", range(number))
    return Member((b"%d" % number,), Series(b"%d" % number, number, lambda _: Null(b""), numbers=numbers))


@pytest.mark.parametrize("make", [link, series])
def test_members_hold_about_what_is_counted(make: Callable[[int], Member]) -> None:
    tracemalloc.start()
    members = [make(number) for number in range(COUNT)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = sum(map(held_by_member, members))
    assert taken * 0.9 <= counted <= taken * 1.5 + COUNT * 200


def test_values_hold_their_texts() -> None:
    assert held("x" * 1000) > 1000 and held("é" * 1000) > 1000 and held("😀" * 1000) > 4000
    assert held(["x" * 1000, None, ("y" * 1000,)]) > 2000
    assert held(None) < 100


def test_growth_is_reserved_and_released() -> None:
    cache = BlockCache(8 * PIECE)
    with Growth(cache, 5 * PIECE, b"links") as growth:
        growth.add(PIECE)
        assert not cache.used, "a little is not reserved"
        growth.add(1)
        assert PIECE < cache.used <= 2 * PIECE
        growth.add(3 * PIECE)
        assert 4 * PIECE <= cache.used <= 6 * PIECE
        with pytest.raises(TooLarge, match="links: takes more than 5 MiB of memory"):
            growth.add(2 * PIECE)
    assert not cache.used
