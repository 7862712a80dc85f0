"""Containers of a tree: which files are any, which are open, what changes, and what is held; over a store in memory."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from glassfs.errors import (
    Changed,
    DeviceFailed,
    GlassfsError,
    NotADirectory,
    NotAllowed,
    NotFound,
    Unavailable,
)
from glassfs.formats import registry
from glassfs.source import Path, Source
from glassfs.tree import Directory, File, Sources, Tree
from glassfs.tree.containers import watcher
from glassfs.tree.containers.lease import Location, OpenContainer
from tests.memory_store import MemoryStore
from tests.tree.made import FORMAT, made
from tests.tree.trees import sources_of


def value(tree: Tree, path: str) -> bytes:
    return tree.file(path).read(0, 100)


def many(count: int, **more: bytes) -> MemoryStore:
    return MemoryStore({f"{number}": made(a=b"%d" % number, **more) for number in range(count)})


def names_open(sources: Sources) -> list[str]:
    return [opened.container.sources[0].name.rpartition("/")[2] for opened in sources.containers.all_open()]


# Verdicts.


@pytest.mark.parametrize("error", [DeviceFailed("slow disk"), NotAllowed("not now")])
@pytest.mark.parametrize("where", ["opening", "reading"])
def test_an_unreadable_container_is_a_file_for_now(error: GlassfsError, where: str) -> None:
    store = many(2)
    tree = sources_of(store).tree
    getattr(store, where)["0"] = error
    node = tree.lookup("/0")
    assert isinstance(node, File)
    assert node.xattrs()["user.glassfs.error"].decode() == error.reason
    assert value(tree, "/1/a.bin") == b"1"
    getattr(store, where).clear()
    assert value(tree, "/0/a.bin") == b"0"


@pytest.mark.parametrize("where", ["opening", "reading"])
def test_lack_of_resources_is_reported_and_not_remembered(where: str) -> None:
    """Neither a plain file is shown, nor a container closed, nor anything remembered."""
    store = many(2)
    sources = sources_of(store)
    tree = sources.tree
    assert value(tree, "/1/a.bin") == b"1"
    for name in "01":
        getattr(store, where)[name] = Unavailable("too many open files")
    with pytest.raises(Unavailable):
        tree.lookup("/0")
    with pytest.raises(Unavailable):
        tree.root.listing()
    assert isinstance(tree.lookup("/1"), Directory)
    assert sources.refresh() == []
    assert names_open(sources) == ["1"]
    getattr(store, where).clear()
    assert value(tree, "/0/a.bin") == b"0"


@pytest.mark.parametrize("names", [(), ("0",)], ids=["in a folder", "named"])
def test_a_device_that_fails_for_a_while_closes_nothing(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...],
) -> None:
    store = many(1)
    sources = sources_of(store, *names)
    node = sources.tree.file("/a.bin" if names else "/0/a.bin")
    mode = sources.tree.root.mode

    def entry(path: Path) -> None:
        raise DeviceFailed("input/output error", store.shown(path))

    with monkeypatch.context() as patch:
        patch.setattr(store, "entry", entry)
        assert sources.refresh() == []
        assert sources.tree.root.mode == mode
        with pytest.raises(DeviceFailed, match="input/output error"):
            sources.tree.root.listing()
        assert node.read(0, 9) == b"0"
    assert names_open(sources) == ["0"]
    assert not node.origin.lease.is_retired


def test_a_part_that_comes_later_makes_the_container(caplog: pytest.LogCaptureFixture) -> None:
    """As copying leaves a manifest before its parts; and the log says once what is missing."""
    store = MemoryStore({"m": made(parts=["one", "two"]), "one": b"1"})
    tree = sources_of(store).tree
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert isinstance(tree.lookup("/m"), File)
    assert len(caplog.records) == 1
    opens = store.opens
    tree.lookup("/m")
    assert store.opens == opens
    store.put("two", b"2")
    assert value(tree, "/m/parts/two.bin") == b"2"


@pytest.mark.parametrize("fault", ["KeyError", "MemoryError", "ImportError"])
def test_a_failing_format_costs_only_its_container(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    store = many(1)
    store.put("bad", made(fault=fault))
    tree = sources_of(store).tree
    if fault != "KeyError":
        with pytest.raises(Unavailable):
            tree.lookup("/bad")
    else:
        assert {node.name for node in tree.root.listing()} == {"0", "bad"}
        assert tree.lookup("/bad").xattrs()["user.glassfs.error"] == b"cannot be opened: KeyError: 'of the format'"
        assert [record.exc_info is not None for record in caplog.records] == [True, False]
    assert value(tree, "/0/a.bin") == b"0"
    assert not {source for source in store.held if source.name.endswith("bad")}


def test_verdicts_are_kept_up_to_a_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "REMEMBERED_FILES", 20)
    store = many(30)
    store.put("m", made(parts=[f"{number}" for number in range(10)]))
    tree = sources_of(store, limit=1).tree

    def needs_opening(name: str) -> bool:
        opens = store.opens
        tree.lookup(f"/{name}")
        return store.opens > opens

    assert all(needs_opening(f"{number}") for number in range(30))
    assert not any(needs_opening(f"{number}") for number in range(10, 30))
    assert needs_opening("m") and not any(needs_opening(f"{number}") for number in range(21, 30))
    assert needs_opening("20")


# How many are open.


def test_looking_at_a_folder_opens_each_container_once() -> None:
    """Entering it then costs nothing; and of what is none, nothing is held."""
    store = many(30)
    store.put("m", made(parts=["1", "2"]))
    store.put("bad", made(parts=["1", "missing"]))
    store.put("plain", b"text")
    sources = sources_of(store)
    assert len(sources.tree.root.listing()) == 33
    assert len(names_open(sources)) == 31
    assert len(store.held) == 31 + 2
    opens, reads = store.opens, store.reads
    for number in range(30):
        assert sources.tree.directory(f"/{number}").listing()
    assert len(sources.tree.root.listing()) == 33
    assert (store.opens, store.reads) == (opens, reads)
    sources.tree.close()
    assert not store.held


def test_a_closed_tree_holds_nothing_and_opens_again() -> None:
    store = many(3)
    with sources_of(store).tree as tree:
        nodes = [tree.file(f"/{number}/a.bin") for number in range(3)]
        assert len(store.held) == 3
    assert not store.held
    assert [node.read(0, 9) for node in nodes] == [b"0", b"1", b"2"]
    assert not store.held
    assert value(tree, "/1/a.bin") == b"1"
    assert len(store.held) == 1
    tree.close()
    tree.close()
    assert not store.held


def test_many_threads_open_a_container_once() -> None:
    store = MemoryStore({"some": made(a=b"a")})
    sources = sources_of(store)
    entry = store.entry(("some",))
    place = Location(store, ("some",))
    store.delay = 0.01
    opens, start = store.opens, threading.Barrier(16)

    def look(_: int) -> OpenContainer:
        start.wait(60)
        return sources.containers.opened_at(place, entry.version, "/some")

    with ThreadPoolExecutor(16) as threads:
        assert len({id(opened) for opened in threads.map(look, range(16))}) == 1
    assert store.opens == opens + 1


def test_concurrent_use_and_close_leave_nothing_open() -> None:
    """Opening, closing of those used longest ago, refreshing and closing of all, beside one another."""
    store = many(12)
    sources = sources_of(store, limit=3)
    is_over = threading.Event()

    def disturb() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            store.put(f"{number % 12}", made(a=b"%d" % (number % 12)))
            sources.refresh()
            if number % 5 == 0:
                sources.tree.close()

    def look(number: int) -> bool:
        try:
            node = sources.tree.file(f"/{number % 12}/a.bin")
            with node.origin.lease:
                return node.read(0, 9) == b"%d" % (number % 12)
        except (Changed, NotADirectory):  # a file replaced at each of several attempts to open it is shown as itself
            return True

    with ThreadPoolExecutor(9) as threads:
        disturbing = threads.submit(disturb)
        try:
            assert all(threads.map(look, range(1500)))
        finally:
            is_over.set()
        disturbing.result()
    sources.tree.close()
    assert not store.held


# What changes.


def test_refresh_returns_what_changed() -> None:
    store = many(3)
    sources = sources_of(store)
    tree = sources.tree
    assert [value(tree, f"/{number}/a.bin") for number in range(3)] == [b"0", b"1", b"2"]
    assert sources.refresh() == []
    old = tree.file("/0/a.bin")
    store.put("0", made(a=b"new", more=b"more"))
    store.remove("1")
    assert sorted(sources.refresh()) == ["/0", "/1"]
    assert sources.refresh() == []
    assert (value(tree, "/0/a.bin"), value(tree, "/0/more.bin"), value(tree, "/2/a.bin")) == (b"new", b"more", b"2")
    assert (old.origin.lease.is_replaced, old.origin.lease.is_retired) == (True, True)
    with pytest.raises(NotFound):
        tree.lookup("/1/a.bin")


@pytest.mark.parametrize("change", ["put", "rewrite", "remove"])
def test_a_part_that_changes_changes_the_container(change: str) -> None:
    store = MemoryStore({"m": made(parts=["one", "two"]), "one": b"1", "two": b"2"})
    sources = sources_of(store)
    old = sources.tree.file("/m/parts/one.bin")
    getattr(store, change)(*(("two",) if change == "remove" else ("two", b"new")))
    assert sources.refresh() == ["/m"]
    assert old.origin.lease.is_retired
    if change == "remove":
        node = sources.tree.lookup("/m")
        assert isinstance(node, File)
        assert b"two" in node.xattrs()["user.glassfs.error"]
        store.put("two", b"new")
    assert value(sources.tree, "/m/parts/two.bin") == b"new"
    assert sources.tree.file("/m/parts/one.bin").ino != old.ino


def test_containers_in_watched_folders_are_compared_when_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh asks the store for others alone. A report without a name may be about any of them."""
    store = MemoryStore({"f/a": made(a=b"0"), "g/b": made(a=b"0")})
    sources = sources_of(store)
    leases = [sources.tree.file(f"/{name}/a.bin").origin.lease for name in ("f/a", "g/b")]
    assert sources.tree.directory("/f").watch()
    notify, asked, entry = store.watched["f",], list[Path](), store.entry
    monkeypatch.setattr(store, "entry", lambda path: (asked.append(path), entry(path))[1])
    assert sources.refresh() == []
    assert ("g", "b") in asked
    assert ("f", "a") not in asked
    del store.watched["f",]  # a change that is not reported by its name
    store.put("f/a", made(a=b"1"))
    store.watched["f",] = notify
    notify(("f",), "")
    assert sources.containers.watcher.changes() == ["/f", "/f/a"]
    assert [lease.is_retired for lease in leases] == [True, False]


def test_all_parts_are_compared_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some in each round, of several containers side by side."""
    monkeypatch.setattr(watcher, "COMPARED", 4)
    numbers = [f"{name}{number}" for name in "ab" for number in range(25)]
    for number in numbers:
        store = MemoryStore(dict.fromkeys(numbers, b"1"))
        for name in "ab":
            store.put(name, made(parts=[part for part in numbers if part.startswith(name)]))
        sources = sources_of(store, "a", "b", limit=5)
        store.put(number, b"2")
        changed = [path for _ in range(3) for path in sources.containers.refresh()]
        assert changed == [f"/{number[0]}"]


def test_a_container_that_keeps_changing_is_tried_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a number of times; then it is a file that says why."""
    store = many(1)
    tree = sources_of(store).tree
    open_one, rest = store.open, [3]

    def replaced(path: Path) -> Source:
        if rest[0]:
            rest[0] -= 1
            store.put("0", made(a=b"%d" % rest[0]))
        return open_one(path)

    monkeypatch.setattr(store, "open", replaced)
    node = tree.lookup("/0")
    assert isinstance(node, Directory)
    assert value(tree, "/0/a.bin") == b"0"
    rest[0] = 100
    store.put("0", b"else")
    node = tree.lookup("/0")
    assert isinstance(node, File)
    assert node.xattrs()["user.glassfs.error"] == b"has been replaced by another file"


def test_a_hint_says_why_a_named_file_is_not_a_container() -> None:
    with pytest.raises(registry.Unrecognised, match=r"^memory/file: has a letter wrong$"):
        sources_of(MemoryStore({"file": b"MAED\n"}), "file")
    assert FORMAT.hint(b"MADE\n") is None
