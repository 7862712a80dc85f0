"""The joined table of arrays: when it is listed and found, what it reads, and shards of an index that count once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.kinodb import KinoWriter
from writers.safetensors import write_safetensors

from glassfs.content import Array, Container, Extent, Group, Member, Omitted
from glassfs.datasets import rows as reading
from glassfs.datasets.joined import Audience, joined_of, tables_with_rows
from glassfs.errors import NotFound
from glassfs.formats import registry
from glassfs.formats.registry import Format, Opening
from glassfs.library import open_tree
from glassfs.tree import Sources
from tests.datasets.takes import FORMAT as TAKES
from tests.datasets.takes import LastingStore, take, takes, tree_of
from tests.formats.npz_files import saved
from tests.memory_store import MemoryStore

MAGIC = b"SHARD\n"


def shard(*names: str, shards: tuple[str, ...] = (), is_damaged: bool = False) -> bytes:
    """Return a container of arrays of one byte with these names, and of those in further files."""
    return MAGIC + json.dumps([names, shards, is_damaged]).encode()


def open_shard(opening: Opening) -> Container:
    source = opening.source
    _, shards, is_damaged = json.loads(source.read(len(MAGIC), source.size - len(MAGIC)))
    sources = [source, *(opening.sibling(name) for name in shards)]

    def members() -> Iterator[Member]:
        for one in sources:
            for name in json.loads(one.read(len(MAGIC), one.size - len(MAGIC)))[0]:
                yield Member((name.encode(),), Array(name.encode(), Extent(one, 0, 1), "|u1", (1,)))
        if is_damaged:
            yield Member((b"bad",), Omitted(b"bad", "its bytes are lost", is_damage=True))

    root = Group(b"", members)
    return Container("shard", "1", root, sources, arrays=lambda: root)


SHARD = Format("shard", lambda head: head.startswith(MAGIC), open_shard, suffixes=(".shd",), joined=("arrays",))


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([TAKES]))
    monkeypatch.setattr(registry, "installed", lambda: (SHARD,))
    registry.joined_names.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def listed(sources: Sources) -> list[str]:
    own = {node.name for node in sources.plain_root().listing()}
    return [node.name for node in sources.root().listing() if node.name not in own]


def rows_of(sources: Sources, name: str = "arrays") -> list[dict[str, Any]]:
    file = sources.tree.file(f"/{name}.jsonl")
    return [json.loads(line) for line in file.read(0, file.size).splitlines()]


def names_of(sources: Sources) -> list[tuple[str, str]]:
    return [(row["container"], row["name"]) for row in rows_of(sources)]


def test_folders_list_arrays_of_formats_that_are_quick(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name in ("robots", "mixed", "hdf5"):
        (tmp_path / name).mkdir()
    for name in ("robots", "mixed"):
        with KinoWriter(tmp_path / name / "run.kdb", created=0) as writer:
            writer.add_episode(np.zeros((3, 2)), np.zeros((3, 1)))
    (tmp_path / "mixed/z.npz").write_bytes(saved({"x": np.zeros(3)}))
    write_safetensors(tmp_path / "mixed/m.safetensors", {"y": np.zeros(3)})
    with h5py.File(tmp_path / "hdf5/h.h5", "w") as file:
        file["x"] = np.zeros(3)
    with open_tree(tmp_path / "robots", views="parquet+html") as tree:
        assert [node.name for node in tree.root.listing()] == ["run.kdb", "episodes.parquet", "index.html"]
        for name in ("arrays.parquet", "arrays.html"):
            with pytest.raises(NotFound):
                tree.lookup(f"/{name}")
    with open_tree(tmp_path / "mixed", views="jsonl+html") as tree:
        views = [node.name for node in tree.root.listing()][3:]
        assert views == ["episodes.jsonl", "index.html", "arrays.jsonl", "arrays.html"]
        page = tree.file("/index.html")
        assert b'"tables": ["episodes", "arrays"]' in page.read(0, page.size)
    with open_tree(tmp_path / "hdf5", views="jsonl+html") as tree:
        assert [node.name for node in tree.root.listing()] == ["h.h5"]
        file = tree.file("/arrays.jsonl")
        assert json.loads(file.read(0, file.size))["name"] == "x"
        assert [node.name for node in tree.root.listing()] == ["h.h5", "arrays.jsonl", "arrays.html"]


@pytest.mark.usefixtures("formats")
def test_rows_of_other_tables_find_no_arrays_and_vice_versa(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore({"a.shd": shard("x"), "b": takes(take())})
    walked, summed = list[str](), list[str]()
    pieces, summary = reading.array_pieces, Container.summary
    monkeypatch.setattr(reading, "array_pieces", lambda *words: walked.append("") or pieces(*words))
    monkeypatch.setattr(Container, "summary", lambda self, name: summed.append(name) or summary(self, name))
    sources = tree_of(store, views="jsonl+parquet+html")
    assert len(rows_of(sources, "episodes")) == 1 and not walked
    summed.clear()
    assert names_of(sources) == [("a.shd", "x")] and not summed and len(walked) == 1
    assert "arrays.parquet" in listed(sources)


@pytest.mark.usefixtures("formats")
def test_an_index_counts_only_shards_that_are_not_listed() -> None:
    store = MemoryStore({
        "m/index.shd": shard("own", shards=("1.shd", "2.shd")), "m/1.shd": shard("a", "b"), "m/2.shd": shard("c"),
    })
    assert names_of(tree_of(store)) == [
        ("m/1.shd", "a"), ("m/1.shd", "b"), ("m/2.shd", "c"), ("m/index.shd", "own"),
    ]
    sources = tree_of(store, "m/index.shd", "m/2.shd")
    assert names_of(sources) == [("2.shd", "c"), ("index.shd", "own"), ("index.shd", "a"), ("index.shd", "b")]


@pytest.mark.usefixtures("formats")
def test_rows_with_damage_name_it_and_are_not_kept() -> None:
    store = LastingStore()
    for name, is_damaged in (("a.shd", True), ("b.shd", False)):
        store.put(name, shard("x", is_damaged=is_damaged), mtime_ns=1)
    for opens in (2, 1):  # the second time only the damaged one
        before = store.opens
        sources = tree_of(store, has_catalogue=True)
        assert names_of(sources) == [("a.shd", "x"), ("b.shd", "x")]
        assert store.opens - before == opens
        error = sources.tree.file("/arrays.jsonl").xattrs()["user.glassfs.error"]
        assert error == b"a.shd: bad: its bytes are lost"
        sources.tree.close()


@pytest.mark.usefixtures("formats")
def test_shared_tables_have_only_public_arrays() -> None:
    store = MemoryStore({"a.shd": shard("x")})
    store.put("b.shd", shard("y", is_damaged=True), permissions=0o600)
    sources = tree_of(store, audience=Audience(is_shared=True))
    assert names_of(sources) == [("a.shd", "x")]
    assert sources.tree.file("/arrays.jsonl").xattrs()["user.glassfs.omitted"] == b"1"


@pytest.mark.usefixtures("formats")
def test_the_table_of_one_container() -> None:
    root = tree_of(MemoryStore({"a.shd": shard("x", "y", is_damaged=True)}), "a.shd").root()
    assert tables_with_rows(root) == ["arrays"]
    table = joined_of(root, "arrays")
    assert table is not None and table.rows == 2
    assert table.attributes() == {"error": "a.shd: bad: its bytes are lost"}
