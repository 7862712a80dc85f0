"""The persistent cache when things go wrong: damage, other users, disks that are full or gone."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glassfs.errors import Refused
from glassfs.persistent import cache as cache_module
from glassfs.persistent import files as files_module
from glassfs.persistent import index as index_module
from glassfs.persistent.files import HEADER
from glassfs.source.remote.disk import LEAST, DiskCache
from glassfs.source.remote.server import Facts
from tests.conftest import Scale
from tests.persistent.test_blocks import BLOCK, BUDGET, INDEX, LARGE, blocks, cached, content, fill, opened, taken

SMALL = content(1, 64)


@pytest.fixture
def one(folder: Path) -> Path:
    """The file of a block with the bytes of ``SMALL``."""
    cache = opened(folder)
    cache.put("key", "tag", 1, SMALL)
    cache.close()
    return blocks(folder)[0]


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "PAUSE_SECONDS", 0.0)


def again(folder: Path) -> bytes | None:
    """Return what the next process reads of that block."""
    cache = opened(folder)
    try:
        return cache.get("key", "tag", 1, len(SMALL))
    finally:
        cache.close()


# Damage

def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1:]


def test_damage_of_any_byte_is_a_miss(one: Path, folder: Path) -> None:
    whole = one.read_bytes()
    assert len(whole) == HEADER.size + len(SMALL)
    cache = opened(folder)
    damaged = [flipped(whole, place, random.Random(place).randrange(8)) for place in range(len(whole))]
    damaged += [whole[:size] for size in range(len(whole))]
    damaged += [whole + b"\0", whole + whole, whole[:HEADER.size] + bytes(len(SMALL)), bytes(len(whole))]
    for data in damaged:
        cache.put("key", "tag", 1, SMALL)
        one.write_bytes(data)
        assert cache.get("key", "tag", 1, len(SMALL)) is None
        assert not one.exists()
    cache.put("key", "tag", 1, SMALL)
    assert cache.get("key", "tag", 1, len(SMALL)) == SMALL


def test_block_under_another_name_is_a_miss(one: Path, folder: Path) -> None:
    whole = one.read_bytes()
    cache = opened(folder)
    for other in (("yek", "tag", 1), ("key", "gat", 1), ("key", "tag", 2)):
        before = set(blocks(folder))
        cache.put(*other, content(2, 64))
        (path,) = set(blocks(folder)) - before
        path.write_bytes(whole)
        assert cache.get(*other, 64) is None


@pytest.mark.parametrize("suffix", index_module.SUFFIXES)
@pytest.mark.parametrize("garbage", [b"", b"garbage" * 1000, None], ids=["empty", "garbage", "half"])
def test_damaged_index_costs_neither_blocks_nor_the_budget(folder: Path, suffix: str, garbage: bytes | None) -> None:
    cache = opened(folder, BUDGET)
    for number in range(12):
        cache.put("key", "tag", number, content(number))
        cache.note_facts("key", Facts(number, '"tag"', 0))
    cache.close()
    index = folder / (INDEX + suffix)
    index.write_bytes(index.read_bytes()[:index.stat().st_size // 2] if garbage is None else garbage)
    cache = opened(folder, BUDGET)
    assert cache.facts("key") in (None, Facts(11, '"tag"', 0))
    cache.put("key", "tag", 12, content(12))
    cache.put("key", "tag", 13, content(13))
    assert set(range(5, 12)) < set(cached(cache, range(14)))
    for number in range(14, 40):
        cache.put("key", "tag", number, content(number))
        assert taken(folder) <= BUDGET
    assert cached(cache, range(40))[-2:] == [38, 39]


def test_random_damage_of_the_index_gives_no_wrong_bytes(folder: Path, scale: Scale) -> None:
    cache = opened(folder, BUDGET)
    for number in range(12):
        cache.put("key", "tag", number, content(number))
        cache.note_facts(f"key {number}", Facts(number, '"tag"', 0))
    cache.close()
    index = folder / INDEX
    whole = index.read_bytes()
    for seed in range(scale(20, 200)):
        chance = random.Random(seed)
        data = bytearray(whole)
        for _ in range(20):
            data[chance.randrange(len(data))] = chance.randrange(256)
        index.write_bytes(data)
        cache = opened(folder, BUDGET)
        for number in range(12):
            assert cache.facts(f"key {number}") in (None, Facts(number, '"tag"', 0))
            cache.put("key", "tag", number, content(number))
        assert cached(cache, range(12))
        cache.close()


@pytest.mark.usefixtures("no_pause")
def test_index_removed_in_use_is_made_again(folder: Path) -> None:
    cache = opened(folder, BUDGET)
    fill(cache, range(12))
    for path in folder.glob("index*"):
        path.unlink()
    for number in range(12, 40):
        cache.put("key", "tag", number, content(number))
        assert taken(folder) <= BUDGET
    assert cached(cache, range(40))[-2:] == [38, 39]


# Other users

def test_folder_and_files_are_private(folder: Path) -> None:
    before = os.umask(0)
    try:
        cache = opened(folder)
        cache.put("key", "tag", 0, SMALL)
        cache.note_facts("key", Facts(1, "tag", 0))
    finally:
        os.umask(before)
    assert (folder / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert len(modes) >= 5
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() else 0o600)


def refusal(folder: Path, budget: int = LARGE) -> str:
    with pytest.raises(Refused) as raised:
        DiskCache(os.fspath(folder), budget)
    text = str(raised.value)
    assert text.startswith(f"{folder}: ") and "\n" not in text
    return text


def test_untrusted_folders_are_refused(folder: Path) -> None:
    assert "smaller than one block" in refusal(folder, LEAST - 1)
    assert not folder.exists()
    assert "No such file" in refusal(folder / "inner")
    folder.mkdir(0o700)
    for mode in (0o701, 0o710, 0o770, 0o755):
        folder.chmod(mode)
        assert "open to others" in refusal(folder)
    folder.chmod(0o700)
    link = folder.with_name("link")
    link.symlink_to(folder)
    assert "is a link" in refusal(link)
    file = folder.with_name("file")
    file.touch(0o600)
    assert "Not a directory" in refusal(file)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["index.sqlite", "0a/0a1b2c3d4e5f60718293a4b5c6d7e8f9", "CACHEDIR.TAG"])
def test_folder_of_another_program_stays_as_it_is(folder: Path, name: str) -> None:
    """Its database would become the index, and its files would be removed as blocks that no entry names."""
    path = folder / name
    path.parent.mkdir(0o700, parents=True)
    folder.chmod(0o700)
    path.write_bytes(b"Signature: 8a477f597d28d172789f06886806bc55\n# of another program")
    assert f"is no cache of glassfs, and has {name[:2] if '/' in name else name}" in refusal(folder)
    assert path.read_bytes().endswith(b"of another program") and len(os.listdir(folder)) == 1


def test_folder_with_other_names_can_become_a_cache(folder: Path) -> None:
    folder.mkdir(0o700)
    (folder / "notes.txt").write_text("mine")
    cache = opened(folder, BUDGET)
    fill(cache, range(40))
    cache.close()
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder takes root")
def test_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(0o700)
    os.chown(folder, 1234, 1234)
    assert "belongs to another user" in refusal(folder)


def as_link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def as_hard_link(path: Path) -> None:
    os.link(path, path.with_suffix(".second"))


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    path.unlink()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind(path.name)


def as_open_to_others(path: Path) -> None:
    path.chmod(0o604)


def as_huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 42)


def as_another_users(path: Path) -> None:
    if os.geteuid():
        pytest.skip("takes root")
    os.chown(path, 1234, 1234)


@pytest.mark.parametrize("plant", [
    as_link, as_hard_link, as_fifo, as_socket, as_open_to_others, as_huge, as_another_users,
])
def test_planted_blocks_are_not_read(
    one: Path, folder: Path, plant: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    plant(one)
    assert again(folder) is None
    assert not os.path.lexists(one)
    cache = opened(folder)
    cache.put("key", "tag", 1, SMALL)
    assert cache.get("key", "tag", 1, len(SMALL)) == SMALL


def test_folder_in_place_of_a_block_is_a_miss(one: Path, folder: Path) -> None:
    one.unlink()
    one.mkdir()
    assert again(folder) is None
    opened(folder).put("key", "tag", 1, SMALL)
    assert again(folder) is None


@pytest.mark.usefixtures("no_pause")
def test_links_are_not_followed_when_writing(one: Path, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    one.parent.rename(target)
    one.parent.symlink_to(target)
    (target / one.name).unlink()
    cache = opened(folder)
    assert cache.get("key", "tag", 1, len(SMALL)) is None
    cache.put("key", "tag", 1, SMALL)
    assert not list(target.iterdir())
    assert cache.get("key", "tag", 1, len(SMALL)) == SMALL


@pytest.mark.parametrize("suffix", index_module.SUFFIXES)
def test_planted_index_is_replaced(one: Path, folder: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    index = folder / (INDEX + suffix)
    for plant in (index.symlink_to, index.hardlink_to):
        index.unlink(missing_ok=True)
        plant(target)
        cache = opened(folder)
        cache.put("key", "tag", 2, SMALL)
        assert cache.get("key", "tag", 2, len(SMALL)) == SMALL
        cache.close()
        assert target.read_bytes() == b"precious"
        assert not index.is_symlink()


# Disks

def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_full_disk_is_logged_once_and_passes(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = small_disk / "cache"
    cache = opened(folder)
    fill(cache, range(100))
    there = cached(cache, range(100))
    assert there == list(range(len(there))) and len(there) > 20
    (line,) = warnings(caplog)
    assert line == f"{folder}: cannot be used as a disk cache for now: {os.strerror(errno.ENOSPC)}"
    for path in blocks(folder)[:4]:
        path.unlink()
    later = time.monotonic() + 2 * cache_module.PAUSE_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    cache.put("key", "tag", 100, content(100))
    assert cached(cache, range(100, 101)) == [100]
    for number in range(100):
        cache.put("key", "more", number, content(number))
    assert len(warnings(caplog)) == 1


@pytest.mark.usefixtures("no_pause")
def test_full_disk_evicts_nothing(small_disk: Path) -> None:
    """What could not be written is not counted: nothing goes for it."""
    cache = opened(small_disk / "cache", 3 << 20)
    fill(cache, range(200))
    there = cached(cache, range(200))
    assert there[:20] == list(range(20))
    (small_disk / "other").write_bytes(b"")
    cache.close()
    cache = opened(small_disk / "cache", BUDGET)
    cache.put("key", "tag", 200, content(200))
    assert cached(cache, range(201))[-1] == 200
    assert taken(small_disk) <= BUDGET


def test_read_only_disk_can_be_read(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened(small_disk / "cache")
    cache.put("key", "tag", 0, content(0))
    cache.close()
    os.utime(blocks(small_disk / "cache")[0], (0, 0))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    cache = opened(small_disk / "cache")
    cache.put("key", "tag", 1, content(1))
    cache.note_facts("key", Facts(1, "tag", 0))
    cache.facts("key")
    assert cached(cache, range(2)) == [0]
    assert len(warnings(caplog)) == 1
    assert DiskCache(os.fspath(small_disk / "other"), LARGE).get("key", "tag", 0, BLOCK) is None


def test_folder_that_comes_back_is_used_again(
    folder: Path, caplog: pytest.LogCaptureFixture, no_pause: None,
) -> None:
    cache = opened(folder)
    cache.put("key", "tag", 0, content(0))
    shutil.rmtree(folder)
    for number in range(3):
        cache.put("key", "tag", number, content(number))
        cache.note_facts("key", Facts(1, "tag", 0))
        assert cache.facts("key") is None
        assert cached(cache, range(3)) == []
    assert not folder.exists()
    folder.mkdir(0o755)
    cache.put("key", "tag", 0, content(0))
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    cache.put("key", "tag", 0, content(0))
    assert cached(cache, range(3)) == [0]
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("call", ["writev", "utime", "mkdir", "read"])
def test_failing_disk_is_logged_once(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, call: str,
) -> None:
    cache = opened(folder)
    cache.put("key", "tag", 0, content(0))

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(files_module.os, call, fail)
        for number in range(1, 4):
            cache.put("key", "tag", number, content(number))
            assert cache.get("key", "tag", 0, BLOCK) in (None, content(0))
    assert 0 in cached(cache, range(4))
    assert len(warnings(caplog)) == 1
