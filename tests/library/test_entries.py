"""Paths and entries: what a name finds, what directories are, how entries are shown."""

from __future__ import annotations

import difflib
import html
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import make_samples
import numpy as np
import pytest
from writers.ikv import write_ikv2
from writers.kastore import KastoreWriter

import glassfs
from glassfs.errors import Damaged, IsADirectory, NoSuchEntry, NotADirectory, NotFound, Refused, Unsuited
from glassfs.tree.sources.folder import Folder

EPISODE = "run1.kdb/episodes/0"


def test_a_path_finds_the_exact_name_first(data: glassfs.Library) -> None:
    assert data["wave.wshard/signal/rgb"].is_dir()
    assert data["wave.wshard/signal/rgb.npy"].is_file()


def test_else_the_file_without_its_extension(data: glassfs.Library) -> None:
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


def test_several_sources_stand_side_by_side(datasets: Path) -> None:
    with glassfs.open(datasets / "run1.kdb", datasets / "table.idv") as data:
        assert list(data) == ["run1.kdb", "table.idv"]
        assert data["run1.kdb/episodes/0/state"].shape == (24, 7)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
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
        for shown in (repr(entry), repr(data["a.kas"]), data["a.kas"]._repr_html_(), entry._repr_html_()):
            assert "\x1b" not in shown and "\u202e" not in shown
        assert "<script" not in data["a.kas"]._repr_html_() + entry._repr_html_()
        assert "<script" in html.unescape(data["a.kas"]._repr_html_())
        with pytest.raises(NoSuchEntry) as caught:
            data["a.kas/<script>alert(2)<|script>"]
        assert "\x1b" not in str(caught.value) and "nearest: a.kas/<script>" in str(caught.value)


def test_repr_tells_what_it_is(data: glassfs.Library, datasets: Path) -> None:
    assert repr(data[f"{EPISODE}/state"]) == f"<glassfs.Entry '{EPISODE}/state.npy' array <f4 (24, 7), 800 bytes>"
    assert repr(data).startswith(f"<glassfs.Library {str(datasets)!r} directory: notes.txt, run1.kdb")
    assert repr(data["run1.kdb/episodes"]) == "<glassfs.Entry 'run1.kdb/episodes' directory: 0, 1, 2>"
    picture = data[f"{EPISODE}/images/front/000003"]
    assert picture._repr_png_() == picture.bytes() and picture._repr_jpeg_() is None
    assert data[EPISODE]._repr_png_() is None


def test_damage_costs_what_it_touches(tmp_path: Path) -> None:
    path = tmp_path / "robot.kdb"
    make_samples.write_kinodb(path)
    with glassfs.open(path) as data:
        offset = int(data["episodes/1/images/front/000002"].attributes["offset"])
    with path.open("r+b") as file:
        file.truncate(offset + 10)
    with pytest.raises(Refused):
        glassfs.open(path)
