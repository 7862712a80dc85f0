"""``.glassfs/source/PATH``: the file of each container, beside its contents, for users who may read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tests.security.conftest import Shared
from tests.security.places import make_folder, write_episode, write_store


def assert_is_own_file(shown: Path, own: Path) -> None:
    """Compare bytes, size, owner, and the mode without write."""
    status, expected = os.stat(shown), os.stat(own)
    assert stat.S_ISREG(status.st_mode)
    assert oct(stat.S_IMODE(status.st_mode)) == oct(stat.S_IMODE(expected.st_mode) & 0o444)
    assert (status.st_size, status.st_uid, status.st_gid) == (expected.st_size, expected.st_uid, expected.st_gid)
    assert shown.read_bytes() == own.read_bytes()


def is_unlisted(mount: Path) -> bool:
    return os.listdir(mount / ".glassfs") == ["README", "status.json", "omitted.jsonl"]


def test_files_of_containers_in_a_folder(shared: Shared, place: Path) -> None:
    source = make_folder(place / "source")
    store = write_store(make_folder(source / "sub") / "store.kas", b"deep")
    manifest, parts = write_episode(source, "long", b"word")
    mount = shared(source).path
    for path in (store, manifest, *parts):
        assert_is_own_file(mount / ".glassfs/source" / path.relative_to(source), path)
    assert is_unlisted(mount)
    assert not os.path.exists(mount / ".glassfs/source/sub/nothing.kas")
