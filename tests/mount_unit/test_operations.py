"""The file system's answers, driven by hand over a tree in memory, without a kernel."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.content import Array, Blob, Group, Member, Memory, Records, Unreadable
from glassfs.errors import Changed, Damaged, IsADirectory, NotADirectory, NotAllowed, NotFound
from glassfs.formats import registry
from glassfs.mount import operations as operations_module
from glassfs.mount.errors import Answer
from glassfs.mount.operations import Entry, Listing, Operations
from glassfs.mount.options import MountOptions
from glassfs.mount.status import MountRoot
from glassfs.source.memory import MemoryStore
from glassfs.tree import Node, Symlink, Tree
from glassfs.tree.build import container_root
from glassfs.tree.nodes import FixedDirectory
from tests.tree.made import FORMAT, made
from tests.tree.trees import origin, sources_of, tree_of

BIG = bytes(range(256)) * 40


def members() -> Iterator[Member]:
    yield Member((b"big",), Blob(b"big", Memory(BIG)))
    yield Member((b"dir", b"a"), Array(b"dir/a", Memory(bytes(8)), "<f8", (1,)))
    yield Member((b"dir", b"inner", b"b"), Blob(b"b", Memory(b"b")))
    yield Member((b"bad",), Blob(b"bad", Unreadable(1000, Damaged("block 7 is bad"))))
    yield Member((b"rows",), Records(b"rows", 2, lambda block: ["row"] * 3))


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
    assert (stat.S_ISDIR(folder.mode), folder.mode & 0o7777, folder.nlink) == (True, 0o555, 1)
    assert ops.attributes(ops.tree.root).nlink == 1


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
    ops.tree.lookup("/big.bin").origin.lease.retire(is_replaced=True)
    with pytest.raises(Changed, match=r"^/big.bin: was replaced while it was open$"):
        ops.read_into(handle, memoryview(bytearray(10)), 0)


def test_pages_are_kept_for_one_version_only() -> None:
    """Of a path opened again the kernel keeps pages; of a newer version it does not, and the old handle ends."""
    roots = [tree_of(members()).root]
    ops = operations(tree=Tree(lambda: roots[-1]))
    first = ops.open("/big.bin", os.O_RDONLY)
    assert (first.is_direct, first.keeps_pages) == (False, False)
    ops.read_into(first.number, memoryview(bytearray(3)), 0)
    ops.release(first.number)
    second = ops.open("/big.bin", os.O_RDONLY)
    assert (second.is_direct, second.keeps_pages) == (False, True)
    newer = container_root(Group(b"", lambda: [Member((b"big",), Blob(b"big", Memory(b"new")))]), origin("1:2:9:9"))
    roots.append(newer)
    ops.tree.forget()
    third = ops.open("/big.bin", os.O_RDONLY)
    assert (third.is_direct, third.keeps_pages) == (True, False)
    with pytest.raises(Changed):
        ops.read_into(second.number, memoryview(bytearray(3)), 0)
    buffer = bytearray(3)
    assert ops.read_into(third.number, memoryview(buffer), 0) == 3
    assert buffer == b"new"


def test_a_listing_stays_what_it_was_when_opened() -> None:
    roots = [tree_of([Member((b"a",), Blob(b"a", Memory(b"")))]).root]
    ops = operations(tree=Tree(lambda: roots[-1]))
    handle = ops.opendir("/")
    roots.append(tree_of([]).root)
    ops.tree.forget()
    assert [entry.name for entry in ops.listing(handle).entries()] == [b"a.bin"]
    again = ops.opendir("/")
    assert list(ops.listing(again).entries()) == []


MADE = tuple(Symlink(str(number), number, origin(), "") for number in range(20))


@settings(deadline=None)
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
    ops = operations(tree=Tree(lambda: root))
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
    assert ops.known_attributes(node) == ops.attributes(node)
    with pytest.raises(Damaged):
        ops.opendir("/bad")


# Over sources that change.


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    return MemoryStore({"some": made(a=b"old"), "plain": b"text"})


def read(ops: Operations, handle: int) -> bytes:
    buffer = bytearray(100)
    return bytes(buffer[: ops.read_into(handle, memoryview(buffer), 0)])


def test_an_open_file_holds_its_source_until_it_is_released(store: MemoryStore) -> None:
    sources = sources_of(store)
    ops = operations(tree=sources.tree)
    handles = [ops.open(path, os.O_RDONLY).number for path in ("/some/a.bin", "/plain", "/plain")]
    assert [read(ops, handle) for handle in handles] == [b"old", b"text", b"text"]
    sources.tree.close()
    assert len(store.held) == 3
    for name in ("some", "plain"):
        store.remove(name)
    sources.refresh()
    assert [read(ops, handle) for handle in handles] == [b"old", b"text", b"text"]
    with pytest.raises(NotFound):
        ops.open("/some/a.bin", os.O_RDONLY)
    for handle in handles:
        ops.release(handle)
    assert not store.held


def test_a_file_that_is_deleted_after_it_was_opened_can_be_read(store: MemoryStore) -> None:
    """Also if nobody has read from it before; one that cannot be opened is not."""
    sources = sources_of(store)
    ops = operations(tree=sources.tree)
    handles = [ops.open(path, os.O_RDONLY).number for path in ("/plain", "/some/a.bin")]
    store.remove("plain")
    store.remove("some")
    assert [read(ops, handle) for handle in handles] == [b"text", b"old"]
    for handle in handles:
        ops.release(handle)
    store.put("plain", b"text")
    ops.node("/plain")
    store.opening["plain"] = NotAllowed("permission denied")
    with pytest.raises(NotAllowed):
        ops.open("/plain", os.O_RDONLY)
    assert ops.open_paths() == []
    assert sources.refresh() == ["/some"]
    assert not store.held


def test_two_versions_open_at_the_same_time(store: MemoryStore) -> None:
    sources = sources_of(store)
    ops = operations(tree=sources.tree)
    old = ops.open("/some/a.bin", os.O_RDONLY)
    assert read(ops, old.number) == b"old"
    store.put("some", made(a=b"newer"))
    sources.refresh()
    with pytest.raises(Changed):
        read(ops, old.number)
    new = ops.open("/some/a.bin", os.O_RDONLY)
    assert (new.is_direct, new.keeps_pages) == (True, False)
    assert read(ops, new.number) == b"newer"
    with pytest.raises(Changed):
        read(ops, old.number)
    for opened in (old, new):
        ops.release(opened.number)
    again = ops.open("/some/a.bin", os.O_RDONLY)
    assert (again.is_direct, again.keeps_pages) == (False, True)


def test_an_older_file_of_a_container_that_was_closed_meanwhile_is_not_read_under_the_new_one(
    store: MemoryStore,
) -> None:
    """Nobody watches a container that was closed for others; the newer handle under the same path tells."""
    for number in range(3):
        store.put(f"{number}", made(a=b"%d" % number))
    sources = sources_of(store, limit=1)
    ops = operations(tree=sources.tree)
    old = ops.open("/some/a.bin", os.O_RDONLY).number
    sources.tree.directory("/1").listing()
    store.put("some", made(a=b"newer"))
    assert read(ops, old) == b"old"
    assert read(ops, ops.open("/some/a.bin", os.O_RDONLY).number) == b"newer"
    with pytest.raises(Changed):
        read(ops, old)


def test_names_that_are_not_there_are_remembered_up_to_a_number(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or whoever asks for more and more of them fills the memory of a daemon that belongs to somebody else."""
    monkeypatch.setattr(operations_module, "REMEMBERED_MISSING", 100)
    ops = operations(tree=sources_of(store).tree)
    for number in range(1000):
        with pytest.raises(NotFound):
            ops.node(f"/missing{number}")
    ops.node("/some/a.bin")
    with pytest.raises(NotFound):
        ops.node("/plain2")
    assert len(ops.names_at_root()) <= 102
    assert {"some", "missing999", "plain2"} <= ops.names_at_root()


def status_of(store: MemoryStore, *names: str, **more: object) -> Tree:
    sources = sources_of(store, *names)
    shown = {"version": 1, "open": []} | more
    sources.tree.wrap_root(lambda inner: MountRoot(inner, sources, lambda: shown, (7, 8)))
    return sources.tree


@pytest.mark.parametrize("length", [10, 5000, 1_000_000])
def test_the_status_is_whole_and_of_its_size_however_long(store: MemoryStore, length: int) -> None:
    tree = status_of(store, long="x" * length)
    ops = operations("uid=1000,umask=0", tree=tree)
    opened = ops.open("/.glassfs/status.json", os.O_RDONLY)
    assert opened.is_direct
    found = ops.attributes(ops.opened(opened.number))
    buffer = bytearray(found.size + 100)
    assert ops.read_into(opened.number, memoryview(buffer), 0) == found.size
    assert json.loads(buffer[: found.size])["long"] == "x" * length
    ops.release(opened.number)
    assert ops.taken_volatile() == {"/.glassfs/status.json"}
    assert ops.taken_volatile() == set()


def test_an_open_status_outlives_the_container_around_it(store: MemoryStore) -> None:
    """Which is replaced while somebody reads the status, and another has looked at it since."""
    tree = status_of(store, "some")
    ops = operations(tree=tree)
    first = ops.open("/.glassfs/status.json", os.O_RDONLY).number
    contents = ops.open("/a.bin", os.O_RDONLY).number
    store.put("some", made(a=b"other"))
    ops.node("/")  # notices it
    assert ops.attributes(ops.node("/a.bin")).size == 5
    second = ops.open("/.glassfs/status.json", os.O_RDONLY).number
    for number in (first, second):
        assert ops.read_into(number, memoryview(bytearray(10)), 0) == 10
        ops.release(number)
    with pytest.raises(Changed):
        ops.opened(contents)
    ops.release(contents)


def test_the_status_is_the_mount_owner_s_alone(store: MemoryStore) -> None:
    """Whatever is said of owners of sources: it has names that others may not see."""
    ops = operations("uid=1000,gid=1000,umask=0", tree=status_of(store))
    found = ops.attributes(ops.node("/.glassfs/status.json"))
    assert (found.mode, found.uid, found.gid) == (0o100400, 7, 8)
    assert ops.attributes(ops.node("/plain")).uid == 1000


def test_what_the_mount_shows_of_itself(store: MemoryStore) -> None:
    tree = status_of(store)
    assert [node.name for node in tree.root.listing()] == [".glassfs", "plain", "some"]
    assert [node.name for node in tree.directory("/.glassfs").listing()] == ["status.json"]
    assert tree.file("/.glassfs/source/some").read(0, 5) == b"MADE\n"
    for missing in ("/.glassfs/other", "/.glassfs/source/plain", "/.glassfs/source/some/a.bin"):
        with pytest.raises((NotFound, NotADirectory)):
            tree.lookup(missing)
