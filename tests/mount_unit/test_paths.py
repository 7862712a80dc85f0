"""Paths and handles over node ids, driven by hand: what is found, what is remembered, and that all is given back."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassfs.errors import Changed, GlassfsError, IsADirectory, NotADirectory, NotAllowed, NotFound
from glassfs.formats import registry
from glassfs.mount.engines import paths as paths_module
from glassfs.mount.engines.paths import Handles, Paths
from glassfs.mount.errors import Answer
from glassfs.settings import settings as times
from tests.memory_store import MemoryStore
from tests.mount_unit.kernel import operations_of
from tests.tree.made import FORMAT, made
from tests.tree.trees import sources_of

STRANGE = "str\udcff nge"
SHOWN = "str%FF nge"


class Clock:
    """Advances only when a test sets it, so that no test depends on elapsed time."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class House:
    """Paths and handles of a mount of a store."""

    def __init__(self, store: MemoryStore, *names: str, limit: int = 64) -> None:
        self.store = store
        self.sources = sources_of(store, *names, limit=limit)
        numbers = itertools.count()
        self.operations = operations_of(self.sources, status=lambda: {"number": next(numbers)})
        self.paths = Paths(self.operations)
        self.handles = Handles(self.operations, self.paths)

    def size(self, path: str) -> int:
        with self.paths.at(path) as found:
            return found.attributes.size

    def open(self, path: str) -> int:
        return self.handles.open(path, os.O_RDONLY).number

    def read(self, handle: int) -> bytes:
        buffer = bytearray(100)
        return bytes(buffer[: self.handles.read_into(handle, memoryview(buffer), 0)])

    def names(self, handle: int) -> list[str]:
        return [node.name for node in self.handles.listing(handle).nodes_from(0)]

    def assert_all_given_back(self, clock: Clock) -> None:
        clock.now += times.path_cached
        self.paths.expire()
        assert (len(self.handles), len(self.operations.inodes), self.operations.inodes.held) == (0, 0, 0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))
    monkeypatch.setattr(paths_module, "time", clock)
    return clock


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore({
        "some": made({"a": b"old", "dir/inner/b": b"b"}), "folder/other": made(a=b"other"), "folder/plain": b"text",
        f"folder/{STRANGE}/c": b"c",
    })


@pytest.fixture
def house(store: MemoryStore, clock: Clock) -> Iterator[House]:
    house = House(store)
    yield house
    house.assert_all_given_back(clock)


def answer(number: int) -> Any:
    return pytest.raises(Answer, check=lambda error: error.errno == number)


def test_paths_are_looked_up(house: House) -> None:
    for path, size in (
        ("/", 0), ("/some", 0), ("/some/a.bin", 3), ("/some/dir/inner/b.bin", 1), ("/folder/plain", 4),
        ("/folder/other/a.bin", 5), (f"/folder/{SHOWN}/c", 1),
    ):
        for _ in range(2):
            assert house.size(path) == size
    for path in (
        "/none", "/some/none", "/some/dir/none/b.bin", "/folder/none", "/none/none", "/some/\udcff",
        f"/folder/{STRANGE}", "/\udcff/\udcff",
    ):
        with pytest.raises(NotFound):
            house.size(path)
    for path in ("/some/a.bin/x", "/folder/plain/x", "/folder/plain/x/y"):
        with pytest.raises(NotADirectory):
            house.size(path)


@pytest.mark.parametrize("path", ["/none", "/some/none", "/folder/none", "/folder/plain/x", "/none/none"])
def test_failed_lookups_leave_no_garbage(house: House, path: str) -> None:
    """Programs ask for what is not there all the time, and the collector of a mount comes by rarely."""
    gc.disable()
    try:
        for _ in range(2):
            try:
                house.size(path)
            except (NotFound, NotADirectory) as error:
                alive = weakref.ref(error)
            assert alive() is None
    finally:
        gc.enable()


def test_directories_on_the_way_are_looked_up_once(house: House) -> None:
    asked = []
    look_up = house.operations.look_up
    house.operations.look_up = lambda parent, name: asked.append(name) or look_up(parent, name)  # type: ignore
    for _ in range(3):
        house.size("/some/dir/inner/b.bin")
    assert asked == ["some", "dir", "inner", "b.bin", "b.bin", "b.bin"]


def test_cached_directories_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths_module, "MAX_DIRECTORIES", 2)
    for _ in range(2):
        for path in ("/some/dir/inner/b.bin", "/folder/other/a.bin", f"/folder/{SHOWN}/c"):
            house.size(path)
            assert house.operations.inodes.held <= 4  # two directories, with a child of each


def test_cached_directories_expire(house: House, clock: Clock) -> None:
    house.size("/some/dir/inner/b.bin")
    clock.now += times.path_cached / 2
    house.size("/folder/other/a.bin")
    house.paths.expire()
    held = house.operations.inodes.held
    clock.now += times.path_cached / 2
    house.paths.expire()
    assert 0 < house.operations.inodes.held < held


def test_cached_folder_that_changed_is_looked_up_again(house: House) -> None:
    assert house.size("/folder/other/a.bin") == 5
    house.store.remove("folder/other")
    house.store.put("folder/other/deep/a", b"1234567")
    assert house.size("/folder/other/deep/a") == 7
    for name in ("other/deep/a", "plain", f"{STRANGE}/c"):
        house.store.remove(f"folder/{name}")
    house.store.put("folder", made(x=b"xy"))
    assert house.size("/folder/x.bin") == 2
    with pytest.raises(NotFound):
        house.size("/folder/plain")


def test_replaced_container_is_not_cached(house: House) -> None:
    assert house.size("/some/dir/inner/b.bin") == 1
    house.store.put("some", made({"dir/inner/b": b"newer"}))
    assert house.sources.refresh() == ["/some"]
    assert house.size("/some/dir/inner/b.bin") == 5
    house.store.remove("some")
    house.sources.refresh()
    with pytest.raises(NotFound):
        house.size("/some/dir/inner/b.bin")


def test_handles_are_independent_until_released(house: House) -> None:
    first, second = house.open("/some/a.bin"), house.open("/some/a.bin")
    assert first != second
    house.handles.release(first)
    assert house.read(second) == b"old"
    house.handles.release(second)
    for number in (first, second, 0, 1 << 63):
        for call in (
            house.handles.release, house.handles.releasedir, house.handles.listing, house.handles.ident, house.read,
        ):
            with answer(errno.EBADF):
                call(number)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND])
def test_opening_for_writing_is_refused(house: House, flags: int) -> None:
    with answer(errno.EROFS):
        house.handles.open("/some/a.bin", flags)


def test_failed_open_holds_no_reference(house: House) -> None:
    with pytest.raises(IsADirectory):
        house.open("/some/dir")
    with pytest.raises(IsADirectory):
        house.open("/")
    with pytest.raises(NotFound):
        house.open("/some/none")
    for path in ("/some/a.bin", "/folder/plain"):
        with pytest.raises(NotADirectory):
            house.handles.opendir(path)
    assert house.size("/folder/plain") == 4
    house.store.opening["folder/plain"] = NotAllowed("permission denied")
    with pytest.raises(NotAllowed):
        house.open("/folder/plain")


def test_open_listings_do_not_change(house: House) -> None:
    handles = [house.handles.opendir(path) for path in ("/", "/folder", "/some/dir")]
    house.store.remove("some")
    house.store.remove("folder/plain")
    house.sources.refresh()
    found = [house.names(handle) for handle in handles]
    assert found == [[".glassfs", "folder", "some"], ["other", "plain", SHOWN], ["inner"]]
    again = house.handles.opendir("/folder")
    assert house.names(again) == ["other", SHOWN]
    for handle in (*handles, again):
        house.handles.releasedir(handle)


def test_open_file_is_readable_after_deletion(house: House) -> None:
    """Also if it was never read before and nothing else holds it."""
    handles = [house.open(path) for path in ("/folder/plain", "/some/a.bin", "/folder/other/a.bin")]
    house.sources.tree.close()
    for name in ("folder/plain", "some", "folder/other"):
        house.store.remove(name)
    house.sources.refresh()
    assert [house.read(handle) for handle in handles] == [b"text", b"old", b"other"]
    with pytest.raises(NotFound):
        house.open("/some/a.bin")
    for handle in handles:
        house.handles.release(handle)


def test_kernel_keeps_pages_of_one_version_only(house: House) -> None:
    """Of a path opened again the kernel keeps pages; of a newer version it does not, and the old handle ends."""
    first = house.handles.open("/some/a.bin", os.O_RDONLY)
    assert (first.is_direct, first.keeps_pages) == (False, False)
    # The kernel drops the older pages when it gets the answer, which may be after this.
    assert not house.handles.open("/some/a.bin", os.O_RDONLY).keeps_pages
    assert house.read(first.number) == b"old"
    second = house.handles.open("/some/a.bin", os.O_RDONLY)
    assert (second.is_direct, second.keeps_pages) == (False, True)
    house.store.put("some", made(a=b"newer"))
    house.sources.refresh()
    third = house.handles.open("/some/a.bin", os.O_RDONLY)
    assert (third.is_direct, third.keeps_pages) == (True, False)
    for number in (first.number, second.number):
        with pytest.raises(Changed):
            house.read(number)
    assert house.read(third.number) == b"newer"
    for number in range(1, third.number + 1):
        house.handles.release(number)
    last = house.handles.open("/some/a.bin", os.O_RDONLY)
    assert (last.is_direct, last.keeps_pages) == (False, True)
    house.handles.release(last.number)


def test_open_is_stale_if_the_kernel_has_an_old_size(house: House) -> None:
    """On ESTALE the kernel looks the path up again before it opens it again."""
    assert house.handles.show("/some/a.bin").size == 3
    house.handles.release(house.open("/some/a.bin"))
    house.store.put("some", made(a=b"newer"))
    house.sources.refresh()
    for _ in range(2):
        with answer(errno.ESTALE):
            house.open("/some/a.bin")
    assert house.handles.show("/some/a.bin").size == 5
    house.handles.release(house.open("/some/a.bin"))


def test_old_file_of_a_closed_container_is_not_read_as_new(
    store: MemoryStore, clock: Clock,
) -> None:
    """A container that was closed for others is not watched; the newer handle under the same path shows the change."""
    house = House(store, limit=1)
    old = house.open("/some/a.bin")
    assert house.size("/folder/other/a.bin") == 5
    store.put("some", made(a=b"newer"))
    assert house.read(old) == b"old"
    clock.now += times.path_cached
    new = house.open("/some/a.bin")
    assert house.read(new) == b"newer"
    with pytest.raises(Changed):
        house.read(old)
    for handle in (old, new):
        house.handles.release(handle)
    house.assert_all_given_back(clock)


def test_each_open_gives_a_new_status(house: House) -> None:
    first, second = (house.handles.open("/.glassfs/status.json", os.O_RDONLY) for _ in range(2))
    assert first.is_direct and second.is_direct
    assert house.read(first.number) != house.read(second.number)
    for opened in (first, second):
        house.handles.release(opened.number)


def test_remembered_versions_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths_module, "MAX_VERSIONS", 1)
    house.handles = Handles(house.operations, house.paths)
    paths = ("/some/a.bin", "/folder/plain")
    for path in paths:
        house.handles.release(house.open(path))
    opened = [house.handles.open(path, os.O_RDONLY) for path in reversed(paths)]
    assert [one.keeps_pages for one in opened] == [True, False]
    for one in opened:
        house.handles.release(one.number)


@pytest.mark.slow
def test_threads_on_the_same_paths_leak_no_reference(house: House) -> None:
    def use(number: int) -> bytes:
        if number % 7 == 0:
            house.paths.expire()
        if number % 11 == 0:
            house.store.put("some", made({"a": b"old", "dir/inner/b": b"b"}))
            house.sources.refresh()
        handle = house.open("/folder/other/a.bin")
        found = house.read(handle)
        house.handles.release(handle)
        for path in ("/some/dir/inner/b.bin", "/folder/none"):
            try:
                house.size(path)
            except GlassfsError as error:
                # A container that is exchanged while it is opened is a plain file for that look-up.
                assert isinstance(error, (Changed, NotADirectory, NotFound))
        house.handles.releasedir(house.handles.opendir("/folder"))
        return found

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(use, range(1000))) == {b"other"}


PATHS = ("/", "/some", "/some/a.bin", "/some/dir", "/some/dir/inner/b.bin", "/folder", "/folder/plain", "/folder/x/y",
         "/.glassfs/status.json", "/.glassfs/source/some", "/none")
STEPS = st.lists(st.tuples(
    st.sampled_from(["look", "open", "list", "end", "read", "put", "remove", "wait", "refresh"]),
    st.sampled_from(PATHS), st.integers(0, 9),
), max_size=40)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_every_reference_is_released(clock: Clock, steps: list[tuple[str, str, int]]) -> None:
    house = House(MemoryStore({"some": made({"a": b"0", "dir/inner/b": b"b"}), "folder/plain": b"0"}))
    files: list[int] = []
    listings: list[int] = []
    for step, path, number in steps:
        name = ("some", "folder/plain", "folder/x", "folder/x/y")[number % 4]
        with suppress(GlassfsError, Answer, KeyError):
            if step == "look":
                house.size(path)
            elif step == "open":
                files.append(house.open(path))
            elif step == "list":
                listings.append(house.handles.opendir(path))
            elif step == "read" and files:
                house.read(files[number % len(files)])
            elif step == "end" and files:
                house.handles.release(files.pop(number % len(files)))
            elif step == "put":
                house.store.put(name, made({"a": b"%d" % number, "dir/inner/b": b"b"}))
            elif step == "remove":
                house.store.remove(name)
            elif step == "wait":
                clock.now += number * times.path_cached / 8
                house.paths.expire()
            else:
                house.sources.refresh()
    for handle in files:
        house.handles.release(handle)
    for handle in listings:
        house.handles.releasedir(handle)
    house.assert_all_given_back(clock)
    house.sources.tree.close()
    assert not house.store.held
