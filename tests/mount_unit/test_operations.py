"""The file system's answers, driven by hand over trees in memory, without a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from glassfs.content import Group, Member
from glassfs.errors import Changed, Damaged, NotADirectory, NotFound
from glassfs.mount import operations as operations_module
from glassfs.mount.inodes import ROOT
from glassfs.settings import settings
from glassfs.tree import Node
from glassfs.tree.build import container_root
from glassfs.tree.containers.lease import Location
from glassfs.tree.nodes import FixedDirectory
from tests.memory_store import MemoryStore
from tests.mount_unit.kernel import Kernel, abandoned_by, nodes_of, notify_kernel, operations_over, served
from tests.mount_unit.protocol import members
from tests.tree.made import made
from tests.tree.trees import origin

pytestmark = pytest.mark.usefixtures("made_format")


def kernel_of(*options: str) -> Kernel:
    kept = list(members())
    root = container_root(Group(b"", lambda: kept), origin())
    return Kernel(operations_over(lambda: root, *options))


# Over a container


def test_listing_does_not_wait_for_costly_sizes() -> None:
    kernel = kernel_of()
    operations = kernel.operations
    listing, _ = operations.listing(ROOT, 0)
    nodes = {node.name: node for node in map(listing.node, range(len(listing)))}
    rows = nodes["rows.jsonl"]
    assert operations.known_attributes(rows) is None
    assert operations.attributes_of(rows).size == 6 * len('"row"\n')
    assert operations.known_attributes(rows) is not None
    assert operations.known_attributes(nodes["big.bin"]) == operations.attributes(kernel.find("/big.bin"))[0]


def test_directory_that_fails_has_attributes() -> None:
    def bad() -> Iterator[Member]:
        raise Damaged("cut")
        yield

    root = container_root(Group(b"", lambda: [Member((b"bad",), Group(b"bad", bad))]), origin())
    kernel = Kernel(operations_over(lambda: root))
    ident = kernel.find("/bad")
    assert kernel.operations.known_attributes(kernel.operations.node(ident)) == kernel.operations.attributes(ident)[0]
    for ask in (kernel.list, lambda ident: kernel.operations.look_up(ident, "a")):
        with pytest.raises(Damaged):
            ask(ident)


# For how long answers are good


@pytest.mark.parametrize("is_watched", [True, False])
def test_timeouts_in_containers_and_folders(is_watched: bool) -> None:
    store = MemoryStore({"c": made(a=b"a"), "plain": b"text"})
    store.can_watch = is_watched
    _, kernel = served(store)
    operations = kernel.operations
    container = operations.look_up(ROOT, "c")
    in_folder = settings.cached if is_watched else settings.cached_unwatched
    for found in (container, operations.look_up(ROOT, "plain")):
        assert (found.entry_timeout, found.timeout) == (in_folder, in_folder)
        assert operations.attributes(found.ident)[1] == settings.cached_unwatched
    inner = operations.look_up(container.ident, "a.bin")
    assert (inner.entry_timeout, inner.timeout) == (settings.cached, settings.cached)
    assert operations.attributes(inner.ident)[1] == settings.cached
    assert operations.attributes(ROOT)[1] == settings.cached_unwatched
    for parent, timeout in ((container.ident, settings.cached), (ROOT, in_folder)):
        assert operations.look_up(parent, "none") == (0, None, timeout, 0.0)


def test_names_at_the_root_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a user could fill the memory of another user's daemon with names."""
    monkeypatch.setattr(operations_module, "MAX_NAMES", 100)
    _, kernel = served(MemoryStore({"c": made(a=b"a")}), "c")
    operations = kernel.operations
    assert operations.look_up(ROOT, "a.bin").entry_timeout == settings.cached
    for number in range(1000):
        assert not operations.look_up(ROOT, f"missing{number}").ident
    stale = operations.stale([""])
    assert {(ROOT, "a.bin"), (ROOT, "missing0")} <= set(stale.entries)
    assert len(stale.entries) == 100
    # Names beyond the limit cannot be invalidated, so their timeout is short.
    assert operations.look_up(ROOT, "a.bin").entry_timeout == settings.cached_unwatched


@pytest.mark.usefixtures("quick_switches")
def test_names_are_added_while_stale_ones_are_listed() -> None:
    kernel = kernel_of()

    def look() -> None:
        for number in range(5_000):
            kernel.operations.look_up(ROOT, f"missing{number}")

    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(look)
        while not looking.done():
            kernel.operations.stale([""])
    looking.result()


# Over sources that change


def test_name_found_during_a_replacement_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel was notified before, and would cache the old entry for a day."""
    store = MemoryStore({"c": made(a=b"old")})
    sources, kernel = served(store)
    operations = kernel.operations
    container = kernel.find("/c")
    attributes_of = operations.attributes_of

    def slow(node: Node) -> object:
        store.put("c", made(a=b"newer"))
        notify_kernel(sources, kernel)
        return attributes_of(node)

    monkeypatch.setattr(operations, "attributes_of", slow)
    held = operations.inodes.held
    with pytest.raises(Changed):
        operations.look_up(container, "a.bin")
    assert operations.inodes.held == held


@pytest.mark.parametrize("names", [(), ("c",), ("c", "other")], ids=["folder", "alone", "beside another"])
def test_changed_permissions_show_in_the_whole_container(names: tuple[str, ...]) -> None:
    store = MemoryStore({"c": made(a=b"a", **{"d/b": b"b"}), "other": made(a=b"a")})
    sources, kernel = served(store, *names)
    operations = kernel.operations
    top = "" if names == ("c",) else "/c"
    paths = {f"{top}/a.bin": 0o100400, f"{top}/d": 0o040500, f"{top}/d/b.bin": 0o100400}
    idents = {path: kernel.find(path) for path in paths}
    for ident in idents.values():
        operations.attributes(ident)
    store.set_permissions("c", 0o600)
    stale = [operations.stale([place]) for place in sources.refresh()]
    assert set(idents.values()) <= {ident for one in stale for ident in nodes_of(one)}
    for path, ident in idents.items():
        assert operations.attributes(ident)[0].mode == paths[path]
        assert kernel.find(path) != ident  # its bytes may have changed, and the kernel keeps the pages of an id
        assert kernel.operations.look_up(*parent_of(kernel, path)).attributes.mode == paths[path]
    assert operations.attributes(kernel.find(top) if top else ROOT)[0].mode == 0o040500


def parent_of(kernel: Kernel, path: str) -> tuple[int, str]:
    above, _, name = path.rpartition("/")
    return kernel.find(above), name


def test_stale_entries_and_nodes_of_a_path() -> None:
    """All known nodes of a container are stale, also those from before it was closed and opened again."""
    store = MemoryStore({"sub/c": made(a=b"a", **{"d/b": b"b"}), "sub/d": made(a=b"a")})
    _, kernel = served(store, limit=1)
    operations = kernel.operations
    sub, container, file = (kernel.find(path) for path in ("/sub", "/sub/c", "/sub/c/a.bin"))
    other = kernel.find("/sub/d/a.bin")
    inner = {kernel.find("/sub/c/d"), kernel.find("/sub/c/d/b.bin")}
    stale = operations.stale(["/sub/c"])
    assert set(stale.entries) == {(sub, "c")}
    assert {container, file} | inner <= nodes_of(stale)
    assert other not in nodes_of(stale)
    # What the kernel has not asked for it cannot have; but it may remember that the name is not there.
    assert set(operations.stale(["/sub/none"]).entries) == {(sub, "none")}
    assert operations.stale(["/none/c"]).entries in ([(ROOT, "none")], ((ROOT, "none"),))
    assert container not in nodes_of(operations.stale(["/sub/d"]))


def test_recently_changed_folders_are_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another change may leave the same mtime, by which the kernel knows whether a listing that it kept is good."""
    now = 1000.0
    monkeypatch.setattr(operations_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(operations_module.time, "time_ns", lambda: 9 * 10**9 + 1)
    root = FixedDirectory("", 1, origin(), {})
    operations = operations_over(lambda: root)
    operations.listing(ROOT, 0)
    assert operations.unsettled() == []
    shown = {operations.attributes(ROOT)[0].mtime_ns}
    for _ in range(2):
        now += settings.cached_unwatched
        assert operations.unsettled() == [ROOT]
        assert operations.unsettled() == []
        shown.add(operations.attributes(ROOT)[0].mtime_ns)
    assert len(shown) == 3
    operations.listing(ROOT, 0)
    monkeypatch.setattr(operations_module.time, "time_ns", lambda: 9 * 10**9 + 2 * 10**9)
    now += settings.cached_unwatched
    assert operations.unsettled() == [ROOT]
    assert operations.attributes(ROOT)[0].mtime_ns == 9 * 10**9  # as it is, from then on
    operations.listing(ROOT, 0)
    now += settings.cached_unwatched
    assert operations.unsettled() == []


# What the mount shows of itself


def test_open_status_outlives_the_container() -> None:
    """The container is replaced while the status is open, and looked up again since."""
    store = MemoryStore({"c": made(a=b"old")})
    _, kernel = served(store, "c")
    first, contents = kernel.find("/.glassfs/status.json"), kernel.find("/a.bin")
    store.put("c", made(a=b"other"))
    assert kernel.operations.look_up(ROOT, "a.bin").attributes.size == 5
    second = kernel.find("/.glassfs/status.json")
    for ident in (first, second):
        assert len(kernel.read(ident, 10)) == 10
    with pytest.raises(Changed):
        kernel.operations.node(contents)


def test_status_belongs_to_the_owner_of_the_mount() -> None:
    """Whatever is said of owners of sources: it has names that others may not see."""
    _, kernel = served(MemoryStore({"plain": b"text"}), options=("uid=1000,gid=1000,umask=0",))
    found, _ = kernel.operations.attributes(kernel.find("/.glassfs/status.json"))
    assert (found.mode, found.uid, found.gid) == (0o100400, 7, 8)
    assert kernel.operations.attributes(kernel.find("/plain"))[0].uid == 1000


@pytest.mark.parametrize("names", [(), ("c",)], ids=["folder", "container"])
def test_own_directory_of_the_mount(names: tuple[str, ...]) -> None:
    _, kernel = served(MemoryStore({"c": made(a=b"a"), "plain": b"text"}), *names)
    shown = [".glassfs", "a.bin"] if names else [".glassfs", "c", "plain"]
    assert list(kernel.list(ROOT)) == shown
    assert list(kernel.list(kernel.find("/.glassfs"))) == ["README", "status.json", "omitted.jsonl"]
    assert list(kernel.list(kernel.find("/.glassfs/source"))) == ["c"]
    assert kernel.read(kernel.find("/.glassfs/source/c"), 5) == b"MADE\n"
    for missing in ("/.glassfs/other", "/.glassfs/source/plain", "/.glassfs/source/c/a.bin", "/c/.glassfs"):
        with pytest.raises((NotFound, NotADirectory)):
            kernel.find(missing)
    kernel.forget_all()
    assert len(kernel.operations.inodes) == 0


# Versions that are replaced


def test_look_up_in_a_replaced_version_finds_the_present_one() -> None:
    """The kernel asks again only once, and fails if that version has been replaced by then, too."""
    store = MemoryStore({"sub/c": made(a=b"old")})
    sources, kernel = served(store)
    before = kernel.find("/sub/c")
    for number in range(3):
        store.put("sub/c", made(a=b"new%d" % number))
        sources.refresh()
        found = kernel.operations.look_up(before, "a.bin")
        assert kernel.read(found.ident) == b"new%d" % number
        assert found.entry_timeout == 0.0  # the next one may find another version
    store.remove("sub/c")
    sources.refresh()
    store.put("sub/c", b"no container")
    with pytest.raises(NotADirectory):
        kernel.operations.look_up(before, "none.bin")


def test_version_is_not_replaced_by_an_older_entry() -> None:
    """One thread asked for the entry of a file, then another one opened the next version."""
    store = MemoryStore({"c": made(a=b"old")})
    sources, kernel = served(store)
    location = Location(store, ("c",))
    before = store.entry(location.path)
    store.put("c", made(a=b"new"))
    found = kernel.find("/c/a.bin")
    assert not sources.containers.watcher.check(location, before)
    assert kernel.read(found) == b"new"


@pytest.mark.parametrize("is_replaced", [True, False])
def test_ids_without_a_name_are_abandoned(is_replaced: bool) -> None:
    """Those of a directory come before its own. What is still in use in a new version is not among them."""
    store = MemoryStore({"c": made(a=b"old", **{"d/b": b"b"}), "other": made(a=b"a"), "plain": b"text"})
    sources, kernel = served(store)
    old = [kernel.find(path) for path in ("/c", "/c/d", "/c/d/b.bin", "/plain")]
    kernel.find("/other/a.bin")
    assert abandoned_by(kernel.operations) == []
    if is_replaced:
        store.put("c", made(a=b"new"))
    else:
        store.remove("c")
    store.put("plain", b"other")
    notify_kernel(sources, kernel)
    kernel.operations.stale(["/plain"])
    new = kernel.find("/plain")
    abandoned = abandoned_by(kernel.operations)
    of_container = [ident for ident in abandoned if ident != old[-1]]
    assert of_container == sorted(of_container, reverse=True)
    assert set(old) <= set(abandoned)
    assert new not in abandoned
    kernel.forget_all()
    assert abandoned_by(kernel.operations) == []
