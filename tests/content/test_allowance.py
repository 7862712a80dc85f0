"""The memory that a container may take for what is parsed of it."""

from __future__ import annotations

import tracemalloc

import pytest

from glassfs.cache import BlockCache
from glassfs.content import Link, Member
from glassfs.content.allowance import LEAST, Allowance, held, held_by_member
from glassfs.errors import TooLarge
from glassfs.sizes import PIECE


def test_allowance_is_refused_with_what_it_would_need() -> None:
    allowance = Allowance(1 << 20)
    allowance.take(1 << 19, "names")
    with pytest.raises(TooLarge, match=r"^takes 2.5M of memory or more for names, and 1.0M are allowed: a larger"):
        allowance.take(2 << 20, "names")
    allowance.take(1 << 19, "names")
    assert allowance.left == 0


def test_a_part_takes_nothing_from_the_whole() -> None:
    allowance = Allowance(60)
    allowance.part().take(60, "names")
    assert allowance.left == 60


def test_allowance_grows_with_the_file_up_to_a_share_of_the_cache() -> None:
    sizes = [Allowance.of_container(stored, 256 << 20).size for stored in (0, 1 << 19, 1 << 40)]
    assert sizes == [LEAST, 32 << 20, 64 << 20]
    assert Allowance.of_container(1 << 40, 1 << 20).size == LEAST


def test_temporary_allowance_is_reserved_and_released() -> None:
    cache = BlockCache(8 * PIECE)
    whole = Allowance(5 * PIECE)
    with whole.temporary(cache) as allowance:
        allowance.take(PIECE, "links")
        assert not cache.used, "a little is not reserved"
        allowance.take(1, "links")
        assert PIECE < cache.used <= 2 * PIECE
        allowance.take(3 * PIECE, "links")
        assert 4 * PIECE <= cache.used <= 6 * PIECE
        with pytest.raises(TooLarge, match=r"takes 6.0M of memory or more for links, and 5.0M are allowed"):
            allowance.take(2 * PIECE, "links")
    assert not cache.used and whole.left == 5 * PIECE


COUNT = 500


def link(number: int) -> Member:
    name = b"%0250d" % number
    return Member((b"w" * (1000 + number), name), Link(name * 2, (b"..", name * 3), "é" * (1000 + number)))


def test_members_hold_about_what_is_counted() -> None:
    tracemalloc.start()
    members = [link(number) for number in range(COUNT)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = sum(map(held_by_member, members))
    assert taken * 0.9 <= counted <= taken * 1.5 + COUNT * 200


def test_values_hold_their_texts() -> None:
    assert held("x" * 1000) > 1000 and held("é" * 1000) > 1000 and held("😀" * 1000) > 4000
    assert held(["x" * 1000, None, ("y" * 1000,)]) > 2000
    assert held(None) < 100
