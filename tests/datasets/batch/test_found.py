"""Test the search for containers, values exchanged with workers, whose size is bounded, and shards."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.cli.episodes import Rows
from glassfs.cli.export import Exporting
from glassfs.cli.exporting import KEEP, ExportJob
from glassfs.cli.target import Existing
from glassfs.cli.verify import Verification
from glassfs.datasets.batch import found
from glassfs.datasets.batch.found import MOST_FAULTS, Problem, Problems, Search, Unlisted
from glassfs.datasets.batch.run import Shard
from glassfs.errors import NotAllowed
from glassfs.source import Connection, Entry, Kind
from glassfs.source.local import LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "data"
    for name in ("a/run.kdb", "a-b/run.kdb", "a.kdb", "B.kas", "b/deep/er/text", "100%\n.kas"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"something")
    (place / "link").symlink_to("a.kdb")
    return place


def keys(search: Search) -> list[str]:
    return [one.key for one in search.all() if not isinstance(one, Unlisted)]


def test_paths_are_sorted_by_bytes_and_keys_independent_of_the_parent(folder: Path, tmp_path: Path) -> None:
    found = list(Search([str(folder)]).all())
    paths = [one.path for one in found if not isinstance(one, Unlisted)]
    assert paths == sorted(paths, key=str.encode)
    assert paths[0] == "100%25%0A.kas"
    before = keys(Search([str(folder)]))
    assert keys(Search([str(folder.rename(tmp_path / "moved"))])) == before


def test_hits_have_names_paths_and_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    (one,) = (one for one in Search(["data"]).all() if not isinstance(one, Unlisted) and one.key == "a/run.kdb")
    assert (one.name, one.source, one.inner, one.path) == ("data/a/run.kdb", "data", ("a", "run.kdb"), "a/run.kdb")
    assert (one.kind, one.size, one.is_named) == (Kind.FILE, 9, False)
    (named,) = Search(["data/a.kdb"]).all()
    assert not isinstance(named, Unlisted)
    assert (named.name, named.inner, named.is_named) == ("data/a.kdb", (), True) and named.path == named.key == "a.kdb"


def test_has_all_includes_folders_and_links(folder: Path) -> None:
    kinds = {one.path: one.kind for one in Search([str(folder)], has_all=True).all() if not isinstance(one, Unlisted)}
    assert kinds["link"] is Kind.LINK and kinds["b/deep"] is Kind.FOLDER
    assert len(kinds) == 6 + 1 + 5


def test_folders_without_permission_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is simulated, as root may list every folder."""
    list_ = LocalStore.list

    def refusing(store: LocalStore, path: tuple[str, ...]) -> Iterator[tuple[str, Entry]]:
        if path == ("b", "deep"):
            raise NotAllowed("Permission denied", store.shown(path))
        return list_(store, path)

    monkeypatch.setattr(LocalStore, "list", refusing)
    everything = list(Search([str(folder)]).all())
    assert [one.name for one in everything if isinstance(one, Unlisted)] == [f"{folder}/b/deep"]
    assert len(everything) == 6


def test_remote_files_are_selected_by_name_unopened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "is_remote", True)
    monkeypatch.setattr(LocalStore, "open", None)
    assert keys(Search([str(folder)])) == ["100%\n.kas", "B.kas", "a-b/run.kdb", "a.kdb", "a/run.kdb"]
    assert "b/deep/er/text" in keys(Search([str(folder)], has_all=True))


def test_folders_are_listed_lazily(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    shown_entries = found.shown_entries
    monkeypatch.setattr(found, "shown_entries", lambda *words: listed.append(words) or shown_entries(*words))
    everything = Search([str(folder)]).all()
    next(everything)
    assert len(listed) == 1
    list(everything)
    assert len(listed) == 6


# Values exchanged with workers, and shards: each path is in exactly one.


PATHS = st.lists(st.binary(min_size=1).map(os.fsdecode), unique=True)


def test_only_the_first_faults_are_reported() -> None:
    faults = Problems()
    for number in range(MOST_FAULTS):
        faults.add(Problem("/x", f"{number}"))
    assert len(faults.all) == MOST_FAULTS
    for _ in range(234):
        faults.add(Problem("/x", "more"))
    assert [str(fault) for fault in faults.all[-2:]] == [f"/x: {MOST_FAULTS - 1}", "and 234 more"]


def test_work_is_pickled_with_its_connection() -> None:
    connection = Connection(endpoint="http://127.0.0.1:9", key="known")
    for work in (
        Verification(connection, 2), Rows(connection, "csv", "success"),
        Exporting(ExportJob("/a", "a", "/b", "b", Existing.RESUME, KEEP, {"/": "/"}, "jsonl", connection)),
    ):
        found = pickle.loads(pickle.dumps(work))
        assert found == work
        assert (found.job if isinstance(found, Exporting) else found).connection.key == "known"


@given(PATHS, st.integers(1, 50))
def test_shards_are_a_partition(paths: list[str], parts: int) -> None:
    shards = [Shard(number, parts) for number in range(parts)]
    found = [[path for path in paths if shard.has(path)] for shard in shards]
    assert sorted(path for some in found for path in some) == sorted(paths)


def test_a_path_stays_in_its_shard_in_all_versions() -> None:
    """Jobs of different versions of glassfs must agree on the shards."""
    paths = ["a.kdb", "folder/b.kas", "\udcff.wshard", "ü/c.ikv"]
    assert [next(n for n in range(7) if Shard(n, 7).has(path)) for path in paths] == [4, 4, 5, 0]


@pytest.mark.parametrize("text", [
    "", "1", "3/3", "-1/3", "1/0", "0/0", "a/3", "1/3/4", "1/ 3", "+1/3", "1/²", "1/9999999999",
])
def test_invalid_shards_are_refused(text: str) -> None:
    assert Shard.parsed("11/12") == Shard(11, 12)
    with pytest.raises(ValueError):
        Shard.parsed(text)
