"""Series and fields as directories, whose contents are made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.content import (
    Array,
    Blob,
    Content,
    Data,
    Document,
    EncodedImage,
    Fields,
    Group,
    Image,
    Member,
    Memory,
    Null,
    Outline,
    Series,
)
from glassfs.errors import NotFound
from glassfs.tree import Node, Tree
from glassfs.tree.build import FACTS_AT_ONCE, container_root
from glassfs.tree.nodes import Settled
from tests.tree.trees import facts_of_nodes, origin, paths_of, tree_of

# Series: directories of numbered contents, made on demand.


def series(count: int, digits: int = 1, has_groups: bool = False) -> tuple[Series, list[int]]:
    made: list[int] = []

    def item(number: int) -> Content:
        made.append(number)
        inner = Blob(b"x", Memory(str(number).encode()))
        return Group(b"g", lambda: [Member((b"x",), inner)], 0) if has_groups else inner

    return Series(b"s", count, item, digits, has_groups), made


@pytest.mark.parametrize("has_groups", [False, True])
@pytest.mark.parametrize(("count", "digits"), [(0, 1), (1, 1), (12, 1), (12, 6), (1_000_003, 6)])
def test_a_series_makes_what_is_asked_for(count: int, digits: int, has_groups: bool) -> None:
    content, made = series(count, digits, has_groups)
    tree = tree_of([Member((b"s",), content)])
    folder = tree.directory("/s")
    listing = folder.listing()
    assert len(listing) == count
    for number in {0, count // 2, count - 1} if count else ():
        name = f"{number:0{digits}d}" + ("" if has_groups else ".bin")
        node, found = listing[number], tree.lookup(f"/s/{name}")
        assert (node.name, node.ino) == (name, found.ino)
        inner = tree.file(f"/s/{name}/x.bin" if has_groups else f"/s/{name}")
        assert inner.read(0, 20) == str(number).encode()
    assert len(made) < 40
    with pytest.raises(IndexError):
        listing[count]


@pytest.mark.parametrize("suffix", [".npy", ".of.it.npy", "-of-it.npy"])
def test_suffixes_of_a_series_may_begin_with_any_character(suffix: str) -> None:
    label = suffix.removesuffix(".npy")
    content = Series(b"s", 12, lambda number: Array(b"", Memory(bytes(number)), "|u1", (number,), label=label))
    folder = tree_of([Member((b"s",), content)]).directory("/s")
    assert folder.child(f"2{suffix}").name == f"2{suffix}"
    for name in ("12", "-1", "01", "٣", "", "9" * 30, f"1{suffix}"):
        with pytest.raises(NotFound):
            folder.child(f"{name}{suffix}")
    for name in ("1", f"1{label}.png", ""):
        with pytest.raises(NotFound):
            folder.child(name)


# Fields: directories of contents with known names, made on demand.


def fields(*names: bytes, collections: int = 0) -> tuple[Fields, list[bytes]]:
    """Contents under these names, of which the first ones are series, and those that were made of them."""
    made: list[bytes] = []

    def item(name: bytes) -> Content:
        made.append(name)
        if name in names[:collections]:
            return series(3)[0]
        return Array(name, Memory(bytes(8)), "<i8", (1,), label=".minutes") if name == b"t" else Null(name)

    return Fields(b"key", Outline(names[:collections], names[collections:]), item), made


@pytest.mark.parametrize("is_root", [False, True])
def test_fields_are_made_one_at_a_time(is_root: bool) -> None:
    content, made = fields(b"later", b"meta", b"state", b"t", b"u-v_2", collections=2)
    if is_root:
        top = container_root(content, origin(), is_mount_root=True)
        tree = Tree(lambda: top)
        directory: Node = top
    else:
        tree = tree_of([Member((b"f",), content)])
        directory = tree.lookup("/f")
    assert isinstance(directory, Settled)
    assert (directory.count, directory.xattrs()) == (5, {
        "user.glassfs.format": b"made", "user.glassfs.key": b"key",
    })
    assert made == []
    for missing in ("x", "state.npy", "state", "t.npy", "t", ".null", "meta.null", "later.bin", "u-v_2", "\udcff", "ä"):
        with pytest.raises(NotFound):
            directory.found(missing)
    made.clear()
    assert [directory.found(name)[0] for name in ("meta", "state.null")] == [1, 2]
    assert directory.child("t.minutes.npy").name == "t.minutes.npy"
    number, node = directory.found("u-v_2.null")
    assert (number, node.ino) == (4, directory.at(4).ino)
    assert set(made) == {b"meta", b"state", b"t", b"u-v_2"}
    made.clear()
    assert [node.name for node in directory.listing()] == ["later", "meta", "state.null", "t.minutes.npy", "u-v_2.null"]
    assert sorted(made) == [b"later", b"meta", b"state", b"t", b"u-v_2"]
    place = "" if is_root else "/f"
    assert tree.file(f"{place}/meta/1.bin").read(0, 9) == b"1"


def test_fields_merge_with_other_contents_of_their_name() -> None:
    content, _ = fields(b"meta", b"state", collections=1)
    tree = tree_of([Member((b"f", b"state"), Null(b"other")), Member((b"f",), content), Member((b"f", b"meta", b"1"),
                    Blob(b"1", Memory(b"more")))])
    assert paths_of(tree, "/f") == {
        "/f/meta/", "/f/state.null", "/f/state~2.null", *(f"/f/meta/{name}.bin" for name in ("0", "1", "1~2", "2")),
    }


@pytest.mark.parametrize("names", [
    (b"a", b"a"), (b"a.npy",), (b"",), (b"..",), (b"a/b",), (b"a%",), (b"a~2",), (b"\xff",), (b"a\n",), (b"x" * 65,),
])
def test_names_that_an_outline_cannot_have(names: tuple[bytes, ...]) -> None:
    """Distinct ones that could be escaped, be cut, or be made equal by an extension."""
    for collections in range(len(names) + 1):
        with pytest.raises(ValueError, match="not distinct names"):
            Outline(names[:collections], names[collections:])


# Facts: what a listing tells of all children, without making more than has to be.


KINDS: dict[str, Callable[[Data], Content]] = {
    "blob": lambda data: Blob(b"", data),
    "picture": lambda data: EncodedImage(b"", data, "png"),
    "image": lambda data: Image(b"", data, 5, data.size // 5, 1),
    "array": lambda data: Array(b"", data, "|u1", (data.size,)),
}


@given(
    st.sampled_from(list(KINDS)), st.lists(st.integers(1, 9).map(lambda rows: 5 * rows), max_size=12), st.booleans(),
    st.tuples(st.integers(0, 13), st.integers(0, 13)),
)
@settings(deadline=None)
def test_facts_of_a_series_that_knows_its_sizes(
    kind: str, sizes: list[int], has_sizes: bool, part: tuple[int, int],
) -> None:
    made = []

    def item(number: int) -> Content:
        made.append(number)
        return KINDS[kind](Memory(bytes(sizes[number])))

    content = Series(b"s", len(sizes), item, 3, is_uniform=len(set(sizes)) == 1)
    if has_sizes:
        content.sizes = lambda start, stop: sizes[start:stop]
    folder = tree_of([Member((b"s",), content)]).directory("/s")
    assert isinstance(folder, Settled)
    made.clear()
    facts = list(folder.facts(*part))
    if content.is_uniform or (has_sizes and kind in ("blob", "picture")):
        assert set(made) <= {0}
    assert facts == facts_of_nodes(folder, *part)


@pytest.mark.parametrize("count", [FACTS_AT_ONCE, 3 * FACTS_AT_ONCE + 5])
def test_facts_of_long_series(count: int) -> None:
    """They are made some at a time, and no more than are taken."""
    asked = []

    def sizes(start: int, stop: int) -> Iterator[int]:
        for number in range(start, min(stop, count)):
            asked.append(number)
            yield number

    content = Series(b"s", count, lambda number: Blob(b"", Memory(bytes(number))), sizes=sizes)
    folder = tree_of([Member((b"s",), content)]).directory("/s")
    assert isinstance(folder, Settled)
    for start in (0, 1, FACTS_AT_ONCE - 1):
        assert list(folder.facts(start, count)) == facts_of_nodes(folder, start, count)
    asked.clear()
    next(folder.facts(3, count))
    assert asked == [3]


def test_facts_read_nothing() -> None:
    """A size that takes reading is left out; the nodes of a folder with contents of all kinds tell the others."""
    def unread() -> None:
        raise AssertionError("read")

    members = [
        Member((b"document",), Document(b"", unread)), Member((b"raw\xff",), Blob(b"", Memory(bytes(3)))),
        Member((b"folder", b"x"), Null(b"")), Member((b"none",), Null(b"")),
    ]
    folder = tree_of(members).root
    assert isinstance(folder, Settled)
    assert [(name, mode, size) for name, _, mode, size in folder.facts(0, 9)] == [
        (b"folder", 0o040555, None), (b"document.json", 0o100444, None), (b"raw%FF.bin", 0o100444, 3),
        (b"none.null", 0o100444, 0),
    ]
