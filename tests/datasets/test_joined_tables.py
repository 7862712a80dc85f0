"""Joined tables of any name: which are listed and found, what columns they have, whose rows they show."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from glassfs.content import EPISODES, summary
from glassfs.content.summary import COLUMNS
from glassfs.datasets import snapshots
from glassfs.datasets.joined import Audience, tables_with_rows
from glassfs.errors import NotFound, Unavailable
from glassfs.formats import registry
from glassfs.settings import settings
from glassfs.tree import Sources
from tests.datasets.takes import FORMAT as TAKES
from tests.datasets.takes import LastingStore, expire_at_once, listed, rows_of, take, takes, tree_of
from tests.memory_store import MemoryStore
from tests.tree.things import BOOLEAN, FORMAT, INTEGER, NUMBER, TEXT, TEXTS, table, things

VIEWS = "parquet+jsonl+by-task+html"


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([TAKES]))
    monkeypatch.setattr(registry, "installed", lambda: (FORMAT,))
    registry.joined_names.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expire_at_once(monkeypatch)


def arrow(sources: Sources, name: str = "things") -> Any:
    file = sources.tree.file(f"/{name}.parquet")
    return pq.read_table(io.BytesIO(file.read(0, file.size)))


THING = things(things=({"size": INTEGER}, [{"size": 3}]))


def test_tables_with_rows_are_listed_and_no_others() -> None:
    store = MemoryStore({"a/b.thing": THING, "a/readme.txt": b"text"})
    assert listed(tree_of(store, views=VIEWS)) == ["things.parquet", "things.jsonl", "index.html"]
    store.put("c", takes(take()))
    found = listed(tree_of(store, views=VIEWS))
    assert found == [
        "episodes.parquet", "episodes.jsonl", "by-task", "by-success", "index.html",
        "things.parquet", "things.jsonl", "things.html",
    ]
    assert listed(tree_of(MemoryStore({"readme.txt": b"text", "a/b": b""}), views=VIEWS)) == []


def test_listing_opens_no_container_below_the_root() -> None:
    store = MemoryStore({f"a/{number}.thing": THING for number in range(50)})
    sources = tree_of(store, views=VIEWS)
    assert listed(sources) and sources.tree.lookup("/index.html").name == "index.html"
    assert store.opens == 0
    rows_of(sources, "things")
    assert store.opens == 50


def test_listing_opens_no_file_whose_name_says_nothing() -> None:
    store = MemoryStore({f"a/{number:03d}": b"text" for number in range(300)} | {"a/999": THING})
    sources = tree_of(store, views=VIEWS)
    assert listed(sources) == [] and not store.opens
    assert len(rows_of(sources, "things")) == 1, "found by name"
    assert "things.parquet" in listed(sources), "rows are known now"


def test_what_a_suffix_promised_disappears_when_there_are_no_rows() -> None:
    store = MemoryStore({"a/b.thing": b"no container after all", "a/c.thing": things(things=table(0, x=TEXT))})
    sources = tree_of(store, views=VIEWS)
    assert "things.jsonl" in listed(sources)
    assert rows_of(sources, "things") == [], "a name that was listed before rows were read is found"
    assert listed(sources) == []
    assert arrow(sources).num_rows == 0


def test_names_of_tables_without_rows_are_not_found() -> None:
    sources = tree_of(MemoryStore({"a/b.thing": THING}), views=VIEWS)
    for name in ("episodes.parquet", "by-task", "trees.jsonl", "things~2.jsonl", "things.html"):
        with pytest.raises(NotFound):
            sources.tree.lookup(f"/{name}")


def test_columns_of_all_containers_are_there_and_types_are_widened() -> None:
    store = MemoryStore({
        "1": things(things=({"a": INTEGER, "b": TEXT, "n": INTEGER, "c": TEXTS}, [
            {"a": 1, "b": "x" * 300, "n": 1 << 50, "c": ["é", "y" * 300]}, {"a": "wrong", "b": None},
        ])),
        "2": things(things=({"n": NUMBER, "d": BOOLEAN, "a": TEXT}, [{"n": 1.5, "d": True, "a": "text"}])),
        "3": things(things=({"d": INTEGER, "c": TEXT, "container": TEXT, "position": TEXT}, [
            {"d": 4, "c": "one", "container": "fake", "position": "fake"},
        ])),
    })
    rows = rows_of(tree_of(store), "things")
    assert list(rows[0]) == ["container", "position", "a", "b", "n", "c", "d"]
    nothing = dict.fromkeys(rows[0])
    assert rows == [
        nothing | {
            "container": "1", "position": 0, "a": "1", "b": "x" * 300, "n": float(1 << 50),
            "c": json.dumps(["é", "y" * 300], ensure_ascii=False),
        },
        nothing | {"container": "1", "position": 1},
        nothing | {"container": "2", "position": 0, "n": 1.5, "d": 1.0, "a": "text"} | {"d": "true"},
        nothing | {"container": "3", "position": 0, "d": "4", "c": "one"},
    ]
    assert arrow(tree_of(store)).to_pylist() == rows


def test_blocks_made_before_a_column_came_have_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_ROWS", 2)
    store = MemoryStore({
        f"{number}": things(things=({f"c{number % 7}": TEXT if number > 10 else INTEGER}, [{f"c{number % 7}": number}]))
        for number in range(10, 20)
    })
    sources = tree_of(store)
    expected = [{"container": f"{number}", "position": 0, f"c{number % 7}": number} for number in range(10, 20)]
    for _ in range(2):
        rows = [{name: value for name, value in row.items() if value is not None} for row in rows_of(sources, "things")]
        assert [row["container"] for row in rows] == [f"{number}" for number in range(10, 20)]
        assert rows[0]["c3"] == "10" and expected[0]["c3"] == 10
        assert arrow(sources).to_pylist() == rows_of(sources, "things")
        sources.containers.services.cache.clear()


@pytest.mark.slow
def test_columns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore({
        f"{number:04d}": things(things=({f"c{number}-{one}": INTEGER for one in range(40)}, [{f"c{number}-0": number}]))
        for number in range(30)
    })
    sources = tree_of(store)
    assert arrow(sources).num_columns == summary.Layout.most
    assert arrow(sources).num_rows == 30
    error = sources.tree.lookup("/things.jsonl").xattrs()["user.glassfs.error"]
    assert error == b"columns are left out: there are too many"
    monkeypatch.setattr(summary.Layout, "characters", 10)
    assert arrow(tree_of(store)).num_columns < 7


def test_a_container_may_give_rows_to_several_tables() -> None:
    episodes = ({"language_instruction": TEXT, "lighting": TEXT}, [{"language_instruction": "pick", "lighting": "dim"}])
    store = LastingStore({
        "a": things(things=table(3, x=TEXT), episodes=episodes, others=table(2, y=INTEGER)),
        "b.take": takes(take("put")),
    })
    for has_catalogue in (False, True, True):
        sources = tree_of(store, views=VIEWS, has_catalogue=has_catalogue)
        assert tables_with_rows(sources.tree.root) == [EPISODES, "others", "things"]
        assert len(rows_of(sources, "things")) == 3 and len(rows_of(sources, "others")) == 2
        rows = rows_of(sources)
        assert list(rows[0]) == [*COLUMNS, "lighting"]
        assert [(row["language_instruction"], row["lighting"]) for row in rows] == [("pick", "dim"), ("put", None)]
        assert sources.tree.lookup("/by-task/pick/a~0").name == "a~0"
        assert "others.parquet" in listed(sources), "although the format does not announce it"
        opens = store.opens
        sources.containers.services.cache.clear()
        assert len(rows_of(sources, "things")) == 3
        assert not has_catalogue or store.opens == opens
        sources.tree.close()


def test_a_damaged_container_costs_the_tables_that_it_belongs_to() -> None:
    store = MemoryStore({
        "a": THING, "b.take": takes(take(), declared=3), "c.take": takes(take()), "d.thing": b"THINGS\nno JSON",
    })
    sources = tree_of(store)
    errors = {
        name: sources.tree.lookup(f"/{name}.jsonl").xattrs().get("user.glassfs.error", b"").decode()
        for name in ("things", EPISODES)
    }
    assert errors[EPISODES] == "b.take: has 1 rows, but its table should have 3"
    assert errors["things"].startswith("d.thing: cannot be opened")


class Counting(LastingStore):
    lists = 0

    def list(self, path: Any) -> Any:
        self.lists += 1
        return super().list(path)


def test_all_tables_share_one_walk_and_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "table_valid", 3600.0)
    store = Counting({f"a/{number}.thing": THING for number in range(20)} | {"a/x.take": takes(take())})
    sources = tree_of(store, views=VIEWS)
    rows_of(sources, "things")
    lists, opens = store.lists, store.opens
    assert len(rows_of(sources)) == 1 and arrow(sources).num_rows == 20
    file = sources.tree.file("/things.html")
    assert len(file.read(0, file.size)) == file.size
    assert (store.lists, store.opens) == (lists + 0, opens)


def test_shared_tables_name_no_private_columns_or_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "rights_valid", 0.0)
    store = LastingStore({"open.thing": things(things=({"x": TEXT}, [{"x": "1"}])), "own": b""})
    store.put("own", things(things=({"secret": TEXT}, [{}]), secrets=table(1, y=TEXT)), 0o600)
    store.put("later", things(things=({"closed": TEXT, "x": TEXT}, [{"closed": "2"}]), late=table(1, y=TEXT)))
    store.put("own.take", takes(take()), 0o600)
    sources = tree_of(store, views=VIEWS, audience=Audience(True, (7, 7)))
    assert not any("episodes" in name or "by-" in name for name in listed(sources))
    assert list(rows_of(sources, "things")[0]) == ["container", "position", "closed", "x"]
    assert tables_with_rows(sources.tree.root) == ["late", "things"]
    store.set_permissions("later", 0o600)
    assert rows_of(sources, "things") == [{"container": "open.thing", "position": 0, "x": "1"}]
    assert tables_with_rows(sources.tree.root) == ["things"]
    assert sources.tree.lookup("/things.jsonl").xattrs()["user.glassfs.omitted"] == b"2"
    assert "secret" not in str([node.xattrs() for node in sources.tree.root.listing()])
    with pytest.raises(NotFound):
        sources.tree.lookup("/late.jsonl")


def test_private_files_announce_nothing() -> None:
    store = MemoryStore()
    store.put("own.thing", THING, 0o600)
    store.put("own", takes(take()), 0o600)
    assert listed(tree_of(store, views=VIEWS, audience=Audience(True, (7, 7)))) == []
    assert listed(tree_of(store, views=VIEWS))[0] == "episodes.parquet"


def test_other_tables_change_the_time_of_the_root() -> None:
    """The kernel compares it, and lists the root again."""
    store = MemoryStore({"a/b.thing": THING})
    sources = tree_of(store, views=VIEWS)
    listed(sources)
    before = sources.root().origin.mtime_ns
    listed(sources)
    assert sources.root().origin.mtime_ns == before
    store.put("a/c.take", takes(take()))
    listed(sources)
    rows_of(sources)
    listed(sources)
    assert sources.root().origin.mtime_ns > sources.plain_root().origin.mtime_ns


def test_a_file_that_cannot_be_read_hides_no_table() -> None:
    store = MemoryStore({"a/a": b"x", "a/b.thing": THING})
    store.opening["a/a"] = Unavailable("fails")
    assert "things.jsonl" in listed(tree_of(store, views=VIEWS))


def test_tables_called_like_views_get_other_names() -> None:
    store = MemoryStore({"a": things(index=table(1, x=TEXT), things=table(1, x=TEXT)), "things.jsonl": b"its own"})
    sources = tree_of(store, views=VIEWS)
    tables_with_rows(sources.root())
    assert listed(sources) == [
        "index.parquet", "index.jsonl", "index.html", "things.parquet", "things~2.jsonl", "things.html",
    ]
    store.put("b", takes(take()))
    sources = tree_of(store, views="html")
    tables_with_rows(sources.root())
    assert listed(sources) == ["index.html", "index~2.html", "things.html"]
