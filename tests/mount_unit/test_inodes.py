"""The table of node ids: threads, what it costs, versions, and what it holds on to."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from glassfs.content import Blob, Group, Member, Memory
from glassfs.errors import Changed, NotADirectory
from glassfs.mount import inodes as inodes_module
from glassfs.mount.inodes import ROOT, Inodes
from glassfs.mount.runs import STRETCH, KnownIds, by_version
from glassfs.tree import Node, Settled
from glassfs.tree.build import container_root
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import FixedDirectory, Origin, Symlink
from tests.conftest import Scale
from tests.memory_store import MemoryStore
from tests.mount_unit.kernel import Kernel, abandoned_by, nodes_of, notify_kernel, operations_over, served
from tests.tree.made import made
from tests.tree.trees import origin
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("made_format")


# Many at a time

THREADS = 100


def folder_of(names: int, identity: str = "x") -> Settled:
    """A directory of a container, with files and directories in it."""
    members = [Member((b"%d" % number,), Blob(b"%d" % number, Memory(b"%d" % number))) for number in range(names)]
    members += [Member((b"dir%d" % number, b"a"), Blob(b"a", Memory(b""))) for number in range(names)]
    return container_root(Group(b"", lambda: members), origin(identity))


class Passing(Settled):
    """A container's directory that shows what ``shown`` returns by now."""

    def __init__(self, name: str, ino: int, origin: Origin, shown: Callable[[], Settled]) -> None:
        super().__init__(name, ino, origin)
        self.shown = shown

    count = property(lambda self: self.shown().count)  # type: ignore[assignment]
    inside = property(lambda self: self.shown().inside)  # type: ignore[assignment]

    def found(self, name: str) -> tuple[int, Node]:
        return self.shown().found(name)

    def at(self, number: int) -> Node:
        return self.shown().at(number)


def kept_by(inodes: Inodes) -> int:
    """How many nodes are kept."""
    nodes = sum(len(holding.nodes) for holding in inodes._caching)
    assert nodes == inodes._cached
    return nodes


@pytest.mark.usefixtures("quick_switches")
def test_threads_at_once_leave_nothing(scale: Scale) -> None:
    """Each thread gives back what it got, in any order, while others get the same."""
    store = MemoryStore({f"c{number}": made(a=b"a", **{"d/b": b"b", "d/e/c": b"c"}) for number in range(3)})
    sources, kernel = served(store)
    operations = kernel.operations
    paths = [f"/c{number}{below}" for number in range(3) for below in ("/a.bin", "/d/b.bin", "/d/e/c.bin", "/d/e")]

    def use(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(scale(10, 100)):
            held = []
            ident = ROOT
            for name in chance.choice(paths).split("/")[1:]:
                ident = operations.look_up(ident, name).ident
                held.append((ident, name))
            for one, name in held:
                assert operations.node(one).name == name
            if chance.random() < 0.3:
                operations.inodes.drop_nodes()
            chance.shuffle(held)
            for one, _ in held:
                operations.inodes.forget(one, 1)

    with ThreadPoolExecutor(THREADS) as threads:
        running = [threads.submit(use, number) for number in range(THREADS)]
        errors = [thread.exception() for thread in running]
    # A directory released before its children may already be unknown.
    assert all(error is None or isinstance(error, Changed) for error in errors), errors
    inodes = operations.inodes
    assert (len(inodes), inodes.held, inodes._holdings, inodes._settled, inodes._named) == (0, 0, {}, {}, {})
    assert kept_by(inodes) == 0
    sources.tree.close()
    assert store.held == set()


# What it costs


def test_released_runs_leave_the_table() -> None:
    root = FixedDirectory("", 1, origin(), {"a": Symlink("a", 2, origin(), "b"), "b": Symlink("b", 3, origin(), "a")})
    operations = operations_over(lambda: root)
    stays = operations.look_up(ROOT, "b").ident
    last = stays
    for _ in range(1000):
        ident = operations.look_up(ROOT, "a").ident
        assert ident > last
        last = ident
        operations.inodes.forget(ident, 1)
    firsts, runs = operations.inodes._table
    assert len(firsts) == len(runs) < 100
    assert (operations.node(stays).name, len(operations.inodes)) == ("b", 1)


def test_cached_nodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one container are half of all at most, and the oldest are evicted."""
    monkeypatch.setattr(inodes_module, "CACHED_NODES", 50)
    roots = {f"c{number}": folder_of(100, f"{number}") for number in range(5)}
    top = FixedDirectory("", 1, origin("top"), roots)
    kernel = Kernel(operations_over(lambda: top))
    inodes = kernel.operations.inodes
    for name in roots:
        for number in range(100):
            ident = kernel.find(f"/{name}/{number}.bin")
            assert kernel.read(ident) == b"%d" % number
            assert kept_by(inodes) <= 50
            assert max(len(holding.nodes) for holding in inodes._caching) <= 25
            assert ident in list(inodes._caching)[-1].nodes
    kernel.forget_all()
    assert kept_by(inodes) == 0


def test_oldest_ids_are_given_up_however_much_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel forgets what it is asked to, but for what a process uses and the directories above that."""
    monkeypatch.setattr(inodes_module, "MOST_RUNS", 40)
    top = FixedDirectory("", 1, origin("top"), {f"c{number}": folder_of(2, f"{number}") for number in range(300)})
    kernel = Kernel(operations_over(lambda: top))
    inodes = kernel.operations.inodes
    used = kernel.find("/c0/dir1/a.bin")
    in_use = {used, inodes.parent(used), inodes.parent(inodes.parent(used))}
    assert inodes.surplus() is None
    for number in range(1, 300):
        kernel.find(f"/c{number}/dir0/a.bin")
        for ident in inodes.surplus() or ():
            below = {inodes.parent(known) for known in kernel.held}
            if ident not in in_use | below and ident in kernel.held:
                kernel.operations.inodes.forget(ident, kernel.held.pop(ident))
        assert len(inodes) < 50
    assert kernel.read(used) == b""
    kernel.forget_all()
    assert len(inodes) == 0


def test_ids_that_are_all_in_use_are_seldom_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inodes_module, "MOST_RUNS", 40)
    top = FixedDirectory("", 1, origin(), {str(number): Symlink(str(number), 2, origin(), "") for number in range(200)})
    kernel = Kernel(operations_over(lambda: top))
    given_up = 0
    for number in range(200):
        kernel.find(f"/{number}")
        given_up += sum(kernel.operations.inodes.surplus() is not None for _ in range(5))
    assert 40 <= given_up <= 60


def test_ids_give_no_node_of_another_version() -> None:
    """Whatever the directory says: a node belongs to the identity that its id was given out for."""
    versions = [folder_of(3, "one"), folder_of(3, "two")]
    top = FixedDirectory("", 1, origin("top"), {"c": Passing("c", 2, origin("c"), lambda: versions[0])})
    kernel = Kernel(operations_over(lambda: top))
    ident, below = kernel.find("/c/1.bin"), kernel.find("/c/dir1/a.bin")
    del versions[0]
    assert kernel.read(ident) == b"1"  # kept
    kernel.operations.inodes.drop_nodes()
    for one in (ident, below):
        with pytest.raises(Changed):
            kernel.operations.node(one)
    again = kernel.find("/c/1.bin")
    assert again != ident
    assert kernel.read(again) == b"1"
    with pytest.raises(Changed):
        kernel.operations.node(ident)


# Versions


def test_only_ids_that_the_kernel_knows_are_given_up() -> None:
    """A directory may have billions of names."""
    files = folder_of(3, "huge")

    class Huge(Settled):
        count = 10**12
        inside = files.inside  # type: ignore[assignment]

        def found(self, name: str) -> tuple[int, Node]:
            return int(name), self.at(int(name))

        def at(self, number: int) -> Node:
            return files.at(number % 3)

    top = FixedDirectory("", 1, origin("top"), {"c": Huge("c", 2, files.origin)})
    operations = operations_over(lambda: top)
    ident = operations.look_up(ROOT, "c").ident
    known = [operations.look_up(ident, str(number)).ident for number in (0, 1, 5 * 10**11, 10**12 - 1)]
    assert set(known) <= nodes_of(operations.stale(["/c"]))
    files.origin.lease.retire(is_replaced=True)
    operations.inodes.drop_nodes(files.origin.lease)
    abandoned = abandoned_by(operations)
    assert set(known) <= set(abandoned)
    assert len(abandoned) <= len(known) * STRETCH + 1
    for one in known[:2]:
        operations.inodes.forget(one, 1)
    assert set(known[2:]) <= set(abandoned_by(operations))
    assert not {*known[:2]} & {*abandoned_by(operations)}


def test_listed_ids_are_known_until_they_are_forgotten() -> None:
    """Also in parts, and those whose reply did not reach the kernel are not."""
    kernel = Kernel(operations_over(lambda: folder_of(500)))
    operations = kernel.operations
    listing, _ = operations.listing(ROOT, 0)
    run, first, _ = listing.held_inside(listing.directory.origin, 100)
    operations.inodes.keep(run, len(listing) - 100, [(first, 300), (first + 400, 100)])
    operations.inodes.forget(first + 400, 1, 100)
    assert run.held == 300
    (known,) = by_version([run], threading.Lock()).values()
    found = list(known)
    assert set(range(first, first + 300)) <= set(found)
    assert found == sorted(found, reverse=True)
    assert len(found) <= 300 + 2 * STRETCH
    operations.inodes.forget(first, 1, 299)
    assert first + 299 in list(known)
    assert len(list(known)) <= STRETCH
    operations.inodes.forget(first + 299, 1)
    assert list(known) == []
    assert len(operations.inodes) == 0


def test_node_released_while_it_is_made_is_not_cached() -> None:
    inner = folder_of(2)

    def forgotten() -> Settled:
        """Have the kernel forget what is in the directory while it is read."""
        for ident, references in list(kernel.held.items()):
            kernel.operations.inodes.forget(ident, references)
        return inner

    root = Passing("", 1, origin("x"), forgotten)
    kernel = Kernel(operations_over(lambda: root))
    ident = kernel.find("/0.bin")
    kernel.operations.inodes.drop_nodes()
    assert kernel.read(ident) == b"0"
    assert (len(kernel.operations.inodes), kept_by(kernel.operations.inodes)) == (0, 0)


def test_names_of_abandoned_and_surplus_ids_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """For kernels that cannot prune ids: folders stay, and names that lead to something else by now."""
    store = MemoryStore({"c": made(a=b"a", **{"d/b": b"b"}), "plain": b"old", "sub/other": b"other"})
    sources, kernel = served(store)
    inodes = kernel.operations.inodes
    inodes.remembers_names = True
    container, inner = kernel.find("/c"), kernel.find("/c/d")
    for path in ("/c/a.bin", "/c/d/b.bin", "/plain"):
        kernel.find(path)
    sub, _ = kernel.find("/sub"), kernel.find("/sub/other")
    assert list(inodes.abandoned_entries()) == []
    monkeypatch.setattr(inodes_module, "MOST_RUNS", 1)
    surplus = set[tuple[int, str]]()
    for _ in range(len(inodes)):
        inodes._enough = 1
        surplus |= {*cast(KnownIds, inodes.surplus()).entries()}
    assert surplus == {(ROOT, "c"), (ROOT, "plain"), (sub, "other")}
    for name, raw in (("c", made(a=b"new")), ("plain", b"newer")):
        store.put(name, raw)
    notify_kernel(sources, kernel)
    inside = {(container, "a.bin"), (container, "d"), (inner, "b.bin")}
    assert {*inodes.abandoned_entries()} == inside | {(ROOT, "c"), (ROOT, "plain")}
    kernel.find("/plain")
    assert {*inodes.abandoned_entries()} == inside | {(ROOT, "c")}


# Holding on


def test_releasing_a_lease_blocks_no_other_request() -> None:
    """Closing a file may wait for a reader that is opening it on a source that hangs."""
    is_closing, may_close = threading.Event(), threading.Event()

    class Hanging(Lease):
        def release(self) -> None:
            is_closing.set()
            may_close.wait()
            super().release()

    def origin_of(lease: Lease) -> Origin:
        return Origin("v", origin().access, 0, origin().services, lease)

    nodes = {"slow": Symlink("slow", 2, origin_of(Hanging(())), ""), "quick": Symlink("quick", 3, origin(), "")}
    root = FixedDirectory("", 1, origin(), nodes)
    operations = operations_over(lambda: root)
    slow = operations.look_up(ROOT, "slow").ident
    with ThreadPoolExecutor(2) as threads:
        closing = threads.submit(operations.inodes.forget, slow, 1)
        wait_for(is_closing)
        try:
            operations.inodes.forget(threads.submit(operations.look_up, ROOT, "quick").result(30).ident, 1)
        finally:
            may_close.set()
    closing.result()


def test_unknown_ids_raise_changed() -> None:
    kernel = Kernel(operations_over(lambda: folder_of(3)))
    for ident in (0, 2, 99, 1 << 62):
        with pytest.raises(Changed):
            kernel.operations.node(ident)
        kernel.operations.inodes.forget(ident, 7)
        assert kernel.operations.inodes.volume(ident) == ""
    kernel.operations.inodes.forget(ROOT, 5)
    assert kernel.operations.inodes.held == 0
    ident = kernel.find("/0.bin")
    with pytest.raises(NotADirectory):
        kernel.operations.listing(ident, 0)
    for beyond in (ident + 6, ident + 1_000_000):
        with pytest.raises(Changed):
            kernel.operations.node(beyond)
        kernel.operations.inodes.forget(beyond, 1)
    assert kernel.operations.inodes.held == 1


def test_directory_that_was_given_back_leaves_no_run_behind() -> None:
    """It was listed before, and a reader continues the listing."""
    root = folder_of(2)
    operations = operations_over(lambda: root)
    ident = operations.look_up(ROOT, "dir0").ident
    listing, _ = operations.listing(ident, 0)
    operations.inodes.forget(ident, 1)
    with pytest.raises(Changed):
        listing.held_inside(root.origin, 0)
    assert (len(operations.inodes), operations.inodes._holdings) == (0, {})
