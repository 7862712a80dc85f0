"""What is found without opening or listing: by file names in a remote store, by path in a container."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import glassfs
from glassfs.errors import Damaged, IsADirectory, NotADirectory, NotFound
from glassfs.formats.kinodb.images import Images
from glassfs.library.finding import _collection_in as alone
from glassfs.source.descriptors import Descriptor
from glassfs.source.local import LocalStore
from glassfs.source.local_source import LocalSource
from glassfs.tree import Directory
from glassfs.tree.listings import Listings
from tests.formats.kinodb_files import FRONT, WRIST, frames, index_entry, patched, with_images, written
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


# Directories that are found without listing those that they are in.


NAMES = (
    "front", "wrist", "a", "a/b", "a%2Fb", "b", "%", "%25", "x.y", ".", "%2E", "", "\udcff", "%FF", "ü", "n" * 300,
    "front.mp4", "front~2", "000000", "\ud800",
)
IMAGES = [f"images/{camera}/{frame:06d}" for camera in ("front", "wrist") for frame in range(3)]
Shots = list[dict[str, Any]]
SHOTS: dict[str, tuple[Shots, set[str]]] = {
    "regular": (frames(), {"front", "wrist"}),
    "nested": ([{"a": FRONT, "a/b": FRONT, "b/c": FRONT, "b": FRONT, "front": FRONT}] * 2, {"front"}),
    "escaped": (
        [{"a%2Fb": FRONT, "%": FRONT, ".": FRONT, "x.y": FRONT, "ü": FRONT, "n" * 300: FRONT, "": FRONT}] * 2,
        {"x.y", "ü"},
    ),
    "coming and going": ([{"front": FRONT}, {"front": FRONT, "wrist": WRIST}], {"front"}),
    "of two sizes": ([{"front": FRONT}, {"front": WRIST}], set()),
}
"""Images of episodes, and the directories that are found without a listing."""


def described(node: Directory) -> list[tuple[object, ...]]:
    """All that a caller sees of a directory and its children."""
    return [(type(one), one.name, one.ino, one.mode, one.xattrs()) for one in (node, *node.listing())]


def listed(fields: Directory, outer: str, name: str) -> Directory | None:
    try:
        node = fields.child(outer).child(name)  # type: ignore[attr-defined]
    except (NotFound, UnicodeEncodeError):
        return None
    return node if isinstance(node, Directory) else None


@pytest.mark.parametrize(("shots", "simple"), SHOTS.values(), ids=SHOTS)
def test_what_is_found_is_what_is_listed(tmp_path: Path, shots: Shots, simple: set[str]) -> None:
    (tmp_path / "a.kdb").write_bytes(with_images(tmp_path, shots))
    found = set()
    for outer in ("images", "meta", "state", "nothing"):
        for name in NAMES:
            with glassfs.open(tmp_path / "a.kdb") as data, glassfs.open(tmp_path / "a.kdb") as other:
                fields = data["episodes/0"]._node
                one = alone(fields, outer, name)
                if one is not None:
                    found.add(name)
                    expected = listed(other["episodes/0"]._node, outer, name)
                    assert expected is not None and described(one[0]) == described(expected)
                    assert one[0].origin is fields.origin and one[1] > 0
    assert found == simple


def test_sections_with_errors_are_listed(tmp_path: Path) -> None:
    data = with_images(tmp_path, frames())
    length = index_entry(data, 0).images_length
    (tmp_path / "a.kdb").write_bytes(patched(data, 0, images_length=length - 10))
    (tmp_path / "b.kdb").write_bytes(patched(data, 0, images_length=1))
    with glassfs.open(tmp_path) as opened:
        cut = opened["a.kdb/episodes/0"]
        assert alone(cut._node, "images", "front") is None
        assert cut["images/front/000001"].path.endswith("front/000001.png")
        assert "breaks off" in cut["images"].attributes["error"]
        gone = opened["b.kdb/episodes/0"]
        with pytest.raises(Damaged) as listing:
            listed(gone._node, "images", "front")
        with pytest.raises(Damaged) as finding:
            alone(gone._node, "images", "front")
        assert str(finding.value) == str(listing.value)
        with pytest.raises(Damaged):
            gone["images/front/000001"]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Images]:
    """Collects the images that are scanned."""
    found: list[Images] = []
    scanned = Images._scanned
    monkeypatch.setattr(Images, "_scanned", lambda images, *args: found.append(images) or scanned(images, *args))
    return found


def test_images_of_samples_are_found_without_listings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: list[Images],
) -> None:
    """Images of all cameras of an episode take one scan, and are found again without another one."""
    episode = {"state": FRONT[0], "action": FRONT[0], "images": frames()}
    (tmp_path / "a.kdb").write_bytes(written(tmp_path, episode, episode))
    monkeypatch.setattr(Listings, "children", lambda *args: pytest.fail("listed"))
    with glassfs.open(tmp_path / "a.kdb") as data:
        for is_from_root in (False, True, False, True):
            for number in range(2):
                one: Any = data[f"episodes/{number}"]
                if is_from_root:
                    one = {path: data[f"episodes/{number}/{path}"] for path in IMAGES}
                for frame in range(3):
                    assert (one[f"images/front/{frame:06d}"].numpy() == FRONT + frame).all()
                    assert (one[f"images/wrist/{frame:06d}"].numpy() == WRIST + frame).all()
    assert len(scans) == 2


def test_images_that_are_listed_after_all_take_one_scan(tmp_path: Path, scans: list[Images]) -> None:
    (tmp_path / "a.kdb").write_bytes(with_images(tmp_path, SHOTS["coming and going"][0]))
    with glassfs.open(tmp_path / "a.kdb") as data:
        assert (data["episodes/0"]["images/wrist/000001"].numpy() == WRIST).all()
    assert len(scans) == 1
