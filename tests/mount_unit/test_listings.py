"""Listings, in messages: everything once, whatever the buffer, the cookie, and what changes meanwhile."""

from __future__ import annotations

import errno
import weakref
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.content import Blob, Group, Member, Memory
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import POSITION_BITS, Operations
from glassfs.tree import Directory
from glassfs.tree.build import container_root
from glassfs.tree.nodes import Symlink
from tests.mount_unit.protocol import (
    OWN,
    folder,
    kernel_over,
    links,
)
from tests.tree.trees import origin

pytestmark = pytest.mark.usefixtures("made_format")


@pytest.mark.parametrize("is_settled", [True, False])
def test_listings_in_buffers_of_every_size(is_settled: bool) -> None:
    """Each entry comes once and whole, or it is said that the buffer is too small."""
    if is_settled:
        named = [Member((name.encode(),), Blob(b"x", Memory(b""))) for name in links(12)]
        root: Directory = container_root(Group(b"", lambda: named), origin())
    else:
        root = folder(links(12))
    kernel = kernel_over(root)
    whole = kernel.list_all(ROOT, 1 << 20)
    expected = [one.name for one in whole]
    assert expected == [".", "..", OWN, *(node.name for node in root.listing())]
    assert max(24 + (len(name) + 7 & ~7) + 128 for name in expected) < 2 * 160
    for size in [*range(8, 512), *range(512, 4097, 8)]:
        if size < 2 * 160:  # the kernel has space for one page at least
            with pytest.raises(OSError) as raised:
                kernel.list_all(ROOT, size)
            assert raised.value.errno == errno.EINVAL
        else:
            assert [one.name for one in kernel.list_all(ROOT, size)] == expected
    kernel.check()
    kernel.forget_all()


@settings(max_examples=100)
@given(st.booleans(), st.data())
def test_listing_continues_from_any_cookie(is_settled: bool, data: st.DataObject) -> None:
    """In any order: a reader may seek back to a position that it noted."""
    named = [Member((b"%d" % number,), Blob(b"x", Memory(b""))) for number in range(15)]
    root = container_root(Group(b"", lambda: named), origin()) if is_settled else folder(links(15))
    kernel = kernel_over(root)
    # The last one is left out: at the end the snapshot of a folder is dropped.
    first = kernel.list(ROOT, 0, 1 << 20)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(first) - 2))
        size = data.draw(st.integers(300, 3000))
        some = kernel.list(ROOT, first[place].after, size)
        assert some
        assert [one[1:] for one in some] == [one[1:] for one in first[place + 1 : place + 1 + len(some)]]
    kernel.check()
    kernel.forget_all()


@settings(max_examples=200)
@given(st.integers(400, 2000), st.data())
def test_folder_that_changes_while_it_is_listed(size: int, data: st.DataObject) -> None:
    """What was there all the time is listed exactly once, and nothing twice."""
    children = links(20)
    stays = set(list(children)[::3])
    root = folder(children)
    kernel = kernel_over(root)
    seen: list[str] = []
    after = 0
    while True:
        some = kernel.list(ROOT, after, size)
        if not some:
            break
        seen += [one.name for one in some]
        after = some[-1].after
        for name in data.draw(st.sets(st.sampled_from(sorted({*children} - stays) or [""]), max_size=5)):
            children.pop(name, None)
        for number in data.draw(st.sets(st.integers(0, 99), max_size=3)):
            name = f"new{number}"
            children.setdefault(name, Symlink(name, 5000 + number, origin(name), "x"))
        # Others come before them.
        order = data.draw(st.permutations(sorted(children)))
        moved = {name: children[name] for name in order}
        children.clear()
        children.update(moved)
    counts = Counter(seen)
    assert max(counts.values()) == 1
    assert stays <= set(seen)
    kernel.check()
    again, _ = kernel.operations.listing(ROOT, after)
    assert again.cookie >> POSITION_BITS != after >> POSITION_BITS  # the snapshot was dropped at the end
    kernel.forget_all()


def test_unfinished_listings_are_bounded() -> None:
    kernel = kernel_over(folder(links(30)))
    listings = [weakref.ref(kernel.operations.listing(ROOT, 0)[0]) for _ in range(500)]
    assert sum(listing() is not None for listing in listings) == 64
    listed = kernel.list_all(ROOT, 400)
    assert len(listed) == 33


def test_names_at_the_root_are_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with each of the many requests that a listing takes."""
    named = [Member((b"%04d" % number,), Blob(b"x", Memory(b""))) for number in range(3000)]
    kernel = kernel_over(container_root(Group(b"", lambda: named), origin()))
    noted: list[str] = []
    original = Operations._note_at_root
    monkeypatch.setattr(Operations, "_note_at_root", lambda self, names: noted.extend(names) or original(self, names))
    listed = kernel.list_all(ROOT, 8192)
    assert len(listed) == 3003
    assert len(noted) == len(set(noted)) == 3000
    stale = kernel.operations.stale([""])
    assert {(ROOT, node.name) for node in kernel.operations.inodes.directory(ROOT).listing()} <= set(stale.entries)
