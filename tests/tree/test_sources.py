"""Sources as trees: containers, folders, several of either; names, what goes away, and own files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from glassfs.datasets.selecting import open_sources
from glassfs.errors import Changed, NotADirectory, NotFound, Refused
from glassfs.library import open_tree
from glassfs.names import component
from glassfs.source import Entry, Kind
from glassfs.source import Path as StorePath
from glassfs.tree import File, Symlink, Tree
from glassfs.tree.sources.sources import OwnFiles
from tests.memory_store import MemoryStore
from tests.tree.made import made
from tests.tree.trees import files_of, paths_of, sources_of


def test_several_are_side_by_side() -> None:
    store = MemoryStore({"some": made(a=b"1"), "x/some": made(b=b"2"), "folder/in": made(c=b"3"), ".glassfs": made()})
    sources = sources_of(store, "some", "x/some", "folder", ".glassfs")
    assert paths_of(sources.tree) == {
        "/some/", "/some/a.bin", "/some~2/", "/some~2/b.bin", "/folder/", "/folder/in/", "/folder/in/c.bin",
        "/.glassfs~2/",
    }
    assert sources.has_folder
    with pytest.raises(NotFound):
        sources.tree.lookup("/other")


def test_a_private_source_leaves_the_root_of_several_public() -> None:
    """Users who may read one source reach it, and private sources keep their own modes."""
    store = MemoryStore({"open": made(a=b"1")})
    store.put("closed", made(b=b"2"), 0o600, uid=5)
    sources = sources_of(store, "open", "closed")
    root = sources.tree.root
    assert root.mode == stat.S_IFDIR | 0o555
    assert {node.name: stat.S_IMODE(node.mode) for node in root.listing()} == {"open": 0o555, "closed": 0o500}
    newest = root.origin
    assert (newest.access.uid, newest.mtime_ns) == (5, store.entry(("closed",)).mtime_ns)
    store.put("open", made())
    assert sources.refresh() == ["/open"]
    assert sources.tree.root.origin.mtime_ns == store.entry(("open",)).mtime_ns > newest.mtime_ns


def test_a_folder_stays_the_same_whatever_is_in_it(tmp_path: Path) -> None:
    """And so does what lies in it: its own version is no part of what others are."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/some").write_bytes(made(a=b"a"))
    tree = open_tree(tmp_path)
    paths = ("/", "/folder", "/folder/some", "/folder/some/a.bin")
    before = [tree.lookup(path).origin for path in paths]
    (tmp_path / "new").write_text("new")
    (tmp_path / "folder/new").write_text("new")
    os.utime(tmp_path / "folder", ns=(1, 1))
    after = [tree.lookup(path).origin for path in paths]
    assert [origin.identity for origin in before] == [origin.identity for origin in after]
    assert after[1].mtime_ns == 1 != before[1].mtime_ns
    assert {origin.volume for origin in after} == {f"{os.stat(tmp_path).st_dev}"}
    tree.close()


def test_links_are_links(tmp_path: Path) -> None:
    """Those that lead out are omitted."""
    targets = {"folder": ".", "out": "/etc/passwd", "itself": "itself", "bytes": "\udcff"}
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
    tree = open_sources([str(tmp_path)], follows=False).tree
    assert {path[1:]: node.target for path, node in tree.walk() if isinstance(node, Symlink)} == targets
    assert {one.name for one in tree.root.omitted()} == {"out"}
    with pytest.raises(NotADirectory):
        tree.lookup("/folder/out")


def test_a_mount_of_glassfs_is_an_empty_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: what is below is never asked for."""
    store = MemoryStore({"mount/file": b"x"})
    folder, mount = store.entry(()), store.entry(("mount",))._replace(kind=Kind.MOUNT)
    monkeypatch.setattr(store, "entry", {(): folder, ("mount",): mount}.__getitem__)
    assert paths_of(sources_of(store).tree) == {"/mount/"}


def test_named_sources_must_open() -> None:
    store = MemoryStore({"good": made(), "new": made(version=2), "text": b"text"})
    for name in ("new", "text"):
        with pytest.raises(Refused, match=f"^memory/{name}: "):
            sources_of(store, "good", name)
        assert not store.held


# Names.


def test_names_in_a_folder_follow_the_rule(tmp_path: Path) -> None:
    for name in (b"a%b", b"new\nline", b"\xff.made", b".glassfs", b"a~2", b"%"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(name)
    tree = open_tree(tmp_path)
    assert paths_of(tree) == {"/a%25b", "/new%0Aline", "/%FF.made", "/%2Eglassfs", "/a~2", "/%25"}
    assert {path: tree.file(path).read(0, 10) for path in paths_of(tree)} == {
        "/a%25b": b"a%b", "/new%0Aline": b"new\nline", "/%FF.made": b"\xff.made", "/%2Eglassfs": b".glassfs",
        "/a~2": b"a~2", "/%25": b"%",
    }
    for missing in ("/a%b", "/.glassfs", "/%2E", "/\ud800", "/\udcff.made", "/" + "x" * 300, "/a\0"):
        with pytest.raises(NotFound):
            tree.lookup(missing)


def test_two_names_cut_to_the_same_are_both_shown() -> None:
    """One is too long when its control characters are escaped; another has the name that it gets then."""
    long = "x" * 240 + "\n" * 15
    short = component(long.encode())
    assert len(short) == 255
    store = MemoryStore({long: b"long", short: b"short"})
    tree = sources_of(store).tree
    files = files_of(tree)
    assert files.pop(f"/{short}") == b"short"
    (other, content), = files.items()
    assert content == b"long"
    assert other.endswith("~2")
    assert tree.file(other).read(0, 9) == b"long"
    assert tree.file(short).ino != tree.file(other).ino
    store.remove(short)
    assert files_of(tree) == {f"/{short}": b"long"}
    assert tree.file(short).read(0, 9) == b"long"
    with pytest.raises(NotFound):
        tree.lookup(other)


def test_lookups_of_missing_names_list_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors and shells often look up backups and prefixes."""
    store = MemoryStore({f"{number}": b"" for number in range(300)})
    tree = sources_of(store).tree
    listed = []
    list_all = store.list
    monkeypatch.setattr(store, "list", lambda path: listed.append(path) or list_all(path))
    for name in ("missing", "notes.txt~", "~", "~$doc", "100%", "%s", "a~b", ".x.swp"):
        with pytest.raises(NotFound):
            tree.lookup(f"/{name}")
    assert not listed
    with pytest.raises(NotFound):
        tree.lookup("/x%0A")
    assert listed == [()]


# What goes away.


def test_a_deleted_source_keeps_its_attributes() -> None:
    store = MemoryStore({"some": made(a=b"a")})
    sources = sources_of(store, "some")
    root = sources.tree.root
    with sources.tree.file("/a.bin").origin.lease:
        store.remove("some")
        for _ in range(2):
            lost = sources.tree.root
            assert (lost.ino, lost.mode, lost.origin.mtime_ns) == (root.ino, root.mode, root.origin.mtime_ns)
            with pytest.raises(Changed, match=r"^memory/some: no such file$"):
                lost.listing()
            with pytest.raises(Changed):
                sources.tree.lookup("/a.bin")
    assert sources.refresh() == [""]
    assert not store.held
    store.put("some", made(a=b"again"))
    assert sources.refresh() == [""]
    assert sources.tree.file("/a.bin").read(0, 9) == b"again"


@pytest.mark.parametrize("data", [b"plain text", made(version=2), b""])
def test_a_named_container_replaced_by_another_file_says_so(data: bytes) -> None:
    store = MemoryStore({"some": made(a=b"a"), "other": made(b=b"b")})
    alone, both = sources_of(store, "some"), sources_of(store, "some", "other")
    store.put("some", data)
    with pytest.raises(Changed, match=r"is not a container|has version 2"):
        alone.tree.root.listing()
    assert isinstance(both.tree.lookup("/some"), File)
    assert both.tree.file("/other/b.bin").read(0, 1) == b"b"


def test_a_source_that_becomes_a_device_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore({"some": made(a=b"a")})
    sources = sources_of(store, "some")

    def entry(path: StorePath) -> Entry:
        return MemoryStore.entry(store, path)._replace(kind=Kind.OTHER)

    monkeypatch.setattr(store, "entry", entry)
    with pytest.raises(Changed, match="is neither a file nor a folder"):
        sources.tree.root.listing()


# The containers' own files.


def own(store: MemoryStore, *names: str) -> dict[str, bytes]:
    """All files below OwnFiles, by path."""
    sources = sources_of(store, *names)
    root = OwnFiles("source", 5, sources.tree.root.origin, sources)
    tree = Tree(lambda: root)
    for path, node in tree.walk():
        again = tree.lookup(path)
        assert (again.ino, again.mode) == (node.ino, node.mode)
        with pytest.raises(NotFound):
            tree.lookup(f"{path.rpartition('/')[0]}/missing")
    return {path[1:]: data for path, data in files_of(tree).items()}


def test_the_files_of_containers_are_there_unchanged() -> None:
    some, other = made(a=b"a"), made(b=b"b")
    store = MemoryStore({"some": some, "folder/other": other, "folder/plain": b"text", "broken": made(version=2)})
    assert own(store, "some") == {"some": some}
    assert own(store, "some", "folder") == {"some": some, "folder/other": other}
    assert own(store) == {"some": some, "folder/other": other}


def test_a_container_s_own_file_has_its_own_mode() -> None:
    store = MemoryStore()
    store.put("m", made(parts=["part"]), permissions=0o644, uid=5)
    store.put("part", b"", permissions=0o600)
    sources = sources_of(store, "m")
    assert sources.tree.root.mode == 0o040000
    node = OwnFiles("source", 5, sources.tree.root.origin, sources).child("m")
    assert (node.mode, node.origin.access.uid) == (0o100444, 5)
