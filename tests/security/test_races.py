"""S1, S2: somebody who may write in the source swaps what he owns for a link while the daemon is looking at it."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from writers.wshard import write_manifest

from tests.security.conftest import Shared
from tests.security.places import make_folder, read_or_refusal, write_episode, write_file, write_store
from tests.security.users import STRANGER, Child

SECRET, OWN = b"of root alone, 0600!", b"this is my own text."
SECONDS = 2.0
AT_FDCWD, RENAME_EXCHANGE = -100, 2

_LIBC = ctypes.CDLL(None, use_errno=True)


def exchange(one: Path, other: Path) -> None:
    """Swaps two names in one step (renameat2)."""
    if _LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(one))


def swap(one: Path, other: Path) -> int:
    """Swaps for SECONDS, and how often. Ends with the two where they were.

    Some races are won by many swaps and some by swaps that last, so that both kinds take turns.
    """
    count, begin = 0, time.monotonic()
    while (passed := time.monotonic() - begin) < SECONDS or count % 2:
        exchange(one, other)
        count += 1
        if passed % 1.0 < 0.3:
            time.sleep(0.003)
    return count


def read_over_and_over(look: Callable[[], list[bytes | int]]) -> tuple[int, bool]:
    """How often his own text came, and whether the secret ever did."""
    own, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        for data in look():
            if isinstance(data, bytes):
                if SECRET in data:
                    return own, True
                own += OWN in data
    return own, False


def attack(one: Path, other: Path, look: Callable[[], list[bytes | int]]) -> None:
    """Swaps and looks, as the stranger. His own text has to come through before, and again when all is quiet: a mount
    that shows nothing proves nothing.
    """
    assert any(isinstance(data, bytes) and OWN in data for data in look())
    children = [Child(swap, one, other, user=STRANGER), Child(read_over_and_over, look, user=STRANGER)]
    swaps, *readings = [child.result() for child in children]
    assert swaps > 100
    assert not any(was_secret for _, was_secret in readings), f"the secret was read; {swaps} swaps"
    end = time.monotonic() + 20
    while not any(isinstance(data, bytes) and OWN in data for data in look()):
        assert time.monotonic() < end, "his own text does not come back"


@pytest.fixture
def incoming(place: Path) -> Path:
    """``source/incoming`` is the stranger's; ``outside`` and what is in it are root's."""
    make_folder(place / "source")
    make_folder(place / "outside")
    return make_folder(place / "source/incoming", owner=STRANGER)


@pytest.mark.slow
def test_a_file_swapped_for_a_link(shared: Shared, place: Path, incoming: Path) -> None:
    write_file(place / "outside/secret.txt", SECRET, 0o600)
    write_file(incoming / "text", OWN, owner=STRANGER)
    (incoming / "link").symlink_to(place / "outside/secret.txt")
    shown = shared(place / "source").path / "incoming/text"
    attack(incoming / "text", incoming / "link", lambda: [read_or_refusal(shown)])


@pytest.mark.slow
def test_a_container_swapped_for_a_link(shared: Shared, place: Path, incoming: Path) -> None:
    write_store(place / "outside/secret.kas", SECRET, 0o600)
    write_store(incoming / "store.kas", OWN, owner=STRANGER)
    (incoming / "link").symlink_to(place / "outside/secret.kas")
    shown = shared(place / "source").path / "incoming/store.kas/word.npy"
    attack(incoming / "store.kas", incoming / "link", lambda: [read_or_refusal(shown)])


@pytest.mark.slow
def test_a_part_of_a_manifest_swapped_for_a_link(shared: Shared, place: Path, incoming: Path) -> None:
    """The parts are alike but for the word, and the manifest has no SHA-256 that would tell them apart."""
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
def test_a_folder_swapped_for_a_link(shared: Shared, place: Path, incoming: Path) -> None:
    write_file(place / "outside/text", SECRET, 0o600)
    write_store(place / "outside/store.kas", SECRET, 0o600)
    make_folder(incoming / "folder", owner=STRANGER)
    write_file(incoming / "folder/text", OWN, owner=STRANGER)
    write_store(incoming / "folder/store.kas", OWN, owner=STRANGER)
    (incoming / "link").symlink_to(place / "outside")
    root = shared(place / "source").path / "incoming/folder"
    paths = [root / "text", root / "store.kas/word.npy"]
    attack(incoming / "folder", incoming / "link", lambda: [read_or_refusal(path) for path in paths])


@pytest.mark.slow
def test_a_closed_folder_outside_is_not_listed(shared: Shared, place: Path, incoming: Path) -> None:
    """The folder was looked at while it was one; then a link to a closed folder of root's takes its name."""
    make_folder(place / "outside/closed", 0o700)
    write_file(place / "outside/closed/who is going to be dismissed", SECRET)
    make_folder(incoming / "folder", owner=STRANGER)
    write_file(incoming / "folder/text", OWN, owner=STRANGER)
    (incoming / "link").symlink_to(place / "outside/closed")
    root = shared(place / "source").path / "incoming/folder"

    def names() -> list[bytes | int]:
        try:
            return [OWN if name == "text" else SECRET for name in os.listdir(root)]
        except OSError as error:
            return [error.errno or 0]

    attack(incoming / "folder", incoming / "link", names)
