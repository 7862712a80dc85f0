"""The memory that a container may take for what is parsed of it."""

from __future__ import annotations

import pytest

from glassfs.content.allowance import LEAST, Allowance
from glassfs.errors import TooLarge


def test_allowance_is_refused_with_what_it_would_need() -> None:
    allowance = Allowance(1 << 20)
    allowance.take(1 << 19, "names")
    with pytest.raises(TooLarge, match=r"^takes 2.5M of memory or more for names, and 1.0M are allowed: a larger"):
        allowance.take(2 << 20, "names")
    allowance.take(1 << 19, "names")
    assert allowance.left == 0


def test_what_is_given_back_can_be_taken_again() -> None:
    allowance = Allowance(100)
    allowance.take(100, "names")
    allowance.give_back(60)
    allowance.part().take(60, "names")
    assert allowance.left == 60


def test_allowance_grows_with_the_file_up_to_a_share_of_the_cache() -> None:
    sizes = [Allowance.of_container(stored, 256 << 20).size for stored in (0, 1 << 19, 1 << 40)]
    assert sizes == [LEAST, 32 << 20, 64 << 20]
    assert Allowance.of_container(1 << 40, 1 << 20).size == LEAST
