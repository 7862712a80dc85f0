"""The catalogue: what was put in is found, by other processes too, and whatever is wrong with it is no error."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassfs.cache import catalogue as catalogue_module
from glassfs.cache import catalogue_file
from glassfs.cache.catalogue import Catalogue, user_folder
from glassfs.cache.catalogue_file import FILE, CatalogueFile
from glassfs.cache.catalogued import Kept, looked_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "glassfs"


def parts(data: bytes, count: int = 1) -> list[Kept]:
    return [Kept(number, count, 3, 2 * number, b"episodes", data) for number in range(count)]


def put(folder: Path, **found: bytes) -> None:
    catalogue = Catalogue(str(folder))
    catalogue.put({key.encode(): parts(data) for key, data in found.items()})
    catalogue.close()


def find(folder: Path, *keys: str, number: int = 0) -> dict[str, bytes]:
    catalogue = Catalogue(str(folder))
    found = catalogue.find([key.encode() for key in keys], number)
    catalogue.close()
    return {key.decode(): kept.data for key, kept in found.items()}


def is_of_use(folder: Path) -> bool:
    put(folder, probe=b"probe")
    return find(folder, "probe") == {"probe": b"probe"}


def test_what_was_put_in_is_found(folder: Path) -> None:
    large = bytes(range(256)) * 1000
    catalogue = Catalogue(str(folder))
    catalogue.put({b"one": parts(b"1"), b"two": parts(large, 3), b"none": [Kept(0, 0, 0, 0, b"", b"")]})
    assert catalogue.find([b"one", b"two", b"three", b"none"]) == {
        b"one": parts(b"1")[0], b"two": parts(large, 3)[0], b"none": Kept(0, 0, 0, 0, b"", b""),
    }
    assert catalogue.find([b"two", b"one"], 2) == {b"two": parts(large, 3)[2]}
    catalogue.close()
    assert find(folder, "one", "two") == {"one": b"1", "two": large}
    assert (folder / FILE).stat().st_size < 2 * len(large)
    put(folder, one=b"another")
    assert find(folder, "one") == {"one": b"another"}


def test_very_many_keys_are_asked_for_together(folder: Path) -> None:
    catalogue = Catalogue(str(folder))
    catalogue.put({b"%d" % number: parts(b"%d" % number) for number in range(1200)})
    assert len(catalogue.find([b"%d" % number for number in range(2000)])) == 1200
    catalogue.close()


def test_large_ones_are_given_a_few_at_a_time(folder: Path) -> None:
    keys = [b"%d" % number for number in range(6)]
    catalogue = Catalogue(str(folder))
    catalogue.put({key: parts(bytes(3 << 20)) for key in keys[1:]})
    found = catalogue.find(keys)
    assert list(found) == keys[1:4] and looked_for(keys, found) == 4
    found = catalogue.find([*keys[4:], b"none"])
    assert list(found) == keys[4:] and looked_for([*keys[4:], b"none"], found) == 3
    catalogue.close()


def test_little_waits_for_a_disk_that_hangs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    kept: list[Any] = []

    def put_late(file: CatalogueFile, found: Any) -> None:
        goes_on.wait(60)
        kept.extend(found)

    monkeypatch.setattr(catalogue_module, "MOST_BYTES", 10_000)
    monkeypatch.setattr(catalogue_module, "PATIENCE", 60.0)
    monkeypatch.setattr(CatalogueFile, "put", put_late)
    catalogue = Catalogue(str(folder))
    for number in range(20):
        catalogue.put({b"%d" % number: parts(bytes(4000))})
    goes_on.set()
    catalogue.find([b""])
    assert kept == [b"0", b"1"]
    catalogue.put({b"too large, but alone": parts(bytes(20_000))})
    catalogue.find([b""])
    assert kept[2:] == [b"too large, but alone"]
    catalogue.close()


def test_nobody_else_may_look_into_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        assert is_of_use(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()] == [(FILE, 0o600)]
    folder.chmod(0o755)
    assert is_of_use(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage" * 5000)


def broken_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


def other_schema(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


def other_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE kept")
        connection.execute("CREATE TABLE kept (key)")


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE something (a)")


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def readable_by_others(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("harm", [
    cut, empty, garbage, broken_pages, other_schema, other_tables, foreign, link, readable_by_others, os.unlink,
])
def test_a_damaged_one_is_thrown_away(folder: Path, harm: Callable[[Path], None]) -> None:
    put(folder, **{f"key{number}": os.urandom(3000) for number in range(20)})
    harm(folder / FILE)
    catalogue = Catalogue(str(folder))
    catalogue.find([b"key%d" % number for number in range(20)])
    catalogue.put({b"new": parts(b"new")})
    catalogue.put({b"new": parts(b"new")})
    found = catalogue.find([b"new"])
    catalogue.close()
    assert found == {b"new": parts(b"new")[0]}
    assert not (folder / FILE).is_symlink() and stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    if harm is link:
        with sqlite3.connect(folder / "elsewhere") as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (20,), "what a link leads to is kept"


def test_a_byte_that_changed_costs_what_it_is_in(folder: Path) -> None:
    put(folder, good=b"good" * 100, bad=b"X" * 100)
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data.replace(b"X" * 100, b"X" * 99 + b"Y"))
    assert find(folder, "good", "bad") == {"good": b"good" * 100}
    put(folder, bad=b"again")
    assert find(folder, "bad") == {"bad": b"again"}


def of_another_user(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 54321, 54321)


def writable_by_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def link_to_a_folder(folder: Path) -> None:
    other = folder.with_name("other")
    other.mkdir(mode=0o700)
    folder.symlink_to(other)


def plain_file(folder: Path) -> None:
    folder.write_bytes(b"")


def parent_writable_by_all(folder: Path) -> None:
    folder.parent.chmod(0o777)


def a_folder_instead_of_the_file(folder: Path) -> None:
    (folder / FILE).mkdir(parents=True)


@pytest.mark.parametrize("made", [
    of_another_user, writable_by_all, link_to_a_folder, plain_file, parent_writable_by_all,
    a_folder_instead_of_the_file,
])
def test_a_folder_that_others_could_have_made_is_not_used(folder: Path, made: Callable[[Path], None]) -> None:
    if made is of_another_user and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    made(folder)
    assert not is_of_use(folder)
    assert not [path for path in folder.parent.rglob(f"{FILE}*") if path.is_file()]


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    assert not is_of_use(tmp_path / "not/there/glassfs")
    assert not is_of_use(Path("/proc/glassfs/glassfs"))
    none = Catalogue(None)
    none.put({b"key": parts(b"data")})
    assert none.find([b"key"]) == {}
    none.close()


def test_one_that_another_process_holds_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_file, "LOCKED", 0.01)
    put(folder, before=b"before")
    with sqlite3.connect(folder / FILE, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert find(folder, "before") == {}
        put(folder, after=b"after")
        other.execute("ROLLBACK")
    assert find(folder, "before", "after") == {"before": b"before"}


def test_one_that_is_only_read_by_another_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_file, "LOCKED", 0.01)
    put(folder, before=b"before")
    with sqlite3.connect(folder / FILE, isolation_level=None) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM kept").fetchall()
        monkeypatch.setattr(catalogue_file, "_today", lambda: 1 << 20)
        assert find(folder, "before") == {"before": b"before"}


def test_nobody_waits_for_a_disk_that_hangs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, key=b"data")
    goes_on = threading.Event()
    asked = []
    find_in_file = CatalogueFile.find

    def find_late(*arguments: Any) -> dict[bytes, Kept]:
        asked.append(arguments)
        goes_on.wait(60)
        return find_in_file(*arguments)

    monkeypatch.setattr(catalogue_module, "PATIENCE", 0.05)
    monkeypatch.setattr(CatalogueFile, "find", find_late)
    catalogue = Catalogue(str(folder))
    for _ in range(3):
        assert catalogue.find([b"key"]) == {}
    assert len(asked) == 1, "it is not waited for twice"
    for _ in range(200):
        catalogue.put({b"key": parts(b"other")})
    goes_on.set()
    monkeypatch.setattr(catalogue_module, "PATIENCE", 60.0)
    end = time.monotonic() + 60
    while not catalogue.find([b"key"]) and time.monotonic() < end:
        time.sleep(0.01)
    assert catalogue.find([b"key"]) == {b"key": parts(b"data")[0]}
    catalogue.close()


def test_a_full_disk_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, before=b"before")
    file = CatalogueFile(str(folder), 1 << 20)
    file.find([b"before"], 0)
    assert file._connection is not None
    file._connection.execute("PRAGMA max_page_count = 1").fetchall()
    file.put({b"large": parts(os.urandom(100_000))})
    monkeypatch.setattr(time, "monotonic", lambda: 1e12)
    assert file.find([b"before", b"large"], 0).keys() == {b"before"}
    file.close()


def test_it_keeps_within_its_budget_and_what_was_used_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = [1000]
    monkeypatch.setattr(catalogue_file, "_today", lambda: day[0])
    file = CatalogueFile(str(folder), 1 << 20)
    for number in range(100):
        file.put({b"%d" % number: parts(os.urandom(20_000))})
        day[0] += 1
        assert file.find([b"0"], 0), "what is used each day stays"
    assert (folder / FILE).stat().st_size < 1.2 * (1 << 20)
    left = file.find([b"%d" % number for number in range(100)], 0)
    assert b"99" in left and b"1" not in left and 20 < len(left) < 60
    file.close()


def work_in(folder: str, number: int) -> None:
    catalogue = Catalogue(folder)
    for step in range(20):
        catalogue.put({b"%d:%d" % (number, step): parts(b"x" * 500), b"shared": parts(b"shared")})
        catalogue.find([b"%d:%d" % (other, step) for other in range(4)])
    catalogue.close()


def test_processes_and_threads_use_it_at_once(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work_in, args=(str(folder), number)) for number in range(2)]
    threads = [threading.Thread(target=work_in, args=(str(folder), number)) for number in (2, 3)]
    for worker in (*processes, *threads):
        worker.start()
    for worker in (*processes, *threads):
        worker.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert find(folder, "shared") == {"shared": b"shared"}
    with sqlite3.connect(folder / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_process_that_was_forked_off_has_a_thread_of_its_own(folder: Path) -> None:
    catalogue = Catalogue(str(folder))
    catalogue.put({b"key": parts(b"data")})
    assert catalogue.find([b"key"])
    process = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(0 if catalogue.find([b"key"]) else 1),
    )
    process.start()
    process.join()
    catalogue.close()
    assert process.exitcode == 0


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_folder() == "/somewhere/glassfs"
    for value in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", "/home/someone")
        assert user_folder() == "/home/someone/.cache/glassfs"
    monkeypatch.setenv("GLASSFS_CATALOGUE", "no")
    assert user_folder() is None
