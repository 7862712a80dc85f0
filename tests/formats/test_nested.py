"""Containers inside containers: directories like those of containers in folders, opened when they are entered."""

from __future__ import annotations

import gc
import io
import weakref
import zipfile
from collections.abc import Iterator

import numpy as np
import pytest

from glassfs.cache import BlockCache
from glassfs.content import Extent, Nested, NestedSource
from glassfs.errors import Damaged, GlassfsError
from glassfs.source import Named, Version, inner_version
from glassfs.tree import ContainerSettings, Directory, File, NestedDirectory, Settled, Sources, Tree
from glassfs.tree.containers import containers
from glassfs.tree.containers.containers import NestedContainers
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import XATTR_PREFIX, OpenNested
from tests.conftest import DATA
from tests.formats.npz_files import npy, saved, zipped
from tests.helpers import attributes_of
from tests.memory_store import MemoryStore
from tests.tree.trees import files_of, origin, paths_of, sources_of

SMALL = saved({"x": np.arange(5)})
X = npy(np.arange(5))
KINDS = {
    "a.kdb": "kinodb/cli_jpeg85.kdb", "b.wshard": "wshard/go_mixed_codecs.wshard", "c.ikv": "ikv/arrays_v2.ikv",
    "d.trees": "kastore/small.trees", "e.idv": "idv/datatypes.idv",
}
"""Names of members, and the samples in them."""
METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}


def sample(name: str) -> bytes:
    return (DATA / KINDS[name]).read_bytes()


def tree_of_file(data: bytes, name: str = "outer.npz", is_remote: bool = False) -> Sources:
    return sources_of(MemoryStore({name: data}, is_remote=is_remote), name)


def around(data: bytes, name: str = "inner.npz", **options: int) -> bytes:
    return zipped(("first.npy", X), (name, data), **options)


def nested_at(tree: Tree, path: str) -> NestedDirectory:
    node = tree.lookup(path)
    assert isinstance(node, NestedDirectory)
    return node


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of nested containers, each time that one is opened."""
    names: list[str] = []
    parse = containers.parse

    def noting(opening: containers.Opening) -> containers.Container:
        names.append(opening.source.name.rpartition("/")[2])
        return parse(opening)

    monkeypatch.setattr(containers, "parse", noting)
    return names


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", KINDS)
def test_contents_are_those_of_the_container_alone(name: str, method: str) -> None:
    inner = sample(name)
    with tree_of_file(inner, name).tree as alone, tree_of_file(
        zipped(("first.npy", X), (f"deep/{name}", inner), compression=METHODS[method]),
    ).tree as tree:
        expected = files_of(alone)
        assert expected and files_of(tree, f"/deep/{name}") == {
            f"/deep/{name}{path}": data for path, data in expected.items()
        }
        assert nested_at(tree, f"/deep/{name}").file.read(0, 1 << 30) == inner
        assert paths_of(tree) == {"/first.npy", "/deep/", f"/deep/{name}/"} | {
            f"/deep/{name}{path}" for path in paths_of(alone)
        }


def test_an_index_in_a_container_stays_a_file() -> None:
    """Its shards would be beside it, and nothing is."""
    index = b'{"weight_map": {"a": "a.safetensors"}}'
    with tree_of_file(zipped(("first.npy", X), ("m.safetensors.index.json", index))).tree as tree:
        assert {data for path, data in files_of(tree).items() if "index" in path} == {index}


def test_listing_opens_no_inner_container(opened: list[str]) -> None:
    data = zipped(("first.npy", X), *((f"{number}.npz", SMALL) for number in range(20)))
    with tree_of_file(data).tree as tree:
        for node in tree.root.listing():
            assert node.name == "first.npy" or isinstance(node, NestedDirectory)
        assert isinstance(tree.root, Settled)
        assert len(list(tree.root.facts(0, 21))) == 21
        assert opened == []
        assert tree.file("/7.npz/x.npy").read(0, 999) == X
        assert opened == ["7.npz"]


def test_names_decide_without_reading_in_remote_stores() -> None:
    few, many = (
        zipped(("first.npy", X), *((f"{number}.kdb", b"no container") for number in range(count))) for count in (2, 60)
    )
    requests = []
    for data in (few, many):
        store = MemoryStore({"outer.npz": data}, is_remote=True)
        with sources_of(store, "outer.npz").tree as tree:
            before = store.reads
            assert all(isinstance(node, Directory) for node in tree.root.listing() if node.name != "first.npy")
            requests.append(store.reads - before)
            error = attributes_of(nested_at(tree, "/1.kdb"))["error"]
            assert error == "is not a container of a known format"
            assert tree.file("/1.kdb/1.kdb").read(0, 99) == b"no container"
    assert requests[0] == requests[1]


@pytest.mark.parametrize(("name", "data"), [
    ("notes.txt", SMALL), ("a.kdb", b"text"), ("a.kdb", b""), ("a.npz", X), ("a.trees", b"(a,b);"),
])
def test_what_is_no_container_is_a_file(name: str, data: bytes) -> None:
    with tree_of_file(around(data, name)).tree as tree:
        assert tree.file(f"/{name}").read(0, 9999) == data


def test_attributes_are_those_of_file_and_container() -> None:
    data = around(sample("a.kdb"), "a.kdb", compression=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.getinfo("a.kdb")
    with tree_of_file(data).tree as tree:
        found = nested_at(tree, "/a.kdb").xattrs()
        names = {name.removeprefix(XATTR_PREFIX): value.decode() for name, value in found.items()}
        assert names.pop("offset").isdigit()
        assert names == {
            "format": "kinodb", "key": "a.kdb", "codec": "deflate", "stored_bytes": str(info.compress_size),
            "checksum": f"crc32:{info.CRC:08x}",
        }
        assert tree.file("/a.kdb/episodes/0/state.npy").xattrs()[XATTR_PREFIX + "format"] == b"kinodb"
        assert tree.lookup("/a.kdb").ino == next(node.ino for node in tree.root.listing() if node.name == "a.kdb")


@pytest.mark.parametrize("method", METHODS)
def test_damage_costs_the_inner_container_only(method: str) -> None:
    cut = SMALL[:-30]
    data = zipped(("first.npy", X), ("bad.npz", cut), ("good.npz", SMALL), compression=METHODS[method])
    with tree_of_file(data).tree as tree:
        files = files_of(tree)
        assert files == {"/first.npy": X, "/bad.npz/bad.npz": cut, "/good.npz/x.npy": X}
        assert "is cut short" in attributes_of(nested_at(tree, "/bad.npz"))["error"]
        assert not attributes_of(nested_at(tree, "/good.npz"))


def test_wrong_bytes_are_not_shown_as_good() -> None:
    noise = np.random.default_rng(1).integers(0, 200, 9999)
    data = bytearray(zipped(("first.npy", X), ("in.npz", saved({"x": noise})), compression=8))
    data[len(data) // 2] ^= 0xFF
    with tree_of_file(bytes(data)).tree as tree:
        with pytest.raises(Damaged):
            tree.file("/in.npz/in.npz").read(0, 1 << 20)
        assert attributes_of(nested_at(tree, "/in.npz"))["error"]
        assert tree.file("/first.npy").read(0, 999) == X


# Hostile nesting


def test_archives_that_branch_at_every_level_end() -> None:
    data = SMALL
    for _ in range(7):
        data = zipped(("first.npy", X), *((f"{number}.npz", data) for number in range(3)))
    with tree_of_file(data).tree as tree:
        assert sum(isinstance(node, Directory) for _, node in tree.walk()) == 3 + 9 + 27 + 81


def test_compression_in_compression_is_bounded() -> None:
    """Each level multiplies what the outermost file stores; beyond 32 times its own bytes an archive is a file."""
    zeros = saved({"x": np.zeros(200_000)})
    once = around(zeros, compression=8)
    assert len(zeros) > 100 * len(once)
    with tree_of_file(once).tree as tree:
        assert isinstance(tree.lookup("/inner.npz"), File)
    noise = np.random.default_rng(1).integers(0, 2, 100_000).astype("<f8")
    inner = around(saved({"x": noise}), compression=8)
    assert len(saved({"x": noise})) > 10 * len(inner)
    padded = zipped(("first.npy", X), ("inner.npz", inner + bytes(10 * len(inner))), compression=8)
    with tree_of_file(padded).tree as tree, pytest.raises(GlassfsError):
        tree.lookup("/inner.npz/inner.npz/x.npy")


def test_names_that_clash_are_numbered() -> None:
    data = zipped(("in.npz", SMALL), ("in.npz/x.npy", X), ("in.npz/y.npy", X))
    with tree_of_file(data, "outer.npz").tree as tree:
        assert paths_of(tree) == {"/in.npz/", "/in.npz/x.npy", "/in.npz/y.npy", "/in.npz~2"}
        assert tree.file("/in.npz~2").read(0, 9999) == SMALL


def test_names_in_a_nested_container_do_not_leave_it() -> None:
    data = around(zipped(("../../x.npy", X), ("/y.npy", X)))
    with tree_of_file(data).tree as tree:
        assert set(files_of(tree, "/inner.npz")) == {"/inner.npz/%2E%2E/%2E%2E/x.npy", "/inner.npz/%/y.npy"}


# Versions and memory


def test_rights_follow_the_outer_file() -> None:
    store = MemoryStore({"run/outer.npz": around(SMALL)})
    sources = sources_of(store, "run")
    with sources.tree as tree:
        assert tree.file("/outer.npz/inner.npz/x.npy").mode & 0o777 == 0o444
        store.set_permissions("run/outer.npz", 0o600)
        sources.refresh()
        assert tree.file("/outer.npz/inner.npz/x.npy").mode & 0o777 == 0o400
        assert tree.lookup("/outer.npz/inner.npz").mode & 0o777 == 0o500


def test_blocks_of_inner_versions_are_forgotten_with_the_outer() -> None:
    cache = BlockCache()
    inner = inner_version(inner_version(Version("v1"), "a"), "b")
    for version in ("v1", inner, "v12", "v"):
        cache.notes.put((version, 0), ())
    cache.forget("v1")
    assert [cache.notes.get((version, 0)) for version in ("v1", inner, "v12", "v")] == [None, None, (), ()]


def test_evicted_containers_are_opened_again(opened: list[str]) -> None:
    """Within the budget each is opened once; beyond it the least recently used go, and their owner is notified."""
    store = MemoryStore({"a": SMALL})
    source = store.open(("a",))
    evicted: list[Lease] = []
    cached = NestedContainers(BlockCache(), evicted.append, 40 << 10)
    made = origin()
    contents = [Nested(b"%d.npz" % number, Extent(source, 0, len(SMALL)), source, str(number)) for number in range(50)]

    def open_one(number: int) -> OpenNested:
        return cached.opened("in", number + 1, made, contents[number])

    first = open_one(0)
    assert open_one(0) is first and not evicted
    for number in range(50):
        open_one(number)
    assert evicted and set(evicted) == {made.lease}
    assert open_one(49) is open_one(49)
    again = open_one(0)
    assert again is not first and again.root.ino == first.root.ino
    assert opened.count("0.npz") == 2 and opened.count("49.npz") == 1


def test_memory_of_many_containers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk through all of them keeps no more contents than the budget allows, wherever they are cached."""
    alive: weakref.WeakSet[containers.NestedSource] = weakref.WeakSet()

    def made(content: Nested) -> containers.NestedSource:
        source = NestedSource(content)
        alive.add(source)
        return source

    monkeypatch.setattr(containers, "NestedSource", made)
    inner = zipped(*((f"{number}.npy", X) for number in range(60)))
    outer = zipped(("first.npy", X), *((f"{number}.npz", inner) for number in range(60)))
    settings = ContainerSettings(BlockCache(), budget=256 << 10, listing_budget=256 << 10)
    with Sources([Named(MemoryStore({"o.npz": outer}), ("o.npz",), "o.npz")], settings).tree as tree:
        count = sum(isinstance(node, File) for _, node in tree.walk())
        gc.collect()
        assert (count, 0 < len(alive) < 30) == (1 + 60 * 60, True)
