"""The derived views, sets of them, and views of other packages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from glassfs.cache import BlockCache
from glassfs.content import Array, Blob, Content, Group, Link, Member, Memory, Table, Text
from glassfs.errors import NotFound, TooLarge
from glassfs.tree.build import container_root
from glassfs.tree.nodes import Directory, File, Symlink
from glassfs.view import ALL, Key, Shown, View, ViewSet, available, chosen, data_of, folder_of, registry
from tests.helpers import attributes_of
from tests.tree.trees import origin
from tests.view.views import KEY, PLACE, file_bytes

BUILT_IN = ["mp4", "parquet", "jsonl", "csv", "by-task", "html", "zarr", "lerobot"]


def shouted(content: Text, cache: BlockCache, key: Key) -> Iterator[Shown]:
    if content.data.size > 100:
        raise TooLarge("a text of more than 100 bytes cannot be shouted")
    yield Shown(Memory(content.data.read(0, content.data.size).upper()), ".loud")
    yield Shown(Group(b"", lambda: [Member((b"inside",), content)]), name=b"below")


LOUD = View("loud", "texts in capitals", (Text,), shouted)


class Entry:
    """An entry point."""

    name = "loud"

    def __init__(self, value: Any) -> None:
        self._value = value

    def load(self) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Entry]]:
    """Entry points in the group of views."""
    entries: list[Entry] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries if group == registry.GROUP else [])
    available.cache_clear()
    yield entries
    available.cache_clear()


def root_of(*members: Member, views: ViewSet) -> Directory:
    at = origin()
    return container_root(Group(b"", lambda: members), replace(at, services=at.services._replace(views=views)))


def member(name: bytes, text: bytes) -> Member:
    return Member((name,), Text(name, Memory(text)))


def test_each_view_has_a_name_and_a_summary(installed: list[Entry]) -> None:
    assert list(available()) == BUILT_IN
    for name, view in available().items():
        assert view.name == name and view.summary and "\n" not in view.summary


def test_views_are_chosen_by_name(installed: list[Entry]) -> None:
    assert [view.name for view in chosen("parquet+mp4").views] == ["mp4", "parquet"]
    assert [view.name for view in chosen(ALL).views] == BUILT_IN
    apart = chosen("lerobot+lerobot-splits+mp4")
    assert [view.name for view in apart.views] == ["mp4", "lerobot-splits"]
    assert [view.name for view in apart.with_all().views] == [*BUILT_IN[:-1], "lerobot-splits"]
    assert not chosen("")
    with pytest.raises(NotFound, match="there is no view 'mp5'; there are mp4, "):
        chosen("mp4+mp5")


def test_view_of_another_package_is_found(installed: list[Entry]) -> None:
    installed.append(Entry(LOUD))
    assert list(available()) == [*BUILT_IN, "loud"]
    assert chosen("loud").views == (LOUD,)


@pytest.mark.parametrize("value", [ImportError("no such module"), "not a view", View("mp4", "mine", (Text,), shouted)])
def test_invalid_views_are_logged(
    installed: list[Entry], value: object, caplog: pytest.LogCaptureFixture,
) -> None:
    installed.append(Entry(value))
    with caplog.at_level(logging.WARNING):
        assert list(available()) == BUILT_IN
    assert len(caplog.records) == 1


def test_contents_keep_their_names_beside_views() -> None:
    members = [member(b"note", b"hear"), Member((b"note.loud",), Blob(b"", Memory(b"taken")))]
    members.append(Member((b"below", b"deep"), Blob(b"", Memory(b"taken"))))
    plain = [node.name for node in root_of(*members, views=ViewSet()).listing()]
    root = root_of(*members, views=ViewSet(LOUD))
    names = [node.name for node in root.listing()]
    assert names == [*plain, "note.loud", "below~2"]
    shown = root.child("note.loud")
    assert isinstance(shown, File) and shown.read(0, 9) == b"HEAR"
    below = root.child("below~2")
    assert isinstance(below, Directory) and [node.name for node in below.listing()] == ["inside.txt"]


def test_error_of_a_view_leaves_other_files() -> None:
    root = root_of(member(b"long", bytes(101)), member(b"note", b"hear"), views=ViewSet(LOUD))
    assert [node.name for node in root.listing()] == ["long.txt", "note.txt", "note.loud", "below"]
    assert attributes_of(root)["omitted"] == "long: view loud: a text of more than 100 bytes cannot be shouted"


def test_contents_without_files_are_not_shown() -> None:
    table = Member((b"table",), Table(b"table", 0, list))
    link = Member((b"there",), Link(b"", (b"..", b"a b\n")))
    root = root_of(table, member(b"note", b""), link, views=ViewSet())
    assert [node.name for node in root.listing()] == ["note.txt", "there"]
    node = root.child("there")
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
    assert series is not None and series.count == 2


def test_unknown_content_is_named_in_the_error() -> None:
    class Strange(Content):
        pass

    with pytest.raises(TypeError, match="Strange"):
        data_of(Strange(KEY), BlockCache(), PLACE)
