"""Test the contract of ``Store``. The tests of each kind of store subclass ``StoreSuite``."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.errors import Changed, Damaged, GlassfsError, NotADirectory, NotFound
from glassfs.source import Kind, Path, Store
from tests.waiting import wait_until

CONTENT = bytes(range(256)) * 40


class Lab(ABC):
    """A store, and methods to change its files. Paths have slashes."""

    store: Store

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file, with missing parent folders."""

    @abstractmethod
    def rewrite(self, path: str, data: bytes) -> None:
        """Write other bytes to the same file."""

    @abstractmethod
    def remove(self, path: str) -> None: ...

    @abstractmethod
    def link(self, path: str, target: str) -> None: ...

    @abstractmethod
    def set_permissions(self, path: str, permissions: int) -> None: ...


def parts(path: str) -> Path:
    return tuple(path.split("/"))


class StoreSuite:
    """The contract as tests. Subclasses define the fixture ``lab``."""

    @pytest.fixture
    def store(self, lab: Lab) -> Store:
        lab.put("folder/inner/file.bin", CONTENT)
        lab.put("folder/b", b"b")
        lab.put("a", b"")
        lab.link("folder/link", "../a")
        lab.link("way_out", "..")
        return lab.store

    def test_entries_describe_files_folders_and_links(self, lab: Lab, store: Store) -> None:
        file = store.entry(parts("folder/inner/file.bin"))
        assert (file.kind, file.size, file.target) == (Kind.FILE, len(CONTENT), "")
        assert store.entry(()).kind is store.entry(parts("folder/inner")).kind is Kind.FOLDER
        link = store.entry(parts("folder/link"))
        assert (link.kind, link.target) == (Kind.LINK, "../a")
        lab.set_permissions("a", 0o640)
        assert store.entry(("a",)).permissions == 0o640

    def test_listings_are_sorted_by_bytes_with_equal_entries(self, lab: Lab, store: Store) -> None:
        names = ["\udcff", "\U0001f600", "é", "e\u0301", "A", "b", " ", "b\n", "0"]
        for name in names:
            lab.put(f"many/{name}", b"x")
        found = list(store.list(("many",)))
        assert [name for name, _ in found] == sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))
        assert all(entry == store.entry(("many", name)) for name, entry in found)
        assert [(name, entry.kind) for name, entry in store.list(("folder",))] == [
            ("b", Kind.FILE), ("inner", Kind.FOLDER), ("link", Kind.LINK),
        ]
        assert [name for name, _ in store.list(())] == ["a", "folder", "many", "way_out"]

    @pytest.mark.parametrize("path", ["missing", "folder/missing", "missing/inner", "x" * 300, "\ud800", "a\0b"])
    def test_missing_paths_are_not_found(self, store: Store, path: str) -> None:
        for ask in (store.entry, store.open, store.list):
            with pytest.raises(NotFound) as raised:
                ask(parts(path))
            assert raised.value.source == store.shown(parts(path))

    def test_a_file_is_not_a_folder(self, store: Store) -> None:
        for ask in (store.entry, store.open):
            with pytest.raises(NotADirectory):
                ask(parts("a/b"))
        with pytest.raises(NotADirectory):
            store.list(("a",))

    def test_no_link_is_followed(self, store: Store) -> None:
        for path in ("folder/link", "way_out"):
            with pytest.raises(GlassfsError):
                store.open(parts(path))
            with pytest.raises(GlassfsError):
                store.list(parts(path))
        for ask in (store.entry, store.open, store.list):
            with pytest.raises(GlassfsError):
                ask(parts("way_out/folder"))

    def test_a_folder_cannot_be_opened(self, store: Store) -> None:
        for path in ((), ("folder",)):
            with pytest.raises(GlassfsError):
                store.open(path)

    def test_reads_return_ranges_of_the_file(self, store: Store) -> None:
        source = store.open(parts("folder/inner/file.bin"))
        assert (source.size, source.entry) == (len(CONTENT), store.entry(parts("folder/inner/file.bin")))

        @settings(deadline=None)
        @given(st.integers(0, len(CONTENT)), st.integers(0, len(CONTENT)))
        def check(start: int, end: int) -> None:
            start, end = sorted((start, end))
            assert source.read(start, end - start) == CONTENT[start:end]

        check()

    @pytest.mark.parametrize("offset", [len(CONTENT) - 3, len(CONTENT), 1 << 40, 1 << 70])
    def test_a_read_beyond_the_end_is_damage(self, store: Store, offset: int) -> None:
        source = store.open(parts("folder/inner/file.bin"))
        with pytest.raises(Damaged, match=r"file\.bin"):
            source.read_into(memoryview(bytearray(4)), offset)

    @pytest.mark.parametrize(("offset", "size"), [
        (0, len(CONTENT) + 1), (len(CONTENT), 1), (-1, 1), (5, -1), (1 << 62, 1), (0, 1 << 62), (1 << 70, 1),
    ])
    def test_ranges_outside_are_damage_and_allocate_nothing(self, store: Store, offset: int, size: int) -> None:
        with pytest.raises(Damaged, match=r"file\.bin"):
            store.open(parts("folder/inner/file.bin")).read(offset, size)

    def test_an_open_source_survives_replacement_and_removal(self, lab: Lab, store: Store) -> None:
        source = store.open(parts("folder/b"))
        lab.put("folder/b", b"other")
        assert store.entry(parts("folder/b")).file_id != source.entry.file_id
        assert source.read(0, 1) == b"b"
        lab.remove("folder/b")
        assert source.read(0, 1) == b"b"

    def test_a_parked_source_reads_its_version_only(self, lab: Lab, store: Store) -> None:
        source = store.open(parts("folder/b"))
        source.park()
        assert source.read(0, 1) == b"b"
        lab.put("folder/b", b"other")
        with pytest.raises(Changed):
            source.read(0, 1)
        lab.remove("folder/b")
        with pytest.raises(Changed):
            source.read(0, 1)

    def test_a_source_is_opened_by_its_first_read(self, lab: Lab, store: Store) -> None:
        entry = store.entry(parts("folder/b"))
        early, late, kept = (store.source(parts("folder/b"), entry) for _ in range(3))
        kept.keep()
        assert early.read(0, 1) == kept.read(0, 1) == b"b"
        lab.remove("folder/b")
        for parked in (early, late):
            with pytest.raises(Changed):
                parked.read(0, 1)
        assert kept.read(0, 1) == b"b"  # it holds what its first read has opened
        kept.park()
        with pytest.raises(Changed):
            kept.read(0, 1)

    def test_a_rewritten_file_has_changed(self, lab: Lab, store: Store) -> None:
        before = store.entry(parts("folder/b"))
        source = store.open(parts("folder/b"))
        lab.rewrite("folder/b", b"c")
        with pytest.raises(Changed):
            source.read(0, 1)
        after = store.entry(parts("folder/b"))
        assert before.file_id == after.file_id
        assert before.version != after.version
        assert before.stamp != after.stamp
        assert store.open(parts("folder/b")).read(0, 1) == b"c"

    def test_attributes_change_only_the_stamp(self, lab: Lab, store: Store) -> None:
        before = store.entry(parts("folder/b"))
        source = store.open(parts("folder/b"))
        lab.set_permissions("folder/b", 0o600)
        after = store.entry(parts("folder/b"))
        assert (before.version, before.file_id) == (after.version, after.file_id)
        assert before.stamp != after.stamp
        assert source.read(0, 1) == b"b"

    def test_files_of_a_store_have_one_volume(self, store: Store) -> None:
        entries = [store.entry(parts("folder/b")), *(entry for _, entry in store.list(())), store.entry(())]
        assert len({entry.volume for entry in entries}) == 1
        assert entries[0].volume

    def test_reads_after_close_raise_changed(self, store: Store) -> None:
        if store.is_remote:
            pytest.skip("a source of this store holds nothing")
        source = store.open(parts("folder/b"))
        source.close()
        source.close()
        with pytest.raises(Changed, match="closed"):
            source.read(0, 1)

    def test_a_closed_store_can_be_used_again(self, store: Store) -> None:
        store.close()
        assert store.open(parts("folder/b")).read(0, 1) == b"b"
        store.close()
        store.close()
        assert store.entry(parts("folder/b")).size == 1

    def test_watches_report_changes_in_a_folder(self, lab: Lab, store: Store) -> None:
        """Stores that cannot watch return False."""
        reported: list[tuple[Path, str]] = []
        folder = ("folder",)

        def notify(path: Path, name: str) -> None:
            reported.append((path, name))

        assert not store.watch(("missing",), notify)
        assert not store.watch(("a",), notify)
        if not store.watch(folder, notify):
            pytest.skip("this store cannot watch")
        assert store.watch(folder, notify)
        changes: list[tuple[str, Callable[[], None]]] = [
            ("new", lambda: lab.put("folder/new", b"new")),
            ("b", lambda: lab.rewrite("folder/b", b"c")),
            ("b", lambda: lab.set_permissions("folder/b", 0o600)),
            ("b", lambda: lab.put("folder/b", b"d")),
            ("b", lambda: lab.remove("folder/b")),
            ("more", lambda: lab.put("folder/more/file", b"")),
            ("soft", lambda: lab.link("folder/soft", "b")),
        ]
        for name, change in changes:
            reported.clear()
            change()
            wait_until(lambda name=name: (folder, name) in reported)
        store.close()
        reported.clear()
        lab.put("folder/unwatched", b"")
        assert store.watch(folder, notify)
        lab.put("folder/watched", b"")
        wait_until(lambda: (folder, "watched") in reported)
        assert (folder, "unwatched") not in reported
        store.close()

    def test_threads_read_a_source_while_another_parks_it(self, store: Store) -> None:
        source = store.open(parts("folder/inner/file.bin"))
        is_over = threading.Event()

        def park() -> None:
            while not is_over.is_set():
                source.park()
                source.keep()

        offsets = [number * 13 % (len(CONTENT) - 100) for number in range(400)]
        with ThreadPoolExecutor(8) as threads:
            parking = threads.submit(park)
            read = list(threads.map(lambda offset: source.read(offset, 100), offsets))
            is_over.set()
            parking.result()
        assert read == [CONTENT[offset : offset + 100] for offset in offsets]
