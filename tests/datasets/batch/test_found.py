"""Test the search for containers: its order, laziness, and selection by name in remote folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.datasets.batch import found
from glassfs.datasets.batch.found import Search, Unlisted
from glassfs.errors import NotAllowed
from glassfs.source import Entry, Kind
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


def test_paths_are_sorted_by_bytes(folder: Path) -> None:
    found = list(Search([str(folder)]).all())
    paths = [one.path for one in found if not isinstance(one, Unlisted)]
    assert paths == sorted(paths, key=str.encode)
    assert paths[0] == "100%25%0A.kas"


def test_hits_have_names_paths_and_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    (one,) = (one for one in Search(["data"]).all() if not isinstance(one, Unlisted) and one.key == "a/run.kdb")
    assert (one.name, one.source, one.inner, one.path) == ("data/a/run.kdb", "data", ("a", "run.kdb"), "a/run.kdb")
    assert (one.kind, one.size, one.is_named) == (Kind.FILE, 9, False)
    (named,) = Search(["data/a.kdb"]).all()
    assert not isinstance(named, Unlisted)
    assert (named.name, named.inner, named.is_named) == ("data/a.kdb", (), True) and named.path == named.key == "a.kdb"


def test_keys_are_independent_of_the_parent_folder(folder: Path, tmp_path: Path) -> None:
    before = keys(Search([str(folder)]))
    assert keys(Search([str(folder.rename(tmp_path / "moved"))])) == before


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
