"""The joined table of arrays: when it is listed and found, what it reads, and shards of an index that count once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter
from writers.safetensors import packed, write_safetensors

from glassfs.content import Container
from glassfs.datasets import rows as reading
from glassfs.datasets.joined import Audience, joined_of, tables_with_rows
from glassfs.errors import NotFound
from glassfs.formats import registry
from glassfs.library import open_tree
from glassfs.tree import Sources
from tests.datasets.takes import FORMAT, LastingStore, listed, rows_of, take, takes, tree_of
from tests.formats.npz_files import npy, saved, zipped
from tests.memory_store import MemoryStore

LOST = "lost.npy: its local header at 0 is damaged"


def archive(*names: str, is_damaged: bool = False) -> bytes:
    """Return an archive of arrays with these names, before them one that is lost if it is damaged."""
    names = ("lost", *names) if is_damaged else names
    data = bytearray(zipped(*((f"{name}.npy", npy(np.zeros(1))) for name in names)))
    data[0] = 0 if is_damaged else data[0]
    return bytes(data)


@pytest.fixture
def with_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "installed", lambda: (FORMAT,))
    registry.joined_names.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def names_of(sources: Sources) -> list[tuple[str, str]]:
    return [(row["container"], row["name"]) for row in rows_of(sources, "arrays")]


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


@pytest.mark.usefixtures("with_takes")
def test_rows_of_other_tables_find_no_arrays_and_vice_versa(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore({"a.npz": archive("x"), "b": takes(take())})
    walked, summed = list[str](), list[str]()
    pieces, summary = reading.array_pieces, Container.summary
    monkeypatch.setattr(reading, "array_pieces", lambda *words: walked.append("") or pieces(*words))
    monkeypatch.setattr(Container, "summary", lambda self, name: summed.append(name) or summary(self, name))
    sources = tree_of(store, views="jsonl+parquet+html")
    assert len(rows_of(sources)) == 1 and not walked
    summed.clear()
    assert names_of(sources) == [("a.npz", "x")] and not summed and len(walked) == 1
    assert "arrays.parquet" in listed(sources)


@pytest.mark.usefixtures("with_takes")
def test_an_index_counts_only_shards_that_are_not_listed() -> None:
    first, second, index = "m/1.safetensors", "m/2.safetensors", "m/all.safetensors.index.json"
    one = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    store = MemoryStore({
        first: packed({"a": one}, b"1"), second: packed({"b": one}, b"2"),
        index: b'{"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}}',
    })
    assert names_of(tree_of(store)) == [(first, "tensors/a"), (second, "tensors/b")]
    sources = tree_of(store, index, second)
    assert names_of(sources) == [(second[2:], "tensors/b"), (index[2:], "tensors/a")]
    error = sources.tree.file("/arrays.jsonl").xattrs()["user.glassfs.error"].decode()
    assert error.startswith(f"{index[2:]}: tensors/3.safetensors: is missing")


@pytest.mark.usefixtures("with_takes")
def test_rows_with_damage_name_it_and_are_not_kept() -> None:
    store = LastingStore()
    store.put("a.npz", archive("x", is_damaged=True), mtime_ns=1)
    store.put("b.npz", archive("x"), mtime_ns=1)
    for opens in (2, 1):  # the second time only the damaged one
        before = store.opens
        sources = tree_of(store, has_catalogue=True)
        assert names_of(sources) == [("a.npz", "x"), ("b.npz", "x")]
        assert store.opens - before == opens
        error = sources.tree.file("/arrays.jsonl").xattrs()["user.glassfs.error"].decode()
        assert error.startswith(f"a.npz: {LOST}")
        sources.tree.close()


@pytest.mark.usefixtures("with_takes")
def test_shared_tables_have_only_public_arrays() -> None:
    store = MemoryStore({"a.npz": archive("x")})
    store.put("b.npz", archive("y", is_damaged=True), permissions=0o600)
    sources = tree_of(store, audience=Audience(is_shared=True))
    assert names_of(sources) == [("a.npz", "x")]
    attributes = sources.tree.file("/arrays.jsonl").xattrs()
    assert attributes["user.glassfs.omitted"] == b"1" and "user.glassfs.error" not in attributes


def test_the_table_of_one_container() -> None:
    root = tree_of(MemoryStore({"a.npz": archive("x", "y", is_damaged=True)}), "a.npz").root()
    assert tables_with_rows(root) == ["arrays"]
    table = joined_of(root, "arrays")
    assert table is not None and table.rows == 2 and LOST in table.attributes()["error"]
