"""Who may do what: what all files of a container grant together, and what becomes of it when a file's mode changes."""

from __future__ import annotations

import itertools
import stat
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.source import Entry
from glassfs.tree.nodes import Access
from tests.memory_store import MemoryStore
from tests.tree.made import made
from tests.tree.trees import entry, origin, sources_of

ENTRIES = st.lists(
    st.builds(entry, st.integers(0, 0o777), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4,
)
PEOPLE = [(uid, groups) for uid in range(4) for size in range(4) for groups in itertools.combinations(range(4), size)]


def granted(permissions: int, owner: int, group: int, uid: int, groups: tuple[int, ...]) -> int:
    """What the kernel grants a user: the first class that matches counts."""
    if uid == owner:
        return permissions >> 6 & 7
    return permissions >> 3 & 7 if group in groups else permissions & 7


@given(ENTRIES)
@settings(deadline=None, max_examples=300)
def test_no_user_gets_more_than_every_file_grants(entries: list[Entry]) -> None:
    access = Access.of(entries)
    for uid, groups in PEOPLE:
        least = 7
        for file in entries:
            least &= granted(file.permissions, file.uid, file.gid, uid, groups)
        assert granted(*access, uid, groups) & ~least == 0


@given(st.builds(entry, st.integers(0, 0o777), st.integers(0, 2), st.integers(0, 2)), st.integers(1, 3))
@settings(deadline=None)
def test_equal_files_grant_what_each_does(file: Entry, count: int) -> None:
    assert Access.of([file] * count) == (file.permissions, file.uid, file.gid)


@given(st.integers(0, 0o777))
@settings(deadline=None)
def test_modes_have_no_write_bits_and_search_where_readable(permissions: int) -> None:
    made_with = replace(origin(), access=Access(permissions, 0, 0))
    assert stat.S_IMODE(made_with.file_mode) == permissions & 0o444
    for shift in (0, 3, 6):
        bits = stat.S_IMODE(made_with.directory_mode) >> shift & 7
        assert bits == (5 if permissions >> shift & 4 else 0)


@pytest.mark.parametrize("names", [(), ("some",)], ids=["in a folder", "named"])
def test_a_changed_mode_shows_and_drops_cached_blocks(names: tuple[str, ...]) -> None:
    """S5: the bytes may have changed along without a trace, so they are read again; who has them open goes on."""
    store = MemoryStore()
    raw = bytes(range(256)) * 100
    store.put("some", made({"x.z": raw}))
    sources = sources_of(store, *names)
    root = "" if names else "/some"
    node = sources.tree.file(f"{root}/x.z.bin")
    with node.origin.lease:
        assert node.read(0, 1 << 20) == raw
        reads, misses = store.reads, sources.containers.services.cache.misses
        assert node.read(0, 1 << 20) == raw
        assert store.reads == reads
        store.set_permissions("some", 0o600)
        assert sources.refresh() == [root]
        assert sources.refresh() == []
        again = sources.tree.file(f"{root}/x.z.bin")
        assert (node.mode, again.mode, again.ino) == (0o100444, 0o100400, node.ino)
        assert again.read(0, 1 << 20) == node.read(0, 1 << 20) == raw
        assert store.reads > reads
        assert sources.containers.services.cache.misses == misses + 1
        assert not node.origin.lease.is_retired
