"""Remote stores over a server in memory: the number of requests, and the answers meanwhile."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from glassfs import threads
from glassfs.cache import BlockCache
from glassfs.errors import Changed, DeviceFailed, NotADirectory, NotFound, TooLarge
from glassfs.settings import settings
from glassfs.source import Connection, Kind, Store
from glassfs.source.remote import store as module
from glassfs.source.remote import store as store_module
from glassfs.source.remote.blocks import BLOCK, RemoteBlocks
from glassfs.source.remote.store import MOST_REFRESHING, RemoteStore
from tests.source.remote.fake import FakeServer
from tests.source.store_suite import CONTENT, Lab, StoreSuite, parts
from tests.waiting import SECONDS, is_waiting, wait_until


def folder(server: FakeServer, poll: float = 1000.0, **options: object) -> RemoteStore:
    connection = Connection(poll=poll, **options)  # type: ignore[arg-type]
    return RemoteStore(server, (), connection, RemoteBlocks(BlockCache(8 << 20)), True)


class RemoteLab(Lab):
    def __init__(self) -> None:
        self.server = FakeServer()
        self.server.put("keep", b"")
        self.store = self.remote = folder(self.server)

    def put(self, path: str, data: bytes) -> None:
        self.server.put(path, data)
        self._changed(path)

    rewrite = put

    def remove(self, path: str) -> None:
        del self.server.objects[parts(path)]
        self._changed(path)

    def link(self, path: str, target: str) -> None:
        """Servers have no links."""

    def set_permissions(self, path: str, permissions: int) -> None:
        """Servers have no permissions."""

    def _changed(self, path: str) -> None:
        self.remote.close()  # drops its caches


class TestRemoteStore(StoreSuite):
    """The contract of stores, except links, permissions, and deleted files that stay readable."""

    @pytest.fixture
    def lab(self) -> RemoteLab:
        return RemoteLab()

    def test_entries_describe_files_folders_and_links(self, lab: Lab) -> None:
        lab.put("folder/inner/file.bin", CONTENT)
        file = lab.store.entry(parts("folder/inner/file.bin"))
        assert (file.kind, file.size, file.permissions) == (Kind.FILE, len(CONTENT), 0o400)
        assert lab.store.entry(()).kind is lab.store.entry(parts("folder/inner")).kind is Kind.FOLDER
        assert lab.store.entry(("folder",)).permissions == 0o500

    def test_listings_are_sorted_by_bytes_with_equal_entries(self, lab: Lab) -> None:
        names = ["\U0001f600", "é", "e\u0301", "A", "b", " ", "0"]
        for name in names:
            lab.put(f"many/{name}", b"x")
        lab.put("many/inner/one", b"x")
        found = list(lab.store.list(("many",)))
        assert [name for name, _ in found] == sorted([*names, "inner"], key=str.encode)
        assert all(entry == lab.store.entry(("many", name)) for name, entry in found)

    def test_a_parked_source_reads_its_version_only(self, lab: Lab, store: Store) -> None:
        """What is cached of it stays readable; the rest raises."""
        source = store.open(parts("folder/b"))
        lab.put("folder/b", b"other")
        source.park()
        with pytest.raises(Changed):
            source.read(0, 1)

    def test_an_open_source_survives_replacement_and_removal(self, lab: Lab, store: object) -> None:
        """A deleted object raises; other bytes are never returned."""
        source = lab.store.open(parts("folder/b"))
        lab.put("folder/b", b"other")
        with pytest.raises(Changed):
            source.read(0, 1)

    def test_a_source_is_opened_by_its_first_read(self, lab: Lab, store: object) -> None:
        entry = lab.store.entry(parts("folder/b"))
        source = lab.store.source(parts("folder/b"), entry)
        lab.remove("folder/b")
        with pytest.raises(Changed):
            source.read(0, 1)

    def test_a_rewritten_file_has_changed(self, lab: Lab, store: object) -> None:
        """Objects are never rewritten in place: it is another object."""
        before = lab.store.entry(parts("folder/b"))
        lab.put("folder/b", b"c")
        after = lab.store.entry(parts("folder/b"))
        assert before.file_id != after.file_id

    test_no_link_is_followed = None
    test_attributes_change_only_the_stamp = None


def test_folder_costs_one_listing(server: FakeServer) -> None:
    for number in range(100):
        server.put(f"folder/{number}.kdb", b"x")
    store = folder(server)
    assert len(list(store.list(("folder",)))) == 100
    assert all(store.entry(("folder", f"{number}.kdb")).size == 1 for number in range(100))
    with pytest.raises(NotFound):
        store.entry(("folder", "other"))
    assert (server.lists, server.begins, server.fetches) == (1, 0, 0)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return time.time_ns()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(store_module, "time", made)
    return made


def test_lookup_returns_an_old_listing_while_it_is_refreshed(server: FakeServer, clock: Clock) -> None:
    server.put("a", b"x")
    store = folder(server, poll=10.0)
    store.entry(("a",))
    server.gate.clear()
    server.put("a", b"xy")
    clock.now += 15
    assert store.entry(("a",)).size == 1
    server.gate.set()
    wait_until(lambda: store.entry(("a",)).size == 2)
    assert server.lists == 2


def test_lookup_waits_a_little_for_a_very_old_listing(
    server: FakeServer, clock: Clock, monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.put("a", b"x")
    store = folder(server, poll=10.0)
    store.entry(("a",))
    server.put("a", b"xy")
    clock.now += 300
    monkeypatch.setattr(settings, "listing_news", SECONDS)
    assert store.entry(("a",)).size == 2
    server.put("a", b"xyz")
    server.gate.clear()
    clock.now += 300
    monkeypatch.setattr(settings, "listing_news", 0.01)
    assert store.entry(("a",)).size == 2
    server.gate.set()
    wait_until(lambda: store.entry(("a",)).size == 3)


def test_doubt_about_an_object_spares_its_neighbors(server: FakeServer) -> None:
    server.put("a", b"old")
    server.put("b", b"x")
    store = folder(server)
    source = store.open(("a",))
    server.put("a", b"newer")
    with pytest.raises(Changed):
        source.read(0, 3)
    server.failure = DeviceFailed("does not answer", "fake")
    assert store.entry(("b",)).size == 1
    with pytest.raises(DeviceFailed):
        store.entry(("a",))
    server.failure = None
    assert store.entry(("a",)).size == 5


def test_listing_begun_before_a_doubt_does_not_settle_it(server: FakeServer, clock: Clock) -> None:
    server.put("a", b"old")
    store = folder(server, poll=10.0)
    source = store.open(("a",))
    server.gate.clear()
    clock.now += 15
    assert store.entry(("a",)).size == 3
    wait_until(lambda: server.lists == 2)
    server.put("a", b"newer")
    clock.now += 1
    with pytest.raises(Changed):
        source.read(0, 3)
    with ThreadPoolExecutor(1) as threads:
        entry = threads.submit(store.entry, ("a",))
        server.gate.set()
        assert entry.result().size == 5


def test_slow_server_does_not_delay_others(clock: Clock) -> None:
    slow, quick = FakeServer(), FakeServer()
    for number in range(40):
        slow.put(f"{number}/a", b"x")
    quick.put("a", b"x")
    there, here = folder(slow, poll=10.0), folder(quick, poll=10.0)
    for number in range(40):
        there.list((f"{number}",))
    here.list(())
    slow.gate.clear()
    clock.now += 15
    for number in range(40):
        there.entry((f"{number}", "a"))
    here.list(())
    assert quick.lists == 2 and slow.lists <= 40 + MOST_REFRESHING
    with ThreadPoolExecutor(1) as threads:
        listing = threads.submit(there.list, ("39",))
        wait_until(lambda: slow.lists == 40 + MOST_REFRESHING + 1)
        slow.gate.set()
        assert len(list(listing.result())) == 1


def test_refresh_without_threads_happens_later(
    server: FakeServer, clock: Clock, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(self: object) -> None:
        raise RuntimeError("can't start new thread")

    server.put("a", b"x")
    others = set(threading.enumerate())
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.1)
    store = folder(server, poll=10.0)
    store.entry(("a",))
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "glassfs-loads" and one not in others])
    server.put("a", b"xy")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for _ in range(3):
            clock.now += 15
            assert store.entry(("a",)).size == 1
    assert [entry.size for _, entry in store.list(())] == [2]


def test_lookups_work_while_the_server_is_silent(server: FakeServer) -> None:
    server.put("a", b"x")
    store = folder(server, poll=0.0)
    store.entry(("a",))
    server.failure = DeviceFailed("does not answer", "fake")
    before = server.lists
    assert store.entry(("a",)).size == 1
    wait_until(lambda: server.lists > before)
    assert store.entry(("a",)).size == 1
    with pytest.raises(DeviceFailed, match="does not answer"):
        store.list(())


def test_concurrent_lookups_share_one_request(server: FakeServer) -> None:
    server.put("a", b"x")
    server.gate.clear()
    store = folder(server)
    with ThreadPoolExecutor(16) as threads:
        entries = [threads.submit(store.entry, ("a",)) for _ in range(16)]
        wait_until(lambda: len(threads._threads) == 16 and all(map(is_waiting, threads._threads)))
        server.gate.set()
        assert {entry.result().size for entry in entries} == {1}
    assert server.lists == 1


def test_folder_has_the_time_of_its_last_change(server: FakeServer, clock: Clock) -> None:
    server.put("a", b"x")
    store = folder(server)
    store.list(())
    before = store.entry(()).mtime_ns
    clock.now += 2000
    store.list(())
    assert store.entry(()).mtime_ns == before
    server.put("b", b"x")
    clock.now += 2000
    store.list(())
    assert store.entry(()).mtime_ns > before


def test_too_many_names_are_an_error(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NAMES", 10)
    for number in range(11):
        server.put(f"many/{number}", b"x")
    server.put("few/1", b"x")
    store = folder(server)
    with pytest.raises(TooLarge, match="more than 10 objects"):
        store.list(("many",))
    assert len(list(store.list(("few",)))) == 1


def test_number_of_remembered_names_is_bounded(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_NAMES", 20)
    for place in range(10):
        for number in range(5):
            server.put(f"{place}/{number}", b"x")
    store = folder(server)
    for place in range(10):
        store.list((f"{place}",))
    assert server.lists == 10
    store.list(("9",))
    assert server.lists == 10
    store.list(("0",))
    assert server.lists == 11


class TestObjectsByThemselves:
    """Objects named without a folder: one request each, and no listing."""

    @pytest.fixture
    def store(self, server: FakeServer) -> RemoteStore:
        server.put("run.kdb", bytes(BLOCK + 5))
        server.put("part.0", b"part")
        return RemoteStore(server, (), Connection(poll=0.0), RemoteBlocks(BlockCache(8 << 20)), False)

    def test_one_request_returns_facts_and_head(self, server: FakeServer, store: RemoteStore) -> None:
        assert store.entry(("run.kdb",)).size == BLOCK + 5
        assert store.open(("run.kdb",)).read(0, BLOCK) == bytes(BLOCK)
        assert (server.lists, server.fetches) == (0, 0)

    def test_object_is_revalidated(self, server: FakeServer, store: RemoteStore) -> None:
        store.entry(("run.kdb",))
        store.entry(("run.kdb",))
        wait_until(lambda: server.same)
        server.put("run.kdb", b"other")
        wait_until(lambda: store.entry(("run.kdb",)).size == 5)
        del server.objects[("run.kdb",)]

        def is_gone() -> bool:
            try:
                store.entry(("run.kdb",))
            except NotFound:
                return True
            return False

        wait_until(is_gone)

    def test_siblings_are_found_and_folders_are_not(self, server: FakeServer, store: RemoteStore) -> None:
        assert store.open(("part.0",)).read(0, 4) == b"part"
        with pytest.raises(NotFound):
            store.open(("part.1",))
        with pytest.raises(NotADirectory):
            store.list(())


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()
