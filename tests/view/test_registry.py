"""The derived views, sets of them, which view a content has, and episodes as links by task and by success."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from glassfs.cache import BlockCache
from glassfs.content import Array, Blob, Content, Group, Link, Member, Memory, Records, Table, Text
from glassfs.content.allowance import Allowance
from glassfs.content.video import DIGITS
from glassfs.errors import NotFound, TooLarge
from glassfs.names import component
from glassfs.tree import Tree
from glassfs.tree.nodes import Settled, Symlink, facts_of
from glassfs.view import ALL, Key, Shown, View, ViewSet, available, by_task, chosen, data_of, folder_of
from glassfs.view.by_task import MOST, VIEW
from tests.helpers import attributes_of
from tests.view.views import KEY, PLACE, file_bytes, tree_of

BUILT_IN = ["mp4", "parquet", "jsonl", "csv", "by-task", "html", "zarr", "plink", "lerobot"]


def shouted(content: Text, cache: BlockCache, key: Key) -> Iterator[Shown]:
    if content.data.size > 100:
        raise TooLarge("a text of more than 100 bytes cannot be shouted")
    yield Shown(Memory(content.data.read(0, content.data.size).upper()), ".loud")
    yield Shown(Group(b"", lambda: [Member((b"inside",), content)]), name=b"below")


LOUD = View("loud", "texts in capitals", (Text,), shouted)


def member(name: bytes, text: bytes) -> Member:
    return Member((name,), Text(name, Memory(text)))


def test_each_view_has_a_name_and_a_summary() -> None:
    assert list(available()) == BUILT_IN
    for name, view in available().items():
        assert view.name == name and view.summary and "\n" not in view.summary


def test_views_are_chosen_by_name() -> None:
    assert [view.name for view in chosen("parquet+mp4").views] == ["mp4", "parquet"]
    assert [view.name for view in chosen(ALL).views] == BUILT_IN
    apart = chosen("lerobot+lerobot-splits+mp4")
    assert [view.name for view in apart.views] == ["mp4", "lerobot-splits"]
    assert [view.name for view in apart.with_all().views] == [*BUILT_IN[:-1], "lerobot-splits"]
    assert not chosen("")
    with pytest.raises(NotFound, match="there is no view 'mp5'; there are mp4, "):
        chosen("mp4+mp5")


def test_contents_keep_their_names_beside_views() -> None:
    members = [member(b"note", b"hear"), Member((b"note.loud",), Blob(b"", Memory(b"taken")))]
    members.append(Member((b"below", b"deep"), Blob(b"", Memory(b"taken"))))
    plain = tree_of(*members, views=ViewSet()).root.names()
    tree = tree_of(*members, views=ViewSet(LOUD))
    assert [*tree.root.names()] == [*plain, "note.loud", "below~2"]
    assert tree.file("note.loud").read(0, 9) == b"HEAR"
    assert [*tree.directory("below~2").names()] == ["inside.txt"]


def test_error_of_a_view_leaves_other_files() -> None:
    root = tree_of(member(b"long", bytes(101)), member(b"note", b"hear"), views=ViewSet(LOUD)).root
    assert [*root.names()] == ["long.txt", "note.txt", "note.loud", "below"]
    assert attributes_of(root)["omitted"] == "long: view loud: a text of more than 100 bytes cannot be shouted"


def test_contents_without_files_are_not_shown() -> None:
    table = Member((b"table",), Table(b"table", 0, list))
    link = Member((b"there",), Link(b"", (b"..", b"a b\n")))
    tree = tree_of(table, member(b"note", b""), link, views=ViewSet())
    assert [*tree.root.names()] == ["note.txt", "there"]
    node = tree.lookup("there")
    assert isinstance(node, Symlink) and node.target == "../a b%0A"


@dataclass(slots=True)
class MyArray(Array):
    """A kind of another package."""


@dataclass(slots=True)
class MyFilm(MyArray):
    """A kind that derives from that."""


@pytest.mark.parametrize("kind", [MyArray, MyFilm])
def test_derived_content_is_shown_like_its_base(kind: type[Array]) -> None:
    array, other = (one(KEY, Memory(bytes(24)), "|u1", (2, 2, 2, 3), modality="rgb") for one in (Array, kind))
    assert file_bytes(other, ".npy") == file_bytes(array, ".npy")
    series = folder_of(other)
    assert series is not None and len(series.numbers) == 2


def test_unknown_content_is_named_in_the_error() -> None:
    class Strange(Content):
        pass

    with pytest.raises(TypeError, match="Strange"):
        data_of(Strange(KEY), BlockCache(), PLACE)


BLOCK = 2


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    records = Records(b"episodes", -(-len(rows) // BLOCK), lambda block: rows[block * BLOCK :][:BLOCK])
    return Table(b"episodes", len(rows), list, records, b"episodes")


def folders_of(rows: Sequence[dict[str, Any]]) -> Tree:
    return tree_of(Member((b"episodes",), table_of(rows)), views=ViewSet(VIEW))


def links_of(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {path: node.target for path, node in folders_of(rows).walk() if isinstance(node, Symlink)}


def test_links_point_to_episodes_in_order() -> None:
    rows = [
        {"language_instruction": "pick", "success": True}, {"language_instruction": "place", "success": False},
        {"language_instruction": "pick", "success": None}, {}, {"language_instruction": None, "success": 1},
    ]
    found = links_of(rows)
    target = {f"{number:0{DIGITS}d}": f"../../episodes/{number}" for number in range(len(rows))}
    assert all(to == target[path.rpartition("/")[2]] for path, to in found.items())
    below: dict[str, list[int]] = {}
    for path in found:
        folder, _, number = path.rpartition("/")
        below.setdefault(folder, []).append(int(number))
    assert below == {
        "/by-task/pick": [0, 2], "/by-task/place": [1], "/by-task/%": [3, 4],
        "/by-success/true": [0], "/by-success/false": [1], "/by-success/unknown": [2, 3, 4],
    }


def test_links_are_found_by_the_numbers_that_are_there() -> None:
    tree = folders_of([{"success": number in (1, 70)} for number in range(100)])
    folder = tree.directory("/by-success/true")
    assert isinstance(folder, Settled)
    assert [node.name for node in folder.listing()] == ["000001", "000070"]
    assert list(folder.facts(0, 2)) == list(map(facts_of, folder.listing()))
    for number in range(100):
        if number in (1, 70):
            assert isinstance(node := tree.lookup(f"/by-success/true/{number:06d}"), Symlink)
            assert node.target == f"../../episodes/{number}"
        else:
            with pytest.raises(NotFound):
                tree.lookup(f"/by-success/true/{number:06d}")


@pytest.mark.parametrize("text", ["..", ".", "a/b", "/", "a\0b", "\n", "x" * 70_000, "\ud800", "\udc80", 7, ["a"]])
def test_hostile_instructions_are_one_directory(text: Any) -> None:
    paths = [path for path in links_of([{"language_instruction": text}]) if path.startswith("/by-task/")]
    (path,) = paths
    (_, _, name, number) = path.split("/")
    assert number == "000000" and name not in ("", ".", "..") and "\0" not in name
    assert len(name.encode("utf-8", "surrogateescape")) <= 255


def test_tables_without_directories_have_no_links() -> None:
    table = replace(table_of([{}]), directory=b"")
    assert list(VIEW.show(table, BlockCache(), ("v",))) == []
    assert list(VIEW.show(replace(table, records=None), BlockCache(), ("v",))) == []


def test_too_many_links_are_left_out() -> None:
    table = replace(table_of([{}]), rows=MOST + 1)
    with pytest.raises(TooLarge, match=f"links to {MOST + 1} episodes"):
        list(VIEW.show(table, BlockCache(), ("v",)))


def test_long_tasks_have_the_names_that_they_would_have_as_files() -> None:
    tasks = ["x" * 300, "x" * 301, "é" * 200, "%" * 100, "\x01" * 70_000, "a/" * 150]
    names = list(folders_of([{"language_instruction": task} for task in tasks * 2]).directory("by-task").names())
    assert names == [component(task.encode()) for task in tasks] and len(set(names)) == len(tasks)


def test_words_that_take_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_task, "_allowance", lambda cache: Allowance(1 << 20))
    tree = folders_of([{"language_instruction": f"{number} {'x' * 200}", "success": True} for number in range(2000)])
    with pytest.raises(TooLarge, match=r"of memory or more for links, and 1.0M are allowed"):
        list(tree.directory("by-task").names())
