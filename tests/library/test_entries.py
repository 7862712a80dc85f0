"""Paths and entries: what a name finds, without opening or listing more, what directories are, what entries show."""

from __future__ import annotations

import difflib
import json
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import make_samples
import numpy as np
import pytest
from writers.ikv import write_ikv2
from writers.kastore import KastoreWriter

import glassfs
from glassfs.errors import Damaged, IsADirectory, NoSuchEntry, NotADirectory, NotFound, Refused, Unsuited
from glassfs.formats.kinodb.images import Images
from glassfs.library.finding import _collection_in as alone
from glassfs.source.descriptors import Descriptor
from glassfs.source.local import LocalStore
from glassfs.source.local_source import LocalSource
from glassfs.tree import Directory
from glassfs.tree.listings import Listings
from glassfs.tree.sources.folder import Folder
from tests.formats.kinodb_files import FRONT, WRIST, frames, index_entry, patched, with_images, written
from tests.library.conftest import write_store

EPISODE = "run1.kdb/episodes/0"


def test_a_path_finds_the_exact_name_or_else_the_file_without_its_extension(data: glassfs.Library) -> None:
    assert data["wave.wshard/signal/rgb"].is_dir()
    assert data["wave.wshard/signal/rgb.npy"].is_file()
    assert data[f"{EPISODE}/state"].path == f"{EPISODE}/state.npy"
    assert data[f"{EPISODE}/images/front/000012"].path == f"{EPISODE}/images/front/000012.png"
    assert data["run1.kdb/meta/file"].path == "run1.kdb/meta/file.json"
    assert data["notes"].text() == "plain\n"
    assert data["table.idv/columns/Species"].json()[:2] == ["setosa", "virginica"]


@pytest.mark.parametrize("key", ["a\nb", "tab\t", "%2E", "p%0Aq", "g\n1/x"])
def test_keys_of_a_container_find_their_values(tmp_path: Path, key: str) -> None:
    """Where no shown name is like them."""
    np.savez(tmp_path / "a.npz", **{key: np.arange(3), "other": np.arange(2)})
    opened = glassfs.open(tmp_path / "a.npz")
    assert opened[key].numpy().tolist() == [0, 1, 2]
    with pytest.raises(NoSuchEntry, match="no such entry"):
        opened[f"{key}\n"]


def test_arrays_come_before_other_files_of_one_name(tmp_path: Path) -> None:
    for name in ("a.json", "a.npy", "a.txt", "b.json", "b.tar.gz"):
        (tmp_path / name).write_text(name)
    with glassfs.open(tmp_path) as data:
        assert data["a"].name == "a.npy"
        assert data["b"].name == "b.json"
        assert data["b.tar"].name == "b.tar.gz"
        assert "" not in [data.get("c")] and data.get("c") is None


def test_else_a_view_that_is_not_listed(data: glassfs.Library) -> None:
    assert data["run1.kdb/episodes.parquet"].bytes()[:4] == b"PAR1"
    assert data["wave.wshard/signal/rgb.mp4"].bytes()[4:8] == b"ftyp"
    assert data[f"{EPISODE}/steps"].name == "steps.parquet"
    assert json.loads(data["wave.wshard/signal/force.zarr/zarr"].bytes())["shape"] == [6, 6000]
    assert "episodes.parquet" not in list(data["run1.kdb"])
    link = data["run1.kdb/by-task/open the drawer/000001"]
    assert (link.path, link["state"].shape) == ("run1.kdb/episodes/1", (24, 7))


def test_named_views_are_listed(datasets: Path) -> None:
    with glassfs.open(datasets / "run1.kdb", views="parquet") as data:
        assert "episodes.parquet" in list(data)
    with pytest.raises(NotFound, match="there is no view"):
        glassfs.open(datasets, views="nothing")


def test_missing_paths_suggest_similar_ones(data: glassfs.Library) -> None:
    for path, near in (
        (f"{EPISODE}/sate", f"{EPISODE}/state.npy"), ("run3.kdb/episodes", "run2.kdb, run1.kdb"),
        ("run1.kdb/epsodes/0", "run1.kdb/episodes"), (f"{EPISODE}/images/fornt/000012", f"{EPISODE}/images/front"),
    ):
        with pytest.raises(NoSuchEntry) as caught:
            data[path]
        assert isinstance(caught.value, (KeyError, FileNotFoundError, NotFound))
        said = str(caught.value)
        assert said.startswith(f"{path}: there is no such entry; the nearest: ") and near in said
    assert ".glassfs/source" not in data


def test_directories_are_like_mappings(data: glassfs.Library) -> None:
    episode = data[EPISODE]
    names = ["meta", "images", "state.npy", "action.npy", "reward.npy", "is_terminal.npy"]
    assert list(episode) == list(episode.keys()) == list(dict(episode)) == names and len(episode) == len(names)
    assert [entry.name for entry in episode.values()] == names
    assert dict(episode.items())["meta"] == episode["meta"]
    assert "state" in episode and "state.npy" in episode and "nothing" not in episode and 7 not in episode
    assert episode.get("nothing") is None and episode.get("nothing", 3) == 3
    assert data.get("notes.txt/below") is None
    assert episode[".."]["1"] == data["/run1.kdb//episodes/./1/"]
    assert list(data) == ["notes.txt", "run1.kdb", "run2.kdb", "store.kas", "table.idv", "trees.trees", "wave.wshard"]
    with pytest.raises(NotADirectory):
        list(data["notes.txt"])
    with pytest.raises(NotADirectory):
        data["notes.txt"]["below"]
    with pytest.raises(IsADirectory):
        data["run1.kdb"].bytes()


def test_glob(data: glassfs.Library) -> None:
    def paths(pattern: str) -> list[str]:
        return [entry.path for entry in data.glob(pattern)]

    assert paths("*/episodes/*") == [f"run{run}.kdb/episodes/{number}" for run in (1, 2) for number in range(3)]
    assert paths("run?.kdb/episodes/[0-1]/state") == [
        f"run{run}.kdb/episodes/{number}/state.npy" for run in (1, 2) for number in (0, 1)
    ]
    assert paths("**/rgb.npy") == ["wave.wshard/signal/rgb.npy"]
    assert paths("nothing/*") == []
    assert len(paths("run1.kdb/**")) == len(list(data["run1.kdb"].glob("**"))) > 100
    assert [entry.name for entry in data["run1.kdb/episodes"].glob("*")] == ["0", "1", "2"]


def test_glob_skips_unlistable_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name / "deep").mkdir(parents=True)
        make_samples.write_kinodb(tmp_path / name / "deep" / "x.kdb")
    listing = Folder.names

    def names(folder: Folder) -> Iterator[str]:
        if folder.name == "b":
            raise Damaged("cannot be listed")
        return listing(folder)

    monkeypatch.setattr(Folder, "names", names)
    with glassfs.open(tmp_path) as data:
        for pattern in ("**/x.kdb", "**/*.kdb", "*/**/x.kdb", "**/*/x.kdb", "**/*/deep/*.kdb"):
            found = {entry.path for entry in data.glob(pattern)}
            assert found - {"b/deep/x.kdb"} == {"a/deep/x.kdb", "c/deep/x.kdb"}, pattern
        for pattern in ("b/**", "b/*"):
            with pytest.raises(Damaged):
                list(data.glob(pattern))
        with pytest.raises(Damaged):
            list(data["b"].glob("**"))
        with pytest.raises(Damaged):
            list(data["b"])


def test_similar_names_are_suggested_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names that are alike are what takes longest to compare."""
    with KastoreWriter(tmp_path / "a.kas") as store:
        for number in range(3000):
            store.add(f"{'ab' * 100}{number:04}", np.zeros(1))
    compared: list[tuple[str, list[str]]] = []
    closest = difflib.get_close_matches

    def recorded(word: str, possible: Iterable[str], n: int, cutoff: float) -> list[str]:
        compared.append((word, list(possible)))
        return closest(word, possible, n, cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", recorded)
    with glassfs.open(tmp_path / "a.kas") as data, pytest.raises(NoSuchEntry, match="the nearest: abab"):
        data["ab" * 120]
    (word, possible), = compared
    assert 0 < len(possible) <= 2000 and max(map(len, [word, *possible])) <= 64


def test_what_stands_in_a_file(tmp_path: Path) -> None:
    write_ikv2(tmp_path / "some.ikv", {"name": "north", "area": 12.5, "yes": True, "none": None})
    with glassfs.open(tmp_path / "some.ikv") as opened:
        data = opened["root"]
        assert data["area"].json() == 12.5 and data["yes"].json() is True and data["none"].json() is None
        assert data["area"].numpy() == 12.5 and data["area"].shape == ()
        assert data["name"].text() == "north"
        assert data["name"].bytes() == b"north" and data["name"].file_size == 5
        with pytest.raises(Unsuited, match="is not an array"):
            data["name"].numpy()
        with pytest.raises(TypeError):
            data["name"].image()
        assert not hasattr(data["name"], "shape")


def test_json_lines_are_a_list(data: glassfs.Library) -> None:
    rows = data["run1.kdb/episodes.jsonl"].json()
    assert [row["num_frames"] for row in rows] == [24, 24, 24] and rows[1]["language_instruction"] == "open the drawer"


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "9" * 5000, ""])
def test_what_is_not_json_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with glassfs.open(tmp_path) as data, pytest.raises(Damaged, match=r"a\.json: is .*JSON"):
        data["a"].json()


def test_entries_can_be_compared(data: glassfs.Library, datasets: Path) -> None:
    one, other = data[f"{EPISODE}/state"], data[EPISODE]["state.npy"]
    assert one == other and hash(one) == hash(other) and one != data[f"{EPISODE}/action"]
    with glassfs.open(datasets) as again:
        assert again[f"{EPISODE}/state"] != one
    assert data["table.idv/columns"] and bool(data["notes.txt"])


def test_several_sources_stand_side_by_side_and_others_are_refused(datasets: Path, tmp_path: Path) -> None:
    with glassfs.open(datasets / "run1.kdb", datasets / "table.idv") as data:
        assert list(data) == ["run1.kdb", "table.idv"]
        assert data["run1.kdb/episodes/0/state"].shape == (24, 7)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(Refused):
        glassfs.open(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError):
        glassfs.open(tmp_path / "missing")


def test_links_of_a_folder_lead_to_what_is_in_it_or_to_files(tmp_path: Path) -> None:
    """Those out of it lead to files of the same user, and to no folder."""
    tmp_path.chmod(0o755)
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/a.txt").write_text("a")
    (tmp_path / "secret.txt").write_text("s")
    for name, target in {
        "link.txt": "a.txt", "folder": "deep/..", "out.txt": "../secret.txt", "far": "/etc", "round": "round",
        "up": "deep/../../secret.txt",
    }.items():
        (tmp_path / "in" / name).symlink_to(target)
    with glassfs.open(tmp_path / "in") as data:
        assert data["link.txt"].text() == "a" and data["folder/link"].path == "a.txt"
        assert {entry.path for entry in data.glob("**/*.txt")} == {"a.txt", "out.txt"}
        assert data["out.txt"].text() == data["up"].text() == "s"
        assert [entry.path for entry in data.glob("folder/deep")] == ["deep"]
        assert [path for path in ("far", "far/passwd", "round") if path in data] == []


def test_names_of_strangers_stay_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\u202egpj\x1b[31m\""
    with KastoreWriter(tmp_path / "a.kas") as store:
        store.add(name.replace("/", "|"), [1.0])
    with glassfs.open(tmp_path) as data:
        entry = next(data.glob("a.kas/*"))
        for shown in (repr(entry), repr(data["a.kas"])):
            assert "\x1b" not in shown and "\u202e" not in shown and "<script" in shown
        with pytest.raises(NoSuchEntry) as caught:
            data["a.kas/<script>alert(2)<|script>"]
        assert "\x1b" not in str(caught.value) and "nearest: a.kas/<script>" in str(caught.value)


def test_repr_tells_what_it_is(data: glassfs.Library, datasets: Path) -> None:
    assert repr(data[f"{EPISODE}/state"]) == f"<glassfs.Entry '{EPISODE}/state.npy' float32 [24, 7], 800 bytes>"
    assert repr(data).startswith(f"<glassfs.Library {str(datasets)!r} directory: notes.txt, run1.kdb")
    assert repr(data["run1.kdb/episodes"]) == "<glassfs.Entry 'run1.kdb/episodes' directory: 0, 1, 2>"


# Without opening: in a remote store file names decide until an entry is used.


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
