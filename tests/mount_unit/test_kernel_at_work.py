"""A kernel that looks up, lists and forgets in any order while the sources change, against a model of both."""

from __future__ import annotations

import threading
from collections import Counter
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

from glassfs.errors import Changed, GlassfsError, NotFound
from glassfs.formats import registry
from glassfs.mount.inodes import ROOT
from glassfs.tree import Directory
from glassfs.tree.lease import Lease
from tests.conftest import Scale
from tests.memory_store import MemoryStore
from tests.mount_unit.kernel import held_by, operations_of
from tests.tree.made import made
from tests.tree.trees import sources_of

pytestmark = pytest.mark.usefixtures("made_format")


INNER = ("a", "d/b", "d/e/f/g", "d/e/h", "i/a")
"""What may be in a container; each is shown with the extension of bytes."""
CONTAINERS = ("c0", "c1", "sub/c2", "sub/under/c3")
PLAIN = ("p0", "sub/p1")
PART = "part"
NAMES = (
    *sorted({name for path in (*CONTAINERS, *PLAIN, PART) for name in path.split("/")}),
    "a.bin", "b.bin", "d", "e", "f", "g.bin", "h.bin", "i", "parts", "part.bin", "missing", ".glassfs",
)


@dataclass(eq=False)
class Version:
    """One version of a container or of a plain file, and what is in it by inner path ("" for a plain file)."""

    files: dict[str, bytes]
    permissions: int = 0o644
    fate: str = "shown"
    changes: int = 0
    """How often attributes of its files changed, after which it gets other ids."""

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
    changes: int = 0

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

    is_remote = False

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.store = MemoryStore(is_remote=self.is_remote)
        self.known: dict[int, Known] = {}
        self.held: Counter[int] = Counter()
        self.leases: set[Lease] = set()
        self.generation = 0
        self.patch = pytest.MonkeyPatch()
        acquire = Lease.acquire

        thread = threading.get_ident()

        def noted(lease: Lease) -> None:
            if threading.get_ident() == thread:  # others belong to what earlier tests have left running
                self.leases.add(lease)
            acquire(lease)

        self.patch.setattr(Lease, "acquire", noted)
        self.patch.setattr(registry, "BUILT_IN", {"made": tuple(path.rpartition("/")[2] for path in CONTAINERS)})
        self.patch.setattr(registry, "_built_in", lambda name: next(registry.built_in()))

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.put_bytes(PART)
        for path in data.draw(st.sets(st.sampled_from(CONTAINERS))):
            self.put(path, data)
        for path in data.draw(st.sets(st.sampled_from(PLAIN))):
            self.put_bytes(path)
        self.store.can_watch = data.draw(st.booleans())
        self.sources = sources_of(self.store, on_drop=lambda lease: self.operations.inodes.drop_nodes(lease))
        self.operations = operations_of(self.sources)
        self.inodes = self.operations.inodes

    # What changes

    def stamp(self) -> bytes:
        self.generation += 1
        return b"%04d" % self.generation

    def put(self, path: str, data: st.DataObject) -> None:
        files = {name: self.stamp() for name in sorted(data.draw(st.sets(st.sampled_from(INNER))))}
        # In a remote store a part is not known, nor its changes, before the container is entered.
        has_part = not self.is_remote and "/" not in path and data.draw(st.booleans())
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
            self.operations.stale([place])

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
            for other, version in self.model.shown.items():
                version.changes += other == path or (path == PART and "parts/part.bin" in version.files)
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
        inner = None if version is None or is_plain else ""
        return Known(ident, name, path, version, inner, changes=0 if version is None else version.changes)

    def take(self, ident: int, child: Known) -> None:
        """An id that was given: it stands for this and nothing else, and keeps doing so as long as it is held."""
        known = self.known.setdefault(ident, child)
        assert (known.parent, known.name, known.inner) == (child.parent, child.name, child.inner)
        assert known.version is child.version
        for other, references in self.held.items():
            before = self.known[other]
            if references and other != ident and (before.parent, before.name) == (child.parent, child.name):
                is_newer = before.version is not child.version or before.changes < child.changes
                assert is_newer, "the same name of the same version got another id"
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
            self.check_fault(place, error, False)
            return
        if not found.ident:
            self.check_fault(place, NotFound(name), name not in self.names_in(place))
            return
        if name == ".glassfs":
            self.operations.inodes.forget(found.ident, 1)
            return
        if self.is_replaced(place):  # the present version is found instead, and not kept under this directory
            assert place.inner == ""
            assert found.entry_timeout == 0.0
            assert name in self.model.shown[place.path].names_below("")
            self.operations.inodes.forget(found.ident, 1)
            return
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
        nodes = [node for node in map(listing.node, range(len(listing))) if node is not listing.own]
        names = {node.name for node in nodes}
        assert names == self.names_in(place)
        assert len(names) == len(nodes)
        start = data.draw(st.integers(0, len(listing)))
        most = data.draw(st.integers(0, len(listing)))
        for seen, (name, ident) in enumerate(held_by(listing, start)):
            if seen >= most or name == ".glassfs":
                self.operations.inodes.forget(ident, 1)
            else:
                self.take(ident, self.child_of(parent, name))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.check_node(data.draw(st.sampled_from(sorted(self.held))))

    def check_node(self, ident: int, is_fresh: bool = False) -> None:
        """An id gives what it stands for, or fails if that is gone."""
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
        self.operations.inodes.forget(ident, references)
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
                    self.operations.inodes.forget(ident, references)
                assert (len(self.inodes), self.inodes.held) == (0, 0)
                self.sources.tree.close()
                # That of all folders has no sources, and is in use by whatever earlier tests have left.
                assert [lease for lease in self.leases if lease._users and lease.sources] == []
                assert self.store.held == set()
        finally:
            self.patch.undo()


class RemoteKernelAtWork(KernelAtWork):
    """Names decide what is a container."""

    is_remote = True


@pytest.mark.parametrize("kernel", [KernelAtWork, RemoteKernelAtWork])
def test_requests_in_any_order(kernel: type[KernelAtWork], scale: Scale) -> None:
    run_state_machine_as_test(
        kernel,
        settings=settings(max_examples=scale(20, 400, 4000), stateful_step_count=40, report_multiple_bugs=False),
    )

