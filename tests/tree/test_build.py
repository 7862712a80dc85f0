"""Paths of contents: merging directories, collisions, inode numbers, videos, series and fields; a model of rule 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

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
    Text,
)
from glassfs.errors import Damaged, IsADirectory, NotADirectory, NotFound
from glassfs.library.finding import _Directories
from glassfs.names import component
from glassfs.tree import Directory, File, Node, Tree
from glassfs.tree.build import FACTS_AT_ONCE, container_root
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Settled, inode
from tests.tree.trees import facts_of_nodes, files_of, origin, paths_of, tree_of

PARTS = st.sampled_from([b"a", b"b", b"a~2", b"a.bin", b"a~2.bin", b"", b"..", b"A", b"x" * 300, b".glassfs", b"a/b"])
KINDS = {".bin": Blob, ".txt": Text}
MadeLeaf = tuple[tuple[bytes, ...], str]
NAMES = st.lists(PARTS, min_size=1, max_size=3).map(tuple)
LEAVES = st.lists(st.tuples(NAMES, st.sampled_from(list(KINDS))), max_size=14)


def numbered(leaves: list[MadeLeaf]) -> list[Member]:
    """A member for each leaf; its bytes are its number."""
    return [
        Member(name, KINDS[suffix](b"/".join(name), Memory(str(number).encode())))
        for number, (name, suffix) in enumerate(leaves)
    ]


def model(leaves: list[MadeLeaf], is_mount_root: bool = False) -> dict[str, bytes]:
    """Rule 4 of the contract: paths and the numbers of the leaves, directory by directory."""
    found: dict[str, bytes] = {}

    def place(prefix: str, here: list[tuple[tuple[bytes, ...], str, int]], is_root: bool) -> None:
        def shown(name: str) -> str:
            return "%2Eglassfs" if is_root and name == ".glassfs" else name

        below: dict[str, list[tuple[tuple[bytes, ...], str, int]]] = {}
        for name, suffix, number in here:
            if len(name) > 1:
                below.setdefault(shown(component(name[0])), []).append((name[1:], suffix, number))
        taken = set(below)
        late = []
        for name, suffix, number in here:
            if len(name) == 1:
                wanted = shown(component(name[0], suffix))
                if wanted in taken:
                    late.append((name[0], suffix, number))
                else:
                    taken.add(wanted)
                    found[f"{prefix}/{wanted}"] = str(number).encode()
        for raw, suffix, number in late:
            count = 2
            while component(raw, f"~{count}{suffix}") in taken:
                count += 1
            wanted = component(raw, f"~{count}{suffix}")
            taken.add(wanted)
            found[f"{prefix}/{wanted}"] = str(number).encode()
        for directory, inner in below.items():
            place(f"{prefix}/{directory}", inner, False)

    place("", [(name, suffix, number) for number, (name, suffix) in enumerate(leaves)], is_mount_root)
    return found


@given(LEAVES, st.booleans())
@settings(max_examples=200, deadline=None)
def test_paths_follow_the_model(leaves: list[MadeLeaf], is_mount_root: bool) -> None:
    """Nothing is hidden: as many files as leaves, each under the path of the model, found by walk and by lookup."""
    tree = tree_of(numbered(leaves), is_mount_root)
    files = files_of(tree)
    assert files == model(leaves, is_mount_root)
    assert len(files) == len(leaves)
    for path, raw in files.items():
        assert tree.file(path).read(0, 100) == raw


@given(LEAVES, st.lists(st.integers(0, 3), max_size=14))
@settings(max_examples=100, deadline=None)
def test_groups_merge_with_names_that_are_paths(leaves: list[MadeLeaf], depths: list[int]) -> None:
    """The same leaves, each behind some groups instead of components, in the same places."""
    members = []
    for number, member in enumerate(numbered(leaves)):
        depth = min(depths[number % len(depths)] if depths else 0, len(member.name) - 1)
        for part in reversed(member.name[:depth]):
            inner = Member(member.name[depth:], member.content)
            group = Group(part, lambda inner=inner: [inner])  # type: ignore[misc]
            member = Member((*member.name[: depth - 1], part), group)
            depth -= 1
        members.append(member)
    files = files_of(tree_of(members))
    assert len(files) == len(leaves)
    assert sorted(files.values()) == sorted(model(leaves).values())
    assert {path.rpartition("/")[0] for path in files} == {path.rpartition("/")[0] for path in model(leaves)}


@given(LEAVES, st.booleans())
@settings(max_examples=100, deadline=None)
def test_children_have_the_numbers_of_their_places(leaves: list[MadeLeaf], is_mount_root: bool) -> None:
    """Also after all that was remembered is gone: a node is made again from its directory and its number."""
    tree = tree_of(numbered(leaves), is_mount_root)
    for directory in [tree.root, *(node for _, node in tree.walk() if isinstance(node, Directory))]:
        assert isinstance(directory, Settled)
        listed = [(node.name, node.ino, type(node)) for node in directory.listing()]
        assert directory.count == len(listed)
        directory.origin.services.listings.clear()
        again = [directory.at(number) for number in reversed(range(len(listed)))][::-1]
        assert [(node.name, node.ino, type(node)) for node in again] == listed
        assert [directory.found(name)[0] for name, _, _ in listed] == list(range(len(listed)))
        with pytest.raises(NotFound):
            directory.found("no such name")


def test_a_video_is_a_file_and_a_folder() -> None:
    video = Array(b"rgb", Memory(bytes(3 * 2 * 2 * 3)), "|u1", (3, 2, 2, 3))
    tree = tree_of([Member((b"rgb",), video), Member((b"rgb", b"note"), Text(b"note", Memory(b"hi")))])
    assert paths_of(tree) == {"/rgb.npy", "/rgb/", "/rgb/note.txt", *(f"/rgb/00000{number}.png" for number in range(3))}


# Nodes: numbers, laziness, errors.


def test_inode_numbers_are_the_same_again_and_differ_by_container() -> None:
    leaves: list[MadeLeaf] = [((b"d", b"%d" % number), ".bin") for number in range(300)]

    def numbers(identity: str) -> dict[str, int]:
        group = Group(b"", lambda: numbered(leaves))
        root = container_root(group, origin(identity))
        return {path: node.ino for path, node in Tree(lambda: root).walk()}

    first, again, other = numbers("1:2:3:4"), numbers("1:2:3:4"), numbers("1:2:3:5")
    assert first == again
    assert len(set(first.values())) == len(first)
    assert not set(first.values()) & set(other.values())


@given(st.text(), st.integers(0, (1 << 63) - 1))
@settings(deadline=None)
def test_inode_numbers_are_positive_as_signed_numbers(name: str, parent: int) -> None:
    name = name.encode("utf-8", "replace").decode()
    assert 0 < inode(name, parent) < 1 << 63


def test_members_are_made_when_a_directory_is_listed() -> None:
    asked: list[str] = []

    def inner() -> Iterator[Member]:
        asked.append("inner")
        yield Member((b"x",), Null(b"x"))

    def bad() -> Iterator[Member]:
        asked.append("bad")
        raise Damaged("the section is cut")

    tree = tree_of([Member((b"inner",), Group(b"inner", inner)), Member((b"bad",), Group(b"bad", bad))])
    assert {node.name: (node.mode, node.xattrs()["user.glassfs.key"]) for node in tree.root.listing()} == {
        "inner": (0o040555, b"inner"), "bad": (0o040555, b"bad"),
    }
    assert asked == []
    with pytest.raises(Damaged, match="the section is cut"):
        tree.lookup("/bad/x")
    assert {node.name for node in tree.directory("/inner").listing()} == {"x.null"}
    tree.lookup("/inner/x.null")
    assert asked == ["bad", "inner"]


def test_attributes_tell_the_content() -> None:
    data = Memory(bytes(24))
    node = tree_of([Member((b"raw\xff",), Array(b"raw\xff", data, "<f4", (2, 3), "float32"))]).root.listing()[0]
    assert node.xattrs() == {
        "user.glassfs.key": b"raw\xff", "user.glassfs.format": b"made", "user.glassfs.dtype": b"float32",
        "user.glassfs.shape": b"[2, 3]",
    }


def test_attributes_that_fail_say_why() -> None:
    def shape() -> tuple[int, ...]:
        raise Damaged("block 3 is bad")

    node = tree_of([Member((b"a",), Array(b"a", Memory(b""), "<f4", shape))]).root.listing()[0]
    assert node.xattrs()["user.glassfs.error"] == b"block 3 is bad"


# The tree: paths, walking, what it remembers.

SMALL: list[MadeLeaf] = [((b"a", b"b", b"c"), ".bin"), ((b"a", b"d"), ".bin"), ((b"e",), ".bin")]


def test_looking_up_paths() -> None:
    tree = tree_of(numbered(SMALL))
    assert tree.lookup("/") is tree.root
    assert isinstance(tree.lookup("/a/b"), Directory)
    assert isinstance(tree.lookup("/a/b/c.bin"), File)
    for missing in ("/x", "/a/x", "/x/y/z", "/a/b/c"):
        with pytest.raises(NotFound):
            tree.lookup(missing)
    for through_file in ("/e.bin/x", "/a/b/c.bin/x/y"):
        with pytest.raises(NotADirectory):
            tree.lookup(through_file)


@pytest.mark.parametrize(("typed", "meant"), [
    ("a/b/c.bin", "/a/b/c.bin"), ("//a//b///c.bin", "/a/b/c.bin"), ("./a/./b/c.bin", "/a/b/c.bin"),
    ("/a/../a/b/c.bin", "/a/b/c.bin"), ("../../e.bin", "/e.bin"), ("a/b/c.bin/", "/a/b/c.bin"), ("e.bin", "/e.bin"),
    *((typed, "/") for typed in ("", ".", "//", "..", "/a/..")),
])
def test_paths_as_people_write_them(typed: str, meant: str) -> None:
    tree = tree_of(numbered(SMALL))
    assert tree.lookup(typed).ino == tree.lookup(meant).ino
    if meant == "/":
        assert {path for path, _ in tree.walk(typed)} == {"/a", "/a/b", "/a/b/c.bin", "/a/d.bin", "/e.bin"}
        with pytest.raises(IsADirectory, match="is not a file"):
            tree.file(typed)


def test_walking_gives_parents_first_and_goes_on_after_errors() -> None:
    def bad() -> Iterator[Member]:
        raise Damaged("cut")

    tree = tree_of([*numbered(SMALL), Member((b"bad",), Group(b"bad", bad))])
    errors: list[tuple[str, str]] = []
    paths = [path for path, _ in tree.walk(on_error=lambda path, error: errors.append((path, str(error))))]
    assert set(paths) == {"/a", "/a/b", "/a/b/c.bin", "/a/d.bin", "/e.bin", "/bad"}
    assert all(path.rpartition("/")[0] in ("", *paths[:number]) for number, path in enumerate(paths))
    assert errors == [("/bad", "cut")]
    assert {path for path, _ in tree.walk("/a/b/")} == {"/a/b/c.bin"}
    with pytest.raises(Damaged):
        list(tree.walk())


def test_directories_by_path_are_bounded() -> None:
    directories: Any = _Directories(None, None, 3)
    directory = SimpleNamespace(origin=SimpleNamespace(lease=Lease(())))
    for number in range(5):
        directories._put(f"/{number}", directory, 1)
        assert f"/{number}" in directories._cached and len(directories._cached) <= 3


# Series: directories of numbered contents, made on demand.


def series(count: int, digits: int = 1, has_groups: bool = False) -> tuple[Series, list[int]]:
    made: list[int] = []

    def item(number: int) -> Content:
        made.append(number)
        inner = Blob(b"x", Memory(str(number).encode()))
        return Group(b"g", lambda: [Member((b"x",), inner)], 0) if has_groups else inner

    return Series(b"s", range(count), item, digits, has_groups), made


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
    content = Series(b"s", range(12), lambda number: Array(b"", Memory(bytes(number)), "|u1", (number,), label=label))
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


# Facts: what a listing reports of all children, without making more than has to be.


CONTENTS: dict[str, Callable[[Data], Content]] = {
    "blob": lambda data: Blob(b"", data),
    "picture": lambda data: EncodedImage(b"", data, "png"),
    "image": lambda data: Image(b"", data, 5, data.size // 5, 1),
    "array": lambda data: Array(b"", data, "|u1", (data.size,)),
}


@given(
    st.sampled_from(list(CONTENTS)), st.lists(st.integers(1, 9).map(lambda rows: 5 * rows), max_size=12), st.booleans(),
    st.tuples(st.integers(0, 13), st.integers(0, 13)),
)
@settings(deadline=None)
def test_facts_of_a_series_that_knows_its_sizes(
    kind: str, sizes: list[int], has_sizes: bool, part: tuple[int, int],
) -> None:
    made = []

    def item(number: int) -> Content:
        made.append(number)
        return CONTENTS[kind](Memory(bytes(sizes[number])))

    content = Series(b"s", range(len(sizes)), item, 3, is_uniform=len(set(sizes)) == 1)
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

    content = Series(b"s", range(count), lambda number: Blob(b"", Memory(bytes(number))), sizes=sizes)
    folder = tree_of([Member((b"s",), content)]).directory("/s")
    assert isinstance(folder, Settled)
    for start in (0, 1, FACTS_AT_ONCE - 1):
        assert list(folder.facts(start, count)) == facts_of_nodes(folder, start, count)
    asked.clear()
    next(folder.facts(3, count))
    assert asked == [3]


def test_facts_of_a_mixed_series_make_no_more_than_are_taken() -> None:
    """A mount asks for the rest of a listing at each reply, and takes what fits into it."""
    made = []

    def item(number: int) -> Content:
        made.append(number)
        return EncodedImage(b"", Memory(bytes(number)), ("jpeg", "png")[number % 2])

    folder = tree_of([Member((b"s",), Series(b"s", range(1000), item, 3, is_mixed=True))]).directory("/s")
    assert isinstance(folder, Settled)
    facts = folder.facts(3, 1000)
    assert [next(facts)[0], next(facts)[0]] == [b"003.png", b"004.jpg"]
    assert set(made) == {3, 4}


def test_facts_read_nothing() -> None:
    """A size that takes reading is left out; the nodes of a folder with contents of all kinds report the others."""
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
