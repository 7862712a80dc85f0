"""Each request, in messages: what is answered, with which layout, and what becomes of faults."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

import pytest

from glassfs.content import Blob, Group, Member, Records, Unreadable
from glassfs.errors import Changed, Damaged
from glassfs.mount.engines import wire
from glassfs.mount.inodes import ROOT
from glassfs.settings import settings
from glassfs.tree import Node
from glassfs.tree.build import container_root
from glassfs.tree.nodes import Access, FixedDirectory, Origin, Symlink
from tests.mount_unit.protocol import (
    ANSWERED,
    BATCH_FORGET,
    BIG,
    FORGET,
    GETATTR,
    GETXATTR,
    LISTXATTR,
    LOOKUP,
    READDIRPLUS,
    READLINK,
    Attr,
    attr_of,
    entry_of,
    folder,
    kernel_of,
    kernel_over,
    links,
)
from tests.tree.trees import origin

pytestmark = pytest.mark.usefixtures("made_format")


# Each request


def test_lookup() -> None:
    kernel = kernel_of()
    found = kernel.look_up(ROOT, "big.bin")
    assert found.ident > ROOT
    assert (found.entry_timeout, found.timeout) == (settings.cached, settings.cached)
    assert found.attr == Attr(
        found.attr.ino, len(BIG), 20, 9, 9, 9, 0, 0, 0, 0o100444, 1, 7, 8, 0, 4096, 0,
    )
    assert 0 < found.attr.ino < 1 << 63
    assert kernel.look_up(ROOT, "big.bin").ident == found.ident
    kernel.check()
    assert kernel.look_up(ROOT, "dir").attr.mode == 0o040555
    assert kernel.look_up(kernel.find("/dir"), "none")[:3] == (0, 0, settings.cached)


def test_lookups_of_dots_find_nothing() -> None:
    """With FUSE_EXPORT_SUPPORT, the kernel would look up file handles of nodes that it has forgotten by these names."""
    assert not wire.ACCEPTED & 1 << 4
    kernel = kernel_of()
    found = kernel.find("/dir")
    for name in (b".\0", b"..\0"):
        assert entry_of(kernel.bytes_of(LOOKUP, found, name)).ident == 0
        assert kernel.ask(LOOKUP, found + 1000, name) == errno.ESTALE


@pytest.mark.parametrize("mtime_ns", [0, 1, 10**18 + 123_456_789, -1, -(10**9), -(10**18) - 5, 1 << 63])
def test_times_of_any_age(mtime_ns: int) -> None:
    """Before 1970 too: seconds are then negative, and nanoseconds count on from them."""
    base = origin()
    root = folder({"old": Symlink("old", 5, Origin("v", base.access, mtime_ns, base.services, base.lease), "x")})
    kernel = kernel_over(root)
    found = kernel.look_up(ROOT, "old")
    assert found.attr.mtime * 10**9 + found.attr.mtime_ns == mtime_ns
    assert 0 <= found.attr.mtime_ns < 10**9
    assert attr_of(kernel.bytes_of(GETATTR, found.ident, bytes(16))[16:]) == found.attr
    listed = kernel.list_all(ROOT, 4096)
    assert [one.entry.attr for one in listed if one.entry and one.name == "old"] == [found.attr]
    kernel.check()


def test_largest_owners_and_sizes() -> None:
    base = origin()
    most = Origin("v", Access(0o777, (1 << 32) - 2, (1 << 32) - 2), 0, base.services, base.lease)
    large = Member((b"large",), Blob(b"large", Unreadable((1 << 63) - 1, Damaged("not there"))))
    kernel = kernel_over(container_root(Group(b"", lambda: [large]), most))
    found = kernel.look_up(ROOT, "large.bin").attr
    assert (found.size, found.blocks) == ((1 << 63) - 1, 1 << 54)
    assert (found.uid, found.gid, found.mode) == ((1 << 32) - 2, (1 << 32) - 2, 0o100444)


def test_reads_beyond_the_limit_are_refused() -> None:
    kernel = kernel_of()
    ident = kernel.find("/big.bin")
    assert kernel.read(ident, 1, 1 << 20) == BIG[1:]
    for size in ((1 << 20) + 1, (1 << 32) - 1):
        assert kernel.read(ident, 0, size) == errno.EINVAL


def test_links() -> None:
    kernel = kernel_over(folder({"link": Symlink("link", 2, origin(), "../über/\udcff")}), "umask=077")
    found = kernel.look_up(ROOT, "link")
    assert found.attr.mode == 0o120777
    assert kernel.ask(READLINK, found.ident) == "../über/".encode() + b"\xff"
    assert found.attr.size == len("../über/".encode()) + 1
    assert kernel_of().ask(READLINK, ROOT) == errno.EINVAL


def test_extended_attributes() -> None:
    kernel = kernel_of()
    ident = kernel.find("/dir/a.npy")
    named = b"user.glassfs.shape\0"
    assert kernel.ask(GETXATTR, ident, struct.pack("=II", 0, 0) + named) == struct.pack("=II", 3, 0)
    for size, expected in ((2, errno.ERANGE), (3, b"[1]"), (100, b"[1]")):
        assert kernel.ask(GETXATTR, ident, struct.pack("=II", size, 0) + named) == expected
    names = b"".join(b"user.glassfs.%s\0" % name for name in (b"key", b"format", b"dtype", b"shape"))
    assert kernel.ask(LISTXATTR, ident, struct.pack("=II", 0, 0)) == struct.pack("=II", len(names), 0)
    assert kernel.ask(LISTXATTR, ident, struct.pack("=II", len(names) - 1, 0)) == errno.ERANGE
    listed = kernel.bytes_of(LISTXATTR, ident, struct.pack("=II", len(names), 0))
    assert sorted(listed.split(b"\0")) == sorted(names.split(b"\0"))
    assert kernel.ask(GETXATTR, ident, struct.pack("=II", 0, 0) + b"user.none\0") == errno.ENODATA
    for name in (b"security.selinux", b"system.posix_acl_access", b""):
        assert kernel.ask(GETXATTR, ident, struct.pack("=II", 0, 0) + name + b"\0") == errno.ENOTSUP


OTHERS = [number for number in range(60) if number not in {*ANSWERED, FORGET, BATCH_FORGET}]


@pytest.mark.parametrize("opcode", [*OTHERS, 4096, 1 << 31])
def test_other_requests_are_not_implemented(opcode: int) -> None:
    kernel = kernel_of()
    assert kernel.ask(opcode, ROOT, bytes(100)) == errno.ENOSYS
    assert kernel.failures.count == 0


# What goes wrong


@pytest.mark.parametrize(("error", "number"), [(Changed("x"), errno.ESTALE), (KeyboardInterrupt(), errno.EIO)])
def test_exceptions_are_answered_with_their_errno(error: BaseException, number: int) -> None:
    class Failing(FixedDirectory):
        def child(self, name: str) -> Node:
            raise error

        def listing(self) -> Sequence[Node]:
            raise error

    kernel = kernel_over(Failing("", 1, origin(), {}))
    assert kernel.ask(LOOKUP, ROOT, b"name\0") == number
    assert kernel.ask_listing(ROOT, 0, 4096) == number
    kernel.check()


def test_requests_for_nodes_of_the_wrong_kind() -> None:
    kernel = kernel_of()
    file, directory = kernel.find("/big.bin"), kernel.find("/dir")
    assert kernel.ask(LOOKUP, file, b"a\0") == errno.ENOTDIR
    assert kernel.ask_listing(file, 0, 4096) == errno.ENOTDIR
    assert kernel.read(directory, 0, 10) == errno.EISDIR
    assert kernel.read(kernel.find("/bad.bin"), 0, 10) == errno.EIO
    kernel.check()


BROKEN = [
    b"", b"\0", b"x", b"name without an end", b"\xff" * 7, bytes(3), bytes(11), struct.pack("=QQ", 1, 1), b"\xff" * 200,
]


@pytest.mark.parametrize("opcode", sorted(ANSWERED | {FORGET, BATCH_FORGET}))
@pytest.mark.parametrize("body", BROKEN)
def test_malformed_messages_are_answered(opcode: int, body: bytes) -> None:
    kernel = kernel_of()
    kernel.send(opcode, ROOT, body)
    assert len(kernel.sent) == (opcode in ANSWERED)
    assert kernel.look_up(ROOT, "big.bin").attr.size == len(BIG)


def test_batch_forget_with_a_wrong_count() -> None:
    kernel = kernel_of()
    ident = kernel.find("/big.bin")
    kernel.send(BATCH_FORGET, 0, struct.pack("=II", 1 << 31, 0) + struct.pack("=QQ", ident, 1))
    assert kernel.operations.inodes.held == 0


def test_references_of_untaken_replies_are_released() -> None:
    """The request was interrupted meanwhile, or the kernel is gone."""
    kernel = kernel_of()
    for name in ("big.bin", "dir", "none"):
        kernel.takes = True
        found = kernel.ask(LOOKUP, ROOT, b"big.bin\0")
        kernel.takes = False
        kernel.send(LOOKUP, ROOT, name.encode() + b"\0")
        kernel.send(READDIRPLUS, ROOT, struct.pack("=QQI", 0, 0, 4096))
        assert isinstance(found, bytes)
        assert kernel.operations.inodes.held == 1
        kernel.operations.forget(entry_of(found).ident, 1)
        assert len(kernel.operations.inodes) == 0


def test_size_that_fails_leaks_no_reference() -> None:
    def bad(block: int) -> list[str]:
        raise Damaged("cut")

    rows = Member((b"rows",), Records(b"rows", 2, bad))
    kernel = kernel_over(container_root(Group(b"", lambda: [rows]), origin()))
    assert kernel.ask(LOOKUP, ROOT, b"rows.jsonl\0") == errno.EIO
    assert len(kernel.operations.inodes) == 0
    listed = kernel.list_all(ROOT, 4096)
    # It is listed without attributes; the kernel asks for them.
    assert [(one.name, one.entry.ident if one.entry else None) for one in listed if "rows" in one.name] == [
        ("rows.jsonl", 0),
    ]
    kernel.check()
    kernel.forget_all()


def test_entry_that_fails_leaks_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that came before it in the same answer is given back."""
    kernel = kernel_over(folder(links(9)))
    attributes_of = kernel.operations.attributes_of

    def failing(node: Node) -> object:
        if node.ino == 1006:
            raise Damaged("of no use")
        return attributes_of(node)

    monkeypatch.setattr(kernel.operations, "attributes_of", failing)
    assert kernel.ask_listing(ROOT, 0, 100_000) == errno.EIO
    assert len(kernel.operations.inodes) == 0
    settled = [Member((b"%d" % number,), Records(b"%d" % number, 1, lambda block: [])) for number in range(9)]
    kernel = kernel_over(container_root(Group(b"", lambda: settled), origin()))
    monkeypatch.setattr(kernel.operations, "known_attributes", lambda node: 1 // (node.name != "5.jsonl") and None)
    assert kernel.ask_listing(ROOT, 0, 100_000) == errno.EIO
    assert len(kernel.operations.inodes) == 0


# What the mount shows of itself
