"""What the kernel gets of a store in which names decide: presumed containers, and what becomes of its ids of them."""

from __future__ import annotations

import errno
import struct

import pytest

from glassfs.errors import Changed
from glassfs.formats import registry
from glassfs.mount.inodes import ROOT
from glassfs.tree import File
from tests.memory_store import MemoryStore
from tests.mount_unit.kernel import notify_kernel, served
from tests.mount_unit.protocol import GETXATTR, OPENDIR, Caller
from tests.tree.made import FORMAT, made

ASKED = struct.pack("=II", 100, 0)


@pytest.fixture(autouse=True)
def made_suffix(made_format: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", {FORMAT.name: FORMAT.suffixes})
    monkeypatch.setattr(registry, "_built_in", lambda name: FORMAT)


def test_opendir_verifies_a_presumed_container() -> None:
    store = MemoryStore({"a.made": made(a=b"1"), "b.made": b"text"}, is_remote=True)
    sources, kernel = served(store)
    assert sources.has_presumed
    kernel.operations.has_presumed = True
    caller = Caller(kernel.operations)
    for ident in (ROOT, caller.find("/a.made")):
        assert struct.unpack("=QII", caller.bytes_of(OPENDIR, ident, bytes(8))) == (0, 2 | 8, 0)
    assert store.opens == 1
    # On ESTALE the kernel looks the name up again, and opens what it finds then.
    assert caller.ask(OPENDIR, caller.find("/b.made"), bytes(8)) == errno.ESTALE
    ident = caller.find("/b.made")
    assert isinstance(kernel.operations.node(ident), File)
    assert caller.read(ident, 0, 100) == b"text"
    assert caller.ask(OPENDIR, ident, bytes(8)) == errno.ENOTDIR


def test_own_attributes_open_a_presumed_container() -> None:
    store = MemoryStore({"a.made": made(a=b"1"), "b.made": made(version=2)}, is_remote=True)
    caller = Caller(served(store)[1].operations)
    ident = caller.find("/a.made")
    assert caller.ask(GETXATTR, ident, ASKED + b"user.none\0") == errno.ENODATA
    assert store.opens == 0
    assert caller.ask(GETXATTR, ident, ASKED + b"user.glassfs.format\0") == b"made"
    assert caller.ask(GETXATTR, caller.find("/b.made"), ASKED + b"user.glassfs.error\0") == errno.ESTALE
    assert caller.ask(GETXATTR, caller.find("/b.made"), ASKED + b"user.glassfs.error\0") == b"has version 2"


def test_entered_manifest_gets_another_id_and_both_work() -> None:
    store = MemoryStore({"m.made": made(parts=["one"]), "one": b"1"}, is_remote=True)
    store.set_permissions("one", 0o600)
    sources, kernel = served(store)
    before = kernel.find("/m.made")
    file = kernel.operations.look_up(kernel.list(before)["parts"], "one.bin").ident
    notify_kernel(sources, kernel)
    after = kernel.find("/m.made")
    assert after != before
    assert [kernel.operations.attributes(ident)[0].mode & 0o777 for ident in (before, after)] == [0o555, 0o500]
    assert kernel.list(before).keys() == kernel.list(after).keys() == {"parts"}
    assert kernel.read(file) == b"1"
    store.put("one", b"other")
    notify_kernel(sources, kernel)
    for ident in (before, after, file):
        with pytest.raises(Changed):
            kernel.operations.node(ident)
    assert kernel.read(kernel.find("/m.made/parts/one.bin")) == b"other"
    kernel.operations.forget(file, 1)
    kernel.forget_all()
    assert kernel.operations.inodes.held == 0
    assert len(store.held) == 2  # by what is parsed
    sources.containers.close()
    assert not store.held
