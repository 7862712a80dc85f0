"""The cache of parsed containers: its memory budget, leases that outlive its entries, and its listeners."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from glassfs.cache import BlockCache
from glassfs.content import Container, Group, Member
from glassfs.errors import Changed, NotFound
from glassfs.formats import registry
from glassfs.formats.registry import Format, Opening
from glassfs.source import Named
from glassfs.tree import ContainerSettings, Sources
from glassfs.tree.containers.lease import CONTAINER_COST, parse
from glassfs.tree.lease import Lease
from glassfs.tree.sources.folder import ContainerDirectory
from tests.conftest import DATA
from tests.helpers import opening, walk
from tests.memory_store import MemoryStore
from tests.tree.made import FORMAT, made
from tests.weights import weight_of


def many(count: int) -> MemoryStore:
    return MemoryStore({f"{number:04d}": made(a=b"%04d" % number) for number in range(count)})


def sources_within(store: MemoryStore, budget: int, limit: int = 10_000, **listeners: Any) -> Sources:
    """Return the tree of a store, with this memory budget for its parsed containers."""
    return Sources([Named(store, (), "memory")], ContainerSettings(BlockCache(), limit, budget), **listeners)


def container_at(sources: Sources, path: str) -> ContainerDirectory:
    node = sources.tree.lookup(path)
    assert isinstance(node, ContainerDirectory)
    return node


def weight(sources: Sources) -> int:
    """Return the bytes counted for all parsed containers."""
    return sum(CONTAINER_COST + opened.container.held() for opened in sources.containers.all_open())


def test_parsed_containers_stay_within_the_budget() -> None:
    store = many(50)
    one = sources_within(store, 1 << 20)
    container_at(one, "/0000")
    each = weight(one)
    one.tree.close()
    sources = sources_within(store, 10 * each + each // 2)
    for number in range(50):
        assert container_at(sources, f"/{number:04d}").child("a.bin")
    kept = [opened.container.sources[0].name[-4:] for opened in sources.containers.all_open()]
    assert kept == [f"{number:04d}" for number in range(40, 50)]
    assert len(store.held) == 10
    assert weight(sources) <= 10 * each + each // 2
    sources.tree.close()
    assert weight(sources) == 0


def test_a_leased_deleted_container_can_be_parsed_again() -> None:
    store = many(3)
    sources = sources_within(store, 1)
    directory = container_at(sources, "/0000")
    with directory.origin.lease:
        assert directory.child("a.bin").read(0, 9) == b"0000"
        store.remove("0000")
        assert sources.refresh() == ["/0000"]
        for number in (1, 2, 1):
            container_at(sources, f"/{number:04d}").listing()
            assert directory.count == 1
            assert directory.child("a.bin").read(0, 9) == b"0000"
        assert directory.origin.lease.is_retired
    assert {source.name for source in store.held} <= {"memory/0001", "memory/0002"}
    container_at(sources, "/0002").listing()
    with pytest.raises(Changed):
        directory.child("a.bin")


def test_a_replaced_container_is_not_parsed_again() -> None:
    store = many(2)
    sources = sources_within(store, 1)
    directory = container_at(sources, "/0000")
    with directory.origin.lease:
        assert directory.child("a.bin").read(0, 9) == b"0000"
        container_at(sources, "/0001")
        store.put("0000", made(a=b"new"))
        assert sources.refresh() == ["/0000"]
        with pytest.raises(Changed):
            directory.child("a.bin")
        assert container_at(sources, "/0000").child("a.bin").read(0, 9) == b"new"
    assert len(store.held) == 1


@pytest.mark.parametrize("change", ["put", "remove"])
def test_evicted_containers_are_still_watched(change: str) -> None:
    store = many(300)
    sources = sources_within(store, 1)
    leases = [container_at(sources, f"/{number:04d}").origin.lease for number in range(300)]
    getattr(store, change)(*(("0007", made(b=b"new")) if change == "put" else ("0007",)))
    told = [path for _ in range(2) for path in sources.refresh()]
    assert told == ["/0007"]
    assert [lease.is_retired for lease in leases].count(True) == 1
    assert leases[7].is_replaced == (change == "put")


def test_on_drop_reports_evicted_and_exchanged_contents() -> None:
    store = many(3)
    told: list[Lease] = []
    sources = sources_within(store, 1, on_drop=told.append)
    first = container_at(sources, "/0000").origin.lease
    assert told == []
    second = container_at(sources, "/0001").origin.lease
    assert told == [first]
    store.set_permissions("0001", 0o600)
    sources.refresh()
    assert told == [first, second]
    assert not second.is_retired
    store.put("0001", made())
    sources.refresh()
    assert told == [first, second, second]
    assert second.is_replaced


def test_parts_that_are_held_are_used_again() -> None:
    store = MemoryStore({"m": made(parts=["one", "two"]), "one": b"1", "two": b"2", "other": made(a=b"a")})
    sources = sources_within(store, 1)
    directory = container_at(sources, "/m")
    parts = set(directory.origin.lease.sources)
    with directory.origin.lease:
        assert sources.tree.file("/m/parts/two.bin").read(0, 9) == b"2"
        container_at(sources, "/other")
        again = directory.opened()
        assert set(again.container.sources) == parts
        assert again.lease is directory.origin.lease
        for name in ("m", "one", "two"):
            store.remove(name)
        sources.refresh()
        container_at(sources, "/other")
        assert sources.tree.root.listing()
        assert directory.child("parts").child("two.bin").read(0, 9) == b"2"
    sources.tree.close()
    assert not store.held


def test_unused_siblings_do_not_belong_to_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(opening: Opening) -> Container:
        opening.sibling("unused")
        return Container("asks", "1", Group(b"", list), [opening.source])

    monkeypatch.setattr(registry, "built_in", lambda: iter([Format("asks", lambda head: head == b"ask", opened)]))
    store = MemoryStore({"some": b"ask", "unused": b""})
    sources = sources_within(store, 1 << 20)
    directory = container_at(sources, "/some")
    assert [source.name for source in directory.origin.lease.sources] == ["memory/some"]
    assert {source.name for source in store.held} == {"memory/some"}


def test_a_container_is_read_without_a_file_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(opening: Opening) -> Container:
        sources = [opening.source]
        with suppress(NotFound):
            sources.append(opening.sibling("extra"))
        return Container("asks", "1", Group(b"", list), sources)

    formats = [FORMAT, Format("asks", lambda head: head == b"ask", opened)]
    monkeypatch.setattr(registry, "built_in", lambda: iter(formats))
    store = MemoryStore({"some": b"ask", "other": made()})
    sources = sources_within(store, 1)
    directory = container_at(sources, "/some")
    for _ in range(2):
        container_at(sources, "/other")  # which evicts it
        assert list(directory.listing()) == []
    assert container_at(sources, "/some").origin.identity == directory.origin.identity
    store.put("extra", b"")
    assert container_at(sources, "/some").origin.identity != directory.origin.identity
    assert directory.origin.lease.is_retired


def test_a_container_made_of_other_files_than_before_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(["one", "two", "two"])

    def opened(opening: Opening) -> Container:
        return Container("asks", "1", Group(b"", list), [opening.source, opening.sibling(next(asked))])

    formats = [FORMAT, Format("asks", lambda head: head == b"ask", opened)]
    monkeypatch.setattr(registry, "built_in", lambda: iter(formats))
    store = MemoryStore({"some": b"ask", "one": b"", "two": b"", "other": made()})
    sources = sources_within(store, 1)
    directory = container_at(sources, "/some")
    container_at(sources, "/other")
    with pytest.raises(Changed, match="other files"):
        directory.listing()
    assert directory.origin.lease.is_replaced
    assert container_at(sources, "/some").origin.identity != directory.origin.identity
    sources.tree.close()
    assert not store.held


def test_a_container_weighs_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At opening or later, from its allowance or beside it: the budget holds."""

    def opened(opening: Opening) -> Container:
        opening.allowance.take(200_000, "objects")

        def members() -> list[Member]:
            opening.allowance.take(300_000, "objects")
            return []

        return Container("greedy", "1", Group(b"", members), [opening.source], held=lambda: 200_000)

    monkeypatch.setattr(registry, "built_in", lambda: iter([Format("greedy", lambda head: True, opened)]))
    store = MemoryStore({f"{number}": b"x" for number in range(60)})
    sources = sources_within(store, 5_000_000)
    for number in range(60):
        container_at(sources, f"/{number}").listing()
    assert len(sources.containers.all_open()) <= 8  # each is 0.7 MB by now, and the last one is not weighed again yet
    sources.refresh()
    assert len(sources.containers.all_open()) <= 7
    assert 3_000_000 < weight(sources) <= 5_000_000


@pytest.mark.parametrize("name", ["idv", "ikv", "kas", "kdb", "safetensors", "trees", "wshard"])
def test_formats_say_what_containers_hold(name: str) -> None:
    paths = sorted(path for path in DATA.glob(f"*/*.{name}"))
    assert paths
    for path in paths:
        container = parse(opening(path))
        for _, content in walk(container.root):
            content.attributes()
        assert weight_of(container) < 1.25 * (CONTAINER_COST + container.held()), path
