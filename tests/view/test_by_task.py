"""Episodes as links, by instruction and by success."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from glassfs.cache import BlockCache
from glassfs.content import Group, Member, Records, Table
from glassfs.content.allowance import Allowance
from glassfs.content.video import DIGITS
from glassfs.errors import NotFound, TooLarge
from glassfs.names import component
from glassfs.tree import Tree
from glassfs.tree.build import container_root
from glassfs.tree.nodes import Settled, Symlink, facts_of
from glassfs.view import ViewSet, by_task
from glassfs.view.by_task import MOST, VIEW
from tests.tree.trees import origin

BLOCK = 2


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    records = Records(b"episodes", -(-len(rows) // BLOCK), lambda block: rows[block * BLOCK :][:BLOCK])
    return Table(b"episodes", len(rows), list, records, b"episodes")


def tree_of(rows: Sequence[dict[str, Any]]) -> Tree:
    at = origin()
    views = replace(at, services=at.services._replace(views=ViewSet(VIEW)))
    root = container_root(Group(b"", lambda: [Member((b"episodes",), table_of(rows))]), views)
    return Tree(lambda: root)


def links_of(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {path: node.target for path, node in tree_of(rows).walk() if isinstance(node, Symlink)}


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
    tree = tree_of([{"success": number in (1, 70)} for number in range(100)])
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


def root_of(rows: Sequence[dict[str, Any]]) -> Settled:
    at = origin()
    views = replace(at, services=at.services._replace(views=ViewSet(VIEW)))
    return container_root(Group(b"", lambda: [Member((b"episodes",), table_of(rows))]), views)


def test_long_tasks_have_the_names_that_they_would_have_as_files() -> None:
    tasks = ["x" * 300, "x" * 301, "é" * 200, "%" * 100, "\x01" * 70_000, "a/" * 150]
    root = root_of([{"language_instruction": task} for task in tasks * 2])
    names = list(Tree(lambda: root).directory("by-task").names())
    assert names == [component(task.encode()) for task in tasks] and len(set(names)) == len(tasks)


def test_words_that_take_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_task, "_allowance", lambda cache: Allowance(1 << 20))
    root = root_of([{"language_instruction": f"{number} {'x' * 200}", "success": True} for number in range(2000)])
    with pytest.raises(TooLarge, match=r"of memory or more for links, and 1.0M are allowed"):
        list(Tree(lambda: root).directory("by-task").names())
