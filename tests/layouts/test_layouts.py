"""Episodes in generic containers: the layouts of glassfs, those of users, and the expressions in their files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glassfs
from glassfs.content import Array, Container, Data, Group, Member, Memory, Omitted, Zeros
from glassfs.content.allowance import Allowance
from glassfs.errors import Damaged, NotFound, TooLarge, Unsuited
from glassfs.layouts.episodes import interpreted
from glassfs.layouts.expressions import parse, within
from glassfs.layouts.form import LayoutError, read
from glassfs.layouts.known import BUILT_IN, chosen
from glassfs.tree.containers import lease
from tests.cli.glassfs_command import glassfs as run
from tests.conftest import ROOT
from tests.formats.hdf5_files import h5py
from tests.helpers import opening
from tests.layouts import files
from tests.layouts.files import FILM, STEPS, Writer, numbers, write
from tests.view.pages import Page


@dataclass
class Opened:
    """What layouts get of an open container: nothing is kept on disk."""

    allowance: Allowance

    def found(self, name: bytes) -> bytes | None:
        return None

    def keep(self, name: bytes, value: bytes) -> None:
        pass


MINE = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/manual/layouts.md").read_text(), re.DOTALL)[0]


@pytest.mark.parametrize("writer", files.ALL, ids=lambda writer: str(writer.__name__))
def test_known_layouts_have_the_rows_of_their_episodes(tmp_path: Path, writer: Writer) -> None:
    path, expected = writer(tmp_path)
    with glassfs.open(path) as opened:
        rows = list(opened.episodes())
    assert [{name: row[name] for name in some} for row, some in zip(rows, expected, strict=True)] == expected


@pytest.mark.parametrize("writer", [files.d4rl, files.ogbench])
def test_episodes_of_flat_arrays_have_their_rows(tmp_path: Path, writer: Writer) -> None:
    path, _ = writer(tmp_path)
    with glassfs.open(path, views="parquet") as opened:
        assert np.array_equal(opened["observations"].numpy(), numbers(20, 11))
        for number, (first, end) in enumerate(((0, 6), (6, 13), (13, 20))):
            episode = opened[f"episodes/{number}"]
            assert np.array_equal(episode["observations"].numpy(), numbers(20, 11)[first:end])
            assert np.array_equal(episode["infos/qpos"].numpy(), numbers(20, 5)[first:end])
            steps = episode["steps.parquet"].table().to_pandas()
            assert steps["rewards"].tolist() == list(range(first, end))
            assert "metadata" not in episode


def test_rows_behind_the_last_action_are_shown_but_not_recorded(tmp_path: Path) -> None:
    path, _ = files.maniskill(tmp_path)
    with glassfs.open(path, views="parquet+html") as opened:
        episode = opened["episodes/1"]
        assert episode["obs/agent/qpos"].shape == (STEPS + 1, 9)
        assert len(list(episode["obs/sensor_data/base/rgb"])) == STEPS + 1
        steps = episode["steps.parquet"].table().to_pandas()
        assert len(steps) == STEPS
        assert steps["obs/agent/qpos.8"].tolist() == numbers(STEPS + 1, 9)[:STEPS, 8].tolist()
        (camera,) = Page(opened["episodes/1/index.html"].bytes()).facts["cameras"]
        assert (camera["name"], camera["folder"]) == ("base", "./obs/sensor_data/base/rgb/")


def test_groups_around_episodes_keep_what_else_they_have(tmp_path: Path) -> None:
    path, _ = files.isaaclab(tmp_path)
    with glassfs.open(path) as opened:
        assert sorted(opened["episodes"]) == ["0", "1", "2"]
        assert opened["episodes/1/actions"].shape == opened["data/demo_2/actions"].shape
        assert np.array_equal(opened["episodes/0/obs/table_cam/000003"].numpy(), FILM[3])
        record = json.loads(opened["data/demo_10/meta/episode.json"].bytes())
        assert record["env_name"] == "Stack" and record["ep_meta"] == '{"lang": "stack 10"}'
        # The page of an episode leads to the list of them, by the path of its group.
        shown = Page(opened["data/demo_10/index.html"].bytes()).facts
        assert (shown["number"], shown["up"]) == (2, 2)


def my_file(folder: Path) -> Path:
    contents = {}
    for number in (2, 1):
        take = f"runs/take-{number}"
        contents |= {
            f"{take}/commands": numbers(STEPS, 2), f"{take}/joints/left": numbers(STEPS, 3),
            f"{take}/joints/right": numbers(STEPS), f"{take}/rewards": numbers(STEPS) * (number - 1),
        }
    return write(folder / "mine.h5", contents)


def test_layout_of_the_manual_finds_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, layout = my_file(tmp_path), tmp_path / "mine.toml"
    layout.write_text(MINE)
    assert len(MINE.splitlines()) <= 12
    wanted = [("take-1", False, STEPS, 2, 4), ("take-2", True, STEPS, 2, 4)]
    columns = ("episode_name", "success", "num_frames", "action_dim", "state_dim")
    for asked in (layout, tmp_path):
        with glassfs.open(path, layout=asked) as opened:
            assert [tuple(row[name] for name in columns) for row in opened.episodes()] == wanted
    with glassfs.open(tmp_path, layout=layout) as folder:  # its containers are parsed later
        assert "steps.parquet" in folder["mine.h5/runs/take-1"]
    with glassfs.open(path) as opened, pytest.raises(Unsuited):
        opened.episodes()
    done = run("episodes", "--layout", layout, path)
    assert [json.loads(line)["episode_name"] for line in done.output.splitlines()] == ["take-1", "take-2"]
    user = tmp_path / "config" / "glassfs" / "layouts"
    user.mkdir(parents=True)
    (user / "mine.toml").write_text(MINE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert run("episodes", path).output.count(b"\n") == 2
    assert b"mine" in run("layouts").output


def test_rows_kept_on_disk_are_those_of_the_layout(tmp_path: Path) -> None:
    """A layout that changes must not leave rows of the former one."""
    my_file(tmp_path)
    for text, dimension in ((MINE, 2), (MINE.replace('action = "commands"', 'action = "joints/left"'), 3)):
        layout = tmp_path / f"{dimension}.toml"
        layout.write_text(text)
        done = run("episodes", "--layout", layout, tmp_path)
        assert {json.loads(line)["action_dim"] for line in done.output.splitlines()} == {dimension}


def test_trying_a_layout_says_what_it_finds(tmp_path: Path) -> None:
    path, _ = files.d4rl(tmp_path)
    done = run("layouts", "--test", "d4rl", path)
    assert done.status == 0
    wanted = {b"match: actions is there", b"episodes: 3", b'role state: ["observations"]'}
    assert wanted <= set(done.output.splitlines())
    done = run("layouts", "--test", "minari", path)
    assert done.status == 1 and "nothing is at episode_*/actions" in done.errors[0]
    layout = tmp_path / "mine.toml"
    layout.write_text(MINE.replace('action = "commands"', 'action = "nothing"'))
    done = run("layouts", "--test", layout, my_file(tmp_path))
    assert b"role action: no signal is at nothing" in done.output and done.status == 0
    assert run("layouts", "robomimic").output == (ROOT / "src/glassfs/layouts/builtin/robomimic.toml").read_bytes()


def rows_of(container: Container) -> Sequence[Any]:
    table = container.episodes()
    assert table is not None and table.records is not None
    return table.records.block(0)


def opened_again(path: Path, kept: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch) -> Container:
    """Open a container in which ``kept`` stands for the catalogue."""
    found = opening(path)
    monkeypatch.setattr(found, "found", kept.get)
    monkeypatch.setattr(found, "keep", kept.__setitem__)
    return lease.parse(found)


def test_borders_and_rows_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, expected = files.ogbench(tmp_path)
    kept: dict[bytes, bytes] = {}
    rows = rows_of(opened_again(path, kept, monkeypatch))
    assert [row["num_frames"] for row in rows] == [row["num_frames"] for row in expected]
    monkeypatch.setattr("glassfs.layouts.episodes._flagged", None)
    monkeypatch.setattr("glassfs.layouts.recording.items_of", None)
    assert rows_of(opened_again(path, kept, monkeypatch)) == rows
    for name in kept:
        kept[name] = b"nonsense"
    monkeypatch.undo()  # what is kept is compared with the container
    assert rows_of(opened_again(path, kept, monkeypatch)) == rows


def test_unknown_layouts_are_said_in_one_line(tmp_path: Path) -> None:
    path, _ = files.d4rl(tmp_path)
    for words in (("episodes", "--layout", "none", path), ("layouts", "none")):
        done = run(*words)
        assert done.status and len(done.errors) == 1 and "known layout; known are robomimic" in done.errors[0]
    with pytest.raises(NotFound, match="known layout"):
        glassfs.open(path, layout="none")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("name = 'wrong'\nmatch = []\nepisodes.whole = true\n")
    with pytest.raises(LayoutError, match=r"wrong.toml:2: "):
        glassfs.open(path, layout=wrong)


def test_arrays_that_contradict_their_layout_hide_nothing(tmp_path: Path) -> None:
    for name, ends in (("late", [6, 21]), ("falling", [6, 5]), ("none", []), ("negative", [-1, 20]), ("text", ["a"])):
        contents = {"data/action": numbers(20, 2), "meta/episode_ends": np.array(ends)}
        path = write(tmp_path / f"{name}.npz", contents)
        with glassfs.open(path) as opened:
            assert opened["data/action"].shape == (20, 2) and "episodes" not in opened


def test_lists_may_have_many_names_and_some_twice(tmp_path: Path) -> None:
    path, _ = files.isaaclab(tmp_path)
    with h5py.File(path, "a") as file:
        del file["mask/valid"]
        names = [f"demo_{number}".encode() for number in range(2_000, -1, -1)]
        file["mask/valid"] = np.array([*names, *names])
    with glassfs.open(path) as opened:
        assert [row["splits"] for row in opened.episodes()] == [["valid"], ["train", "valid"], ["train", "valid"]]


def interpreted_as(root: Group) -> Container:
    """Return a container with this root, in the layouts of glassfs."""
    container = Container("hdf5", "", root, [], is_generic=True)
    return interpreted(container, [known.layout for known in chosen()], Opened(Allowance(1 << 20)))


def test_damaged_episode_hides_no_other() -> None:
    def broken() -> list[Member]:
        raise Damaged("is broken")

    def demo(number: int) -> Group:
        actions = Array(b"actions", Zeros(8 * STEPS), "<f4", (STEPS, 2))
        inner = [Member((b"obs",), Group(b"obs", broken)), Member((b"actions",), actions)]
        return Group(b"demo_%d" % number, broken if number == 1 else lambda: inner)

    data = Group(b"data", lambda: [Member((b"demo_%d" % number,), demo(number)) for number in range(3)])
    found = interpreted_as(Group(b"", lambda: [Member((b"data",), data)]))
    assert [row["num_frames"] for row in rows_of(found)] == [STEPS, None, STEPS]
    table = found.episodes()
    assert table is not None and table.recording is not None
    (omitted,) = table.recording(2).omitted()
    assert omitted.name == (b"obs",) and isinstance(omitted.content, Omitted) and omitted.content.is_damage
    with pytest.raises(Damaged):
        table.recording(1)


def test_contents_of_an_episode_are_bounded() -> None:
    array = Array(b"action", Zeros(8 * STEPS), "<f4", (STEPS, 2))
    more = Group(b"more", lambda: (Member((b"%d" % number,), array) for number in range(10_000)))
    root = Group(b"", lambda: [
        Member((b"action",), array), Member((b"observations", b"qpos"), array), Member((b"more",), more),
    ])
    found = interpreted_as(root)
    with pytest.raises(TooLarge, match="contents of an episode"):
        list(found.root.members())  # type: ignore[union-attr]


@pytest.mark.parametrize("flags", [Zeros(1 << 40), Memory(b"\1" * (4 << 20))], ids=["many", "all true"])
def test_flags_of_small_files_are_bounded(flags: Data) -> None:
    """They are left out with the reason; what else the container has is shown."""
    names = b"observations", b"actions", b"terminals"
    members = [Member((name,), Array(name, flags, "|b1", (flags.size,))) for name in names]
    found = interpreted_as(Group(b"", lambda: members))
    assert found.episodes() is None
    *shown, omitted = found.root.members()  # type: ignore[union-attr]
    assert [one.name for one in shown] == [(name,) for name in names]
    assert isinstance(omitted.content, Omitted) and not omitted.content.is_damage
    assert omitted.content.reason.startswith("episodes: ")


GOOD = """name = "mine"
match = ["a/*"]
[episodes]
whole = true
[steps]
count = "a/b"
"""


@pytest.mark.parametrize(("wrong", "line", "reason"), [
    ("nam = 1\n" + GOOD, 1, "unknown key 'nam'"),
    (GOOD + "[rolls]\naction = 'a'\n", 7, "unknown key 'rolls'"),
    (GOOD + "[roles]\nactions = 'a'\n", 8, "unknown key 'actions'; known here are action, state, reward"),
    (GOOD + "[columns]\nsucces = '@a'\n", 8, "unknown key 'succes'"),
    (GOOD + "[columns]\nsuccess = ['sum(']\n", 8, "a value is missing"),
    (GOOD + "[columns]\nsuccess = 'mean(a)'\n", 8, "there is no function 'mean'"),
    (GOOD + "[columns]\nsuccess = 'any(3)'\n", 8, "takes a path"),
    (GOOD + "[columns]\nsuccess = {when = 'a'}\n", 8, "a condition has the texts"),
    (GOOD + "[columns]\nsplits = 'keys(mask)'\n", 8, "takes a pattern in quotes"),
    (GOOD + "[cameras]\nnames = {'a(' = 'b'}\n", 8, "unterminated"),
    (GOOD + "[cameras]\nnames = {'a' = '{1}'}\n", 8, "refers to a group"),
    (GOOD.replace("whole = true", "whole = false"), 4, "can only be true"),
    (GOOD.replace("whole = true", "each = 'demo'"), 4, "must be one path with {number}"),
    (GOOD.replace("whole = true", "whole = true\nlast = 'a'"), 5, "exactly one of each, whole"),
    (GOOD.replace("whole = true", "omit = 'a'"), 3, "exactly one of each, whole"),
    (GOOD.replace('"a/*"', '"../a"'), 2, "cannot be a path"),
    (GOOD.replace('["a/*"]', "[]"), 2, "needs paths to match"),
    (GOOD.replace('"a/b"', '"a/*"'), 6, "without wildcards"),
    (GOOD.replace('"mine"', '"My layout"'), 1, "needs a name"),
    ("episodes = 3\n" + GOOD.replace("[episodes]\nwhole = true\n", ""), 1, "[episodes] must be a table"),
])
def test_wrong_layouts_are_refused_with_their_line(wrong: str, line: int, reason: str) -> None:
    with pytest.raises(LayoutError) as caught:
        read(wrong.encode(), "mine.toml")
    assert str(caught.value).startswith(f"mine.toml:{line}: ") and reason in str(caught.value)


@pytest.mark.parametrize("wrong", [b"\xff", b"name = ", b"[" * 5000, b" " * ((1 << 20) + 1)])
def test_what_is_no_toml_is_refused(wrong: bytes) -> None:
    with pytest.raises(LayoutError, match=r"mine\.toml: is "):
        read(wrong, "mine.toml")


def test_layouts_of_glassfs_are_read_in_their_order() -> None:
    assert [known.layout.name for known in chosen() if known.origin == "glassfs"] == list(BUILT_IN)


class Known:
    """An episode with a few values."""

    def attribute(self, level: int, name: str, keys: tuple[str, ...]) -> Any:
        values = {(0, "good"): True, (1, "args"): '{"a": {"b": 5}}', (-1, "rate"): 30.0}
        return within(values.get((level, name)), keys)

    def content(self, level: int, path: str) -> Any:
        return {(0, "rewards"): np.array([0.0, 2.0, 1.0]), (-1, "task"): ["pick", "up"]}.get((level, path))

    def lists(self, pattern: str) -> list[str] | None:
        return ["train"] if pattern == "mask/*" else None


@pytest.mark.parametrize(("text", "value"), [
    ("@good", True), ("../@args:a.b", 5), ("../@args:a.c", None), ("/@rate", 30.0), ("@none", None), ("3", 3),
    ("-2.5e1", -25.0), ("true", True), ("'a b'", "a b"), ("sum(rewards)", 3.0), ("len(rewards)", 3),
    ("first(rewards)", 0.0), ("last( rewards )", 1.0), ("any(rewards > 1)", True), ("all(rewards>=1)", False),
    ("sum(rewards) = 3", True), ("../@args:a.b != 5", False), ("/task", ["pick", "up"]), ("len(/task)", 2),
    ("sum(/task)", None), ("keys('mask/*')", ["train"]), ("keys('other')", None), ("@good < 'a'", None),
    ("any(none)", None),
])
def test_expressions_have_values(text: str, value: Any) -> None:
    assert parse(text).value(Known()) == value


@given(st.text(alphabet="ab(),@:./'=<>! 3*é", max_size=20))
def test_every_text_is_an_expression_or_refused(text: str) -> None:
    try:
        expression = parse(text)
    except ValueError:
        return
    expression.value(Known())
