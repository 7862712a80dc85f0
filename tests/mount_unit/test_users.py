"""Which user subordinate user ids belong to."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from glassfs.mount import users
from glassfs.mount.users import Users
from tests.waiting import wait_for, wait_until

ACCOUNTS = {"alice": 1000, "bob": 1001, "1002": 7}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "subuid"


def users_of(path: Path, text: bytes) -> Users:
    path.write_bytes(text)
    found = Users(str(path), lambda name: ACCOUNTS[name])
    found._set(users._lines(str(path)))
    return found


def test_owners_by_name_and_number(path: Path) -> None:
    found = users_of(path, b"alice:100000:65536\nbob:165536:65536\n1003:300000:10\nalice:400000:1\n1002:500000:1")
    expected = {
        0: 0, 1000: 1000, 99_999: 99_999, 100_000: 1000, 165_535: 1000, 165_536: 1001, 231_072: 231_072,
        299_999: 299_999, 300_000: 1003, 300_009: 1003, 300_010: 300_010, 400_000: 1000, 400_001: 400_001, 500_000: 7,
    }
    assert {uid: found.owner(uid) for uid in expected} == expected


def test_ranges_of_an_unknown_user_are_of_one_user(path: Path) -> None:
    found = users_of(path, b"carol:200000:10\ncarol:100000:10\n\xff:300000:2")
    assert {found.owner(uid) for uid in (*range(100_000, 100_010), *range(200_000, 200_010))} == {200_000}
    assert found.owner(300_001) == 300_000


def test_overlapping_ranges_are_of_those_that_begin_first(path: Path) -> None:
    found = users_of(path, b"bob:105:100\nalice:100:10\nalice:120:5\nbob:101:3")
    owners = [found.owner(uid) for uid in range(99, 206)]
    assert owners == [99, *[1000] * 10, *[1001] * 95, 205]


@pytest.mark.parametrize("text", [
    b"", b"\n:\n::\n", b"alice", b"alice:1", b"alice:-5:10", b"alice:x:10", b"alice:100:", b"alice:0:4294967295",
    b"alice:100:0", b"alice:4294967296:10", b"alice:" + b"9" * 10_000 + b":10", b"alice:100:10:7", bytes(range(256)),
])
def test_what_is_no_range_is_skipped(path: Path, text: bytes) -> None:
    found = users_of(path, text + b"\nbob:200:4294967295")
    assert [found.owner(uid) for uid in (0, 100, 199, 200, (1 << 32) - 1)] == [0, 100, 199, 1001, 1001]


def test_a_large_file_is_read_in_part(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MOST_RANGES", 3)
    found = users_of(path, b"".join(b"%d:%d:1\n" % (number, 1000 + number) for number in range(10)))
    assert [found.owner(1000 + number) for number in range(5)] == [0, 1, 2, 1003, 1004]


def test_changes_are_noticed(path: Path) -> None:
    found = Users(str(path), lambda name: ACCOUNTS[name])
    found.refresh()
    assert found.owner(100) == 100

    def owner_of_100() -> int:
        found.refresh()
        return found.owner(100)

    for text, owner in ((b"alice:100:10", 1000), (b"bob:100:10\n", 1001)):
        path.with_name("new").write_bytes(text)
        os.replace(path.with_name("new"), path)
        wait_until(lambda owner=owner: owner_of_100() == owner)  # type: ignore[misc]
    path.unlink()
    wait_until(lambda: owner_of_100() == 100)


def test_a_name_that_takes_long_to_find_delays_nothing(path: Path) -> None:
    path.write_bytes(b"alice:100:10")
    asked, gate, threads = threading.Event(), threading.Event(), list[int]()

    def find(name: str) -> int:
        threads.append(threading.get_ident())
        asked.set()
        wait_for(gate)
        return ACCOUNTS[name]

    found = Users(str(path), find)
    found.refresh()
    wait_for(asked)
    for _ in range(3):
        found.refresh()
    assert found.owner(100) == 100
    gate.set()
    wait_until(lambda: found.owner(100) == 1000)
    assert len(threads) == 1
