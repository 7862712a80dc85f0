"""The persistent cache when things go wrong: damage, other users, disks that are full or gone."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from glassfs.errors import Refused
from glassfs.persistent import private
from glassfs.persistent.cache import SUFFIXES
from glassfs.source.remote.blocks import FILE, DiskCache
from tests.conftest import Scale
from tests.persistent.test_blocks import BUDGET, LARGE, LEAST, block, cached, content, fill, opened

SMALL = content(1, 64)


# Damage

def test_random_damage_gives_no_wrong_bytes(folder: Path, scale: Scale) -> None:
    cache = opened(folder, BUDGET)
    for number in range(12):
        cache.put("key", "tag", number, content(number))
    cache.close()
    whole = (folder / FILE).read_bytes()
    for seed in range(scale(40, 400)):
        chance = random.Random(seed)
        data = bytearray(whole)
        for _ in range(20):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (folder / FILE).write_bytes(data)
        for _ in range(2):  # one that finds the damage, and the next one
            cache = opened(folder, BUDGET)
            cached(cache, range(12))
            fill(cache, range(12))
            cached(cache, range(12))
            cache.close()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("garbage", [b"", b"garbage" * 1000, None], ids=["empty", "garbage", "half"])
def test_cache_after_the_one_that_met_damage_works(folder: Path, suffix: str, garbage: bytes | None) -> None:
    cache = opened(folder, BUDGET)
    fill(cache, range(12))
    cache.close()
    file = folder / (FILE + suffix)
    file.write_bytes(file.read_bytes()[:file.stat().st_size // 2] if garbage is None else garbage)
    cache = opened(folder, BUDGET)
    cached(cache, range(12))
    fill(cache, range(12, 14))
    cached(cache, range(14))
    cache.close()
    cache = opened(folder, BUDGET)
    for number in range(14, 40):
        cache.put("key", "tag", number, content(number))
    assert cached(cache, range(40))[-2:] == [38, 39]


def test_file_of_another_layout_is_replaced(folder: Path) -> None:
    opened(folder).close()
    with sqlite3.connect(folder / FILE) as connection:
        connection.executescript("CREATE TABLE entries (other INTEGER); PRAGMA user_version = 1")
    connection.close()
    cache = opened(folder)
    fill(cache, range(2))
    assert cached(cache, range(3)) == [0, 1]


# Other users

def test_folder_and_files_are_private(folder: Path) -> None:
    before = os.umask(0)
    try:
        cache = opened(folder)
        cache.put("key", "tag", 0, SMALL)
    finally:
        os.umask(before)
    assert (folder / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert len(modes) >= 3
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("name", [FILE, "CACHEDIR.TAG"])
def test_folder_of_another_program_stays_as_it_is(folder: Path, name: str) -> None:
    """Its database would become the cache."""
    folder.mkdir(0o700)
    path = folder / name
    path.write_bytes(b"Signature: 8a477f597d28d172789f06886806bc55\n# of another program")
    assert f"is no cache of glassfs, and has {name}" in refusal(folder)
    assert path.read_bytes().endswith(b"of another program") and os.listdir(folder) == [name]


def test_folder_with_other_names_can_become_a_cache(folder: Path) -> None:
    folder.mkdir(0o700)
    (folder / "notes.txt").write_text("mine")
    cache = opened(folder, BUDGET)
    fill(cache, range(40))
    cache.close()
    assert (folder / "notes.txt").read_text() == "mine"


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


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder takes root")
def test_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(0o700)
    os.chown(folder, 1234, 1234)
    assert "belongs to another user" in refusal(folder)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_planted_file_is_replaced(folder: Path, tmp_path: Path, suffix: str) -> None:
    """The folder may have been open to others before it was closed."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    target.chmod(0o600)
    opened(folder).close()
    file = folder / (FILE + suffix)
    for plant in (file.symlink_to, file.hardlink_to):
        file.unlink(missing_ok=True)
        plant(target)
        cache = opened(folder)
        cache.put("key", "tag", 2, SMALL)
        assert block(cache, "key", "tag", 2, len(SMALL)) == SMALL
        cache.close()
        assert target.read_bytes() == b"precious"
        assert not file.is_symlink()


# Disks

def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_full_disk_switches_off_with_one_line(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, filler = small_disk / "cache", small_disk / "filler"
    filler.write_bytes(bytes(1 << 20))
    cache = opened(folder)
    fill(cache, range(100))
    assert cached(cache, range(100)) == []
    assert warnings(caplog) == [f"{folder}/{FILE}: not used: database or disk is full"]
    cache.close()
    filler.unlink()
    cache = opened(folder)
    cache.put("key", "tag", 200, content(200))
    there = cached(cache, range(201))
    assert there[:4] == list(range(4)) and there[-1] == 200
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("change", [shutil.rmtree, lambda folder: folder.chmod(0o755)], ids=["gone", "open to others"])
def test_folder_that_is_no_longer_safe_switches_off_with_one_line(
    folder: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture,
) -> None:
    cache = opened(folder)
    change(folder)
    for number in range(3):
        cache.put("key", "tag", number, content(number))
        assert cached(cache, range(3)) == []
    assert not (folder / FILE).exists()
    assert len(warnings(caplog)) == 1


def test_lack_of_descriptors_is_not_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    cache = opened(folder)

    def failing(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(private, "opened", failing)
        cache.put("key", "tag", 0, content(0))
    cache.put("key", "tag", 1, content(1))
    assert cached(cache, range(2)) == [1]
    assert not warnings(caplog)
