"""Test conditions on rows of episodes: against SQLite, with hostile input, and in ``episodes`` and ``export``."""

from __future__ import annotations

import json
import re
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.content.summary import COLUMNS
from glassfs.datasets.where import LONGEST, WrongCondition, condition
from glassfs.sizes import human_size
from tests.cli.glassfs_command import fails, glassfs
from tests.cli.test_export import written
from tests.datasets.batch.many import robot
from tests.formats.hdf5_files import write_robomimic

TYPED = ("position", "episode_id", "fps", "num_frames", "success", "language_instruction", "embodiment")
numbers = st.integers(-9, 9) | st.floats(-9, 9).map(lambda number: round(number, 3))
texts = st.text("aB'%_ é", max_size=3)
quoted = texts.map(lambda text: json.dumps(text, ensure_ascii=False))
number_columns = st.sampled_from(["position", "episode_id", "fps", "num_frames"])
text_columns = st.sampled_from(["language_instruction", "embodiment"])
signs = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])
Pair = tuple[str, str]


def sql(text: str) -> str:
    """Return a text in double quotes as SQL's literal."""
    return "'" + json.loads(text).replace("'", "''") + "'"


def _compared(parts: tuple[str, str, str]) -> Pair:
    left, sign, right = parts
    return f"{left} {sign} {right}", f"{left} {sign} {sql(right) if right.startswith(chr(34)) else right}"


def _contained(parts: tuple[str, list[str], bool]) -> Pair:
    name, values, is_not = parts
    word = "not in" if is_not else "in"
    return f"{name} {word} ({', '.join(values)})", f"{name} {word} ({', '.join(map(sql, values))})"


leaves = st.one_of(
    st.just(("success", "success")),
    st.tuples(number_columns, signs, numbers.map(str) | number_columns).map(_compared),
    st.tuples(text_columns, signs, quoted).map(_compared),
    st.tuples(text_columns, st.lists(quoted, min_size=1, max_size=3), st.booleans()).map(_contained),
    st.tuples(text_columns, quoted).map(
        lambda parts: (f"{parts[0]} ~ {parts[1]}", f"instr(folded({parts[0]}), folded({sql(parts[1])})) > 0"),
    ),
    st.sampled_from(TYPED).map(lambda name: (f"{name} is null", f"{name} is null")),
    st.sampled_from(TYPED).map(lambda name: (f"{name} is not null", f"{name} is not null")),
)
conditions = st.recursive(leaves, lambda inner: st.one_of(
    inner.map(lambda pair: (f"not ({pair[0]})", f"not ({pair[1]})")),
    inner.map(lambda pair: (f"NOT {pair[0]}", f"not {pair[1]}")),
    *(
        st.tuples(inner, inner).map(lambda two, word=word: (
            f"({two[0][0]}) {word} ({two[1][0]})", f"({two[0][1]}) {word} ({two[1][1]})",
        )) for word in ("and", "or")
    ),
), max_leaves=6)
rows = st.fixed_dictionaries({
    **{name: st.none() | numbers for name in TYPED[:4]}, "success": st.none() | st.booleans(),
    **{name: st.none() | texts for name in TYPED[5:]},
})


@settings(max_examples=100, deadline=None)
@given(conditions, st.lists(rows, min_size=1, max_size=4))
def test_conditions_select_what_sqlite_selects(both: Pair, found: list[dict[str, Any]]) -> None:
    ours, theirs = both
    database = sqlite3.connect(":memory:")
    database.create_function("folded", 1, lambda text: None if text is None else text.casefold())
    database.execute(f"create table episodes (row, {', '.join(TYPED)})")
    for number, row in enumerate(found):
        values = [number, *(row[name] for name in TYPED)]
        database.execute(f"insert into episodes values ({', '.join('?' * len(values))})", values)
    expected = [number for (number,) in database.execute(f"select row from episodes where {theirs} order by row")]
    database.close()
    is_chosen = condition(ours)
    assert [number for number, row in enumerate(found) if is_chosen(dict.fromkeys(COLUMNS) | row)] == expected


@settings(max_examples=100, deadline=None)
@given(st.text("()'\"~=<>! andortinse.fpsk019@[]{}:\\\n", max_size=60) | st.text(max_size=20))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        found = condition(text)
    except WrongCondition:
        return
    assert found(dict.fromkeys(COLUMNS)) in (True, False)


@pytest.mark.parametrize(("text", "reason"), [
    ("__import__('os').system('x')", "may not contain"), ("task.upper() = 'A'", "may not contain"),
    ("[fps for fps in (1,)]", "may not contain"),
    ("tsk = 'a'", "tsk: unknown column; did you mean task?"),
    ("success and weight > 1", "weight: unknown column; the columns are container"),
    ("success and task > 3", "3: text is compared with a number"),
    ("not (success <> true) OR success < true", "success: true or false has no order"),
    ("'é~=<>' = task and\n fps ~ '1'", "fps: what ~ compares is not text"),
    ("task ~ 1", "1: what ~ compares is not text"),
    ("fps = 1 and task", "task: a condition is needed"), ("", "is no condition such as"),
    ("success and and fps > 1", "is no condition such as"), ("fps >", "is no condition"),
    ("task ~ 'ö' and (fps > 1", "is no condition"), ("fps = 1)", "is no condition"),
    ("task = 'x", "is no condition"), (f"fps = 1 and {'x' * 99}", f"{'x' * 60}: unknown column"),
    ("not " * 900 + "fps", "inside each other"),
    ("not " * 60 + "success", "inside each other"),
    ("(" * 400 + "success" + ")" * 400, "is no condition"), ("f" * (LONGEST + 1), "is longer than"),
])
def test_what_is_no_condition_is_refused(text: str, reason: str) -> None:
    with pytest.raises(WrongCondition, match=re.escape(reason)):
        condition(text)


@pytest.mark.parametrize(("text", "is_chosen"), [
    ("'front' in channels", True), ("'left' in channels", False), ("channels ~ 'RON'", True),
    ("1 < position <= 3", True), ("position in (1, 3)", True), ("position in (2)", False),
    ("task ~ 'open THE'", True), ("total_reward = null", True),
    ("not total_reward > 1", False), ("NOT Success", None), ("not success AND fps = 10.0", True),
])
def test_lists_words_and_unknown_values(text: str, is_chosen: bool | None) -> None:
    row = dict.fromkeys(COLUMNS) | {
        "position": 3, "language_instruction": "Open the drawer", "fps": 10.0, "success": False,
        "channels": ["front", "wrist"],
    }
    if is_chosen is None:  # names of columns have a case
        with pytest.raises(WrongCondition, match="Success"):
            condition(text)
    else:
        assert condition(text)(row) is is_chosen


# In commands.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "lab").mkdir(parents=True)
    robot(folder / "lab/a.kdb", 3, "open the drawer")
    robot(folder / "b.kdb", 2, "Close: the  DRAWER!")
    robot(folder / "c.kdb", 2, "wave")
    return folder


@pytest.mark.parametrize(("form", "read"), [
    ("jsonl", partial(pd.read_json, lines=True)), ("parquet", pd.read_parquet), ("csv", pd.read_csv),
])
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_table_has_the_episodes_that_satisfy(folder: Path, form: str, read: Any, jobs: int, tmp_path: Path) -> None:
    out = tmp_path / f"out.{form}"
    where = "task ~ 'drawer' and position != 1"
    done = glassfs("episodes", folder, "--where", where, "--output", out, "--jobs", jobs)
    assert (done.status, done.errors) == (0, [f"3 containers, 0 faults; 3 rows in {out}"])
    found = read(out)[["container", "position"]].to_numpy().tolist()
    assert found == [["b.kdb", 0], ["lab/a.kdb", 0], ["lab/a.kdb", 2]]


def test_export_of_episodes_says_what_was_not_searched(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (folder / "lab/a.kdb").replace(tmp_path / "theirs/a.kdb")
    (folder / "lab/a.kdb").symlink_to(tmp_path / "theirs/a.kdb")
    (tmp_path / "theirs").chmod(0o777)
    done = glassfs("export", folder, tmp_path / "out", "--where", "position = 0")
    assert done.status == 1 and ": omitted: link out of the source: " in done.errors[0]
    assert "1 of its contents is omitted" in done.errors[-1]
    done = glassfs("export", folder, tmp_path / "again", "--where", "position = 0", "--allow-omissions")
    assert done.status == 0


def test_export_of_episodes_that_satisfy(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = glassfs("export", folder, out, "--where", "task ~ 'drawer' and position < 2")
    names = [
        "b.kdb~0-close-the-drawer-0", "b.kdb~1-close-the-drawer-1", "episodes.parquet",
        "lab%2Fa.kdb~0-open-the-drawer-0", "lab%2Fa.kdb~1-open-the-drawer-1",
    ]
    assert sorted(path.name for path in out.iterdir()) == names
    glassfs("export", folder, "lab/a.kdb/episodes/1", tmp_path / "plain")
    one = tmp_path / "plain/lab/a.kdb/episodes/1"
    assert written(out / names[4]) == written(one) != {}
    table = pd.read_parquet(out / "episodes.parquet")
    assert table["container"].tolist() == ["b.kdb", "b.kdb", "lab/a.kdb", "lab/a.kdb"]
    assert table["position"].tolist() == [0, 1, 0, 1]
    files = sum(path.is_file() for path in out.rglob("*"))
    assert (done.status, len(done.errors)) == (0, 1) and done.errors[0].startswith(f"{files} files in {out}, ")
    resumed = glassfs("export", "--resume", folder, out, "--where", "task ~ 'drawer' and position < 2")
    size = (out / "episodes.parquet").stat().st_size
    assert resumed.errors == [f"{files} files in {out}, {human_size(size)} written"]


def test_exported_episodes_keep_their_attributes(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "lab").mkdir(parents=True)
    write_robomimic(folder / "lab/r.hdf5")
    with h5py.File(folder / "lab/r.hdf5", "a") as file:
        file["data/demo_10"].attrs["model_file"] = "<mujoco/>"
    for source, name in ((folder / "lab/r.hdf5", "r.hdf5"), (folder, "lab%2Fr.hdf5")):
        out = tmp_path / name
        assert glassfs("export", source, out, "--where", "position = 1").status == 0
        demo = f"{name}~1-lift-the-cube"
        assert json.loads((out / demo / "meta/episode.json").read_text())["model_file"] == "<mujoco/>"
        assert {path.name for path in out.iterdir()} == {demo, "episodes.parquet"}
        names = {"agentview_image", "agentview_image.npy", "eef_pos.npy"}
        assert (out / demo / "actions.npy").is_file()
        assert {path.name for path in (out / demo / "obs").iterdir()} == names
        assert glassfs("export", source, out / "png", "--only", "png,json", "--where", "position = 1").status == 0
        images = [f"{demo}/obs/agentview_image/{number:06d}.png" for number in range(7)]
        found = {str(path.relative_to(out / "png")) for path in (out / "png").rglob("*") if path.is_file()}
        assert found == {*images, f"{demo}/meta/episode.json", "episodes.parquet"}


def test_export_from_one_container_and_of_nothing(folder: Path, tmp_path: Path) -> None:
    assert glassfs("export", folder / "b.kdb", tmp_path / "one", "--where", "position = 1").status == 0
    names = ["b.kdb~1-close-the-drawer-1", "episodes.parquet"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    done = glassfs("export", folder, tmp_path / "none", "--where", "fps > 1000")
    fails(done, f"{folder}: no episode satisfies: fps > 1000")
    assert not (tmp_path / "none").exists()
    wrong = glassfs("export", folder, tmp_path / "none", "--where", "speed > 1000")
    assert wrong.status == 2 and "speed: unknown column" in wrong.errors[0]
    both = glassfs("export", folder, "b.kdb", tmp_path / "none", "--where", "fps > 1")
    assert both.status == 2 and "--where cannot be used with PATHs" in both.errors[0]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_columns_that_are_unknown_everywhere_are_named(folder: Path, jobs: int, tmp_path: Path) -> None:
    known = "; known: episode_id, embodiment, language_instruction, fps, num_frames, state_dim, action_dim, cameras"
    done = glassfs("episodes", folder, "--where", "not success and task ~ 'drawer'", "--jobs", jobs)
    assert (done.status, done.output) == (0, b"")
    assert done.errors == [f"success is unknown for all 7 episodes{known}"]
    done = glassfs("episodes", folder / "c.kdb", "--where", "'success' in splits or splits ~ embodiment")
    assert done.errors == [f"splits is unknown for all 2 episodes{known}"]
    both = "success = true or total_reward > 1"
    fails(
        glassfs("export", folder / "b.kdb", tmp_path / "out", "--where", both),
        f"{folder}/b.kdb: no episode satisfies: {both}; success and total_reward are unknown for all 2 episodes{known}",
    )
    for where in ("success is null", "fps > 1000", "not success or position = 1"):
        assert glassfs("episodes", folder, "--where", where, "--jobs", jobs).errors == []


def test_unreadable_containers_are_left_out_and_reported(folder: Path, tmp_path: Path) -> None:
    (folder / "d.kdb").write_bytes((folder / "c.kdb").read_bytes()[:100])
    done = glassfs("export", folder, tmp_path / "out", "--where", "task ~ 'wave'")
    assert done.status == 1 and done.errors[0].startswith(f"glassfs: {folder}/d.kdb: ")
    assert len(list((tmp_path / "out").iterdir())) == 3
