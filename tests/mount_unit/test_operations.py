"""The file system's answers, driven by hand over a tree in memory, without a kernel."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.content import Array, Blob, Group, Member, Memory, Records, Unreadable
from glassfs.errors import Changed, Damaged, IsADirectory, NotADirectory, NotFound
from glassfs.mount.errors import Answer
from glassfs.mount.operations import Entry, Listing, Operations
from glassfs.mount.options import MountOptions
from glassfs.tree import Node, Symlink, Tree
from glassfs.tree.build import container_root
from glassfs.tree.nodes import FixedDirectory
from tests.tree.trees import origin, tree_of

BIG = bytes(range(256)) * 40


def members() -> Iterator[Member]:
    yield Member((b"big",), Blob(b"big", Memory(BIG)))
    yield Member((b"dir", b"a"), Array(b"dir/a", Memory(bytes(8)), "<f8", (1,)))
    yield Member((b"dir", b"inner", b"b"), Blob(b"b", Memory(b"b")))
    yield Member((b"bad",), Blob(b"bad", Unreadable(1000, "block 7 is bad")))
    yield Member((b"rows",), Records(b"rows", 2, lambda block: ["row"] * 3, ("rows",)))


def operations(*options: str, tree: Tree | None = None) -> Operations:
    return Operations(tree or tree_of(members()), MountOptions.parse(options), lambda: 10_000)


def answer(number: int) -> Any:
    return pytest.raises(Answer, check=lambda error: error.errno == number)


def test_attributes_are_those_of_the_nodes() -> None:
    ops = operations()
    file = ops.attributes(ops.tree.lookup("/big.bin"))
    assert (stat.S_ISREG(file.mode), file.mode & 0o7777, file.nlink, file.size) == (True, 0o444, 1, len(BIG))
    assert file.blocks == 20
    assert (file.uid, file.gid, file.mtime_ns) == (7, 8, 9 * 10**9)
    folder = ops.attributes(ops.tree.lookup("/dir"))
    assert (stat.S_ISDIR(folder.mode), folder.mode & 0o7777, folder.nlink) == (True, 0o555, 3)
    assert ops.attributes(ops.tree.root).nlink == 3


def test_options_change_owner_and_mode() -> None:
    ops = operations("uid=1000,gid=0", "umask=077")
    found = ops.attributes(ops.tree.lookup("/dir/a.npy"))
    assert (found.uid, found.gid, found.mode) == (1000, 0, 0o100400)
    assert ops.attributes(ops.tree.lookup("/dir")).mode == 0o040500


def test_a_listing_does_not_wait_for_sizes_that_need_a_pass() -> None:
    ops = operations()
    rows = ops.tree.lookup("/rows.jsonl")
    assert ops.known_attributes(rows) is None
    assert ops.attributes(rows).size == 6 * len('"row"\n')
    assert ops.known_attributes(rows) is not None
    big = ops.tree.lookup("/big.bin")
    assert ops.known_attributes(big) == ops.attributes(big)


def test_reads_are_positional_and_stop_at_the_end() -> None:
    ops = operations()
    handle = ops.open("/big.bin", os.O_RDONLY).number
    buffer = bytearray(300)
    for offset in (5000, 0, len(BIG) - 100, 5000):
        count = ops.read_into(handle, memoryview(buffer), offset)
        assert bytes(buffer[:count]) == BIG[offset : offset + 300]
    for offset in (len(BIG), len(BIG) + 1, 1 << 60):
        assert ops.read_into(handle, memoryview(buffer), offset) == 0


def test_handles_are_apart_and_end_with_release() -> None:
    ops = operations()
    first, second = (ops.open("/big.bin", os.O_RDONLY).number for _ in range(2))
    assert first != second
    assert ops.open_paths() == ["/big.bin"] * 2
    ops.release(first)
    assert ops.open_paths() == ["/big.bin"]
    assert ops.read_into(second, memoryview(bytearray(4)), 0) == 4
    ops.release(second)
    assert ops.open_paths() == []


def test_ten_thousand_openings_by_threads_leave_nothing() -> None:
    ops = operations()

    def use(number: int) -> bytes:
        handle = ops.open("/big.bin", os.O_RDONLY).number
        buffer = bytearray(10)
        ops.read_into(handle, memoryview(buffer), number)
        ops.release(handle)
        listing = ops.opendir("/dir")
        assert len(list(ops.listing(listing).entries())) == 2
        ops.releasedir(listing)
        return bytes(buffer)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(use, range(10_000))) == [BIG[number : number + 10] for number in range(10_000)]
    assert ops.open_paths() == []


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND])
def test_opening_for_writing_is_a_read_only_file_system(flags: int) -> None:
    with answer(errno.EROFS):
        operations().open("/big.bin", flags)


def test_what_the_tree_raises_goes_through() -> None:
    ops = operations()
    with pytest.raises(NotFound):
        ops.open("/none", os.O_RDONLY)
    with pytest.raises(IsADirectory):
        ops.open("/dir", os.O_RDONLY)
    with pytest.raises(NotADirectory):
        ops.opendir("/big.bin")
    handle = ops.open("/bad.bin", os.O_RDONLY).number
    with pytest.raises(Damaged, match="block 7 is bad"):
        ops.read_into(handle, memoryview(bytearray(10)), 0)


def test_a_replaced_file_gives_no_more_bytes() -> None:
    """The kernel keeps pages by path: old ones must not get among the new."""
    ops = operations()
    handle = ops.open("/big.bin", os.O_RDONLY).number
    ops.tree.lookup("/big.bin").origin.is_replaced = True
    with pytest.raises(Changed, match="replaced"):
        ops.read_into(handle, memoryview(bytearray(10)), 0)


def test_pages_are_kept_for_one_version_only() -> None:
    """Of a path opened again the kernel keeps pages; of a newer version it does not, and the old handle ends."""
    tree = tree_of(members())
    ops = operations(tree=tree)
    first = ops.open("/big.bin", os.O_RDONLY)
    assert (first.is_direct, first.keeps_pages) == (False, False)
    ops.read_into(first.number, memoryview(bytearray(3)), 0)
    ops.release(first.number)
    second = ops.open("/big.bin", os.O_RDONLY)
    assert (second.is_direct, second.keeps_pages) == (False, True)
    newer = container_root(Group(b"", lambda: [Member((b"big",), Blob(b"big", Memory(b"new")))]), origin("1:2:9:9"))
    tree.replace_root(newer)
    third = ops.open("/big.bin", os.O_RDONLY)
    assert (third.is_direct, third.keeps_pages) == (True, False)
    with pytest.raises(Changed):
        ops.read_into(second.number, memoryview(bytearray(3)), 0)
    buffer = bytearray(3)
    assert ops.read_into(third.number, memoryview(buffer), 0) == 3
    assert buffer == b"new"


def test_a_listing_stays_what_it_was_when_opened() -> None:
    state = [Member((b"a",), Blob(b"a", Memory(b"")))]
    tree = Tree(FixedDirectory("", 1, origin(), {}))
    tree.replace_root(tree_of(state).root)
    ops = operations(tree=tree)
    handle = ops.opendir("/")
    tree.replace_root(tree_of([]).root)
    assert [entry.name for entry in ops.listing(handle).entries()] == [b"a.bin"]
    again = ops.opendir("/")
    assert list(ops.listing(again).entries()) == []


MADE = tuple(Symlink(str(number), number, origin(), "") for number in range(20))


@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25), st.sampled_from(["at once", "late", "never"]))))
def test_a_listing_goes_on_anywhere_whatever_was_made_ahead(steps: list[tuple[int, int, str]]) -> None:
    late: list[Callable[[], object]] = []
    when = ""

    def run(task: Callable[[], object]) -> None:
        if when == "at once":
            task()
        elif when == "late":
            late.append(task)

    listing = Listing(MADE, lambda node: Entry(node.name.encode(), node, None), run)
    for start, count, how in steps:
        when = how
        assert [entry.node for entry in listing.entries(start)] == list(MADE[start:])
        listing.expect(start, count)
    for task in late:
        task()
    assert [entry.node for entry in listing.entries()] == list(MADE)


def test_a_listing_makes_what_is_expected_once_and_no_more() -> None:
    made = []

    def entry(node: Node) -> Entry:
        made.append(node.name)
        return Entry(node.name.encode(), node, None)

    listing = Listing(MADE, entry, lambda task: task())
    listing.expect(5, 3)
    assert made == ["5", "6", "7"]
    rest = listing.entries(5)
    assert [next(rest).name for _ in range(4)] == [b"5", b"6", b"7", b"8"]
    assert made == ["5", "6", "7", "8"]


def test_links_are_read() -> None:
    target = "../über"
    root = FixedDirectory("", 1, origin(), {"link": Symlink("link", 2, origin(), target)})
    ops = operations(tree=Tree(root))
    assert ops.readlink("/link") == target
    assert stat.S_ISLNK(ops.attributes(ops.tree.lookup("/link")).mode)
    assert ops.attributes(ops.tree.lookup("/link")).size == len(target.encode())
    with answer(errno.EINVAL):
        operations().readlink("/big.bin")


def test_extended_attributes() -> None:
    ops = operations()
    assert ops.getxattr("/dir/a.npy", "user.glassfs.shape") == b"[1]"
    assert ops.getxattr("/dir/a.npy", "user.glassfs.key") == b"dir/a"
    assert set(ops.listxattr("/dir/a.npy")) == {f"user.glassfs.{name}" for name in ("key", "format", "dtype", "shape")}
    with answer(errno.ENODATA):
        ops.getxattr("/dir/a.npy", "user.other")
    for name in ("security.selinux", "system.posix_acl_access", "trusted.x", ""):
        with answer(errno.ENOTSUP):
            ops.getxattr("/dir/a.npy", name)
    with pytest.raises(NotFound):
        ops.getxattr("/none", "user.glassfs.key")


def test_the_file_system_is_as_large_as_its_sources_and_full() -> None:
    found = operations().statfs()
    assert found["f_blocks"] * found["f_frsize"] >= 10_000 > (found["f_blocks"] - 1) * found["f_frsize"]
    assert found["f_namemax"] == 255
    assert not any(found.get(name) for name in ("f_bfree", "f_bavail", "f_ffree"))


def test_a_directory_that_fails_has_attributes() -> None:
    def bad() -> Iterator[Member]:
        raise Damaged("cut")
        yield

    ops = operations(tree=tree_of([Member((b"bad",), Group(b"bad", bad))]))
    node = ops.tree.lookup("/bad")
    assert ops.known_attributes(node) is None
    assert ops.attributes(node).nlink == 2
    with pytest.raises(Damaged):
        ops.opendir("/bad")
