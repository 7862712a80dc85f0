"""Sources as trees: containers, folders, several of either; what changes on disk, and what is held open."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.wshard import WShardWriter

import glassfs
from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.errors import Changed, NotFound, Refused, Unrecognised
from glassfs.tree import Directory, File, Places, Symlink, Tree, open_tree
from glassfs.tree.places import ContainerPlace
from tests.mount.mounts import wait_until
from tests.tree.trees import paths_of


def store(path: Path, *keys: str, value: int = 1) -> Path:
    """A store with a float64 array of four times ``value`` for each key. Written beside and renamed into place."""
    new = path.with_name(f".{path.name}.new")
    with KastoreWriter(new) as writer:
        for key in keys or ("a",):
            writer.add(key, np.full(4, value, "f8"))
    new.rename(path)
    return path


def opened(*sources: Path, limit: int = 64) -> tuple[Tree, Places]:
    places = Places(BlockCache(), limit)
    return open_tree([str(source) for source in sources], places), places


def value_at(tree: Tree, path: str) -> float:
    raw = tree.file(path).read(128, 32)
    return float(np.frombuffer(raw, "f8")[0])


def held(folder: Path) -> int:
    """How many files below ``folder`` this process has open."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(str(folder)) for link in links if os.path.lexists(link))


def test_one_container_is_its_contents(tmp_path: Path) -> None:
    path = store(tmp_path / "s.kas", "a", "b/c")
    tree, places = opened(path)
    assert paths_of(tree) == {"/a.npy", "/b/", "/b/c.npy"}
    assert [place.path for place in places.open_containers()] == [str(path)]


def test_several_are_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "folder").mkdir()
    store(tmp_path / "folder" / "in.kas")
    tree, _ = opened(store(tmp_path / "s.kas"), store(tmp_path / "x" / "s.kas", "other"), tmp_path / "folder")
    assert paths_of(tree) == {
        "/s.kas/", "/s.kas/a.npy", "/s.kas~2/", "/s.kas~2/other.npy",
        "/folder/", "/folder/in.kas/", "/folder/in.kas/a.npy",
    }


def test_a_folder_is_mirrored_to_any_depth(tmp_path: Path) -> None:
    deep = tmp_path / "one" / "two" / "three"
    deep.mkdir(parents=True)
    store(deep / "no_suffix_at_all")
    (tmp_path / "notes.txt").write_text("plain")
    (tmp_path / "fake.kas").write_text("only named so")
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    tree, _ = opened(tmp_path)
    assert paths_of(tree) == {
        "/one/", "/one/two/", "/one/two/three/", "/one/two/three/no_suffix_at_all/",
        "/one/two/three/no_suffix_at_all/a.npy", "/notes.txt", "/fake.kas", "/empty",
    }
    assert tree.file("/notes.txt").read(0, 100) == b"plain"
    assert tree.file("/fake.kas").xattrs() == {}


def test_links_are_followed_inside_and_shown_outside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    store(root / "sub" / "s.kas")
    for name, target in {
        "to_container": "sub/s.kas", "to_folder": "sub", "out": "../secret", "absolute": str(tmp_path / "secret"),
        "dangling": "missing", "itself": "itself", "sub/up": "..",
    }.items():
        (root / name).symlink_to(target)
    tree, _ = opened(root)
    kinds = {path: type(node) for path, node in tree.walk()}
    assert tree.file("/to_container/a.npy").size == 160
    assert tree.file("/to_folder/s.kas/a.npy").size == 160
    for name in ("/out", "/absolute", "/dangling", "/itself", "/sub/up"):
        assert kinds[name] is Symlink
    out = tree.lookup("/out")
    assert isinstance(out, Symlink)
    assert out.target == "../secret"


def test_what_cannot_be_opened_stays_a_file_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = store(tmp_path / "good.kas").read_bytes()
    (tmp_path / "cut.kas").write_bytes(whole[:-10])
    tree, _ = opened(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert isinstance(tree.lookup("/cut.kas"), File)
    reason = tree.lookup("/cut.kas").xattrs()["user.glassfs.error"].decode()
    assert reason
    assert [record.getMessage() for record in caplog.records] == [f"cut.kas: {reason}"]
    assert tree.file("/cut.kas").read(0, 1 << 20) == whole[:-10]
    assert value_at(tree, "/good.kas/a.npy") == 1


@pytest.mark.parametrize(("content", "error"), [
    (b"", Unrecognised), (b"text", Unrecognised), (bytes(100), Unrecognised),
    (b"\x89KAS\r\n\x1a\n" + bytes(8), Refused),
])
def test_what_is_named_must_open(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    path = tmp_path / "named"
    path.write_bytes(content)
    with pytest.raises(error, match=r"^named: "):
        opened(path)
    with pytest.raises(error, match=r"^named: "):
        opened(store(tmp_path / "s.kas"), path)
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "missing")


def test_modes_and_times_are_the_source_s(tmp_path: Path) -> None:
    path = store(tmp_path / "s.kas", "g/a")
    path.chmod(0o640)
    os.utime(path, ns=(1, 123_456_789_012_345_678))
    tree, _ = opened(path)
    node, folder = tree.lookup("/g/a.npy"), tree.lookup("/g")
    assert (node.mode, folder.mode) == (0o100440, 0o040550)
    assert node.origin.mtime_ns == 123_456_789_012_345_678
    assert (node.origin.uid, node.origin.gid) == (os.getuid(), os.getgid())


def test_numbers_are_the_same_after_opening_again(tmp_path: Path) -> None:
    store(tmp_path / "s.kas", "a", "b/c")
    first = {path: node.ino for path, node in opened(tmp_path)[0].walk()}
    assert first == {path: node.ino for path, node in opened(tmp_path)[0].walk()}
    assert len(set(first.values())) == len(first)


def test_a_folder_shows_what_was_added_and_removed(tmp_path: Path) -> None:
    tree, _ = opened(tmp_path)
    assert paths_of(tree) == set()
    store(tmp_path / "new.kas")
    (tmp_path / "text").write_text("1")
    assert paths_of(tree) == {"/new.kas/", "/new.kas/a.npy", "/text"}
    (tmp_path / "new.kas").unlink()
    assert paths_of(tree) == {"/text"}
    with pytest.raises(NotFound):
        tree.lookup("/new.kas")


def test_refresh_tells_what_changed_and_shows_it(tmp_path: Path) -> None:
    store(tmp_path / "a.kas", value=1)
    store(tmp_path / "b.kas", value=1)
    tree, places = opened(tmp_path)
    assert value_at(tree, "/a.kas/a.npy") == value_at(tree, "/b.kas/a.npy") == 1
    assert places.refresh() == []
    store(tmp_path / "a.kas", "a", "more", value=2)
    assert places.refresh() == ["/a.kas"]
    assert places.refresh() == []
    assert value_at(tree, "/a.kas/a.npy") == 2
    assert value_at(tree, "/a.kas/more.npy") == 2
    assert value_at(tree, "/b.kas/a.npy") == 1


def test_an_open_file_never_mixes_old_and_new(tmp_path: Path) -> None:
    path = store(tmp_path / "a.kas", value=1)
    tree, places = opened(tmp_path)
    node = tree.file("/a.kas/a.npy")
    store(path, value=2)
    places.refresh()
    assert node.origin.is_replaced
    assert np.frombuffer(node.read(128, 32), "f8").tolist() == [1] * 4  # the old file, which is still there for it
    with path.open("r+b") as file:
        file.truncate(100)
    new = tree.lookup("/a.kas")
    assert isinstance(new, File)  # no container any more
    assert "user.glassfs.error" in new.xattrs()


def test_a_container_rewritten_in_place_is_an_error_until_refreshed(tmp_path: Path) -> None:
    path = store(tmp_path / "a.kas", value=1)
    tree, places = opened(path)
    node = tree.file("/a.npy")
    replacement = store(tmp_path / "b.kas", value=2).read_bytes()
    with path.open("r+b") as file:
        file.write(replacement)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1000))
    with pytest.raises(Changed):
        node.read(128, 32)
    assert places.refresh() == [""]
    assert value_at(tree, "/a.npy") == 2


def test_a_deleted_container_is_gone_but_readable_for_who_has_it_open(tmp_path: Path) -> None:
    path = store(tmp_path / "a.kas")
    tree, places = opened(tmp_path)
    node = tree.file("/a.kas/a.npy")
    path.unlink()
    assert places.refresh() == ["/a.kas"]
    assert np.frombuffer(node.read(128, 32), "f8")[0] == 1
    with pytest.raises(NotFound):
        tree.lookup("/a.kas/a.npy")


def test_only_so_many_containers_are_open(tmp_path: Path) -> None:
    for number in range(60):
        store(tmp_path / f"{number}.kas", value=number)
    tree, places = opened(tmp_path, limit=8)
    for number in [*range(60), *range(59, -1, -1)]:
        assert value_at(tree, f"/{number}.kas/a.npy") == number
        assert len(places.open_containers()) <= 8
    tree.forget()
    assert held(tmp_path) <= 9


def test_nothing_of_closed_containers_stays(tmp_path: Path) -> None:
    """A folder of a hundred thousand of them must not cost memory for having been looked at."""
    for number in range(60):
        store(tmp_path / f"{number}.kas")
    tree, places = opened(tmp_path, limit=4)
    paths_of(tree)
    gc.collect()
    things = gc.get_objects()
    kept = [thing.path for thing in things if isinstance(thing, ContainerPlace)]
    kept += [thing.sources[0].path for thing in things if isinstance(thing, Container)]  # type: ignore[attr-defined]
    assert len(places.open_containers()) == 4
    assert sum(path.startswith(str(tmp_path)) for path in kept) == 4 + 4


def test_a_listing_that_is_made_while_the_container_closes_is_not_kept(tmp_path: Path) -> None:
    """Somebody still walks through it: what that makes must not stay for good."""
    for name in "ab":
        store(tmp_path / name, "group/a")
    tree, places = opened(tmp_path, limit=1)
    group = tree.directory("/a/group")
    tree.directory("/b").listing()
    assert [node.name for node in group.listing()] == ["a.npy"]
    assert all(key[0] is not group.origin for key in places.listings._kept)


def test_the_container_used_last_stays_open(tmp_path: Path) -> None:
    for name in "abc":
        store(tmp_path / name)
    tree, places = opened(tmp_path, limit=2)
    for name in "aabac":
        tree.directory(f"/{name}").listing()
    assert [place.name for place in places.open_containers()] == ["a", "c"]


def test_a_file_of_a_closed_container_still_reads(tmp_path: Path) -> None:
    for name in "ab":
        store(tmp_path / name, value=ord(name))
    tree, _ = opened(tmp_path, limit=1)
    node = tree.file("/a/a.npy")
    tree.directory("/b").listing()
    assert np.frombuffer(node.read(128, 32), "f8")[0] == ord("a")
    assert not node.origin.is_replaced


def test_looking_at_a_folder_opens_nothing_for_good(tmp_path: Path) -> None:
    for number in range(30):
        store(tmp_path / f"{number}.kas")
    tree, places = opened(tmp_path)
    assert sum(isinstance(node, Directory) for node in tree.root.listing()) == 30
    assert places.open_containers() == []
    assert held(tmp_path) == 0


def test_a_closed_tree_holds_nothing(tmp_path: Path) -> None:
    """Neither a container nor a spool file, before any garbage is collected; and it can be used again."""
    for number in range(3):
        with WShardWriter(tmp_path / f"{number}.wshard", codec="zstd") as writer:
            writer.add_channel("film", np.full((40, 50_000), number, np.uint8))
    (tmp_path / "spool").mkdir()
    gc.disable()
    try:
        with glassfs.open(tmp_path, cache_size=1 << 20, spool=str(tmp_path / "spool")) as tree:
            films = [tree.file(f"/{number}.wshard/signal/film.npy") for number in range(3)]
            assert [film.read(128, 1) for film in films] == [b"\0", b"\1", b"\2"]
            assert held(tmp_path) == 6
        assert wait_until(lambda: held(tmp_path) == 0)
        assert films[2].read(128, 1) == b"\2"
        assert tree.file("/1.wshard/signal/film.npy").read(128, 1) == b"\1"
    finally:
        gc.enable()


def test_names_in_a_folder_follow_the_rule(tmp_path: Path) -> None:
    for name in (b"a%b", b"new\nline", b"\xff.kas", b".glassfs"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(name)
    tree, _ = opened(tmp_path)
    assert paths_of(tree) == {"/a%25b", "/new%0Aline", "/%FF.kas", "/%2Eglassfs"}
    assert tree.file("/%FF.kas").read(0, 10) == b"\xff.kas"
    with pytest.raises(NotFound):
        tree.lookup("/a%b")


def test_a_folder_that_went_away_is_changed(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    tree, _ = opened(inner)
    inner.rmdir()
    with pytest.raises(Changed):
        tree.root.listing()
