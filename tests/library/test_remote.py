"""The library over a remote store: file names decide until an entry is used."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import glassfs
from glassfs.errors import IsADirectory, NotADirectory
from glassfs.source.descriptors import Descriptor
from glassfs.source.local import LocalStore
from glassfs.source.local_source import LocalSource
from tests.library.conftest import write_store


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is treated as remote."""
    monkeypatch.setattr(LocalStore, "is_remote", True)
    (tmp_path / "sub").mkdir()
    for number in range(5):
        write_store(tmp_path / f"{number}.kas", number)
    write_store(tmp_path / "data", 9.0)
    (tmp_path / "sub/wrong.kas").write_text("text")
    return tmp_path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the files that are read."""
    names: list[str] = []
    reopened = LocalSource._reopened

    def reopen(source: LocalSource) -> Descriptor:
        names.append(source.name.rpartition("/")[2])
        return reopened(source)

    monkeypatch.setattr(LocalSource, "_reopened", reopen)
    return names


def test_listings_and_patterns_open_nothing(bucket: Path, opened: list[str]) -> None:
    with glassfs.open(bucket) as data:
        assert sorted(data) == ["0.kas", "1.kas", "2.kas", "3.kas", "4.kas", "data", "sub"]
        assert {entry.name for entry in data.glob("*.kas")} == {f"{number}.kas" for number in range(5)}
        assert [entry.path for entry in data.glob("sub/*")] == ["sub/wrong.kas"]
        assert data["2.kas"].is_dir() and data["data"].is_file() and data["sub/wrong.kas"].is_dir()
        assert opened == []
        assert data["2.kas/small"].numpy().tolist() == [0, 1, 2]
        assert set(opened) == {"2.kas"}


def test_presumed_entries_are_resolved_on_use(bucket: Path) -> None:
    with glassfs.open(bucket) as data:
        wrong, right = data["sub/wrong.kas"], data["2.kas"]
        assert wrong.text() == "text"
        assert wrong.is_file()
        with pytest.raises(NotADirectory):
            list(wrong)
        with pytest.raises(IsADirectory):
            right.bytes()
        assert right.attributes == {"format": "kastore"}
    with glassfs.open(bucket) as data, pytest.raises(NotADirectory):
        list(data["sub/wrong.kas"])


@pytest.mark.parametrize("pattern", ["**/*.npy", "*/large.npy", "*/*"])
def test_patterns_skip_plain_files(bucket: Path, pattern: str) -> None:
    (bucket / "5.kas").write_text("text")
    with glassfs.open(bucket) as data:
        found = {entry.path for entry in data.glob(pattern)}
    assert {f"{number}.kas/large.npy" for number in range(5)} <= found
    assert not any(path.startswith("5.kas/") for path in found)


@pytest.mark.parametrize("is_entered", [False, True])
def test_presumed_entries_can_be_pickled(bucket: Path, is_entered: bool) -> None:
    with glassfs.open(bucket) as data:
        entry = data["2.kas"]
        assert not is_entered or sorted(entry) == ["large.npy", "small.npy"]
        pickled = pickle.dumps((data, entry))
    del data, entry  # or the session would be found, which is closed
    there, again = pickle.loads(pickled)
    with there:
        assert again["large"].numpy()[0] == 2.0
        assert again.attributes == {"format": "kastore"}
