"""The mapping that drops its least recently used entries."""

from __future__ import annotations

from glassfs.lru import LRU


def test_least_recently_used_entries_are_evicted() -> None:
    entries: LRU[str, int] = LRU(3)
    for number, key in enumerate("abc"):
        assert entries.put(key, number) == []
    assert entries.get("a") == 0
    assert entries.peek("b") == 1
    assert entries.put("d", 3) == [("b", 1)]
    assert entries.items() == [("c", 2), ("a", 0), ("d", 3)]


def test_weights_are_bounded() -> None:
    entries: LRU[str, str] = LRU(10)
    entries.put("a", "", 6)
    entries.put("a", "", 4)
    entries.put("b", "", 6)
    assert (entries.weight, len(entries.items())) == (10, 2)
    assert entries.reweigh("b", 7) == [("a", "")]
    assert entries.reweigh("a", 7) == []
    assert entries.put("large", "", 99) == [("b", "")]
    assert entries.weight == 99  # the newest stays
    assert entries.put("c", "", 1) == [("large", "")]
    assert entries.weight == 1


def test_number_of_entries_is_bounded_beside_weight() -> None:
    entries: LRU[int, int] = LRU(100, most=2)
    for number in range(5):
        entries.put(number, number)
    assert [key for key, _ in entries.items()] == [3, 4]


def test_entries_are_removed_by_key_or_condition() -> None:
    entries: LRU[int, str] = LRU(100)
    for number in range(6):
        entries.put(number, str(number), 2)
    assert entries.pop(5) == "5"
    assert entries.pop(5) is None
    assert entries.pop(0) == "0"
    assert entries.pop_where(lambda key: key % 2 == 0) == ["2", "4"]
    assert entries.weight == 4
    entries.clear()
    assert (entries.weight, entries.items()) == (0, [])
