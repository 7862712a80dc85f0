"""Selections: the form of the file, which episodes are chosen, what is omitted, and what follows from changes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter, write_chunked

import glassfs
from glassfs.cache import BlockCache
from glassfs.datasets.joined import Audience, Joins
from glassfs.datasets.selecting import Selecting
from glassfs.datasets.selections import Asked, Sample, SelectionError, Words, asked, read, split_of
from glassfs.errors import DeviceFailed, GlassfsError, NotFound
from glassfs.formats import registry
from glassfs.settings import settings
from glassfs.source import Named, Version
from glassfs.tree import ContainerSettings, Directory, Sources
from glassfs.tree.containers.selected import SelectedStore, Shown, unmarked
from glassfs.view import chosen as views
from tests.cli.glassfs_command import fails
from tests.cli.glassfs_command import glassfs as command
from tests.datasets.takes import FORMAT, LastingStore, rows_of, take, takes
from tests.formats.hdf5_files import h5py
from tests.waiting import wait_until

SHARED = Audience(True, (7, 7))


def write_takes(path: Path, count: int = 3, steps: int = 6) -> None:
    """Write episodes of which every other one succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with KinoWriter(path, created=5) as writer:
        for number in range(count):
            writer.add_episode(
                np.ones((steps, 2)), np.ones((steps, 1)), np.arange(steps), task=f"task {number}",
                success=bool(number % 2), total_reward=float(sum(range(steps))),
            )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with containers and other files in ``data``."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("a.kdb", 3), ("b.kdb", 2), ("sub/c.kdb", 4)):
        write_takes(tmp_path / "data" / name, count)
    (tmp_path / "data/notes.txt").write_text("plain")
    return tmp_path


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have selections evaluated again whenever something is looked up."""
    monkeypatch.setattr(settings, "table_valid", 0.0)
    monkeypatch.setattr(settings, "table_valid_times", 0)


def selection(text: str, sources: str = '["data"]') -> str:
    Path("s.toml").write_text(f"sources = {sources}\n{text}\n")
    return "s.toml"


def chosen(*sources: str, **words: Any) -> list[str]:
    """Return the episodes that are shown, after checking that tree and table agree."""
    with glassfs.open(*(sources or ("s.toml",)), **words) as opened:
        return shown_in(opened)


def shown_in(opened: glassfs.Library) -> list[str]:
    found = [f"{row['container']}:{row['position']}" for row in opened.episodes()]
    tree = [f"{name}:{number}" for name in containers_in(opened) for number in opened[f"{name}/episodes"]]
    assert sorted(tree) == sorted(found)
    return found


def omissions(opened: glassfs.Library) -> list[str]:
    root = opened._session.paths.find("/")[1]
    assert isinstance(root, Directory)
    return list(map(str, root.omitted()))


def containers_in(opened: Any, above: str = "") -> Iterator[str]:
    for name, child in opened.items():
        if "episodes" in child:
            yield above + name
        elif child.is_dir() and not (child.path.endswith(".kdb")):
            yield from containers_in(child, f"{above}{name}/")


A, B, C = (
    [f"{name}:{number}" for number in range(count)]
    for name, count in (("a.kdb", 3), ("b.kdb", 2), ("sub/c.kdb", 4))
)
ALL = [*A, *B, *C]
MISTAKES = {
    "sources = 'data'": ":1: sources must be a list of texts, not 'data'",
    "source = ['data']": ":1: unknown key 'source'; did you mean sources?",
    "sources = []": ":1: needs the folders or containers to select from, such as sources = [\"datasets\"]",
    "sources = ['other.toml']": ":1: other.toml is a selection itself; name the sources of that one",
    "sources = ['a\\u0000']\n".replace("'", '"'): ":1: no name has a NUL",
    "where = 'success'": ": needs the folders or containers to select from, such as sources = [\"datasets\"]",
    "sources = ['data']\n\nwhere = 'sucess'": ":3: sucess: unknown column; did you mean success?",
    "sources = ['data']\nwhere = 3": ":2: must be a text, not 3",
    "sources = ['data']\ntrim = '1:2:3'": ":2: must be a slice of steps, such as '10:-5'",
    f"sources = ['data']\ntrim = '{'1' * 5000}:'": ":2: must be a slice of steps, such as '10:-5'",
    "sources = ['data']\nevery = 0": ":2: must be at least 1: each so many-th step is kept",
    "sources = ['data']\nevery = true": ":2: must be a number, not True",
    "sources = ['data']\nepisodes = ['a', 1]": ":2: episodes must be a list of texts, not ['a', 1]",
    "sources = ['data']\ndrop = 'depth'": ":2: drop must be a list of texts, not 'depth'",
    "sources = ['data']\n[rename]\na = 1": ":2: rename must be a table of texts, not {'a': 1}",
    "sources = ['data']\n[splits]\ntrain = '0:a'":
        ":3: split train: must be a range of the episodes, such as '0:90%' or '500:'",
    "sources = ['data']\nsample = { count = -1 }":
        ":2: must be a number of episodes and a seed, such as { count = 500, seed = 1 }",
    "sources = ['data']\n[samples]\ncount = 1": ":2: unknown key 'samples'; did you mean sample?",
    "sources = ['data'": ": is no TOML: Unclosed array (at end of document)",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_each_mistake_is_one_line(folder: Path, text: str) -> None:
    (folder / "s.toml").write_text(text)
    with pytest.raises(SelectionError) as caught:
        read("s.toml")
    assert str(caught.value) == f"s.toml{MISTAKES[text]}"
    fails(command("ls", "s.toml", "/"), f"s.toml{MISTAKES[text]}")


def test_mistakes_in_words_and_files_are_one_line(folder: Path) -> None:
    with pytest.raises(SelectionError, match=r"^trim: must be a slice"):
        glassfs.open("data", trim="a")
    with pytest.raises(SelectionError, match=r"^s\.toml: is no TOML: 'utf-8' codec"):
        (folder / "s.toml").write_bytes(b"\xff")
        read("s.toml")
    with pytest.raises(SelectionError, match=r"^s\.toml: cannot be read: Is a directory"):
        (folder / "s.toml").unlink()
        (folder / "s.toml").mkdir()
        read("s.toml")
    with pytest.raises(NotFound):
        glassfs.open("none.toml")
    only = "s.toml: a selection must be the only source: it names its sources itself"
    fails(command("mount", "s.toml", "data", "at"), only)
    with pytest.raises(SelectionError, match="only source"):
        glassfs.open("data", "s.toml")
    with pytest.raises(SelectionError, match="where, trim and every belong into it"):
        glassfs.open("s.toml", where="success")


def test_large_files_are_no_selections(folder: Path) -> None:
    with Path("s.toml").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(SelectionError, match="larger than 64 MiB"):
        read("s.toml")


def test_sources_are_relative_to_the_file(folder: Path) -> None:
    (folder / "sets").mkdir()
    (folder / "sets/s.toml").write_text('sources = ["../data/a.kdb", "../data/sub", "s3://bucket/lab"]')
    assert read("sets/s.toml").sources == ("sets/../data/a.kdb", "sets/../data/sub", "s3://bucket/lab")
    (folder / "sets/s.toml").write_text('sources = ["../data/a.kdb", "../data/sub"]')
    assert chosen("sets/s.toml") == A + C


def test_conditions_and_names_must_both_hold(folder: Path) -> None:
    assert chosen(selection("")) == ALL
    assert chosen(selection("where = 'success'")) == [A[1], B[1], C[1], C[3]]
    assert chosen("data", where="success") == [A[1], B[1], C[1], C[3]]
    assert chosen(selection('episodes = ["b.kdb", "sub/c.kdb:1", "a.kdb:0"]')) == [A[0], *B, C[1]]
    assert chosen(selection('where = "success"\nepisodes = ["b.kdb", "a.kdb:1", "a.kdb:2"]')) == [A[1], B[1]]
    assert chosen(selection('exclude = ["b.kdb", "sub/c.kdb:1"]')) == [*A, C[0], *C[2:]]
    assert chosen(selection('episodes = ["a.kdb"]\nexclude = ["a.kdb:1"]')) == [A[0], A[2]]


def test_steps_of_a_selection_have_an_order(folder: Path) -> None:
    # Each key sees what the ones before it left, whatever the order of lines.
    text = 'every = 2\ntrim = "1:"\nsample = { count = 3, seed = 4 }\nexclude = ["a.kdb:1"]\nwhere = "success"'
    assert chosen(selection(f'{text}\n[splits]\ntrain = "0:34%"\nvalid = "1:"')) == [B[1], C[1], C[3]]
    with glassfs.open("s.toml") as opened:
        rows = list(opened.episodes())
        assert [row["splits"] for row in rows] == [["train"], ["valid"], ["valid"]]
        assert {(row["num_frames"], row["fps"], row["total_reward"]) for row in rows} == {(3, 5.0, 9.0)}
    # Conditions see whole episodes.
    assert chosen("data", where="num_frames = 6 and fps = 10", trim="1:", every=2) == ALL
    with pytest.raises(GlassfsError, match="no episode is selected"):
        glassfs.open("data", where="num_frames = 5", trim="1:")


def test_splits_are_shares_or_numbers() -> None:
    shares = {"0:90%": range(9), "90%:": range(9, 10), "2:": range(2, 10), ":": range(10), "33.3%:5": range(3, 5),
              "0:150%": range(10), "12:": range(10, 10), "5:2": range(5, 2)}
    for text, places in shares.items():
        assert split_of(text, 10) == places, text


def test_samples_are_the_same_and_stable() -> None:
    names = [f"data/{number}.kdb:{number}" for number in range(500)]
    found = Sample(100, 1).of(names)
    assert len(found) == 100 and found == Sample(100, 1).of(names) and found != Sample(100, 2).of(names)
    # What comes or goes changes no others, but for the last ones.
    fewer = {names[place] for place in Sample(100, 1).of(names)}
    some = names[::2]
    assert {name for name in fewer if name in some} <= {some[place] for place in Sample(100, 1).of(some)}
    assert Sample(1000, 1).of(names) == set(range(500)) and Sample(0, 1).of(names) == set()


def test_frozen_selections_name_what_was_selected(folder: Path) -> None:
    for words in (["--where", "success"], ["--sample", "4", "--seed", "3"], ["--trim", "1:", "--every", "2"], []):
        done = command("select", *words, "data")
        assert done.status == 0 and done.errors[0].endswith("of data")
        Path("frozen.toml").write_bytes(done.output)
        where = words[1] if words[:1] == ["--where"] else ""
        expected = chosen("data", where=where)
        if words[:1] == ["--sample"]:
            assert len(chosen("frozen.toml")) == 4
        else:
            assert chosen("frozen.toml") == expected
    selection('where = "success"\ntrim = "-2:"\ndrop = ["x"]\n[splits]\ntrain = ":"\n[rename]\n"a.b" = "c"')
    done = command("select", "s.toml")
    assert done.lines == [
        f'sources = ["{folder}/data"]', "episodes = [", *(f'  "{name}",' for name in (A[1], B[1], C[1], C[3])), "]",
        'trim = "-2:"', "every = 1", 'drop = ["x"]', "", "[rename]", '"a.b" = "c"', "", "[splits]", '"train" = ":"',
    ]
    fails(
        command("select", "--where", "success", "s.toml"),
        "s.toml: is a selection: where, trim and every belong into it",
    )


def test_any_names_can_be_selected(folder: Path) -> None:
    names = [
        "x:1.kdb", "x~2.kdb", "p%41.kdb", "new\nline.kdb", "bad\udcff.kdb", "é.kdb", "quote\"'.kdb", "back\\slash.kdb",
        "a.kdb:1",
    ]
    for name in names:
        write_takes(folder / "odd" / name, 2)
    Path("frozen.toml").write_bytes(command("select", "--where", "success", "odd").output)
    with glassfs.open("odd") as opened:
        expected = list(opened)
    with glassfs.open("frozen.toml") as opened:
        assert list(opened) == expected and len(expected) == len(names)
        assert all(list(opened[f"{name}/episodes"]) == ["1"] for name in opened)
    os.rename("odd", "bad\udcff")
    fails(command("select", "bad\udcff"), f"{folder}/bad\\xff: its name is not UTF-8, so no selection can have it")


def test_episodes_are_named_by_their_directories(folder: Path) -> None:
    def write(*names: str) -> None:
        with h5py.File("data/run.hdf5", "w") as file:
            for name in names:
                file[f"data/{name}/actions"] = np.ones((4, 2))
                file[f"data/{name}/rewards"] = np.ones(4)

    Path("mine.toml").write_text(
        'name = "mine"\nmatch = ["data/*/actions"]\n[episodes]\neach = "data/{number}"\n[steps]\ncount = "actions"\n'
    )
    write("demo_4", "demo_7", "demo_1")
    assert chosen(selection('episodes = ["run.hdf5:demo_7", "run.hdf5:0"]')) == ["run.hdf5:0", "run.hdf5:2"]
    with glassfs.open("s.toml") as opened:
        assert list(opened["run.hdf5/data"]) == ["demo_1", "demo_7"]
    # The second episode is called 2, and the third one has the number 2.
    write("1", "2", "3")
    selection('episodes = ["run.hdf5:2"]')
    with glassfs.open("s.toml", layout="mine.toml") as opened:
        assert list(opened["run.hdf5/data"]) == ["2"]
        assert [row["episode_name"] for row in opened.episodes()] == ["2"]


def test_what_is_named_and_not_there_is_omitted(folder: Path) -> None:
    selection('episodes = ["a.kdb:1", "a.kdb:9", "gone.kdb:1"]\nexclude = ["other.kdb"]')
    with glassfs.open("s.toml") as opened:
        assert omissions(opened) == [
            "a.kdb:9: episode: is selected, but not there", "gone.kdb:1: episode: is selected, but not there",
            "other.kdb: episode: is excluded, but not there",
        ]
    assert command("export", "s.toml", "out").status == 1
    assert command("export", "--allow-omissions", "s.toml", "other").status == 0
    fails(
        command("select", "s.toml"), "s.toml: names episodes that are not there: a.kdb:9, gone.kdb:1, other.kdb",
    )
    # A selection without a folder says it in the container.
    selection('episodes = ["a.kdb:1", "a.kdb:9"]', '["data/a.kdb"]')
    found = command("verify", "s.toml")
    assert found.lines == ["data/a.kdb: a.kdb:9: omitted: episode: is selected, but not there"]
    assert found.errors == ["1 container, 0 faults, 1 omitted"]


def test_many_missing_episodes_are_counted(folder: Path) -> None:
    selection(f'episodes = ["a.kdb:1", {", ".join(f"{chr(34)}gone.kdb:{number}{chr(34)}" for number in range(5000))}]')
    with glassfs.open("s.toml") as opened:
        assert omissions(opened)[-1] == "episode: 4,900 more are named, but not there"
        assert len(omissions(opened)) == 101


def test_unreadable_containers_are_omitted_unless_others_are_named(folder: Path) -> None:
    (folder / "data/bad.kdb").write_bytes((folder / "data/a.kdb").read_bytes()[:300])
    for text in ("where = 'success'", 'episodes = ["a.kdb", "bad.kdb:1"]'):
        with glassfs.open(selection(text)) as opened:
            assert any("bad.kdb: container: cannot be read" in one for one in omissions(opened))
    with glassfs.open(selection('episodes = ["a.kdb"]')) as opened:
        assert not omissions(opened)


def test_nothing_selected_is_an_error_that_says_why(folder: Path) -> None:
    selection('episodes = [\n  "a.kdb:9",\n]')
    fails(
        command("ls", "s.toml", "/"),
        "s.toml:3: no episode is selected; a.kdb:9 is not there; did you mean a.kdb:2?",
    )
    fails(command("ls", selection("where = \"task ~ 'x'\""), "/"), "s.toml: no episode is selected")
    (line,) = command("select", "--where", "env_name = 'z'", "data").errors
    assert line.startswith("glassfs: data: no episode is selected; env_name is unknown for all 9 episodes")
    fails(
        command("ls", selection("", '["data/notes.txt"]'), "/"), "s.toml: no episode is selected, as there are none",
    )


def test_only_what_is_selected_can_be_found(folder: Path) -> None:
    (folder / "data/inner.toml").write_text('sources = ["/etc"]')
    with glassfs.open("data", where="container = 'a.kdb' and success", trim="1:") as opened:
        assert list(opened) == ["a.kdb"]
        for hidden in ("b.kdb", "notes.txt", "sub", "sub/c.kdb", "inner.toml", "a.kdb/episodes/0"):
            assert hidden not in opened
            with pytest.raises(NotFound):
                opened[hidden].info()
        assert opened["a.kdb/episodes/1/state"].numpy().shape == (5, 2)
    with glassfs.open("data") as opened:
        assert opened["inner.toml"].text() == 'sources = ["/etc"]'


def test_further_files_of_containers_stay_readable(folder: Path) -> None:
    values = np.arange(40, dtype="f4").reshape(20, 2)
    write_chunked(folder / "data", "wave", {"signal/force": values}, 6)
    with WShardWriter(folder / "data/other.wshard", episode={"episode_id": "x", "length_T": 3}) as writer:
        writer.add_channel("force", values[:3])
    with glassfs.open("data", where="episode_name = 'wave' and num_frames > 6", trim="1:", every=3) as opened:
        (name,) = (name for name in opened if "manifest" in name)
        assert np.array_equal(opened[f"{name}/signal/force"].numpy(), values[1::3])
        assert "other.wshard" not in opened


def test_arrays_in_other_files_are_trimmed_as_well(folder: Path) -> None:
    values = np.arange(24, dtype="f4").reshape(12, 2)
    with h5py.File("data/far.h5", "w") as file:
        file["x"] = values
    with h5py.File("data/run.hdf5", "w") as file:
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"], demo["rewards"] = values, np.ones(12)
            demo["obs/far"] = h5py.ExternalLink("far.h5", "/x")
    with glassfs.open("data", where="container = 'run.hdf5' and position = 1", trim="2:-1", every=3) as opened:
        assert list(opened) == ["run.hdf5"] and "far.h5" not in opened
        assert np.array_equal(opened["run.hdf5/data/demo_1/obs/far"].numpy(), values[2:-1:3])


def test_selections_follow_their_sources(folder: Path, at_once: None) -> None:
    with glassfs.open("data", where="success", trim="1:") as opened:
        assert shown_in(opened) == [A[1], B[1], C[1], C[3]]
        write_takes(folder / "data/a.kdb", 6)
        write_takes(folder / "data/d.kdb", 2)
        (folder / "data/b.kdb").unlink()
        write_takes(folder / "data/sub/c.kdb", 1)
        expected = ["a.kdb:1", "a.kdb:3", "a.kdb:5", "d.kdb:1"]
        wait_until(lambda: is_shown(opened, expected))
        assert opened["a.kdb/episodes/5/state"].numpy().shape == (5, 2)


def is_shown(opened: glassfs.Library, expected: list[str]) -> bool:
    try:
        return shown_in(opened) == expected
    except (AssertionError, GlassfsError):  # while some of it is known
        return False


def test_containers_that_changed_show_nothing_at_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with glassfs.open("data", where="success") as opened:
        assert list(opened["a.kdb/episodes"]) == ["1"]
        monkeypatch.setattr(Selecting, "_evaluate", lambda self: None)
        time.sleep(0.01)
        write_takes(folder / "data/a.kdb", 6)
        wait_until(lambda: list(opened["a.kdb/episodes"]) == [])
        assert "are not selected anew yet" in opened["a.kdb"].attributes["omitted"]
        assert [row["container"] for row in opened.episodes()] == ["b.kdb", "sub/c.kdb", "sub/c.kdb"]
        assert list(opened["b.kdb/episodes"]) == ["1"]


def test_selections_of_everything_are_none() -> None:
    assert Words.of("", "", 1) is None and Words.of("", ":", 1) is not None
    assert asked(["data"], Words("success", "1:", 2)).text == "where = 'success'\ntrim = '1:'\nevery = 2"


class Folders(LastingStore):
    """A store whose folders may be closed."""

    def __init__(self, *words: Any) -> None:
        self.closed: dict[tuple[str, ...], int] = {}
        super().__init__(*words)

    def entry(self, path: Any) -> Any:
        found = super().entry(path)
        return found._replace(permissions=self.closed.get(path, found.permissions))


def selected_tree(store: LastingStore, asked: Asked, audience: Audience = Audience()) -> Sources:  # noqa: B008
    """The tree of a selection of what is in a store, with all its episodes in one table."""
    containers = ContainerSettings(BlockCache(64 << 20), views=views("jsonl"))
    found = Selecting(asked, [Named(store, (), "memory")], containers, audience.is_shared)
    return Sources(found.named, containers, partial(Joins, audience=audience))


def test_shared_trees_show_only_what_every_user_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    store = Folders({
        "open.take": takes(take("a"), take("b")), "secret.take": takes(take("c")), "closed/x.take": takes(take("d")),
        "closed/broken.take": takes(take("e"), broken_block=0), "broken.take": takes(take("f"), broken_block=0),
    })
    store.set_permissions("secret.take", 0o600)
    store.closed["closed",] = 0o700
    for audience, rows, gaps in (
        (SHARED, ["a", "b"], ["broken.take"]),
        (Audience(), ["d", "a", "b", "c"], ["broken.take", "closed/broken.take"]),
    ):
        sources = selected_tree(store, Asked((), where="position >= 0"), audience)
        with sources.tree:
            assert [row["language_instruction"] for row in rows_of(sources)] == rows
            root = sources.tree.root
            assert isinstance(root, Directory)
            assert [one.name for one in root.omitted()] == gaps
            # As in a plain tree, the kernel compares the rights of these.
            assert [node.mode & 0o777 for node in root.listing() if node.name == "secret.take"] == [0o500]


def test_what_fails_for_a_moment_stays_selected(monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    store = LastingStore({"a.take": takes(take("a")), "b.take": takes(take("b"), take("b"))})
    sources = selected_tree(store, Asked((), where="position >= 0"))
    with sources.tree as tree:
        assert [node.name for node in tree.root.listing() if "jsonl" not in node.name] == ["a.take", "b.take"]
        store.put("a.take", takes(take("a"), take("a")))
        store.reading["b.take"] = DeviceFailed("does not answer")
        time.sleep(0.1)
        assert [node.name for node in tree.root.listing() if "jsonl" not in node.name] == ["a.take", "b.take"]
        del store.reading["b.take"]
        store.remove("b.take")
        wait_until(lambda: [node.name for node in tree.root.listing() if "jsonl" not in node.name] == ["a.take"])


def test_versions_have_any_characters() -> None:
    # Those of servers have the names of objects, and a mark that tells what is shown is the last one.
    entry = LastingStore({"a": b""}).entry(("a",))._replace(version=Version("a\1b|1"), stamp="a\1b|2")
    store = SelectedStore(LastingStore({}), lambda: Shown({}, frozenset(), {}), lambda: None, None)
    marked = store._narrowed(("a",), entry)
    assert marked != entry and unmarked(marked) == entry == unmarked(entry)
    store.close()


def test_sources_keep_their_names_and_may_overlap(folder: Path) -> None:
    selection('episodes = ["c.kdb:1"]', '["data/a.kdb", "data/b.kdb", "data/sub/c.kdb"]')
    assert chosen() == ["c.kdb:1"]
    names = ["a.kdb:2", "data/a.kdb:1", "data/sub/c.kdb:0", "data~2/a.kdb:0"]
    selection(f"episodes = {names}", '["data", "data/a.kdb", "data/b.kdb", "data/sub", "data"]')
    assert chosen() == names
    rows = map(json.loads, command("episodes", "s.toml").lines)
    assert [f"{row['container']}:{row['position']}" for row in rows] == names
    with glassfs.open("s.toml") as opened:
        assert list(opened) == ["data", "a.kdb", "data~2"] and "b.kdb" not in opened


def test_sources_that_are_not_selected_may_be_later(folder: Path, at_once: None) -> None:
    selection('where = "position > 2"', '["data/a.kdb", "data/sub"]')
    with glassfs.open("s.toml") as opened:
        assert list(opened) == ["sub"]
        write_takes(folder / "data/a.kdb", 4)
        wait_until(lambda: is_shown(opened, ["a.kdb:3", "sub/c.kdb:3"]))
