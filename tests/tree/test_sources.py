"""Sources as trees: containers, folders, several of either; names, links, what goes away, and the files themselves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from glassfs.datasets.joined import open_sources
from glassfs.errors import Changed, NotADirectory, NotFound, Refused, Unrecognised
from glassfs.library import open_tree
from glassfs.names import component
from glassfs.source import Entry, Kind
from glassfs.source import Path as StorePath
from glassfs.tree import Directory, File, Symlink
from glassfs.tree.sources.sources import OwnFiles
from tests.memory_store import MemoryStore
from tests.source.test_local import held
from tests.tree.made import made
from tests.tree.trees import files_of, paths_of, sources_of
from tests.waiting import wait_until


def test_one_container_is_its_contents() -> None:
    sources = sources_of(MemoryStore({"x/some": made({"a": b"a", "b/c": b"c"})}), "x/some")
    assert files_of(sources.tree) == {"/a.bin": b"a", "/b/c.bin": b"c"}
    assert sources.tree.root.name == ""
    assert not sources.has_folder


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


def test_the_root_of_several_has_the_attributes_of_the_newest() -> None:
    store = MemoryStore({"a": made(), "b": made(), "c": made()})
    sources = sources_of(store, "a", "b", "c")
    assert sources.tree.root.origin.mtime_ns == store.entry(("c",)).mtime_ns
    store.put("a", made())
    assert sources.refresh() == ["/a"]
    assert sources.tree.root.origin.mtime_ns == store.entry(("a",)).mtime_ns


def test_a_private_source_leaves_the_root_of_several_public() -> None:
    """Users who may read one source reach it, and private sources keep their own modes."""
    store = MemoryStore({"open": made(a=b"1")})
    store.put("closed", made(b=b"2"), 0o600, uid=5)
    root = sources_of(store, "open", "closed").tree.root
    assert root.mode == stat.S_IFDIR | 0o555
    assert root.origin.access.uid == 5  # the newest
    assert {node.name: stat.S_IMODE(node.mode) for node in root.listing()} == {"open": 0o555, "closed": 0o500}


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


def test_a_folder_is_mirrored_to_any_depth(tmp_path: Path) -> None:
    deep = tmp_path / "one" / "two" / "three"
    deep.mkdir(parents=True)
    (deep / "no_suffix_at_all").write_bytes(made(a=b"a"))
    (tmp_path / "notes.txt").write_text("plain")
    (tmp_path / "fake.made").write_text("only named so")
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    tree = open_tree(tmp_path)
    assert paths_of(tree) == {
        "/one/", "/one/two/", "/one/two/three/", "/one/two/three/no_suffix_at_all/",
        "/one/two/three/no_suffix_at_all/a.bin", "/notes.txt", "/fake.made", "/empty",
    }
    assert tree.file("/notes.txt").read(0, 100) == b"plain"
    assert tree.file("/fake.made").xattrs() == {}
    with pytest.raises(NotFound):
        tree.lookup("/pipe")
    with pytest.raises(NotADirectory):
        tree.lookup("/notes.txt/x")


def test_links_are_links(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (root / "sub" / "some").write_bytes(made(a=b"a"))
    targets = {
        "container": "sub/some", "folder": "sub", "out": "../secret", "absolute": str(tmp_path / "secret"),
        "dangling": "missing", "itself": "itself", "sub/up": "..", "bytes": "\udcff",
    }
    for name, target in targets.items():
        (root / name).symlink_to(target)
    tree = open_sources([str(root)], follows=False).tree
    found = {path[1:]: node.target for path, node in tree.walk() if isinstance(node, Symlink)}
    assert found == targets
    assert {one.name for one in tree.root.omitted()} == {"out", "absolute"}
    assert tree.lookup("/out").mode == 0o120777
    for through in ("/folder/some", "/container/a.bin", "/sub/up/out"):
        with pytest.raises(NotADirectory):
            tree.lookup(through)


@pytest.mark.parametrize(("content", "error"), [
    (b"", Unrecognised), (b"text", Unrecognised), (bytes(100), Unrecognised), (made(version=2), Refused),
])
def test_named_sources_must_open(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    path, good = tmp_path / "named", tmp_path / "good"
    path.write_bytes(content)
    good.write_bytes(made())
    for names in ([path], [good, path]):
        with pytest.raises(error, match=f"^{path}: "):
            open_tree(*names)
    with pytest.raises(FileNotFoundError):
        open_tree(good, tmp_path / "missing")
    assert held(tmp_path) == 0


def test_modes_and_times_are_the_source_s(tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(made({"g/a": b"a"}))
    path.chmod(0o640)
    os.utime(path, ns=(1, 123_456_789_012_345_678))
    tree = open_tree(path)
    node, folder = tree.lookup("/g/a.bin"), tree.lookup("/g")
    assert (node.mode, folder.mode) == (0o100440, 0o040550)
    assert node.origin.mtime_ns == 123_456_789_012_345_678
    assert (node.origin.access.uid, node.origin.access.gid) == (os.getuid(), os.getgid())


def test_numbers_are_the_same_after_opening_again() -> None:
    store = MemoryStore({"a": made({"x": b"", "y/z": b""}), "f/b": made(x=b""), "plain": b""})
    first = {path: node.ino for path, node in sources_of(store).tree.walk()}
    assert first == {path: node.ino for path, node in sources_of(store).tree.walk()}
    assert len(set(first.values())) == len(first)


def test_a_folder_shows_what_was_added_and_removed() -> None:
    store = MemoryStore({"x": b""})
    tree = sources_of(store).tree
    assert paths_of(tree) == {"/x"}
    store.put("new", made(a=b"a"))
    store.put("folder/text", b"1")
    assert paths_of(tree) == {"/x", "/new/", "/new/a.bin", "/folder/", "/folder/text"}
    store.remove("new")
    store.remove("folder/text")
    assert paths_of(tree) == {"/x"}
    with pytest.raises(NotFound):
        tree.lookup("/new")


def test_plain_files_change(tmp_path: Path) -> None:
    store = MemoryStore({"log": b"first"})
    tree = sources_of(store).tree
    node = tree.file("/log")
    store.rewrite("log", b"first, second")
    with pytest.raises(Changed):
        node.read(0, 5)
    assert tree.file("/log").read(0, 99) == b"first, second"
    assert tree.file("/log").size == 13
    store.put("log", b"x")
    assert tree.file("/log").read(0, 99) == b"x"


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


def test_a_folder_that_went_away_is_changed(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    tree = open_tree(inner)
    mode = tree.root.mode
    inner.rmdir()
    assert tree.root.mode == mode
    with pytest.raises(Changed):
        tree.root.listing()
    inner.mkdir()
    (inner / "x").write_bytes(b"x")
    assert paths_of(tree) == {"/x"}


def test_the_folder_of_a_named_container_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "some").write_bytes(made(a=b"old"))
    tree = open_tree(folder / "some")
    assert tree.file("a.bin").read(0, 9) == b"old"
    folder.rename(tmp_path / "before")
    folder.mkdir()
    (folder / "some").write_bytes(made(a=b"new"))

    wait_until(lambda: tree.file("a.bin").read(0, 9) == b"new")


def test_a_mount_of_glassfs_is_an_empty_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: the mount is never opened."""
    store = MemoryStore({"mount/file": b"x", "other": b""})

    def entry(path: StorePath) -> Entry:
        assert path[:1] != ("mount",) or path == ("mount",)
        found = MemoryStore.entry(store, path)
        return found._replace(kind=Kind.MOUNT) if path == ("mount",) else found

    monkeypatch.setattr(store, "entry", entry)
    tree = sources_of(store).tree
    assert paths_of(tree) == {"/mount/", "/other"}
    with pytest.raises(NotFound):
        tree.lookup("/mount/file")
    assert OwnFiles("", 1, tree.root.origin, sources_of(store)).listing() == []


# The containers' own files.


def own(store: MemoryStore, *names: str) -> dict[str, bytes]:
    """All files below OwnFiles, by path."""
    sources = sources_of(store, *names)
    found: dict[str, bytes] = {}

    def look(directory: Directory, at: str) -> None:
        for node in directory.listing():
            again = directory.child(node.name)
            assert (again.ino, again.mode) == (node.ino, node.mode)
            if isinstance(node, Directory):
                look(node, f"{at}{node.name}/")
            else:
                assert isinstance(node, File)
                found[at + node.name] = node.read(0, 1 << 20)
        with pytest.raises(NotFound):
            directory.child("missing")

    look(OwnFiles("source", 5, sources.tree.root.origin, sources), "")
    return found


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
