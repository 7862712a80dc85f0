"""S1, S2: a user with write access to the source swaps an own file for a link while the daemon reads it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from writers.wshard import write_manifest

from tests.security.conftest import Shared
from tests.security.places import make_folder, read_or_refusal, write_episode, write_file, write_store
from tests.security.users import STRANGER, Child
from tests.waiting import wait_until

SECRET, OWN = b"of root alone, 0600!", b"this is my own text."
LOOKS, SWAPS = 400, 4000
AT_FDCWD, RENAME_EXCHANGE = -100, 2

_LIBC = ctypes.CDLL(None, use_errno=True)


def exchange(one: Path, other: Path) -> None:
    """Swap two names atomically (renameat2)."""
    if _LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(one))


class Progress:
    """The number of swaps so far and a flag to stop, in memory that child processes share."""

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, 16)).cast("q")

    @property
    def swaps(self) -> int:
        return self._memory[0]

    def swap(self, one: Path, other: Path) -> None:
        """Swap until the flag is set, and end with both names where they were.

        Some races are won by many swaps and some by long ones, so fast and slow periods alternate.
        """
        while not self._memory[1] or self.swaps % 2:
            exchange(one, other)
            self._memory[0] += 1
            if self.swaps % 400 < 40:
                time.sleep(0.003)

    def read(self, look: Callable[[], list[bytes | int]]) -> bool:
        """Return whether the secret was read during at least LOOKS looks and SWAPS swaps, then stop the swapping."""
        looks, was_secret = 0, False
        while not was_secret and (looks < LOOKS or self.swaps < SWAPS):
            was_secret = any(isinstance(data, bytes) and SECRET in data for data in look())
            looks += 1
        self._memory[1] = 1
        return was_secret


def attack(one: Path, other: Path, look: Callable[[], list[bytes | int]]) -> None:
    """Swap and look as STRANGER. The user's own text must be readable before and after, or the test shows nothing."""

    def is_own_shown() -> bool:
        return any(isinstance(data, bytes) and OWN in data for data in look())

    assert is_own_shown()
    progress = Progress()
    swapping = Child(progress.swap, one, other, user=STRANGER)
    try:
        was_secret = Child(progress.read, look, user=STRANGER).result(300)
        swapping.result()
    finally:
        swapping.kill()
    assert not was_secret, f"the secret was read; {progress.swaps} swaps"
    wait_until(is_own_shown, what="the user's own text")


@pytest.fixture
def incoming(place: Path, source: Path) -> Path:
    """A folder of STRANGER's in the source, beside a folder ``outside`` of root's."""
    make_folder(place / "outside")
    return make_folder(source / "incoming", owner=STRANGER)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_file, write_store])
def test_file_or_container_swapped_for_a_link(
    shared: Shared, place: Path, incoming: Path, write: Callable[..., Path],
) -> None:
    write(place / "outside/secret", SECRET, 0o600)
    write(incoming / "own", OWN, owner=STRANGER)
    (incoming / "link").symlink_to(place / "outside/secret")
    shown = shared(place / "source").path / "incoming/own"
    shown = shown / "word.npy" if write is write_store else shown
    attack(incoming / "own", incoming / "link", lambda: [read_or_refusal(shown)])


@pytest.mark.slow
def test_part_of_a_manifest_swapped_for_a_link(shared: Shared, place: Path, incoming: Path) -> None:
    """The parts differ in the word only, and the manifest has no SHA-256 of them."""
    _, secret = write_episode(place / "outside", "long", SECRET)
    for part in secret:
        part.chmod(0o600)
    manifest, parts = write_episode(incoming, "long", OWN)
    chunks = [
        {"chunk_index": number, "uri": part.name, "timestep_range": [number, number], "length_T": 1}
        for number, part in enumerate(parts)
    ]
    write_manifest(manifest, {"episode_id": "long", "chunks": chunks})
    for path in (manifest, *parts):
        os.chown(path, STRANGER.uid, STRANGER.gid)
    (incoming / "link").symlink_to(secret[1])
    root = shared(place / "source").path / "incoming"
    paths = [root / manifest.name / "signal/word.npy", root / parts[1].name / "signal/word.npy"]
    attack(parts[1], incoming / "link", lambda: [read_or_refusal(path) for path in paths])


@pytest.mark.slow
def test_folder_swapped_for_a_link(shared: Shared, place: Path, incoming: Path) -> None:
    """Neither its files are read nor its names listed."""
    make_folder(place / "outside/closed", 0o700)
    write_file(place / "outside/closed/text", SECRET, 0o600)
    write_store(place / "outside/closed/store.kas", SECRET, 0o600)
    write_file(place / "outside/closed/who is going to be dismissed", SECRET)
    make_folder(incoming / "folder", owner=STRANGER)
    write_file(incoming / "folder/text", OWN, owner=STRANGER)
    write_store(incoming / "folder/store.kas", OWN, owner=STRANGER)
    (incoming / "link").symlink_to(place / "outside/closed")
    root = shared(place / "source").path / "incoming/folder"

    def look() -> list[bytes | int]:
        found = [read_or_refusal(root / "text"), read_or_refusal(root / "store.kas/word.npy")]
        with suppress(OSError):
            found += [SECRET for name in os.listdir(root) if name.startswith("who")]
        return found

    attack(incoming / "folder", incoming / "link", look)
