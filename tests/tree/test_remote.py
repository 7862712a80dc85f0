"""Remote stores: file names decide at listing, first bytes when a directory is entered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from glassfs.content.allowance import Allowance
from glassfs.datasets.files import FileSnapshot, TimedCalls
from glassfs.errors import Changed, DeviceFailed, NotAllowed, NotFound, Unavailable
from glassfs.formats import registry
from glassfs.tree import Directory, File, Sources, Tree
from glassfs.tree.sources.sources import Start
from glassfs.tree.sources.walk import Usage
from tests.memory_store import MemoryStore
from tests.tree.made import FORMAT, made
from tests.tree.trees import files_of, sources_of

FORMAT_OF = "user.glassfs.format"
REASON = "is not a container of a known format"


@pytest.fixture(autouse=True)
def made_suffix(made_format: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", {FORMAT.name: FORMAT.suffixes})
    monkeypatch.setattr(registry, "_built_in", lambda name: FORMAT)


def distant(files: dict[str, bytes]) -> MemoryStore:
    return MemoryStore(files, is_remote=True)


def entered(tree: Tree, path: str) -> list[str]:
    """Return the sorted names in a directory, listed as a mount lists it."""
    node = tree.node(path)
    assert isinstance(node, Directory)
    return sorted(node.names())


# Listing.


def test_a_named_source_is_a_container_whatever_its_name() -> None:
    store = distant({"data": made(a=b"1"), "other": made(a=b"2")})
    sources = sources_of(store, "data", "other")
    assert files_of(sources.tree) == {"/data/a.bin": b"1", "/other/a.bin": b"2"}
    store.put("data", made(b=b"3"))
    assert sources.refresh() == ["/data"]
    assert files_of(sources.tree) == {"/data/b.bin": b"3", "/other/a.bin": b"2"}
    assert not sources.has_presumed


# Entering.


def test_entering_opens_one_container_and_shows_its_format() -> None:
    store = distant({f"{number}.made": made(a=b"%d" % number) for number in range(5)})
    sources = sources_of(store)
    tree = sources.tree
    before = tree.node("/3.made")
    assert isinstance(before, Directory) and before.is_presumed and before.xattrs() == {}
    store.set_permissions("3.made", 0o600)
    assert sources.refresh() == ["/3.made"]
    assert (before.mode, tree.node("/3.made").mode, store.opens) == (0o40555, 0o40500, 0)
    assert entered(tree, "/3.made") == ["a.bin"]
    after = tree.node("/3.made")
    assert isinstance(after, Directory) and not before.is_presumed and not after.is_presumed
    assert before.xattrs() == after.xattrs() == {FORMAT_OF: b"made"}
    assert (before.origin.identity, before.origin.lease) == (after.origin.identity, after.origin.lease)
    assert tree.file("/3.made/a.bin").read(0, 9) == b"3"
    assert store.opens == 1
    assert [one.container.sources[0].name for one in sources.containers.all_open()] == ["memory/3.made"]


@pytest.mark.parametrize(("data", "expected"), [(made(a=b"1"), 1), (b"text", Changed)])
def test_64_readers_that_enter_open_a_file_once(data: bytes, expected: object) -> None:
    store = distant({"a.made": data})
    store.delay = 0.01
    node = sources_of(store).tree.node("/a.made")
    assert isinstance(node, Directory)

    def enter(_: int) -> object:
        try:
            return len(node.listing())
        except Changed as error:
            return type(error)

    with ThreadPoolExecutor(64) as pool:
        assert set(pool.map(enter, range(64))) == {expected}
    assert store.opens == 1


def test_a_presumed_plain_file_is_a_file_once_entered() -> None:
    store = distant({"a.made": b"text", "sub/b.made": made(b=b"2")})
    changes: list[int] = []
    sources = sources_of(store, on_change=lambda: changes.append(1))
    tree = sources.tree
    assert isinstance(tree.node("/a.made"), Directory)
    with pytest.raises(Changed, match=rf"^memory/a\.made: {REASON}$"):
        entered(tree, "/a.made")
    assert changes
    assert sources.containers.watcher.changes() == ["/a.made"]
    node = tree.node("/a.made")
    assert isinstance(node, File)
    assert (node.read(0, 9), node.xattrs()) == (b"text", {"user.glassfs.error": REASON.encode()})
    opens = store.opens
    assert files_of(tree) == {"/a.made": b"text", "/sub/b.made/b.bin": b"2"}
    assert store.opens == opens + 2  # the text is read, the other one entered


@pytest.mark.parametrize("error", [DeviceFailed("slow"), NotAllowed("no"), Unavailable("full"), NotFound("gone")])
@pytest.mark.parametrize("where", ["opening", "reading"])
def test_a_failed_entering_is_tried_again(error: Exception, where: str) -> None:
    store = distant({"a.made": made(a=b"1")})
    sources = sources_of(store)
    getattr(store, where)["a.made"] = error
    assert isinstance(sources.tree.node("/a.made"), Directory)
    with pytest.raises(type(error)):
        entered(sources.tree, "/a.made")
    assert isinstance(sources.tree.node("/a.made"), Directory)
    getattr(store, where).clear()
    assert files_of(sources.tree) == {"/a.made/a.bin": b"1"}


# Several files.


def manifest() -> MemoryStore:
    store = distant({"sub/m.made": made(parts=["one", "two"]), "sub/one": b"1", "sub/two": b"2"})
    store.set_permissions("sub/two", 0o600)
    return store


def test_a_settled_container_has_attributes_of_all_its_files() -> None:
    store = manifest()
    sources = sources_of(store)
    tree = sources.tree
    before = tree.node("/sub/m.made")
    assert isinstance(before, Directory)
    assert before.origin.access.permissions == 0o644
    assert entered(tree, "/sub/m.made") == ["parts"]
    assert store.opens == 3
    assert sources.containers.watcher.changes() == ["/sub/m.made"]
    after = tree.node("/sub/m.made")
    assert after.origin.access.permissions == 0o600
    assert after.origin.identity != before.origin.identity
    inside = tree.file("/sub/m.made/parts/two.bin")
    assert inside.origin.identity == after.origin.identity
    assert inside.read(0, 9) == b"2"
    assert [node.name for node in before.listing()] == ["parts"]  # the earlier node stays usable
    assert store.opens == 3


def test_open_readers_keep_its_files() -> None:
    store = manifest()
    sources = sources_of(store)
    node = sources.tree.node("/sub/m.made")
    with node.origin.lease as lease:
        assert not store.held
        entered(sources.tree, "/sub/m.made")
        assert len(store.held) == len(lease.sources) == 3
        sources.containers.close()
        assert len(store.held) == 3
    assert not store.held


# Changes.


# Walks, joined tables and sizes.


def walked(tree: Tree) -> Iterator[str]:
    return (path for path, _ in tree.walk())


def test_a_walk_yields_each_path_once() -> None:
    files = {"a.made": b"text", "b.made": made(b=b"2"), "c/d.made": b"", "c/e.made": made(version=2), "f": made()}
    tree = sources_of(distant(files)).tree
    assert sorted(walked(tree)) == ["/a.made", "/b.made", "/b.made/b.bin", "/c", "/c/d.made", "/c/e.made", "/f"]
    tree = sources_of(distant(files)).tree
    assert {path for path, node in tree.walk() if isinstance(node, Directory)} == {"/b.made", "/c"}


def test_a_walk_goes_on_after_errors_on_entering() -> None:
    store = distant({"a.made": made(a=b"1"), "b.made": made(b=b"2")})
    store.opening["a.made"] = DeviceFailed("no answer")
    failed: list[str] = []
    tree = sources_of(store).tree
    paths = [path for path, _ in tree.walk(on_error=lambda path, error: failed.append(f"{path}: {error.reason}"))]
    assert (paths, failed) == (["/a.made", "/b.made", "/b.made/b.bin"], ["/a.made: no answer"])
    with pytest.raises(DeviceFailed):
        list(tree.walk())


def below(sources: Sources) -> list[str]:
    """Return the files that a joined table over the sources reads."""
    starts = [Start("", location, True) for location in sources.locations.values()]
    return [one.path for one in FileSnapshot(starts, TimedCalls(60.0), Allowance(1 << 20)).files]


def test_tables_open_only_files_named_like_containers() -> None:
    files = {"a.made": b"", "sub/b.made": b"", "notes.txt": b"", "data": made()}
    assert below(sources_of(distant(files))) == ["a.made", "sub/b.made"]
    assert below(sources_of(distant(files), "data")) == [""]


def test_a_table_leaves_containers_presumed() -> None:
    store = manifest()
    sources = sources_of(store)
    node = sources.tree.node("/sub/m.made")
    assert isinstance(node, Directory)
    place = sources.locations["memory"]
    with sources.containers.glimpsed(place._replace(path=("sub", "m.made")), node.origin.lease.sources[0].version):
        pass
    opens = store.opens
    assert sources.tree.node("/sub/m.made").origin.lease is node.origin.lease
    assert store.opens == opens
    assert entered(sources.tree, "/sub/m.made") == ["parts"]


def test_remote_usage_lists_no_deeper_folders() -> None:
    store = distant({"a.made": b"12", "sub/b.made": b"345"})
    usage = Usage(sources_of(store).locations.values())
    assert usage() == 2
    assert store.opens == 0


def test_with_views_listing_opens_nothing_either() -> None:
    store = distant({"a.made": made(a=b"1"), "sub/b.made": b"text"})
    sources: Sources = sources_of(store)
    root = sources.viewed("views", 7)
    assert [(node.name, node.xattrs()) for node in root.listing() if node.name == "a.made"] == [("a.made", {})]
    node = root.child("a.made")
    assert store.opens == 0
    assert isinstance(node, Directory) and node.is_presumed
    assert "a.bin" in node.names()
    assert node.xattrs() == {FORMAT_OF: b"made"}
