"""What the joined table does not wait for, and what it leaves out so that it ends and fits into memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassfs.errors import GlassfsError
from glassfs.formats import registry
from glassfs.source.memory import MemoryStore
from glassfs.tree import Directory
from glassfs.tree.places import joined, walk
from tests.tree.takes import FORMAT, LastingStore, joins_of, rows_of, take, takes, tree_of


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def becomes(condition: Callable[[], bool]) -> bool:
    """Whether something comes true after a while."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


class Hanging(LastingStore):
    """A store in which some names hang until told otherwise."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hanging: tuple[str, ...] = ()
        self.goes_on = threading.Event()

    def _wait(self, path: tuple[str, ...]) -> None:
        if "/".join(path) in self.hanging:
            self.goes_on.wait()

    def list(self, path: Any) -> Any:
        self._wait(path)
        return super().list(path)

    def open(self, path: Any) -> Any:
        self._wait(path)
        return super().open(path)


def test_what_hangs_costs_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "LEAST_AGE", 0.0)
    monkeypatch.setattr(joined, "AGE", 0)
    store = Hanging({"a/x": takes(take()), "b/y": takes(take()), "c/z": takes(take())})
    store.hanging = ("a", "b/y")
    joins = joins_of(store, patience=0.2)
    for _ in range(3):  # what still hangs is not waited for again
        table = joins.snapshot().table
        assert table.rows == 1
        assert table.attributes()["error"] == "a: does not answer; b/y: does not answer"

    def helpers() -> int:
        return len([thread for thread in threading.enumerate() if thread.name == "glassfs-helper"])

    assert becomes(lambda: helpers() == 2), "those that hang, and no others"
    store.goes_on.set()
    assert becomes(lambda: joins.snapshot().table.rows == 3)
    assert becomes(lambda: helpers() == 0)


def test_a_walk_keeps_nobody_from_anything_else() -> None:
    store = Hanging({"a/x": takes(take()), "b": takes(take())})
    store.hanging = ("a",)
    sources = tree_of(store)
    found: list[object] = []
    asker = threading.Thread(target=lambda: found.append(sources.tree.lookup("episodes.jsonl")))
    asker.start()
    assert becomes(lambda: any(thread.name == "glassfs-helper" for thread in threading.enumerate()))
    assert isinstance(sources.tree.lookup("/b"), Directory) and sources.tree.lookup("/a/x").name == "x"
    assert not found
    store.goes_on.set()
    asker.join()
    assert len(found) == 1 and len(rows_of(sources)) == 2


def test_a_folder_that_cannot_be_listed_costs_its_part() -> None:
    class Forbidding(MemoryStore):
        def list(self, path: Any) -> Any:
            if path == ("a",):
                raise GlassfsError("is forbidden")
            return super().list(path)

    joins = joins_of(Forbidding({"a/x": takes(take()), "b": takes(take())}))
    assert joins.snapshot().table.rows == 1
    assert joins.snapshot().table.attributes() == {"error": "a: is forbidden"}


def test_depth_and_number_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore({"/".join("d" * depth) + "/x": takes(take()) for depth in range(1, 6)})
    monkeypatch.setattr(walk, "DEEPEST", 3)
    table = joins_of(store).snapshot().table
    assert table.rows == 2 and table.attributes() == {"error": "d/d/d: is more than 3 folders deep"}
    monkeypatch.setattr(walk, "MOST_ENTRIES", 5)
    table = joins_of(MemoryStore({f"{n}": takes(take()) for n in range(9)})).snapshot().table
    assert table.rows == 4 and "more than 5 files and folders" in table.attributes()["error"]
