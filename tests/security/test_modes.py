"""S4, S5, S6: shown modes follow those of the files a container is made of, also when these change."""

from __future__ import annotations

import json
import os
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from writers.safetensors import write_safetensors

from tests.conftest import Scale
from tests.security.conftest import Shared
from tests.security.daemons import Daemon
from tests.security.places import (
    can_open,
    give,
    make_folder,
    read_or_refusal,
    set_access,
    write_episode,
    write_file,
    write_store,
)
from tests.security.users import STRANGER, User, as_user
from tests.waiting import SECONDS, wait_until

SECRET, OPEN = b"of root alone, 0600!", b"for everybody to see"
ROOT, OTHER = User(0, 0), User(54322, 54322)


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def until_readable(shown: Path, expected: bool = True) -> None:
    """Wait until STRANGER can read ``shown``, or no longer can."""
    as_user(wait_until, lambda: can_open(shown) == expected, patience=2 * SECONDS)


# S4: containers of several files. Owner and mode of the manifest, owner and mode of its second part, mode shown.
SEVERAL_FILES = (
    (ROOT, 0o644, ROOT, 0o640, 0o440),
    (ROOT, 0o640, ROOT, 0o604, 0o400),
    (ROOT, 0o644, ROOT, 0o644, 0o444),
    (STRANGER, 0o644, ROOT, 0o644, 0o444),
    (STRANGER, 0o644, ROOT, 0o640, 0),
    (STRANGER, 0o640, ROOT, 0o644, 0),
    (User(0, 54321), 0o640, ROOT, 0o640, 0),
    (User(0, 54321), 0o644, ROOT, 0o664, 0o444),
    (STRANGER, 0o666, OTHER, 0o444, 0o444),
    (STRANGER, 0o604, OTHER, 0o604, 0),
)


def test_mode_is_what_all_files_grant(shared: Shared, source: Path) -> None:
    """The AND of the modes. Where owners or groups differ, only what each file grants to all three classes."""
    expected = {}
    for case, (manifest_owner, manifest_mode, part_owner, part_mode, wanted) in enumerate(SEVERAL_FILES):
        manifest, parts = write_episode(make_folder(source / f"{case}"), "long", OPEN)
        give(manifest, manifest_mode, manifest_owner)
        give(parts[0], 0o644, part_owner if part_owner == manifest_owner else None)
        give(parts[1], part_mode, part_owner)
        for path in ("", "/signal/word.npy", "/signal", "/chunks/0001"):
            is_file = path.endswith(".npy")
            expected[f"{case}/{manifest.name}{path}"] = oct(wanted | (0 if is_file else wanted >> 2 & 0o111))
    root = shared(source).path
    assert {path: oct(mode(root / path)) for path in expected} == expected
    alone = shared(source / "0" / manifest.name).path
    assert oct(mode(alone / "signal/word.npy")) == oct(SEVERAL_FILES[0][4])


def test_reason_of_a_refusal_tells_nothing_of_private_files(shared: Shared, source: Path) -> None:
    """What is wrong with a shard can have names of its tensors. Tables over the folder do not say it either."""
    text = json.dumps({"secret": {"dtype": "F32", "shape": [77], "data_offsets": [0, 4]}}).encode()
    shard = write_file(source / "shard.safetensors", struct.pack("<Q", len(text)) + text + b"word", 0o600)
    write_file(source / "m.safetensors.index.json", '{"weight_map": {"a": "shard.safetensors"}}', owner=STRANGER)
    write_safetensors(source / "open.safetensors", {"open": np.zeros(2)})
    root = shared(source, options=["views=all"]).path

    def said() -> str:
        found = os.getxattr(root / "m.safetensors.index.json", "user.glassfs.error")
        table = root / "arrays.jsonl"
        assert b"open" in table.read_bytes()
        return b" ".join([found, *(os.getxattr(table, name) for name in os.listxattr(table))]).decode()

    assert "fewer users may read" in as_user(said) and "secret" not in as_user(said)
    shard.chmod(0o644)
    as_user(wait_until, lambda: "secret" in said(), patience=2 * SECONDS)


# S5: changed modes, folders, access lists


def test_changed_mode_reaches_readers(shared: Shared, source: Path, scale: Scale) -> None:
    store = write_store(source / "store.kas", OPEN)
    manifest, parts = write_episode(source, "long", OPEN)
    root, alone = shared(source).path, shared(store).path
    cases = (
        (store, root / "store.kas/word.npy"),
        (write_file(source / "file", OPEN), root / "file"),
        (parts[1], root / manifest.name / "signal/word.npy"),
        (store, alone / "word.npy"),
    )
    for changed, shown in cases[:: scale(2, 1)]:
        until_readable(shown)
        changed.chmod(0o600)
        until_readable(shown, expected=False)
        wait_until(lambda shown=shown: mode(shown) == 0o400)  # type: ignore[misc]
        changed.chmod(0o644)
        until_readable(shown)
        assert mode(shown) == 0o444


@pytest.mark.slow
def test_changed_owner_and_access_list_reach_readers(shared: Shared, source: Path) -> None:
    owned = write_store(source / "owned.kas", SECRET, 0o600)
    listed = write_store(source / "listed.kas", OPEN)
    root = shared(source).path
    assert not as_user(can_open, root / "owned.kas/word.npy")
    assert as_user(can_open, root / "listed.kas/word.npy")
    os.chown(owned, STRANGER.uid, STRANGER.gid)
    until_readable(root / "owned.kas/word.npy")
    os.chown(owned, 0, 0)
    until_readable(root / "owned.kas/word.npy", expected=False)
    set_access(listed, 6, 4, 4, {STRANGER.uid: 0})
    until_readable(root / "listed.kas/word.npy", expected=False)


MODES = (0o755, 0o744, 0o711, 0o700, 0o751, 0o775, 0o500, 0o311, 0o054)


@pytest.mark.slow
def test_folder_keeps_its_mode_without_write(shared: Shared, source: Path) -> None:
    """Permission to list a folder does not imply permission to enter it, nor the reverse."""
    root = shared(source).path
    folders = {given: source / f"{given:o}" for given in MODES}
    for given, folder in folders.items():
        make_folder(folder)
        write_file(folder / "file", OPEN)
        write_store(folder / "store.kas", OPEN)
        make_folder(folder / "sub", given)
        folder.chmod(given)
    for given, folder in folders.items():
        shown = root / folder.name
        wait_until(lambda shown=shown, given=given: mode(shown) == given & ~0o222)  # type: ignore[misc]
        assert oct(mode(shown / "sub")) == oct(given & ~0o222)
    for user in (STRANGER, User(54321, 0)):
        assert as_user(reached, root, user=user) == as_user(reached, source, user=user)
    source.chmod(0o711)
    wait_until(lambda: mode(root) == 0o511)
    assert as_user(reached, root) == as_user(reached, source)
    assert not as_user(can_open, root)


def reached(root: Path) -> dict[int, list[bool]]:
    """Return what can be opened in the folder of each mode. In one process: starting one is slow."""
    return {
        given: [*(can_open(root / f"{given:o}" / name) for name in ("", "file", "store.kas")),
                os.path.exists(root / f"{given:o}/sub")]
        for given in MODES
    }


def test_access_list_leaves_group_and_others_nothing(shared: Shared, source: Path) -> None:
    """The group bits are the list's mask, and others may include a user whom the list denies by name."""
    manifest, parts = write_episode(source, "long", OPEN)
    cases = {
        "file": write_file(source / "file", OPEN),
        "store.kas/word.npy": write_store(source / "store.kas", OPEN),
        f"{manifest.name}/signal/word.npy": parts[0],
        "folder": make_folder(source / "folder"),
    }
    write_file(source / "untouched", OPEN)
    for listed in cases.values():
        x = 1 if listed.is_dir() else 0
        set_access(listed, 6 + x, 0, 4 + x, {STRANGER.uid: 0, OTHER.uid: 7})
    root = shared(source).path
    for path, listed in cases.items():
        assert oct(mode(root / path)) == oct(0o500 if listed.is_dir() else 0o400)
    for user in (STRANGER, OTHER, User(54323, 0), User(54323, 54323)):
        assert not as_user(lambda: [path for path in cases if can_open(root / path)], user=user), user
    assert as_user(can_open, root / "untouched")
    for path, listed in cases.items():
        os.removexattr(listed, "system.posix_acl_access")
        listed.chmod(0o755 if listed.is_dir() else 0o644)
        until_readable(root / path)


# S6: the status


def test_status_is_readable_by_the_mount_owner_only(shared: Shared, source: Path) -> None:
    """The status names open containers, also those in folders that other users may not list."""
    write_store(make_folder(source / "closed", 0o700) / "a name that says too much.kas", OPEN)
    other = write_store(source / "store.kas", OPEN, owner=STRANGER)
    for named in (other, source):
        daemon = shared(named)
        assert list(daemon.path.rglob("*.npy"))
        status = daemon.path / ".glassfs/status.json"
        assert ("a name that says too much" in status.read_text()) == (named == source)
        assert oct(mode(status)) == "0o400"
        assert os.stat(status).st_uid == os.geteuid()
        assert isinstance(as_user(read_or_refusal, status), int)
        assert isinstance(as_user(read_or_refusal, status.with_name("omitted.jsonl")), int)


@pytest.mark.usefixtures("fuse")
def test_allow_root_keeps_all_other_users_out(place: Path) -> None:
    path = place / "store.kas"
    write_store(path, OPEN)
    path.chmod(0o644)
    with Daemon([path], make_folder(place / "private"), options=["allow_root"]) as daemon:
        shown = daemon.path / "word.npy"
        assert shown.read_bytes().endswith(OPEN)
        for where in (daemon.path, shown):
            assert as_user(can_open, where) is False
