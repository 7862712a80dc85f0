"""Each request, in messages: what is answered and listed, with which layout, and what becomes of faults."""

from __future__ import annotations

import errno
import struct
import weakref
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import pytest
from hypothesis import strategies as st

from glassfs import errors
from glassfs.content import Blob, Group, Member, Memory, Records, Unreadable
from glassfs.errors import Changed, Damaged
from glassfs.mount.engines import wire
from glassfs.mount.errors import Answer, Failures
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import POSITION_BITS, Operations
from glassfs.settings import settings
from glassfs.tree import Directory, Node
from glassfs.tree.build import container_root
from glassfs.tree.nodes import Access, FixedDirectory, Origin, Symlink
from tests.mount_unit import protocol as fuse
from tests.mount_unit.protocol import BIG, OWN, folder, kernel_of, kernel_over, links
from tests.tree.trees import origin

pytestmark = pytest.mark.usefixtures("made_format")


# Each request


def test_lookup() -> None:
    kernel = kernel_of()
    found = kernel.look_up(ROOT, "big.bin")
    assert found.ident > ROOT
    assert (found.entry_timeout, found.timeout) == (settings.cached, settings.cached)
    assert found.attr == fuse.Attr(
        found.attr.ino, len(BIG), 20, 9, 9, 9, 0, 0, 0, 0o100444, 1, 7, 8, 0, 4096, 0,
    )
    assert 0 < found.attr.ino < 1 << 63
    assert found.generation < 1 << 32  # the kernel keeps 32 bits, and compares all 64
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
        assert fuse.entry_of(kernel.bytes_of(fuse.LOOKUP, found, name)).ident == 0
        assert kernel.ask(fuse.LOOKUP, found + 1000, name) == errno.ESTALE


def test_names_longer_than_statfs_says_are_refused() -> None:
    kernel = kernel_of()
    assert fuse.entry_of(kernel.bytes_of(fuse.LOOKUP, ROOT, b"n" * 255 + b"\0")).ident == 0
    assert kernel.ask(fuse.LOOKUP, ROOT, b"n" * 256 + b"\0") == errno.ENAMETOOLONG


@pytest.mark.parametrize("mtime_ns", [0, 1, 10**18 + 123_456_789, -1, -(10**9), -(10**18) - 5, 1 << 63])
def test_times_of_any_age(mtime_ns: int) -> None:
    """Before 1970 too: seconds are then negative, and nanoseconds count on from them."""
    base = origin()
    root = folder({"old": Symlink("old", 5, Origin("v", base.access, mtime_ns, base.services, base.lease), "x")})
    kernel = kernel_over(root)
    found = kernel.look_up(ROOT, "old")
    assert found.attr.mtime * 10**9 + found.attr.mtime_ns == mtime_ns
    assert 0 <= found.attr.mtime_ns < 10**9
    assert fuse.attr_of(kernel.bytes_of(fuse.GETATTR, found.ident, bytes(16))[16:]) == found.attr
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
    kernel = kernel_over(folder({"link": Symlink("link", 2, origin(), "../über/\udcff")}), umask=0o077)
    found = kernel.look_up(ROOT, "link")
    assert found.attr.mode == 0o120777
    assert kernel.ask(fuse.READLINK, found.ident) == "../über/".encode() + b"\xff"
    assert found.attr.size == len("../über/".encode()) + 1
    assert kernel_of().ask(fuse.READLINK, ROOT) == errno.EINVAL


def test_names_that_are_not_utf_8() -> None:
    kernel = kernel_over(folder({"\udcff": Symlink("\udcff", 2, origin(), "x")}))
    found = fuse.entry_of(kernel.bytes_of(fuse.LOOKUP, ROOT, b"\xff\0"))
    assert kernel.operations.node(found.ident).name == "\udcff"


def test_extended_attributes() -> None:
    kernel = kernel_of()
    ident = kernel.find("/dir/a.npy")
    named = b"user.glassfs.shape\0"
    assert kernel.ask(fuse.GETXATTR, ident, struct.pack("=II", 0, 0) + named) == struct.pack("=II", 3, 0)
    for size, expected in ((2, errno.ERANGE), (3, b"[1]"), (100, b"[1]")):
        assert kernel.ask(fuse.GETXATTR, ident, struct.pack("=II", size, 0) + named) == expected
    names = b"".join(b"user.glassfs.%s\0" % name for name in (b"key", b"format", b"dtype", b"shape"))
    assert kernel.ask(fuse.LISTXATTR, ident, struct.pack("=II", 0, 0)) == struct.pack("=II", len(names), 0)
    assert kernel.ask(fuse.LISTXATTR, ident, struct.pack("=II", len(names) - 1, 0)) == errno.ERANGE
    listed = kernel.bytes_of(fuse.LISTXATTR, ident, struct.pack("=II", len(names), 0))
    assert sorted(listed.split(b"\0")) == sorted(names.split(b"\0"))
    assert kernel.ask(fuse.GETXATTR, ident, struct.pack("=II", 0, 0) + b"user.none\0") == errno.ENODATA
    for name in (b"security.selinux", b"system.posix_acl_access", b""):
        assert kernel.ask(fuse.GETXATTR, ident, struct.pack("=II", 0, 0) + name + b"\0") == errno.ENOTSUP


OTHERS = [number for number in range(60) if number not in {*fuse.ANSWERED, fuse.FORGET, fuse.BATCH_FORGET}]


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
    assert kernel.ask(fuse.LOOKUP, ROOT, b"name\0") == number
    assert kernel.ask_listing(ROOT, 0, 4096) == number
    kernel.check()


def test_requests_for_nodes_of_the_wrong_kind() -> None:
    kernel = kernel_of()
    file, directory = kernel.find("/big.bin"), kernel.find("/dir")
    assert kernel.ask(fuse.LOOKUP, file, b"a\0") == errno.ENOTDIR
    assert kernel.ask_listing(file, 0, 4096) == errno.ENOTDIR
    assert kernel.read(directory, 0, 10) == errno.EISDIR
    assert kernel.read(kernel.find("/bad.bin"), 0, 10) == errno.EIO
    kernel.check()


BROKEN = [
    b"", b"\0", b"x", b"name without an end", b"\xff" * 7, bytes(3), bytes(11), struct.pack("=QQ", 1, 1), b"\xff" * 200,
]


@pytest.mark.parametrize("opcode", sorted(fuse.ANSWERED | {fuse.FORGET, fuse.BATCH_FORGET}))
@pytest.mark.parametrize("body", BROKEN)
def test_malformed_messages_are_answered(opcode: int, body: bytes) -> None:
    kernel = kernel_of()
    kernel.send(opcode, ROOT, body)
    assert len(kernel.sent) == (opcode in fuse.ANSWERED)
    assert kernel.look_up(ROOT, "big.bin").attr.size == len(BIG)


def test_batch_forget_with_a_wrong_count() -> None:
    kernel = kernel_of()
    ident = kernel.find("/big.bin")
    kernel.send(fuse.BATCH_FORGET, 0, struct.pack("=II", 1 << 31, 0) + struct.pack("=QQ", ident, 1))
    assert kernel.operations.inodes.held == 0


def test_references_of_untaken_replies_are_released() -> None:
    """The request was interrupted meanwhile, or the kernel is gone."""
    kernel = kernel_of()
    for name in ("big.bin", "dir", "none"):
        kernel.takes = True
        found = kernel.ask(fuse.LOOKUP, ROOT, b"big.bin\0")
        kernel.takes = False
        kernel.send(fuse.LOOKUP, ROOT, name.encode() + b"\0")
        kernel.send(fuse.READDIRPLUS, ROOT, struct.pack("=QQI", 0, 0, 4096))
        assert isinstance(found, bytes)
        assert kernel.operations.inodes.held == 1
        kernel.operations.inodes.forget(fuse.entry_of(found).ident, 1)
        assert len(kernel.operations.inodes) == 0


def test_size_that_fails_leaks_no_reference() -> None:
    def bad(block: int) -> list[str]:
        raise Damaged("cut")

    rows = Member((b"rows",), Records(b"rows", 2, bad))
    kernel = kernel_over(container_root(Group(b"", lambda: [rows]), origin()))
    assert kernel.ask(fuse.LOOKUP, ROOT, b"rows.jsonl\0") == errno.EIO
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


# Listings: everything once, whatever the buffer, the cookie, and what changes meanwhile


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


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.booleans(), st.data())
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


@hypothesis.settings(max_examples=200)
@hypothesis.given(st.integers(400, 2000), st.data())
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


# From exceptions to errno, in one place, and a log that does not flood


EXPECTED = [
    (errors.NotFound("/x"), errno.ENOENT), (errors.NotADirectory("/x"), errno.ENOTDIR),
    (errors.IsADirectory("/x"), errno.EISDIR), (errors.Damaged("bad"), errno.EIO),
    (errors.Changed("new"), errno.ESTALE), (errors.TooLarge("big"), errno.EFBIG),
    (errors.NotAllowed("x"), errno.EACCES), (errors.Unavailable("x"), errno.EAGAIN),
    (errors.Refused("f", "why"), errno.EIO),
    (errors.Unrecognised("f", "why"), errno.EIO), (KeyError("x"), errno.EIO), (ValueError("x"), errno.EIO),
    (errors.NoSpool("full"), errno.ENOSPC), (OSError(errno.ENOSPC, "full"), errno.EIO), (MemoryError(), errno.EAGAIN),
    (OSError(errno.EMFILE, "x"), errno.EAGAIN), (errors.NotInstalled("x"), errno.EOPNOTSUPP),
    (RecursionError(), errno.EIO),
    (Answer(errno.EROFS), errno.EROFS), (FileNotFoundError(2, "x"), errno.EIO),
]
LOGGED_NEVER = (errors.NotFound, errors.NotADirectory, errors.IsADirectory, Answer)


@pytest.mark.parametrize(("error", "number"), EXPECTED, ids=lambda value: repr(value))
def test_every_exception_has_its_errno(error: BaseException, number: int, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown one is EIO with a traceback in the log, never EINVAL; a missing file is nothing to log."""
    failures = Failures()
    assert failures.errno_of(error) == number
    is_expected = isinstance(error, (errors.GlassfsError, Answer)) or number == errno.EAGAIN
    assert len(caplog.records) == (not isinstance(error, LOGGED_NEVER))
    for record in caplog.records:
        assert bool(record.exc_info) is not is_expected
        assert str(error) in record.getMessage()


def test_errors_are_built_in_exceptions_too() -> None:
    for kind, built_in in {
        errors.NotFound: FileNotFoundError, errors.NotADirectory: NotADirectoryError,
        errors.IsADirectory: IsADirectoryError, errors.Damaged: OSError, errors.Changed: OSError,
        errors.TooLarge: OSError, errors.Refused: ValueError, errors.Unrecognised: errors.Refused,
    }.items():
        assert issubclass(kind, built_in)
        assert issubclass(kind, errors.GlassfsError)


def test_every_error_is_counted() -> None:
    failures = Failures()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: failures.errno_of(errors.Damaged("f: block 7: bad")), range(5000)))
    failures.errno_of(errors.Damaged("f: block 8: bad"))
    assert failures.count == 5001
