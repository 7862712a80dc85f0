"""A shared table loses the rows of what is closed within a second, however long its snapshot is valid."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content.summary import CONTAINER, EPISODES
from glassfs.datasets.joined import Audience, Joins
from glassfs.datasets.rights import CHECK_SHARE, Rights
from glassfs.datasets.snapshots import Snapshot
from glassfs.errors import DeviceFailed
from glassfs.formats import registry
from glassfs.settings import settings
from glassfs.source import Entry
from glassfs.source.local import LocalStore
from glassfs.tree import Containers, ContainerSettings
from glassfs.tree.containers.lease import Location
from glassfs.tree.sources.sources import Start
from tests.datasets.takes import FORMAT, LastingStore, take, takes
from tests.test_work import Doing
from tests.waiting import SECONDS, wait_for, wait_until

LATER = settings.rights_valid
ALL = ["a/b/x.take", "a/parts.take", "a/z.take", "other.take"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting(LastingStore):
    """It has folders with permissions, other owners, and counts what was looked at."""

    def __init__(self, *words: Any) -> None:
        self.closed: dict[tuple[str, ...], int] = {}
        self.glanced: list[tuple[str, ...]] = []
        self.failing = False
        self.gate = threading.Event()
        self.gate.set()
        self.busy = self.most_busy = 0
        super().__init__(*words)

    def entry(self, path: Any) -> Entry:
        found = super().entry(path)
        return found._replace(permissions=self.closed.get(path, found.permissions))

    def glances(self, folder: Any, names: Sequence[str]) -> list[tuple[str, int] | None]:
        if self.failing:
            raise DeviceFailed("does not answer")
        self.glanced += [(*folder, name) for name in names]
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        wait_for(self.gate)
        self.busy -= 1
        return super().glances(folder, names)


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    monkeypatch.setattr(settings, "table_valid", 3600.0)


@pytest.fixture
def store() -> Counting:
    return Counting({
        "a/z.take": takes(take("pick"), take("put")), "a/b/x.take": takes(take("x")), "other.take": takes(take("o")),
        "a/parts.take": takes(take("of parts"), parts=["part"]), "a/part": b"part", "plain": b"plain",
    })


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def joins(store: Counting, clock: Clock) -> Joins:
    containers = Containers(ContainerSettings(BlockCache(64 << 20)))
    return Joins(containers, [Start("", Location(store, ()), True)], Audience(True, (7, 7)), 60.0, clock)


def shown(snapshot: Snapshot) -> list[str]:
    table = snapshot.table(EPISODES)
    assert table.records is not None
    rows = [row for number in range(table.records.blocks) for row in table.records.block(number)]
    assert len(rows) == table.rows
    return list(dict.fromkeys(row[CONTAINER] for row in rows))


def close_folder(store: Counting) -> None:
    store.closed["a", "b"] = 0o750


def close_top(store: Counting) -> None:
    store.closed[()] = 0o700


CHANGES: dict[str, tuple[Callable[[Counting], None], list[str]]] = {
    "a file": (lambda store: store.set_permissions("a/z.take", 0o600), ["a/b/x.take", "a/parts.take", "other.take"]),
    "its group": (lambda store: store.set_permissions("a/z.take", 0o604), ["a/b/x.take", "a/parts.take", "other.take"]),
    "a part": (lambda store: store.set_permissions("a/part", 0o640), ["a/b/x.take", "a/z.take", "other.take"]),
    "a folder": (close_folder, ["a/parts.take", "a/z.take", "other.take"]),
    "the root": (close_top, []),
    "a removed file": (lambda store: store.remove("a/z.take"), ["a/b/x.take", "a/parts.take", "other.take"]),
    "a replaced file": (
        lambda store: store.put("a/z.take", takes(take()), 0o600), ["a/b/x.take", "a/parts.take", "other.take"],
    ),
    "a file replaced by another user": (
        lambda store: store.put("a/z.take", takes(take()), uid=9), ["a/b/x.take", "a/parts.take", "other.take"],
    ),
    "a rewritten file": (lambda store: store.rewrite("a/z.take", takes(take())), ALL),
    "a file replaced by its owner": (lambda store: store.put("a/z.take", takes(take())), ALL),
    "another file": (lambda store: store.set_permissions("plain", 0o600), ALL),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("can_watch", [True, False])
def test_closed_rows_leave_a_valid_table(
    change: str, can_watch: bool, store: Counting, joins: Joins, clock: Clock,
) -> None:
    do, left = CHANGES[change]
    store.can_watch = can_watch
    before = joins.snapshot()
    assert shown(before) == ALL
    clock.now += LATER
    assert joins.snapshot() is before
    do(store)
    if can_watch and change in ("a folder", "the root"):  # the others notify
        for notify in list(store.watched.values()):
            notify((), "")
    assert joins.snapshot() is before, "checked a moment ago"
    clock.now += LATER
    after = joins.snapshot()
    assert shown(after) == left
    assert (after is before) == (left == ALL) == (after.identity == before.identity)
    closed = len(ALL) - len(left)
    assert after.table(EPISODES).attributes().get("omitted", "0") == f"{closed}"
    assert shown(before) == ALL, "open files keep their snapshot"
    if after is not before:
        joins.containers.services.cache.clear()
        assert shown(after) == left, "blocks that were evicted are made again"
    clock.now += LATER
    assert joins.snapshot() is after


def test_checks_take_a_share_of_the_time(
    store: Counting, joins: Joins, clock: Clock, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(self: Rights) -> None:
        checks.append(clock.now)
        clock.now += 2.0

    checks: list[float] = []
    shown(joins.snapshot())
    monkeypatch.setattr(Rights, "_check_all", slow)
    for _ in range(100):
        clock.now += 0.1
        joins.snapshot()
    assert len(checks) == 2 and checks[1] - checks[0] >= 2.0 * (1 + CHECK_SHARE)


def test_files_on_a_disk_that_fails_keep_their_rows(store: Counting, joins: Joins, clock: Clock) -> None:
    shown(joins.snapshot())
    store.set_permissions("other.take", 0o600)
    store.failing = True
    clock.now += LATER
    assert shown(joins.snapshot()) == ALL
    store.failing = False
    clock.now += LATER
    assert shown(joins.snapshot()) == ALL[:-1]


def test_errors_of_closed_containers_are_not_shown(store: Counting, joins: Joins, clock: Clock) -> None:
    store.put("secret.take", takes(take(), declared=3))
    assert "secret.take" in joins.snapshot().table(EPISODES).attributes()["error"]
    store.set_permissions("secret.take", 0o600)
    clock.now += LATER
    assert "secret" not in str(joins.snapshot().table(EPISODES).attributes())


def test_glances_of_local_files_equal_their_entries(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "folder").mkdir()
    os.link(tmp_path / "file", tmp_path / "linked")
    (tmp_path / "link").symlink_to("file")
    store = LocalStore(tmp_path)
    names = ["file", "folder", "linked", "none", "", "a\0b"]
    found = store.glances((), names)
    assert found[3:] == [None] * 3
    for name, glance in zip(names[:3], found, strict=False):
        entry = store.entry((name,))
        assert glance == (entry.stamp, entry.permissions)
    os.chmod(tmp_path / "file", 0o600)
    assert store.glances((), ["file"]) != found[:1]


def test_a_file_closed_while_others_are_read_is_left_out(store: Counting, clock: Clock, joins: Joins) -> None:
    """Between the walk and the end of reading: another file of the same block stays, and no reader waits for ever."""
    snapshot = joins.snapshot()
    clock.now += LATER + 0.1
    store.set_permissions("a/z.take", 0o600)
    assert shown(snapshot) == ["a/b/x.take", "a/parts.take", "other.take"]
    assert snapshot.table(EPISODES).attributes()["omitted"] == "1"


def test_check_waits_for_one_whose_caller_was_stopped(store: Counting, joins: Joins, clock: Clock) -> None:
    snapshot = joins.snapshot()
    assert shown(snapshot) == ALL
    clock.now += LATER
    store.set_permissions("a/z.take", 0o600)
    store.gate.clear()
    first = Doing(snapshot.current)
    wait_until(lambda: store.busy)
    assert first.is_stopped()
    second = Doing(snapshot.current)
    wait_until(lambda: store.busy > 1 or len([one for one in threading.enumerate() if "timed-calls" in one.name]) == 2)
    store.gate.set()
    assert "a/z.take" not in shown(second.result.result(SECONDS))
    assert store.most_busy == 1


def test_pass_that_is_stopped_leaves_nothing_behind(
    store: Counting, joins: Joins, clock: Clock, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is stopped after the rows were read; the next caller reads all files, those without rows too."""
    snapshot = joins.snapshot()
    clock.now += LATER + 1

    def stopped(self: Rights) -> set[int]:
        raise work.Canceled

    with monkeypatch.context() as patch:
        patch.setattr(Rights, "lost", stopped)
        with pytest.raises(work.Canceled):
            shown(snapshot)
    store.set_permissions("a/b/x.take", 0o600)
    assert shown(snapshot) == ["a/parts.take", "a/z.take", "other.take"]
