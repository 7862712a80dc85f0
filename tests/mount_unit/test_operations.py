"""The file system's answers, driven by hand over trees in memory, without a kernel."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from glassfs.content import Group, Member, Null, Omitted
from glassfs.datasets.selecting import open_sources
from glassfs.errors import Changed
from glassfs.formats import registry
from glassfs.mount import operations as operations_module
from glassfs.mount.inodes import ROOT
from glassfs.mount.status import ListedOmissions
from glassfs.settings import settings
from glassfs.sizes import PIECE
from glassfs.tree import Node
from glassfs.tree.build import container_root
from glassfs.tree.containers.lease import Location
from glassfs.tree.nodes import FixedDirectory
from glassfs.tree.omissions import LONGEST, OMITTED, Omission, as_attributes
from tests.memory_store import MemoryStore
from tests.mount_unit.kernel import Kernel, nodes_of, notify_kernel, operations_of, operations_over, served
from tests.mount_unit.protocol import members
from tests.tree.made import FORMAT, made
from tests.tree.trees import origin

pytestmark = pytest.mark.usefixtures("made_format")


def kernel_of() -> Kernel:
    kept = list(members())
    root = container_root(Group(b"", lambda: kept), origin())
    return Kernel(operations_over(lambda: root))


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


def test_changed_folder_keeps_its_id() -> None:
    _, kernel = served(MemoryStore({"sub/c": made(a=b"a")}))
    sub = kernel.find("/sub")
    assert set(kernel.operations.stale(["/sub"]).entries) == {(ROOT, "sub")}
    assert kernel.find("/sub") == sub
    # What the kernel has not asked for it cannot have; but it may remember that the name is not there.
    assert set(kernel.operations.stale(["/sub/none"]).entries) == {(sub, "none")}


def test_changed_permissions_show_in_a_container_that_is_the_root() -> None:
    store = MemoryStore({"c": made(a=b"a", **{"d/b": b"b"})})
    sources, kernel = served(store, "c")
    operations = kernel.operations
    paths = {"/a.bin": 0o100400, "/d": 0o040500, "/d/b.bin": 0o100400}
    idents = {path: kernel.find(path) for path in paths}
    store.set_permissions("c", 0o600)
    stale = [operations.stale([place]) for place in sources.refresh()]
    assert set(idents.values()) <= {ident for one in stale for ident in nodes_of(one)}
    for path, mode in paths.items():
        assert operations.attributes(idents[path])[0].mode == mode
        assert kernel.find(path) != idents[path]  # its bytes may have changed, and the kernel keeps the pages of an id
    assert operations.attributes(ROOT)[0].mode == 0o040500


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
    monkeypatch.setattr(operations_module.time, "time_ns", lambda: 9 * 10**9 + 2 * 10**9)
    now += settings.cached_unwatched
    assert operations.unsettled() == [ROOT]
    assert operations.attributes(ROOT)[0].mtime_ns in shown  # the kernel has an older listing
    operations.listing(ROOT, 0)
    now += settings.cached_unwatched
    assert operations.unsettled() == [ROOT]
    assert operations.attributes(ROOT)[0].mtime_ns == 9 * 10**9  # as it is, from then on
    operations.listing(ROOT, 0)
    now += settings.cached_unwatched
    assert operations.unsettled() == []


# What the mount shows of itself


# Versions that are replaced


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


def test_file_with_a_hard_link_has_a_short_timeout(tmp_path: Path) -> None:
    """Changes made under its other name are not reported to a watch of this folder."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for name in ("alone", "shared"):
        (folder / name).write_bytes(made(a=b"a"))
    os.link(folder / "shared", outside / "other")
    sources = open_sources([str(folder)])
    with sources.tree:
        operations = operations_of(sources)
        if operations.look_up(ROOT, "alone").entry_timeout != settings.cached:
            pytest.skip("folders cannot be watched here")
        assert operations.look_up(ROOT, "shared").entry_timeout == settings.cached_unwatched
        os.link(folder / "alone", outside / "another")
        assert operations.look_up(ROOT, "alone").entry_timeout == settings.cached_unwatched


def test_entered_manifest_gets_another_id_and_both_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a remote store, where names decide until a container is entered."""
    monkeypatch.setattr(registry, "BUILT_IN", {FORMAT.name: FORMAT.suffixes})
    monkeypatch.setattr(registry, "_built_in", lambda name: FORMAT)
    store = MemoryStore({"m.made": made(parts=["one"]), "one": b"1"}, is_remote=True)
    store.set_permissions("one", 0o600)
    sources, kernel = served(store)
    before = kernel.find("/m.made")
    file = kernel.operations.look_up(kernel.list(before)["parts"], "one.bin").ident
    notify_kernel(sources, kernel)
    after = kernel.find("/m.made")
    assert after != before
    assert [kernel.operations.attributes(ident)[0].mode & 0o777 for ident in (before, after)] == [0o555, 0o500]
    assert kernel.list(before).keys() == kernel.list(after).keys() == {"parts"}
    assert kernel.read(file) == b"1"
    store.put("one", b"other")
    notify_kernel(sources, kernel)
    for ident in (before, after, file):
        with pytest.raises(Changed):
            kernel.operations.node(ident)
    assert kernel.read(kernel.find("/m.made/parts/one.bin")) == b"other"
    kernel.operations.inodes.forget(file, 1)
    kernel.forget_all()
    assert kernel.operations.inodes.held == 0
    assert len(store.held) == 2  # by what is parsed
    sources.containers.close()
    assert not store.held


# What is not shown


def lost(name: bytes, reason: str, is_damage: bool = False) -> Member:
    return Member((name,), Omitted(name, reason, is_damage))


def test_omissions_are_found_by_an_attribute_and_by_listings() -> None:
    """Programs that ask for the names of attributes, or for others, cost no listing."""
    listed = []

    def members() -> list[Member]:
        listed.append(1)
        return [Member((b"kept",), Null(b"kept")), lost(b"gone", "kind: reason"), lost(b"bad", "cut", True)]

    top = [Member((b"inner",), Group(b"inner", members)), lost(b"a", "too odd: why")]
    root = container_root(Group(b"", lambda: top), origin())
    kernel = Kernel(operations_over(lambda: root))
    operations, inner = kernel.operations, kernel.find("/inner")

    def met() -> list[tuple[str, str, bool]]:
        found = map(json.loads, operations.omitted.text().splitlines())
        return [(one["path"], one["name"], one["is_damage"]) for one in found]

    assert OMITTED in operations.listxattr(inner)
    assert operations.getxattr(inner, "user.glassfs.key") == b"inner"
    assert (listed, met()) == ([], [])
    assert operations.getxattr(inner, OMITTED) == b"gone: kind: reason; bad: cut"
    assert operations.getxattr(inner, "user.glassfs.error") == b"bad: cut"
    assert (listed, met()) == ([1], [("/inner", "gone", False), ("/inner", "bad", True)])
    for ident in (ROOT, inner):
        kernel.list(ident)
    assert sorted(met()) == [("/", "a", False), ("/inner", "bad", True), ("/inner", "gone", False)]


def test_collected_omissions_are_bounded_and_replaced() -> None:
    met = ListedOmissions()
    for number in range(100):
        met.note(f"/{number}", [Omission(f"{name}", "x" * 100) for name in range(1_000)])
    assert len(met.text()) <= PIECE and b'"/99"' in met.text() and b'"/0"' not in met.text()
    met.note("/99", ())
    assert b'"/99"' not in met.text()


def test_attributes_fit_into_what_linux_allows() -> None:
    found = as_attributes([Omission("é" * 120, "kind: " + "ü" * 2_000)] * 1_000)[OMITTED]
    assert LONGEST < len(found) < 1 << 16 and found.decode()
