"""A shared table loses the rows of what is closed within a second, however long its snapshot is valid."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassfs import work
from glassfs.content.summary import CONTAINER, EPISODES
from glassfs.datasets import snapshots
from glassfs.datasets.joined import CHECK_SHARE, Audience, Joins
from glassfs.datasets.snapshots import Snapshot
from glassfs.errors import DeviceFailed
from glassfs.formats import registry
from glassfs.settings import settings
from glassfs.source import Entry
from glassfs.source.local import LocalStore
from tests.datasets.takes import FORMAT, LastingStore, joins_in, joins_of, take, takes, tree_of, use_clock

LATER = settings.rights_valid
SHARED = Audience(True, (7, 7))
ALL = ["a/b/x.take", "a/parts.take", "a/z.take", "other.take"]


class Closing(LastingStore):
    """It has folders with permissions, and may fail, or take time of a clock."""

    def __init__(self, *words: Any) -> None:
        self.closed: dict[tuple[str, ...], int] = {}
        self.is_failing = False
        self.on_check: Callable[[], None] = lambda: None
        super().__init__(*words)

    def entry(self, path: Any) -> Entry:
        if self.is_failing:
            raise DeviceFailed("does not answer")
        found = super().entry(path)
        return found._replace(permissions=self.closed.get(path, found.permissions))

    def entries(self, folder: Any, names: Sequence[str]) -> list[Entry | None]:
        self.on_check()
        if self.is_failing:
            raise DeviceFailed("does not answer")
        return super().entries(folder, names)


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    monkeypatch.setattr(settings, "table_valid", 3600.0)


@pytest.fixture
def store() -> Closing:
    return Closing({
        "a/z.take": takes(take("pick"), take("put")), "a/b/x.take": takes(take("x")), "other.take": takes(take("o")),
        "a/parts.take": takes(take("of parts"), parts=["part"]), "a/part": b"part", "plain": b"plain",
    })


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=1000.0)
    use_clock(monkeypatch, lambda: made.now)
    return made


@pytest.fixture
def joins(store: Closing, clock: SimpleNamespace) -> Joins:
    return joins_of(store, SHARED)


def shown(snapshot: Snapshot) -> list[str]:
    table = snapshot.table(EPISODES)
    assert table.records is not None
    rows = [row for number in range(table.records.blocks) for row in table.records.block(number)]
    assert len(rows) == table.rows
    return list(dict.fromkeys(row[CONTAINER] for row in rows))


WITHOUT_Z = ["a/b/x.take", "a/parts.take", "other.take"]
CHANGES: dict[str, tuple[Callable[[Closing], None], list[str], int]] = {
    "a file": (lambda store: store.set_permissions("a/z.take", 0o600), WITHOUT_Z, 1),
    "its group": (lambda store: store.set_permissions("a/z.take", 0o604), WITHOUT_Z, 1),
    "a part": (lambda store: store.set_permissions("a/part", 0o640), ["a/b/x.take", "a/z.take", "other.take"], 1),
    "a folder": (lambda store: store.closed.update({("a", "b"): 0o750}), ["a/parts.take", "a/z.take", "other.take"], 1),
    "the root": (lambda store: store.closed.update({(): 0o700}), [], 4),
    "a removed file": (lambda store: store.remove("a/z.take"), WITHOUT_Z, 0),
    "a replaced file": (lambda store: store.put("a/z.take", takes(take()), 0o600), WITHOUT_Z, 1),
    "a file replaced by another user": (lambda store: store.put("a/z.take", takes(take("new")), uid=9), ALL, 0),
}
OTHERS: dict[str, Callable[[Closing], None]] = {
    "a rewritten file": lambda store: store.rewrite("a/z.take", takes(take())),
    "a file replaced by its owner": lambda store: store.put("a/z.take", takes(take())),
    "another file": lambda store: store.set_permissions("plain", 0o600),
}


@pytest.mark.parametrize("change", CHANGES)
def test_closed_rows_leave_a_valid_table(change: str, store: Closing, joins: Joins, clock: SimpleNamespace) -> None:
    do, left, omitted = CHANGES[change]
    before = joins.snapshot()
    assert shown(before) == ALL
    clock.now += LATER
    assert joins.snapshot() is before
    do(store)
    assert joins.snapshot() is before, "checked a moment ago"
    clock.now += LATER
    after = joins.snapshot()
    assert after.identity != before.identity and shown(after) == left
    assert after.table(EPISODES).attributes().get("omitted", "0") == f"{omitted}"
    assert shown(before) == ALL, "open files keep their snapshot"
    joins.containers.services.cache.clear()
    assert shown(after) == left, "blocks that were evicted are made again"
    clock.now += LATER
    assert joins.snapshot() is after


@pytest.mark.parametrize("change", OTHERS)
def test_other_changes_leave_a_valid_table(change: str, store: Closing, joins: Joins, clock: SimpleNamespace) -> None:
    before = joins.snapshot()
    assert shown(before) == ALL
    OTHERS[change](store)
    clock.now += LATER
    assert joins.snapshot() is before and shown(before) == ALL


def test_closed_part_outside_of_the_walk_takes_its_rows(store: Closing, clock: SimpleNamespace) -> None:
    """Containers that were named alone have parts beside them."""
    joins = joins_in(tree_of(store, "a/parts.take", "other.take", audience=SHARED))
    assert shown(joins.snapshot()) == ["other.take", "parts.take"]
    store.set_permissions("a/part", 0o600)
    clock.now += LATER
    assert shown(joins.snapshot()) == ["other.take"]


def test_checks_take_a_share_of_the_time(store: Closing, joins: Joins, clock: SimpleNamespace) -> None:
    checks: list[float] = []

    def slow() -> None:
        checks.append(clock.now)
        clock.now += 1.0

    shown(joins.snapshot())
    store.on_check = slow  # of three folders
    for _ in range(200):
        clock.now += 0.1
        joins.snapshot()
    assert len(checks) == 2 * 3 and checks[3] - checks[0] >= 3.0 * (1 + CHECK_SHARE)


def test_files_on_a_disk_that_fails_keep_their_rows(store: Closing, joins: Joins, clock: SimpleNamespace) -> None:
    shown(joins.snapshot())
    store.set_permissions("other.take", 0o600)
    store.is_failing = True
    clock.now += LATER
    assert shown(joins.snapshot()) == ALL
    store.is_failing = False
    clock.now += LATER
    assert shown(joins.snapshot()) == ALL[:-1]


def test_errors_of_closed_containers_are_not_shown(store: Closing, joins: Joins, clock: SimpleNamespace) -> None:
    store.put("secret.take", takes(take(), declared=3))
    assert "secret.take" in joins.snapshot().table(EPISODES).attributes()["error"]
    store.set_permissions("secret.take", 0o600)
    clock.now += LATER
    assert "secret" not in str(joins.snapshot().table(EPISODES).attributes())


def test_entries_of_local_files_equal_those_of_single_ones(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "folder").mkdir()
    os.link(tmp_path / "file", tmp_path / "linked")
    (tmp_path / "link").symlink_to("file")
    store = LocalStore(tmp_path)
    names = ["file", "folder", "linked", "none", "", "a\0b"]
    found = store.entries((), names)
    assert found[3:] == [None] * 3
    assert found[:3] == [store.entry((name,)) for name in names[:3]]
    os.chmod(tmp_path / "file", 0o600)
    assert store.entries((), ["file"]) != found[:1]


def test_a_file_closed_while_others_are_read_is_left_out(store: Closing, clock: SimpleNamespace, joins: Joins) -> None:
    """Between the walk and the end of reading: another file of the same block stays, and no reader waits for ever."""
    snapshot = joins.snapshot()
    clock.now += LATER + 0.1
    store.set_permissions("a/z.take", 0o600)
    assert shown(snapshot) == ["a/b/x.take", "a/parts.take", "other.take"]
    assert snapshot.table(EPISODES).attributes()["omitted"] == "1"


def test_pass_that_is_stopped_leaves_nothing_behind(
    store: Closing, joins: Joins, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is stopped after the rows were read; the next caller reads all files, those without rows too."""
    snapshot = joins.snapshot()
    clock.now += LATER + 1

    def stopped(*arguments: object) -> set[int]:
        raise work.Canceled

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "closed_files", stopped)
        with pytest.raises(work.Canceled):
            shown(snapshot)
    store.set_permissions("a/b/x.take", 0o600)
    assert shown(snapshot) == ["a/parts.take", "a/z.take", "other.take"]
