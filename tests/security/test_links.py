"""S3: links are shown as links, and the kernel resolves them for each reader; the daemon follows none.

Commands follow those that no other user could make or change.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from glassfs.library import open_tree
from glassfs.tree import Symlink
from tests.cli.glassfs_command import glassfs
from tests.security.conftest import Shared
from tests.security.places import (
    all_bytes_below,
    can_open,
    make_folder,
    read_or_refusal,
    write_episode,
    write_file,
    write_store,
)
from tests.security.users import STRANGER, as_user

SECRET, OPEN = b"of root alone, 0600!", b"for everybody to see"


@pytest.fixture
def source(place: Path, source: Path) -> Path:
    """Closed and open files inside and outside of the source, and a folder of STRANGER's."""
    for folder, mode in ((place / "outside", 0o755), (source / "private", 0o700), (source / "public", 0o755)):
        make_folder(folder, mode)
        text, store = (OPEN, 0o644) if folder.name == "public" else (SECRET, 0o644 if mode == 0o700 else 0o600)
        write_file(folder / "text", text, store)
        write_store(folder / "store.kas", text, store)
    make_folder(source / "incoming", owner=STRANGER)
    return source


TARGETS = {
    "to a closed folder": "../private",
    "to a container in a closed folder": "../private/store.kas",
    "inside a container in a closed folder": "../private/store.kas/word.npy",
    "out of the source": "../../outside/text",
    "far out": "../" * 40 + "etc/shadow",
    "to a container outside": "../../outside/store.kas",
    "to itself": "to itself",
    "through a file": "../public/text/..",
    "to a link": "chain",
    "chain": "to a file in a closed folder",
    "to a file in a closed folder": "../private/text",
    "through a link": "to a closed folder/text",
    "to nothing": "nowhere",
}
OPEN_TARGETS = {"to a file": "../public/text", "to a folder": "../public", "to a container": "../public/store.kas"}


@pytest.fixture
def targets(place: Path, source: Path) -> dict[str, str]:
    """What links in STRANGER's folder lead to."""
    targets = TARGETS | OPEN_TARGETS | {
        "absolute": f"{place}/outside/text", "absolute, closed": f"{source}/private/text",
        "odd\x1b\n": "odd \x1b[31m\n target", "bytes": os.fsdecode(b"not \xff UTF-8"),
    }
    for name, target in targets.items():
        (source / "incoming" / name).symlink_to(target)
    return targets


def test_links_are_shown_unchanged(shared: Shared, source: Path, targets: dict[str, str]) -> None:
    (source / "public/up").symlink_to("..")
    shown = shared(source).path

    def seen() -> dict[str, tuple[bool, str]]:
        folder = f"{shown}/incoming"
        return {name: (stat.S_ISLNK(os.lstat(f"{folder}/{name}").st_mode), os.readlink(f"{folder}/{name}"))
                for name in os.listdir(folder)}

    names = {name.replace("\x1b", "%1B").replace("\n", "%0A"): target for name, target in targets.items()}
    for found in (seen(), as_user(seen)):
        assert found == {name: (True, target) for name, target in names.items()}
    assert os.readlink(shown / "public/up") == ".."
    assert stat.S_ISLNK(os.lstat(shown / "public/up").st_mode)


def test_links_open_nothing_that_is_closed_without_them(
    shared: Shared, source: Path, targets: dict[str, str],
) -> None:
    shown = shared(source).path

    def reached() -> tuple[set[str], set[str], dict[str, bytes]]:
        direct = {name for name in targets if can_open(source / "incoming" / name)}
        mounted = {name for name in os.listdir(shown / "incoming") if can_open(shown / "incoming" / name)}
        return direct, mounted, all_bytes_below(shown)

    direct, mounted, found = as_user(reached)
    assert mounted == direct == set(OPEN_TARGETS)
    assert not [path for path, data in found.items() if SECRET in data]
    for name, path in (("to a file", ""), ("to a folder", "/text"), ("to a container", "/word.npy")):
        assert OPEN in as_user(read_or_refusal, f"{shown}/incoming/{name}{path}"), name


def test_closed_folder_is_closed_on_every_path(shared: Shared, source: Path) -> None:
    """Paths include the containers' own files and their views."""
    (source / "way").symlink_to("private")
    daemon = shared(source)
    own = daemon.path / ".glassfs/source"
    assert (own / "private/store.kas").read_bytes() == (source / "private/store.kas").read_bytes()
    paths = [f"{daemon.path}/private", f"{own}/way/store.kas", *(f"{daemon.path}/{way}private/{name}" for way in
             ("", ".glassfs/source/", ".glassfs/views/", ".glassfs/source/incoming/../", "incoming/../")
             for name in ("", "text", "store.kas", "store.kas/word.npy"))]
    assert as_user(lambda: [path for path in paths if can_open(path)]) == []
    assert as_user(read_or_refusal, f"{own}/public/store.kas") == (source / "public/store.kas").read_bytes()


def test_commands_follow_no_link_of_another_user(place: Path, source: Path, tmp_path: Path) -> None:
    """STRANGER, who may write to a folder of the source, makes links and moves links of root's."""
    incoming, outside = source / "incoming", place / "outside"
    for name in ("text", "store.kas"):
        (incoming / f"theirs {name}").symlink_to(f"../../outside/{name}")
        os.chown(incoming / f"theirs {name}", STRANGER.uid, STRANGER.gid, follow_symlinks=False)
        (incoming / f"moved {name}").symlink_to(outside / name)
    (outside / "way").symlink_to("store.kas")
    (source / "ours.kas").symlink_to("../outside/way")
    (source / "through.kas").symlink_to("incoming/../incoming/theirs store.kas")
    out = tmp_path / "out"
    glassfs("export", source, "incoming", out)
    assert all(path.is_symlink() for path in (out / "incoming").iterdir())
    with open_tree(str(source)) as tree:
        assert SECRET in tree.file("ours.kas/word.npy").read(0, 1000)
        reasons = {one.name: one.reason for one in tree.directory("incoming").omitted()}
        assert isinstance(tree.lookup("through.kas"), Symlink)
    assert set(reasons) == {f"{whose} {name}" for whose in ("theirs", "moved") for name in ("text", "store.kas")}
    assert all(f"{source}/incoming belongs to another user" in reason for reason in reasons.values())


@pytest.mark.slow
def test_links_do_not_replace_parts_of_a_manifest(shared: Shared, place: Path, source: Path) -> None:
    """A manifest of STRANGER's names parts that are links to files of root's."""
    _, parts = write_episode(place / "outside", "long", SECRET)
    for part in parts:
        part.chmod(0o600)
    manifest, _ = write_episode(make_folder(place / "made"), "long", SECRET)
    own = write_file(source / "incoming/long_manifest.wshard", manifest.read_bytes(), owner=STRANGER)
    for part in parts:
        (source / "incoming" / part.name).symlink_to(part)
    daemon = shared(source)
    assert not [path for path, data in as_user(all_bytes_below, daemon.path).items() if SECRET in data]
    assert not [path for path, data in as_user(all_bytes_below, daemon.path / "incoming" / own.name).items()
                if SECRET in data]


def test_special_files_are_not_opened(shared: Shared, source: Path) -> None:
    """A daemon that opened a FIFO would wait for its writer and answer no request."""
    kinds = {"fifo", "socket", "device"}
    os.mkfifo(source / "incoming/fifo", 0o666)
    os.mknod(source / "incoming/device", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(source / "incoming/socket"))
    shown = shared(source).path
    assert {*as_user(os.listdir, shown / "incoming")} <= kinds
    assert as_user(lambda: [kind for kind in kinds if can_open(shown / "incoming" / kind)]) == []
    assert as_user(read_or_refusal, shown / "public/text") == OPEN
