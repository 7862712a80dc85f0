"""What formats keep in the catalogue: found by later processes, for the same stamp, within bounds."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from glassfs.cache import catalogue as findings
from glassfs.cache.catalogue import FILE, Catalogue, Findings

OLD = 10**18


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(lambda: str(tmp_path / "catalogue"))


def found_by_another(catalogue: Catalogue, found: dict[str, bytes]) -> None:
    """Keep a value of each of these containers, as another process does."""
    kept = Findings(lambda: catalogue, "1")
    for stamp, value in found.items():
        kept.keep(stamp, OLD, b"one", value)
    kept.flush()
    catalogue.close()


def test_findings_of_one_process_are_known_to_the_next(catalogue: Catalogue) -> None:
    before = Findings(lambda: catalogue, "1")
    before.keep("a", OLD, b"one", b"1" * 1000)
    before.keep("a", OLD, b"two", b"")
    before.keep("b", OLD, b"one", b"other")
    assert before.find("a", b"one") == b"1" * 1000
    before.flush()
    catalogue.close()
    after = Findings(lambda: catalogue, "1")
    assert (after.find("a", b"one"), after.find("a", b"two")) == (b"1" * 1000, b"")
    assert (after.find("a", b"three"), after.find("b", b"one"), after.find("c", b"one")) == (None, b"other", None)


def test_findings_are_added_to_those_of_other_processes(catalogue: Catalogue) -> None:
    for name in (b"one", b"two"):
        kept = Findings(lambda: catalogue, "1")
        kept.keep("a", OLD, name, name)
        kept.flush()
        catalogue.close()
    after = Findings(lambda: catalogue, "1")
    assert [after.find("a", name) for name in (b"one", b"two")] == [b"one", b"two"]


def test_processes_at_the_same_time_keep_what_all_of_them_found(catalogue: Catalogue) -> None:
    processes = [(name, Findings(lambda: catalogue, "1")) for name in (b"one", b"two", b"three")]
    for name, kept in processes:
        assert kept.find("a", name) is None
    for name, kept in processes:
        kept.keep("a", OLD, name, name)
        kept.flush()
        catalogue.close()
    after = Findings(lambda: catalogue, "1")
    assert [after.find("a", name) for name, _ in processes] == [b"one", b"two", b"three"]


def test_what_changed_a_moment_ago_is_not_kept(catalogue: Catalogue) -> None:
    kept = Findings(lambda: catalogue, "1")
    kept.keep("a", time.time_ns(), b"one", b"1")
    assert kept.find("a", b"one") is None


def test_findings_stay_within_their_bounds(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MOST_VALUE", 1000)
    monkeypatch.setattr(findings, "MOST_OF_CONTAINER", findings.ENTRY_BYTES + 2500)
    kept = Findings(lambda: catalogue, "1")
    kept.keep("a", OLD, b"large", bytes(1001))
    for number in range(5):
        kept.keep("a", OLD, b"%d" % number, bytes(1000))
    assert kept.find("a", b"large") is None
    assert [kept.find("a", b"%d" % number) is not None for number in range(5)] == [True, True, False, False, False]


def test_without_a_catalogue_nothing_is_kept_but_in_memory() -> None:
    kept = Findings(lambda: None, "1")
    kept.keep("a", OLD, b"one", b"1")
    kept.flush()
    assert kept.find("a", b"one") == b"1"


def test_damaged_findings_are_dropped(catalogue: Catalogue, tmp_path: Path) -> None:
    found_by_another(catalogue, {f"{number}": b"%d" % number for number in range(100)})
    damaged = findings._key("50", "1")
    with sqlite3.connect(tmp_path / "catalogue" / FILE) as connection:
        connection.execute("UPDATE entries SET data = zeroblob(20) WHERE key = ?", (damaged,))
    after = Findings(lambda: catalogue, "1")
    expected = [None if number == 50 else b"%d" % number for number in range(100)]
    assert [after.find(f"{number}", b"one") for number in range(100)] == expected
    assert connection.execute("SELECT count(*) FROM entries WHERE key = ?", (damaged,)).fetchone() == (0,)
    connection.close()
