"""The catalogue: other processes find what was stored, and a bad file or disk is no error."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from glassfs.cache import catalogue as catalogue_module
from glassfs.cache.catalogue import FILE, Catalogue, user_folder
from glassfs.persistent.cache import PersistentCache
from glassfs.settings import settings
from tests.waiting import wait_for, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "glassfs"


@pytest.fixture(autouse=True)
def no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk answers in time, also on the slowest machine."""
    monkeypatch.setattr(settings, "catalogue_wait", 120.0)


def put(folder: Path, **found: bytes) -> None:
    catalogue = Catalogue(lambda: str(folder))
    catalogue.put({key.encode(): data for key, data in found.items()})
    catalogue.close()


def find(folder: Path, *keys: str) -> list[bytes | None]:
    catalogue = Catalogue(lambda: str(folder))
    found = catalogue.find([key.encode() for key in keys])
    catalogue.close()
    return list(found)


def is_usable(folder: Path) -> bool:
    put(folder, probe=b"probe")
    return find(folder, "probe") == [b"probe"]


def test_what_was_stored_is_found(folder: Path) -> None:
    large = bytes(range(256)) * 1000
    catalogue = Catalogue(lambda: str(folder))
    catalogue.put({b"one": b"1", b"two": large, b"empty": b""})
    assert catalogue.find([b"one", b"two", b"three", b"empty", b"one"]) == [b"1", large, None, b"", b"1"]
    catalogue.close()
    assert find(folder, "one", "two") == [b"1", large]
    put(folder, one=b"another")
    assert find(folder, "one") == [b"another"]


def test_much_is_returned_a_few_values_at_a_time(folder: Path) -> None:
    keys = [b"%d" % number for number in range(6)]
    catalogue = Catalogue(lambda: str(folder))
    catalogue.put({key: bytes(3 << 20) for key in keys[1:]})
    assert [value is not None for value in catalogue.find(keys)] == [False, True, True, True]
    assert [value is not None for value in catalogue.find([*keys[4:], b"none"])] == [True, True, False]
    catalogue.close()


def test_puts_are_dropped_while_the_disk_hangs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    stored: list[bytes] = []

    def store(cache: PersistentCache, values: Any) -> None:
        wait_for(answers)
        stored.extend(values)

    monkeypatch.setattr(catalogue_module._State, "MOST_BYTES", 10_000)
    monkeypatch.setattr(PersistentCache, "store", store)
    catalogue = Catalogue(lambda: str(folder))
    for number in range(20):
        catalogue.put({b"%d" % number: bytes(4000)})
    answers.set()
    catalogue.find([b""])
    assert stored == [b"0", b"1"]
    catalogue.put({b"too large, but alone": bytes(20_000)})
    catalogue.close()
    assert stored[2:] == [b"too large, but alone"]


def test_readers_do_not_wait_twice_for_a_disk_that_hangs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, key=b"data")
    answers = threading.Event()
    searches: list[Any] = []
    find_on_disk = PersistentCache.find

    def find_late(*arguments: Any) -> list[bytes | None]:
        searches.append(arguments)
        wait_for(answers)
        return find_on_disk(*arguments)

    monkeypatch.setattr(PersistentCache, "find", find_late)
    catalogue = Catalogue(lambda: str(folder))
    with monkeypatch.context() as patch:
        patch.setattr(settings, "catalogue_wait", 0.0)
        assert catalogue.find([b"key"]) == [None]
    for _ in range(200):  # with the long timeout again: these would hang if they waited
        assert catalogue.find([b"key"]) == [None]
        catalogue.put({b"key": b"other"})
    wait_until(lambda: searches)
    answers.set()
    wait_until(lambda: catalogue.find([b"key"]) == [b"data"])
    assert len(searches) == 2
    catalogue.close()


def test_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    assert not is_usable(tmp_path / "not/there/glassfs")
    assert not is_usable(Path("/proc/glassfs/glassfs"))
    none = Catalogue(lambda: None)
    none.put({b"key": b"data"})
    assert none.find([b"key"]) == [None]
    none.close()


def test_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_folder() == "/somewhere/glassfs"
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_folder() == f"{tmp_path}/.cache/glassfs"
    monkeypatch.setenv("GLASSFS_CATALOGUE", "no")
    assert user_folder() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's home takes root")
@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_home_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """As with su and sudo that keep HOME: there, a link could lead anywhere."""
    own, other, target = tmp_path / "own", tmp_path / "other", tmp_path / "target"
    for path in (own, other, target):
        path.mkdir(0o755)
    os.chown(other, 1234, 1234)
    os.symlink(target, other / ".cache")
    target.chmod(0o755)
    account = pwd.struct_passwd(("root", "x", 0, 0, "", str(own), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: account)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv(variable, str(other if variable == "HOME" else other / ".cache"))

    catalogue = Catalogue(user_folder)
    catalogue.put({b"key": b"data"})
    has_one = catalogue.find([b"key"]) == [b"data"]
    catalogue.close()

    assert has_one == (variable == "HOME"), "the home of the account is used instead of another's"
    assert (own / ".cache/glassfs" / FILE).exists() == has_one
    assert not list(target.iterdir()) and stat.S_IMODE(target.stat().st_mode) == 0o755
    os.unlink(other / ".cache")
    assert not list(other.iterdir())


def test_sqlite_is_loaded_only_when_needed() -> None:
    program = (
        "import sys, glassfs.source.remote.blocks, glassfs.cache.catalogue; assert 'sqlite3' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
