"""Notes: found again, few, and forgotten with the version that they are about."""

from __future__ import annotations

from glassfs.cache import BlockCache
from glassfs.cache.notes import MOST_NOTES, Notes


def test_the_notes_that_were_used_last_are_kept() -> None:
    notes = Notes()
    notes.put("first", (1,))
    notes.put("second", (2,))
    for number in range(MOST_NOTES - 1):
        assert notes.find("first") == (1,)
        notes.put(number, (number,))
    assert len(notes) == MOST_NOTES
    assert (notes.find("first"), notes.find("second"), notes.find(0)) == ((1,), None, (0,))
    notes.put("first", (3,))
    assert notes.find("first") == (3,)
    assert len(notes) == MOST_NOTES


def test_notes_go_with_what_they_are_about() -> None:
    cache = BlockCache()
    for version in ("old", "new"):
        cache.notes.put((version, 1), (1,))
    cache.forget("old")
    assert (cache.notes.find(("old", 1)), cache.notes.find(("new", 1))) == (None, (1,))
    cache.clear()
    assert len(cache.notes) == 0
