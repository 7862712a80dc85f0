"""S4, S5, S6: the modes of what is shown follow those of the files that it is made of, also when these change."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.conftest import Shared
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

SECRET, OPEN = b"of root alone, 0600!", b"for everybody to see"
ROOT, OTHER = User(0, 0), User(54322, 54322)
SOON = 3.0
PATIENCE = 15.0


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def seconds_until(condition: Callable[[], bool]) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + PATIENCE, f"not within {PATIENCE:g} s"
        time.sleep(0.02)
    return time.monotonic() - begin


# S4: containers of several files


def test_a_manifest_gives_nobody_the_parts_of_another(shared: Shared, place: Path) -> None:
    """Root's parts are 0600; a stranger who may write beside them names them in a manifest of his own."""
    source = make_folder(place / "source", 0o777)
    manifest, parts = write_episode(source, "long", SECRET)
    for part in parts:
        part.chmod(0o600)
    give(manifest, 0o644, STRANGER)
    shown = shared(source).path / manifest.name
    arrays = ("signal/word.npy", "chunks/0000/signal/word.npy", "chunks/0001/signal/word.npy", "meta/manifest.json")

    def reached() -> list[str]:
        return [path for path in ("", *arrays) if can_open(f"{shown}/{path}")]

    assert as_user(reached) == []
    assert reached() == ["", *arrays]
    assert (mode(shown), mode(shown / arrays[0])) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("manifest_owner", "manifest_mode", "part_owner", "part_mode", "expected"),
    [
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
    ],
)
def test_every_class_gets_what_all_files_give(
    shared: Shared, place: Path, manifest_owner: User, manifest_mode: int, part_owner: User, part_mode: int,
    expected: int,
) -> None:
    """The AND of the modes; where owners or groups differ, what each file gives to all three classes."""
    source = make_folder(place / "source")
    manifest, parts = write_episode(source, "long", OPEN)
    give(manifest, manifest_mode, manifest_owner)
    give(parts[0], 0o644, part_owner if part_owner == manifest_owner else None)
    give(parts[1], part_mode, part_owner)
    single = shared(manifest).path
    folder = shared(source).path / manifest.name
    shown = {f"{root.name} {path}": mode(root / path)
             for root in (single, folder) for path in ("", "signal/word.npy", "signal", "chunks/0001")}
    wanted = {name: expected | (0 if name.endswith(".npy") else expected >> 2 & 0o111) for name in shown}
    assert {name: oct(found) for name, found in shown.items()} == {name: oct(found) for name, found in wanted.items()}


# S5: changed modes, folders, access lists


@pytest.mark.parametrize("kind", ["file", "container", "named container", "part"])
def test_a_file_that_is_closed_closes_within_a_second(
    shared: Shared, place: Path, kind: str, record_property: Callable[[str, object], None],
) -> None:
    """And opens again. Asserted with room for a machine that is busy."""
    source = make_folder(place / "source")
    write_file(source / "file", OPEN)
    store = write_store(source / "store.kas", OPEN)
    manifest, parts = write_episode(source, "long", OPEN)
    daemon = shared(store if kind == "named container" else source)
    changed, shown = {
        "file": (source / "file", daemon.path / "file"),
        "container": (store, daemon.path / "store.kas/word.npy"),
        "named container": (store, daemon.path / "word.npy"),
        "part": (parts[1], daemon.path / manifest.name / "signal/word.npy"),
    }[kind]
    assert as_user(can_open, shown)
    changed.chmod(0o600)
    closed = as_user(seconds_until, lambda: not can_open(shown))
    assert mode(shown) == 0o400
    changed.chmod(0o644)
    opened = as_user(seconds_until, lambda: can_open(shown))
    record_property("seconds until closed, opened", (closed, opened))
    assert closed <= SOON and opened <= SOON, (closed, opened)
    assert mode(shown) == 0o444


@pytest.mark.parametrize("kind", ["file", "container"])
def test_who_has_it_open_reads_on(shared: Shared, place: Path, kind: str) -> None:
    """A changed mode is not changed content."""
    source = make_folder(place / "source")
    path = write_file(source / "file", OPEN) if kind == "file" else write_store(source / "store.kas", OPEN)
    root = shared(source).path
    shown = root / ("file" if kind == "file" else "store.kas/word.npy")
    descriptor = os.open(shown, os.O_RDONLY | os.O_DIRECT)
    try:
        whole = os.pread(descriptor, 1 << 16, 0)
        path.chmod(0o600)
        seconds_until(lambda: mode(shown) == 0o400)
        assert os.pread(descriptor, 1 << 16, 0) == whole
        assert OPEN in whole
    finally:
        os.close(descriptor)


def test_a_new_owner_is_shown(shared: Shared, place: Path) -> None:
    source = make_folder(place / "source")
    store = write_store(source / "store.kas", SECRET, 0o600)
    shown = shared(source).path / "store.kas/word.npy"
    assert not as_user(can_open, shown)
    os.chown(store, STRANGER.uid, STRANGER.gid)
    assert as_user(seconds_until, lambda: can_open(shown)) <= SOON
    os.chown(store, 0, 0)
    assert as_user(seconds_until, lambda: not can_open(shown)) <= SOON


@pytest.mark.slow
@pytest.mark.parametrize("given", [0o755, 0o744, 0o711, 0o700, 0o751, 0o775, 0o500, 0o311, 0o054], ids=oct)
def test_folders_have_their_own_mode_but_for_writing(shared: Shared, place: Path, given: int) -> None:
    """``x`` only where the folder has it: who may list one may not enter it for that, nor the other way round."""
    source = make_folder(place / "source")
    folder = make_folder(source / "folder")
    write_file(folder / "file", OPEN)
    write_store(folder / "store.kas", OPEN)
    make_folder(folder / "sub", given)
    folder.chmod(given)
    shown = shared(source).path / "folder"
    assert oct(mode(shown)) == oct(given & ~0o222)
    assert oct(mode(shown / "sub")) == oct(given & ~0o222)

    def reached(root: str) -> list[bool]:
        return [can_open(root), can_open(f"{root}/file"), can_open(f"{root}/store.kas"), os.path.exists(f"{root}/sub")]

    for user in (STRANGER, User(54321, 0)):
        assert as_user(reached, str(shown), user=user) == as_user(reached, str(folder), user=user)


def test_the_mount_s_own_root_has_the_folder_s_mode(shared: Shared, place: Path) -> None:
    for given in (0o750, 0o711):
        source = make_folder(place / f"source{given:o}", given)
        write_file(source / "file", OPEN)
        shown = shared(source).path
        assert oct(mode(shown)) == oct(given & ~0o222)
        assert as_user(can_open, shown) is False
        assert as_user(can_open, shown / "file") == (given == 0o711)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "folders", "files"), [(0o640, 0o550, 0o440), (0o604, 0o505, 0o404), (0o200, 0, 0)])
def test_directories_of_a_container_can_be_entered_by_its_readers(
    shared: Shared, place: Path, given: int, folders: int, files: int,
) -> None:
    store = write_store(make_folder(place / "source") / "store.kas", OPEN, given)
    for root in (shared(store).path, shared(store.parent).path / "store.kas"):
        assert (oct(mode(root)), oct(mode(root / "word.npy"))) == (oct(folders), oct(files))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "container", "part", "folder"])
def test_an_access_list_gives_group_and_others_nothing(shared: Shared, place: Path, kind: str) -> None:
    """The group bits of the mode are the list's mask, and others includes a named user who is denied by name."""
    source = make_folder(place / "source")
    folder = make_folder(source / "folder")
    write_file(folder / "file", OPEN)
    write_store(folder / "store.kas", OPEN)
    manifest, parts = write_episode(folder, "long", OPEN)
    listed = {"file": folder / "file", "container": folder / "store.kas", "part": parts[0], "folder": folder}[kind]
    set_access(listed, 7 if kind == "folder" else 6, 0, 5 if kind == "folder" else 4, {STRANGER.uid: 0, OTHER.uid: 7})
    root = shared(source).path / "folder"
    shown = {"file": root / "file", "container": root / "store.kas/word.npy",
             "part": root / manifest.name / "signal/word.npy", "folder": root}[kind]
    assert oct(mode(shown)) == oct(0o500 if kind == "folder" else 0o400)
    for user in (STRANGER, OTHER, User(54323, 0), User(54323, 54323)):
        assert not as_user(can_open, shown, user=user), user
    untouched = root / "store.kas/word.npy" if kind == "file" else root / "file"
    assert as_user(can_open, untouched) == (kind != "folder")
    os.removexattr(listed, "system.posix_acl_access")
    listed.chmod(0o755 if kind == "folder" else 0o644)
    assert as_user(seconds_until, lambda: can_open(shown)) <= SOON


def test_an_access_list_that_comes_later(shared: Shared, place: Path) -> None:
    store = write_store(make_folder(place / "source") / "store.kas", OPEN)
    shown = shared(store.parent).path / "store.kas/word.npy"
    assert as_user(can_open, shown)
    set_access(store, 6, 4, 4, {STRANGER.uid: 0})
    assert as_user(seconds_until, lambda: not can_open(shown)) <= SOON


# S6: the status


@pytest.mark.parametrize("kind", ["folder", "container", "several"])
def test_status_is_for_the_owner_of_the_mount(shared: Shared, place: Path, kind: str) -> None:
    """It names what is open, also in folders that others may not list."""
    source = make_folder(place / "source")
    closed = make_folder(source / "closed", 0o700)
    store = write_store(closed / "a name that says too much.kas", OPEN)
    other = write_store(source / "store.kas", OPEN, owner=STRANGER)
    named = {"folder": [source], "container": [other], "several": [other, store]}[kind]
    daemon = shared(*named)
    assert list(daemon.path.rglob("*.npy"))
    status = daemon.path / ".glassfs/status.json"
    if kind == "folder":
        assert "a name that says too much" in status.read_text()
    assert oct(mode(status)) == "0o400"
    assert os.stat(status).st_uid == os.geteuid()
    assert isinstance(as_user(read_or_refusal, status), int)
