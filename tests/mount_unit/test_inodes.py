"""The table of node ids, by a kernel that looks up, lists and forgets in any order while the sources change."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from glassfs.content import Blob, Group, Member, Memory
from glassfs.errors import Changed, GlassfsError, NotADirectory, NotFound
from glassfs.formats import registry
from glassfs.mount import inodes as inodes_module
from glassfs.mount.inodes import ROOT
from glassfs.source.memory import MemoryStore
from glassfs.tree import Directory, Settled
from glassfs.tree.build import container_root
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import FixedDirectory, Origin, Symlink
from tests.conftest import Scale
from tests.mount_unit.kernel import Kernel, operations_of, operations_over, served, told
from tests.tree.made import FORMAT, made
from tests.tree.trees import origin, sources_of


@pytest.fixture(autouse=True)
def made_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))


# Any order of everything

INNER = ("a", "d/b", "d/e/f/g", "d/e/h", "i/a")
"""What may be in a container; each is shown with the extension of bytes."""
CONTAINERS = ("c0", "c1", "sub/c2", "sub/under/c3")
PLAIN = ("p0", "sub/p1")
PART = "part"
NAMES = tuple({name for path in (*CONTAINERS, *PLAIN, PART) for name in path.split("/")}) + (
    "a.bin", "b.bin", "d", "e", "f", "g.bin", "h.bin", "i", "parts", "part.bin", "missing", ".glassfs",
)


@dataclass(eq=False)
class Version:
    """One version of a container or of a plain file, and what is in it by inner path ("" for a plain file)."""

    files: dict[str, bytes]
    permissions: int = 0o644
    fate: str = "shown"

    def names_below(self, inner: str) -> set[str]:
        """The names in a directory, which is "" or ends with a slash."""
        return {path[len(inner) :].partition("/")[0] for path in self.files if path.startswith(inner)}


@dataclass(eq=False)
class Known:
    """What an id stands for: a name in a directory, of one version (None: folders); ``inner`` is the path in it."""

    parent: int
    name: str
    path: str
    version: Version | None
    inner: str | None = None
    was_looked_up: bool = False

    @property
    def is_directory(self) -> bool:
        return self.version is None or (self.inner is not None and self.inner not in self.version.files)

    @property
    def below(self) -> str:
        return f"{self.inner}/" if self.inner else ""


@dataclass
class Model:
    """What the store shows."""

    shown: dict[str, Version] = field(default_factory=dict)

    def folders(self) -> set[str]:
        found = {""}
        for path in self.shown:
            while "/" in path:
                path = path.rpartition("/")[0]
                found.add(path)
        return found

    def names_in(self, folder: str) -> set[str]:
        start = f"{folder}/" if folder else ""
        return {path[len(start) :].partition("/")[0] for path in self.shown if path.startswith(start)}


class KernelAtWork(RuleBasedStateMachine):
    """Looks, lists and forgets at random; what each id stands for is remembered for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.store = MemoryStore()
        self.known: dict[int, Known] = {}
        self.held: Counter[int] = Counter()
        self.leases: set[Lease] = set()
        self.generation = 0
        self.patch = pytest.MonkeyPatch()
        acquire = Lease.acquire

        def noted(lease: Lease) -> None:
            self.leases.add(lease)
            acquire(lease)

        self.patch.setattr(Lease, "acquire", noted)

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.put_bytes(PART)
        for path in data.draw(st.sets(st.sampled_from(CONTAINERS))):
            self.put(path, data)
        for path in data.draw(st.sets(st.sampled_from(PLAIN))):
            self.put_bytes(path)
        self.sources = sources_of(self.store)
        self.operations = operations_of(self.sources)
        self.inodes = self.operations.inodes

    # What changes

    def stamp(self) -> bytes:
        self.generation += 1
        return b"%04d" % self.generation

    def put(self, path: str, data: st.DataObject) -> None:
        files = {name: self.stamp() for name in sorted(data.draw(st.sets(st.sampled_from(INNER))))}
        has_part = "/" not in path and data.draw(st.booleans())
        shown = {f"{name}.bin": raw for name, raw in files.items()}
        if has_part:
            shown["parts/part.bin"] = self.model.shown[PART].files[""]
        self.replace(path, shown)
        self.store.put(path, made(files, [PART] if has_part else []))

    def put_bytes(self, path: str) -> None:
        raw = self.stamp()
        self.replace(path, {"": raw})
        self.store.put(path, raw)

    def replace(self, path: str, files: dict[str, bytes]) -> None:
        if path in self.model.shown:
            self.model.shown[path].fate = "replaced"
        self.model.shown[path] = Version(files)

    def settle(self) -> None:
        """The watch comes round."""
        for place in self.sources.refresh():
            self.operations.stale(place)

    @rule(path=st.sampled_from(CONTAINERS), data=st.data())
    def put_a_container(self, path: str, data: st.DataObject) -> None:
        self.put(path, data)
        self.settle()

    @rule(path=st.sampled_from(PLAIN))
    def put_a_plain_file(self, path: str) -> None:
        self.put_bytes(path)
        self.settle()

    @rule()
    def replace_the_part(self) -> None:
        """All containers that are made of it are others from then on."""
        self.put_bytes(PART)
        for path, version in list(self.model.shown.items()):
            if "parts/part.bin" in version.files:
                self.replace(path, version.files | {"parts/part.bin": self.model.shown[PART].files[""]})
                self.model.shown[path].permissions = version.permissions
        self.settle()

    @rule(path=st.sampled_from((*CONTAINERS, *PLAIN)))
    def delete(self, path: str) -> None:
        if path in self.model.shown:
            self.model.shown.pop(path).fate = "deleted"
            self.store.remove(path)
            self.settle()

    @rule(path=st.sampled_from((*CONTAINERS, *PLAIN)), permissions=st.sampled_from([0o644, 0o600, 0o440]))
    def chmod(self, path: str, permissions: int) -> None:
        if path in self.model.shown:
            self.model.shown[path].permissions = permissions
            self.store.set_permissions(path, permissions)
            self.settle()

    # What the kernel does

    def directories(self) -> list[int]:
        return [ROOT, *(ident for ident in self.held if self.known[ident].is_directory)]

    def place_of(self, ident: int) -> Known:
        return Known(0, "", "", None) if ident == ROOT else self.known[ident]

    def names_in(self, place: Known) -> set[str]:
        """What a look-up finds in a directory, if it finds anything."""
        if place.version is None:
            return self.model.names_in(place.path)
        return place.version.names_below(place.below)

    def child_of(self, ident: int, name: str) -> Known:
        place = self.place_of(ident)
        if place.version is not None:
            return Known(ident, name, place.path, place.version, f"{place.below}{name}")
        path = f"{place.path}/{name}".lstrip("/")
        version = self.model.shown.get(path)
        is_plain = version is not None and "" in version.files
        return Known(ident, name, path, version, None if version is None or is_plain else "")

    def take(self, ident: int, child: Known) -> None:
        """An id that was given: it stands for this and nothing else, and keeps doing so as long as it is held."""
        known = self.known.setdefault(ident, child)
        assert (known.parent, known.name, known.inner) == (child.parent, child.name, child.inner)
        assert known.version is child.version
        for other, references in self.held.items():
            before = self.known[other]
            if references and other != ident and (before.parent, before.name) == (child.parent, child.name):
                assert before.version is not child.version, "the same name of the same version got another id"
        self.held[ident] += 1

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def look_up(self, data: st.DataObject, name: str) -> None:
        self.look_up_at(data.draw(st.sampled_from(self.directories())), name)

    @rule(data=st.data())
    def look_up_what_is_there(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.directories()))
        names = sorted(self.names_in(self.place_of(parent)))
        if names:
            self.look_up_at(parent, data.draw(st.sampled_from(names)))

    def look_up_at(self, parent: int, name: str) -> None:
        place = self.place_of(parent)
        try:
            found = self.operations.look_up(parent, name)
        except GlassfsError as error:
            self.check_fault(place, error, isinstance(error, NotFound) and name not in self.names_in(place))
            return
        if name == ".glassfs":
            self.operations.forget(found.ident, 1)
            return
        assert not self.is_replaced(place)
        assert name in self.names_in(place)
        child = self.child_of(parent, name)
        child.was_looked_up = True
        self.take(found.ident, child)
        self.known[found.ident].was_looked_up = True
        self.check_node(found.ident, is_fresh=True)

    def is_replaced(self, place: Known) -> bool:
        return place.version is not None and place.inner is not None and place.version.fate == "replaced"

    def check_fault(self, place: Known, error: GlassfsError, is_expected: bool) -> None:
        """Nothing may fail but what is not there any more."""
        is_folder_gone = place.version is None and place.path not in self.model.folders()
        if not (is_expected or is_folder_gone or (place.version is not None and place.version.fate != "shown")):
            raise AssertionError(f"{place}: {error!r}") from error

    @rule(data=st.data())
    def list_some(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.directories()))
        place = self.place_of(parent)
        try:
            listing, _ = self.operations.listing(parent, 0)
        except GlassfsError as error:
            self.check_fault(place, error, is_expected=False)
            return
        assert not self.is_replaced(place)
        names = {node.name for node in listing.nodes}
        assert names == self.names_in(place)
        assert len(names) == len(listing.nodes)
        start = data.draw(st.integers(0, len(listing)))
        most = data.draw(st.integers(0, len(listing)))
        walk = listing.walk(start)
        seen = 0
        for ident, facts in walk:
            if seen == most:
                self.operations.forget(ident, 1)
                break
            seen += 1
            name = os.fsdecode(facts[0])
            if name == ".glassfs":
                self.operations.forget(ident, 1)
            else:
                self.take(ident, self.child_of(parent, name))
        walk.close()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.check_node(data.draw(st.sampled_from(sorted(self.held))))

    def check_node(self, ident: int, is_fresh: bool = False) -> None:
        """An id gives what it stands for, or fails if that is gone. What is in a folder has new modes once looked up."""
        known = self.known[ident]
        version = known.version
        try:
            attributes, _ = self.operations.attributes(ident)
            node = self.inodes.node(ident)
        except GlassfsError as error:
            assert version is not None
            if version.fate == "deleted":
                assert not known.was_looked_up
            else:
                assert (version.fate, type(error)) == ("replaced", Changed)
            return
        assert node.name == known.name
        assert isinstance(node, Directory) == known.is_directory
        if version is None:
            return
        assert not self.is_replaced(known)
        if version.fate == "shown" and (known.inner or is_fresh):
            shown = version.permissions & 0o444
            assert attributes.mode & 0o777 == (shown | shown >> 2 if known.is_directory else shown)
        if not known.is_directory:
            raw = bytearray(10)
            try:
                size = self.operations.read_into(ident, memoryview(raw), 0)
            except Changed:
                assert version.fate != "shown"
                assert known.inner is None or version.fate == "replaced"
            else:
                assert raw[:size] == version.files[known.inner or ""]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(sorted(self.held)))
        references = data.draw(st.integers(1, self.held[ident]))
        self.give_back(ident, references)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget_many(self, data: st.DataObject) -> None:
        for ident in data.draw(st.sets(st.sampled_from(sorted(self.held)))):
            self.give_back(ident, self.held[ident])

    def give_back(self, ident: int, references: int) -> None:
        self.operations.forget(ident, references)
        self.held[ident] -= references
        if not self.held[ident]:
            del self.held[ident]

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "inodes"):
            return
        assert self.inodes.held == sum(self.held.values())
        runs: set[object] = set()
        for ident in self.held:
            known = self.known[ident]
            is_settled = known.version is not None and bool(known.inner)
            runs.add((known.parent, known.version) if is_settled else ident)
        assert len(self.inodes) == len(runs)

    def teardown(self) -> None:
        try:
            if hasattr(self, "inodes"):
                for ident, references in self.held.items():
                    self.operations.forget(ident, references)
                assert (len(self.inodes), self.inodes.held) == (0, 0)
                self.sources.tree.close()
                assert [lease for lease in self.leases if lease._users] == []
                assert self.store.held == set()
        finally:
            self.patch.undo()


def test_whatever_the_kernel_does_in_whatever_order(scale: Scale) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        KernelAtWork, settings=settings(max_examples=scale(40, 400, 4000), stateful_step_count=40, report_multiple_bugs=False),
    )


# Many at a time

THREADS = 100


def folder_of(names: int, identity: str = "x") -> Settled:
    """A directory of a container, with files and directories in it."""
    members = [Member((b"%d" % number,), Blob(b"%d" % number, Memory(b"%d" % number))) for number in range(names)]
    members += [Member((b"dir%d" % number, b"a"), Blob(b"a", Memory(b""))) for number in range(names)]
    return container_root(Group(b"", lambda: members), origin(identity))


def test_threads_at_once_leave_nothing(scale: Scale) -> None:
    """Each thread gives back what it got, in any order, while others get the same."""
    store = MemoryStore({f"c{number}": made(a=b"a", **{"d/b": b"b", "d/e/c": b"c"}) for number in range(3)})
    sources, kernel = served(store)
    operations = kernel.operations
    paths = [f"/c{number}{below}" for number in range(3) for below in ("/a.bin", "/d/b.bin", "/d/e/c.bin", "/d/e")]
    faults: list[BaseException] = []
    before = sys.getswitchinterval()

    def use(seed: int) -> None:
        chance = random.Random(seed)
        try:
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
                    operations.forget(one, 1)
        except BaseException as error:
            faults.append(error)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=use, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    # Whoever gives back a directory before what is below it may find that nobody knows it any more.
    assert [error for error in faults if not isinstance(error, Changed)] == []
    inodes = operations.inodes
    assert (len(inodes), inodes.held, inodes._holdings, inodes._settled, inodes._named) == (0, 0, {}, {}, {})
    assert inodes._kept == 0
    sources.tree.close()
    assert store.held == set()


def test_a_run_is_made_once_by_however_many_threads() -> None:
    root = folder_of(20)
    operations = operations_over(lambda: root)
    with ThreadPoolExecutor(16) as threads:
        idents = set(threads.map(lambda _: operations.look_up(ROOT, "7.bin").ident, range(500)))
    assert len(idents) == len(operations.inodes) == 1
    assert operations.inodes.held == 500


# What it costs


def test_a_walk_through_many_files_leaves_an_entry_for_each_directory() -> None:
    root = folder_of(2000)
    kernel = Kernel(operations_over(lambda: root))
    found = kernel.list(ROOT)
    assert len(found) == 4001  # with .glassfs
    assert len(kernel.operations.inodes) == 2
    for number in range(3):
        kernel.list(found[f"dir{number}"])
    assert len(kernel.operations.inodes) == 5
    assert len({*kernel.held}) == 4004
    kernel.forget_all()
    assert len(kernel.operations.inodes) == 0


def test_the_table_does_not_grow_with_what_was_given_back() -> None:
    root = FixedDirectory("", 1, origin(), {"a": Symlink("a", 2, origin(), "b"), "b": Symlink("b", 3, origin(), "a")})
    operations = operations_over(lambda: root)
    stays = operations.look_up(ROOT, "b").ident
    last = stays
    for _ in range(5 * inodes_module.SPARSE):
        ident = operations.look_up(ROOT, "a").ident
        assert ident > last
        last = ident
        operations.forget(ident, 1)
    firsts, runs = operations.inodes._table
    assert len(firsts) == len(runs) <= 2 * inodes_module.SPARSE
    assert (operations.node(stays).name, len(operations.inodes)) == ("b", 1)


def test_nodes_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inodes_module, "KEPT_NODES", 50)
    monkeypatch.setattr(inodes_module, "KEPT_OF_ONE", 20)
    roots = {f"c{number}": folder_of(100, f"{number}") for number in range(5)}
    top = FixedDirectory("", 1, origin("top"), roots)
    kernel = Kernel(operations_over(lambda: top))
    inodes = kernel.operations.inodes
    for name in roots:
        for number in range(100):
            assert kernel.read(kernel.find(f"/{name}/{number}.bin")) == b"%d" % number
            kept = sum(len(holding.nodes) for holding in inodes._holdings.values())
            assert (inodes._kept, kept) == (kept, kept)
            assert kept <= 50
            assert all(len(holding.nodes) <= 20 for holding in inodes._holdings.values())
    kernel.forget_all()
    assert inodes._kept == 0


# Versions


def test_nodes_are_made_again_from_their_numbers() -> None:
    sources, kernel = served(MemoryStore({"c": made(**{"d/e/f": b"f", "d/e/g": b"g"})}))
    idents = {name: kernel.find(f"/c/d/e/{name}.bin") for name in "fg"}
    for _ in range(2):
        kernel.operations.inodes.drop_nodes()
        assert {name: kernel.read(ident) for name, ident in idents.items()} == {"f": b"f", "g": b"g"}


@pytest.mark.parametrize("name", ["a.bin", "parts", "parts/part"])
def test_ids_end_with_a_further_file_that_is_replaced(name: str) -> None:
    """Also where the nodes have to be made anew, from a directory that shows the next version by now."""
    store = MemoryStore({"c": made(a=b"a", parts=["part"]), "part": b"old"})
    sources, kernel = served(store)
    if name == "parts/part":
        name = "parts/part.bin"
    ident = kernel.find(f"/c/{name}")
    kernel.operations.inodes.drop_nodes()
    store.put("part", b"newer")
    told(sources, kernel)
    with pytest.raises(Changed):
        kernel.operations.node(ident)
    assert kernel.find(f"/c/{name}") != ident
    with pytest.raises(Changed):
        kernel.operations.node(ident)


def test_a_directory_of_one_version_gives_no_node_of_another_under_its_ids() -> None:
    """Whatever the directory says: a node belongs to the identity that its id was given out for."""
    versions = [folder_of(3, "one"), folder_of(3, "two")]

    class Either(Settled):
        """A container's directory that goes over from one version to the next."""

        count = property(lambda self: versions[0].count)  # type: ignore[assignment]

        def find(self, name: str) -> int:
            return versions[0].find(name)

        def at(self, number: int) -> object:  # type: ignore[override]
            return versions[0].at(number)

    top = FixedDirectory("", 1, origin("top"), {"c": Either("c", 2, origin("c"))})
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


def test_all_ids_below_a_container_are_told_also_of_what_was_looked_up_after_it_was_closed() -> None:
    store = MemoryStore({"c": made(a=b"a", **{"d/b": b"b"}), "other": made(a=b"a")})
    sources, kernel = served(store, limit=1)
    idents = {kernel.find("/c"), kernel.find("/c/a.bin")}
    kernel.find("/other/a.bin")
    idents |= {kernel.find("/c/d"), kernel.find("/c/d/b.bin")}
    stale = kernel.operations.stale("/c")
    assert idents <= set(stale.nodes)
    assert (ROOT, "c") in stale.entries
    assert kernel.find("/other/a.bin") not in stale.nodes


# Holding on


def test_a_lease_is_given_back_without_making_others_wait() -> None:
    """Closing a file may wait for somebody who is just opening it, on a source that hangs."""
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
    closer = threading.Thread(target=operations.forget, args=(slow, 1))
    closer.start()
    is_closing.wait()
    answered = threading.Event()

    def look() -> None:
        operations.forget(operations.look_up(ROOT, "quick").ident, 1)
        answered.set()

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    is_answered = answered.wait(30)
    may_close.set()
    closer.join()
    looker.join()
    assert is_answered


def test_a_plain_file_that_is_looked_up_again_stays_open() -> None:
    store = MemoryStore({"plain": b"text"})
    sources, kernel = served(store)
    ident = kernel.find("/plain")
    assert kernel.read(ident) == b"text"
    assert kernel.find("/plain") == ident
    store.remove("plain")
    assert kernel.read(ident) == b"text"
    kernel.forget_all()
    assert store.held == set()


def test_a_lease_is_held_as_long_as_any_id_of_its_version() -> None:
    store = MemoryStore({"c": made(a=b"a", **{"d/b": b"b"})})
    sources, kernel = served(store)
    a, b = kernel.find("/c/a.bin"), kernel.find("/c/d/b.bin")
    assert (kernel.read(a), kernel.read(b)) == (b"a", b"b")
    store.remove("c")
    told(sources, kernel)
    operations = kernel.operations
    for ident, references in kernel.held.items():
        if ident not in (a, b):
            operations.forget(ident, references)
    assert (kernel.read(a), kernel.read(b)) == (b"a", b"b")
    operations.forget(a, kernel.held[a])
    assert kernel.read(b) == b"b"
    assert store.held
    operations.forget(b, kernel.held[b])
    sources.tree.close()
    assert store.held == set()
    assert len(operations.inodes) == 0


def test_what_is_listed_is_readable_after_its_container_was_deleted() -> None:
    """Although nobody had asked for its node before: opening a file that was listed is not told to anybody."""
    store = MemoryStore({"c": made(a=b"a", b=b"b")})
    sources, kernel = served(store)
    found = kernel.list(kernel.find("/c"))
    assert kernel.read(found["a.bin"]) == b"a"
    store.remove("c")
    told(sources, kernel)
    kernel.operations.inodes.drop_nodes()
    assert kernel.read(found["b.bin"]) == b"b"


def test_ids_that_nobody_gave_out_are_changed_and_cost_nothing() -> None:
    kernel = Kernel(operations_over(lambda: folder_of(3)))
    for ident in (0, 2, 99, 1 << 62):
        with pytest.raises(Changed):
            kernel.operations.node(ident)
        kernel.operations.forget(ident, 7)
        assert kernel.operations.inodes.volume(ident) == ""
    kernel.operations.forget(ROOT, 5)
    assert kernel.operations.inodes.held == 0
    ident = kernel.find("/0.bin")
    with pytest.raises(NotADirectory):
        kernel.operations.listing(ident, 0)
    kernel.operations.forget(ident + 1_000_000, 1)
    assert kernel.operations.inodes.held == 1


def test_a_directory_that_was_given_back_leaves_no_run_behind() -> None:
    """It was listed before, and somebody goes on with the listing."""
    root = folder_of(2)
    operations = operations_over(lambda: root)
    ident = operations.look_up(ROOT, "dir0").ident
    listing, _ = operations.listing(ident, 0)
    operations.forget(ident, 1)
    with pytest.raises(Changed):
        list(listing.walk(0))
    assert (len(operations.inodes), operations.inodes._holdings) == (0, {})
