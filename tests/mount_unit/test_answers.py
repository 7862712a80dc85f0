"""Messages in, messages out, without a kernel. Layouts are those of the protocol, written down here once more."""

from __future__ import annotations

import errno
import json
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.content import Array, Blob, Group, Member, Memory, Records, Unreadable
from glassfs.errors import Changed, Damaged, GlassfsError, NotAllowed, Unavailable
from glassfs.formats import registry
from glassfs.mount.engines.answers import Answers, Payload
from glassfs.mount.errors import Failures
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import LONG, SHORT, Operations
from glassfs.source.memory import MemoryStore
from glassfs.tree import Directory, Node
from glassfs.tree.build import container_root
from glassfs.tree.nodes import Access, FixedDirectory, Origin, Symlink
from tests.mount_unit.kernel import operations_of, operations_over
from tests.tree.made import FORMAT, made
from tests.tree.trees import origin, sources_of

LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 5, 14, 15, 17, 18
GETXATTR, LISTXATTR, OPENDIR, READDIR, RELEASEDIR, DESTROY, BATCH_FORGET, READDIRPLUS = 22, 23, 27, 28, 29, 38, 42, 44
ANSWERED = {
    LOOKUP, GETATTR, READLINK, OPEN, READ, STATFS, RELEASE, GETXATTR, LISTXATTR, OPENDIR, READDIR, RELEASEDIR, DESTROY,
    READDIRPLUS,
}
DIRECTORY, REGULAR, LINK = 4, 8, 10
"""Types of directory entries."""
OWN = ".glassfs"


@pytest.fixture(autouse=True)
def made_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "built_in", lambda: iter([FORMAT]))


class Attr(NamedTuple):
    """``struct fuse_attr``"""

    ino: int
    size: int
    blocks: int
    atime: int
    mtime: int
    ctime: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    block_size: int
    flags: int


class Entry(NamedTuple):
    """``struct fuse_entry_out``, with its timeouts in seconds."""

    ident: int
    generation: int
    entry_timeout: float
    timeout: float
    attr: Attr


class Listed(NamedTuple):
    """A ``struct fuse_dirent`` or ``fuse_direntplus``."""

    entry: Entry | None
    ino: int
    after: int
    type: int
    name: str


def entry_of(body: bytes) -> Entry:
    assert len(body) == 128
    ident, generation, entry_s, attr_s, entry_ns, attr_ns = struct.unpack_from("=QQQQII", body)
    return Entry(ident, generation, entry_s + entry_ns / 1e9, attr_s + attr_ns / 1e9, attr_of(body[40:]))


def attr_of(raw: bytes) -> Attr:
    """Times are signed: the kernel takes them so."""
    assert len(raw) == 88
    return Attr(*struct.unpack("=QQQqqqIIIIIIIIII", raw))


class Kernel:
    """Asks and takes what is answered; ``held`` are the references it has, by what it was told."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.failures = Failures()
        self.sent: list[bytes] = []
        self.takes = True
        self.answers = Answers(operations, self.failures, self._take)
        self.payload = Payload()
        self.unique = 100
        self.held: Counter[int] = Counter()

    def _take(self, parts: Sequence[bytes | bytearray | memoryview]) -> bool:
        self.sent.append(b"".join(bytes(part) for part in parts))
        return self.takes

    def send(self, opcode: int, ident: int, body: bytes = b"") -> None:
        self.unique += 2
        header = struct.pack("=IIQQIIII", 40 + len(body), opcode, self.unique, ident, 1000, 1000, 4242, 0)
        self.answers.answer(opcode, self.unique, ident, header + body, self.payload)

    def ask(self, opcode: int, ident: int, body: bytes = b"") -> bytes | int:
        """The body of the only answer, or its errno."""
        self.sent.clear()
        self.send(opcode, ident, body)
        assert len(self.sent) == 1
        length, error, unique = struct.unpack_from("=IiQ", self.sent[0])
        assert (length, unique) == (len(self.sent[0]), self.unique)
        assert -4096 < error <= 0
        if error:
            assert length == 16
            return -error
        return self.sent[0][16:]

    def bytes_of(self, opcode: int, ident: int, body: bytes = b"") -> bytes:
        answer = self.ask(opcode, ident, body)
        assert isinstance(answer, bytes), errno.errorcode[answer]
        return answer

    def look_up(self, ident: int, name: str) -> Entry:
        found = entry_of(self.bytes_of(LOOKUP, ident, name.encode() + b"\0"))
        if found.ident:
            self.held[found.ident] += 1
        return found

    def find(self, path: str) -> int:
        ident = ROOT
        for name in path.split("/")[1:]:
            ident = self.look_up(ident, name).ident
        return ident

    def read(self, ident: int, offset: int, size: int) -> bytes | int:
        return self.ask(READ, ident, struct.pack("=QQIIQII", 0, offset, size, 0, 0, 0, 0))

    def list(self, ident: int, after: int, size: int, is_plus: bool = True) -> list[Listed] | int:
        opcode = READDIRPLUS if is_plus else READDIR
        body = self.ask(opcode, ident, struct.pack("=QQIIQII", 0, after, size, 0, 0, 0, 0))
        if isinstance(body, int):
            return body
        assert len(body) <= size
        found, place = [], 0
        while place < len(body):
            entry = None
            if is_plus:
                entry = entry_of(body[place : place + 128])
                place += 128
                if entry.ident:
                    self.held[entry.ident] += 1
            ino, next_one, length, kind = struct.unpack_from("=QQII", body, place)
            name = body[place + 24 : place + 24 + length]
            assert len(name) == length
            place += 24 + (length + 7 & ~7)
            found.append(Listed(entry, ino, next_one, kind, name.decode("utf-8", "surrogateescape")))
        assert place == len(body)
        return found

    def list_all(self, ident: int, size: int, is_plus: bool = True) -> list[Listed] | int:
        found: list[Listed] = []
        after = 0
        while True:
            some = self.list(ident, after, size, is_plus)
            if not isinstance(some, list):
                return some
            if not some:
                return found
            found += some
            after = some[-1].after

    def check(self) -> None:
        """What the kernel was told it holds is what the table counts."""
        assert self.operations.inodes.held == sum(self.held.values())

    def forget_all(self) -> None:
        for ident, references in self.held.items():
            self.send(FORGET, ident, struct.pack("=Q", references))
        self.held.clear()
        assert len(self.operations.inodes) == 0


BIG = bytes(range(256)) * 40


def members() -> Iterator[Member]:
    yield Member((b"big",), Blob(b"big", Memory(BIG)))
    yield Member((b"dir", b"a"), Array(b"dir/a", Memory(bytes(8)), "<f8", (1,)))
    yield Member((b"dir", b"inner", b"b"), Blob(b"b", Memory(b"b")))
    yield Member((b"bad",), Blob(b"bad", Unreadable(1000, Damaged("block 7 is bad"))))
    yield Member((b"rows",), Records(b"rows", 2, lambda block: ["row"] * 3))


def kernel_over(root: Directory, *options: str) -> Kernel:
    return Kernel(operations_over(lambda: root, *options))


def kernel_of(*options: str) -> Kernel:
    kept = list(members())
    return kernel_over(container_root(Group(b"", lambda: kept), origin()), *options)


def folder(nodes: dict[str, Node], mtime_ns: int = 9 * 10**9) -> FixedDirectory:
    """One that may change."""
    base = origin("folder")
    return FixedDirectory("", 77, Origin("folder", base.access, mtime_ns, base.services, base.lease), nodes)


def links(count: int) -> dict[str, Node]:
    """Names of any length."""
    names = [f"{'n' * (number * 7 % 50)}{number}" for number in range(count)]
    return {name: Symlink(name, 1000 + number, origin(name), "target") for number, name in enumerate(names)}


# Each request


def test_a_look_up() -> None:
    kernel = kernel_of()
    found = kernel.look_up(ROOT, "big.bin")
    assert found.ident > ROOT
    assert found.generation == 0
    assert (found.entry_timeout, found.timeout) == (LONG, LONG)
    assert found.attr == Attr(
        found.attr.ino, len(BIG), 20, 9, 9, 9, 0, 0, 0, 0o100444, 1, 7, 8, 0, 4096, 0,
    )
    assert 0 < found.attr.ino < 1 << 63
    assert kernel.look_up(ROOT, "big.bin").ident == found.ident
    kernel.check()
    assert kernel.look_up(ROOT, "dir").attr.mode == 0o040555


def test_attributes() -> None:
    kernel = kernel_of("uid=5", "gid=6", "umask=077")
    found = kernel.look_up(ROOT, "big.bin")
    body = kernel.bytes_of(GETATTR, found.ident, bytes(16))
    assert len(body) == 104
    seconds, nanoseconds, padding = struct.unpack_from("=QII", body)
    assert (seconds, nanoseconds, padding) == (LONG, 0, 0)
    assert attr_of(body[16:]) == found.attr
    assert (found.attr.uid, found.attr.gid, found.attr.mode) == (5, 6, 0o100400)
    seconds, nanoseconds, _ = struct.unpack_from("=QII", kernel.bytes_of(GETATTR, ROOT, bytes(16)))
    assert (seconds, nanoseconds) == (0, SHORT * 10**9)


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
    assert isinstance(listed, list)
    assert [one.entry.attr for one in listed if one.entry and one.name == "old"] == [found.attr]
    kernel.check()


def test_the_largest_owners_and_sizes() -> None:
    base = origin()
    most = Origin("v", Access(0o777, (1 << 32) - 2, (1 << 32) - 2), 0, base.services, base.lease)
    large = Member((b"large",), Blob(b"large", Unreadable((1 << 63) - 1, Damaged("not there"))))
    kernel = kernel_over(container_root(Group(b"", lambda: [large]), most))
    found = kernel.look_up(ROOT, "large.bin").attr
    assert (found.size, found.blocks) == ((1 << 63) - 1, 1 << 54)
    assert (found.uid, found.gid, found.mode) == ((1 << 32) - 2, (1 << 32) - 2, 0o100444)


@pytest.mark.parametrize(("offset", "size"), [(0, 10), (5000, 300), (len(BIG) - 3, 100), (len(BIG), 1), (1 << 62, 9)])
def test_reads(offset: int, size: int) -> None:
    kernel = kernel_of()
    assert kernel.read(kernel.find("/big.bin"), offset, size) == BIG[offset : offset + size]


def test_reads_of_more_than_a_thread_has_room_for() -> None:
    kernel = kernel_of()
    assert kernel.read(kernel.find("/big.bin"), 1, 1 << 21) == BIG[1:]


def test_links() -> None:
    kernel = kernel_over(folder({"link": Symlink("link", 2, origin(), "../über/\udcff")}))
    found = kernel.look_up(ROOT, "link")
    assert kernel.ask(READLINK, found.ident) == "../über/".encode() + b"\xff"
    assert found.attr.size == len("../über/".encode()) + 1
    assert kernel_of().ask(READLINK, ROOT) == errno.EINVAL


def test_names_that_are_not_utf_8() -> None:
    kernel = kernel_over(folder({"\udcff": Symlink("\udcff", 2, origin(), "x")}))
    found = entry_of(kernel.bytes_of(LOOKUP, ROOT, b"\xff\0"))
    assert kernel.operations.node(found.ident).name == "\udcff"


def test_the_file_system() -> None:
    body = kernel_of().bytes_of(STATFS, ROOT)
    assert len(body) == 80
    blocks, free, available, files, files_free, block, longest, fragment, *rest = struct.unpack("=5Q4I6I", body)
    assert (blocks - 1) * fragment < 10_000 <= blocks * fragment
    assert (free, available, files, files_free, set(rest)) == (0, 0, 0, 0, {0})
    assert (block, longest) == (4096, 255)


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


def test_opening_is_not_wanted_where_the_kernel_can_do_without() -> None:
    kernel = kernel_of()
    ident = kernel.find("/big.bin")
    assert kernel.ask(OPEN, ident, bytes(8)) == errno.ENOSYS
    assert kernel.ask(OPENDIR, ROOT, bytes(8)) == errno.ENOSYS
    kernel.answers.opens = True
    handle, flags, _ = struct.unpack("=QII", kernel.bytes_of(OPEN, ident, bytes(8)))
    assert (handle, flags) == (0, 2)  # FOPEN_KEEP_CACHE
    assert kernel.ask(OPENDIR, ROOT, bytes(8)) == errno.ENOSYS
    kernel.answers.opens_directories = True
    handle, flags, _ = struct.unpack("=QII", kernel.bytes_of(OPENDIR, ROOT, bytes(8)))
    assert (handle, flags) == (0, 2 | 8)  # and FOPEN_CACHE_DIR
    assert kernel.ask(RELEASE, ident, bytes(24)) == b""
    assert kernel.ask(RELEASEDIR, ROOT, bytes(24)) == b""


def test_references_are_given_back() -> None:
    kernel = kernel_of()
    idents = [kernel.look_up(ROOT, name).ident for name in ("big.bin", "dir", "big.bin")]
    kernel.sent.clear()
    kernel.send(FORGET, idents[0], struct.pack("=Q", 1))
    assert kernel.operations.inodes.held == 2
    pairs = b"".join(struct.pack("=QQ", ident, 1) for ident in idents[1:])
    kernel.send(BATCH_FORGET, 0, struct.pack("=II", 2, 0) + pairs)
    assert (kernel.operations.inodes.held, len(kernel.operations.inodes)) == (0, 0)
    assert kernel.sent == []  # nobody waits for an answer


def test_the_end() -> None:
    assert kernel_of().ask(DESTROY, 0) == b""


@pytest.mark.parametrize("opcode", [n for n in range(60) if n not in {*ANSWERED, FORGET, BATCH_FORGET}] + [4096, 1 << 31])
def test_whatever_else_is_asked_there_is_none(opcode: int) -> None:
    kernel = kernel_of()
    assert kernel.ask(opcode, ROOT, bytes(100)) == errno.ENOSYS
    assert kernel.failures.count == 0


# What goes wrong


@pytest.mark.parametrize(("error", "number"), [
    (Damaged("x"), errno.EIO), (NotAllowed("x"), errno.EACCES), (Unavailable("x"), errno.EAGAIN),
    (Changed("x"), errno.ESTALE), (MemoryError(), errno.EIO), (ValueError("x"), errno.EIO), (KeyboardInterrupt(), errno.EIO),
])
def test_faults_are_answered_with_their_number(error: BaseException, number: int) -> None:
    class Failing(FixedDirectory):
        def child(self, name: str) -> Node:
            raise error

        def listing(self) -> Sequence[Node]:
            raise error

    kernel = kernel_over(Failing("", 1, origin(), {}))
    assert kernel.ask(LOOKUP, ROOT, b"name\0") == number
    assert kernel.list(ROOT, 0, 4096) == kernel.list(ROOT, 0, 4096, is_plus=False) == number
    kernel.check()


def test_what_is_asked_of_the_wrong_thing() -> None:
    kernel = kernel_of()
    file, directory = kernel.find("/big.bin"), kernel.find("/dir")
    assert kernel.ask(LOOKUP, file, b"a\0") == errno.ENOTDIR
    assert kernel.list(file, 0, 4096) == errno.ENOTDIR
    assert kernel.read(directory, 0, 10) == errno.EISDIR
    assert kernel.read(kernel.find("/bad.bin"), 0, 10) == errno.EIO
    for ident in (0, 12345, 1 << 63):
        assert kernel.ask(GETATTR, ident, bytes(16)) == errno.ESTALE
        assert kernel.ask(LOOKUP, ident, b"a\0") == errno.ESTALE
        assert kernel.read(ident, 0, 10) == errno.ESTALE
    kernel.check()


BROKEN = [
    b"", b"\0", b"x", b"name without an end", b"\xff" * 7, bytes(3), bytes(11), struct.pack("=QQ", 1, 1), b"\xff" * 200,
]


@pytest.mark.parametrize("opcode", sorted(ANSWERED | {FORGET, BATCH_FORGET}))
@pytest.mark.parametrize("body", BROKEN)
def test_broken_messages_are_answered_and_end_nothing(opcode: int, body: bytes) -> None:
    kernel = kernel_of()
    kernel.send(opcode, ROOT, body)
    assert len(kernel.sent) == (opcode in ANSWERED)
    assert kernel.look_up(ROOT, "big.bin").attr.size == len(BIG)


def test_a_batch_that_says_more_than_it_holds() -> None:
    kernel = kernel_of()
    ident = kernel.find("/big.bin")
    kernel.send(BATCH_FORGET, 0, struct.pack("=II", 1 << 31, 0) + struct.pack("=QQ", ident, 1))
    assert kernel.operations.inodes.held == 0


def test_what_nobody_took_is_given_back() -> None:
    """The request was interrupted meanwhile, or the kernel is gone."""
    kernel = kernel_of()
    for name in ("big.bin", "dir", "none"):
        kernel.takes = True
        found = kernel.ask(LOOKUP, ROOT, b"big.bin\0")
        kernel.takes = False
        kernel.send(LOOKUP, ROOT, name.encode() + b"\0")
        kernel.send(READDIRPLUS, ROOT, struct.pack("=QQI", 0, 0, 4096))
        kernel.send(READDIR, ROOT, struct.pack("=QQI", 0, 0, 4096))
        assert isinstance(found, bytes)
        assert kernel.operations.inodes.held == 1
        kernel.operations.forget(entry_of(found).ident, 1)
        assert len(kernel.operations.inodes) == 0


def test_a_size_that_cannot_be_found_out_costs_no_reference() -> None:
    def bad(block: int) -> list[str]:
        raise Damaged("cut")

    rows = Member((b"rows",), Records(b"rows", 2, bad))
    kernel = kernel_over(container_root(Group(b"", lambda: [rows]), origin()))
    assert kernel.ask(LOOKUP, ROOT, b"rows.jsonl\0") == errno.EIO
    assert len(kernel.operations.inodes) == 0
    listed = kernel.list_all(ROOT, 4096)
    assert isinstance(listed, list)
    # It is listed, without attributes: whoever wants them asks.
    assert [(one.name, one.entry.ident if one.entry else None) for one in listed if "rows" in one.name] == [
        ("rows.jsonl", 0),
    ]
    kernel.check()
    kernel.forget_all()


def test_an_entry_that_fails_costs_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that came before it in the same answer is given back."""
    kernel = kernel_over(folder(links(9)))
    attributes_of = kernel.operations.attributes_of

    def failing(node: Node) -> object:
        if node.ino == 1006:
            raise Damaged("of no use")
        return attributes_of(node)

    monkeypatch.setattr(kernel.operations, "attributes_of", failing)
    assert kernel.list(ROOT, 0, 100_000) == errno.EIO
    assert len(kernel.operations.inodes) == 0
    settled = [Member((b"%d" % number, b"a"), Blob(b"a", Memory(b""))) for number in range(9)]
    kernel = kernel_over(container_root(Group(b"", lambda: settled), origin()))
    monkeypatch.setattr(kernel.operations, "known_attributes", lambda node: 1 // (node.name != "5") and None)
    assert kernel.list(ROOT, 0, 100_000) == errno.EIO
    assert len(kernel.operations.inodes) == 0


# Names that are not there


def test_names_that_are_not_there_are_remembered_by_the_kernel() -> None:
    kernel = kernel_of()
    inner = kernel.find("/dir")
    assert kernel.look_up(inner, "none")[:3] == (0, 0, LONG)
    assert kernel.look_up(ROOT, "none")[:3] in ((0, 0, SHORT), (0, 0, LONG))
    changing = kernel_over(folder({}))
    assert changing.look_up(ROOT, "none")[:3] == (0, 0, SHORT)
    kernel.operations.longest = 0.0
    assert kernel.ask(LOOKUP, inner, b"none\0") == errno.ENOENT
    kernel.check()


# Listings


@pytest.mark.parametrize("is_plus", [True, False])
def test_listings_have_all_with_their_types(is_plus: bool) -> None:
    kernel = kernel_of()
    listed = kernel.list_all(ROOT, 4096, is_plus)
    assert isinstance(listed, list)
    assert [(one.name, one.type) for one in listed] == [
        (".", DIRECTORY), ("..", DIRECTORY), (OWN, DIRECTORY), ("dir", DIRECTORY), ("big.bin", REGULAR),
        ("bad.bin", REGULAR), ("rows.jsonl", REGULAR),
    ]
    kernel.check()
    for one in listed[2:]:
        if one.entry and one.entry.ident:
            found = kernel.look_up(ROOT, one.name)
            assert (found.ident, found.attr, found.timeout) == (one.entry.ident, one.entry.attr, one.entry.timeout)
            assert one.ino == found.attr.ino
    assert [one.entry.ident for one in listed[:2] if one.entry] == ([0, 0] if is_plus else [])
    kernel.forget_all()


@pytest.mark.parametrize("is_plus", [True, False])
@pytest.mark.parametrize("is_settled", [True, False])
def test_listings_in_buffers_of_every_size(is_plus: bool, is_settled: bool) -> None:
    """Each entry comes once and whole, or it is said that the buffer is too small."""
    if is_settled:
        named = [Member((name.encode(),), Blob(b"x", Memory(b""))) for name in links(12)]
        root: Directory = container_root(Group(b"", lambda: named), origin())
    else:
        root = folder(links(12))
    kernel = kernel_over(root)
    whole = kernel.list_all(ROOT, 1 << 20, is_plus)
    assert isinstance(whole, list)
    expected = [one.name for one in whole]
    assert expected == [".", "..", OWN, *(node.name for node in root.listing())]
    needed = max(24 + (len(name) + 7 & ~7) + (128 if is_plus else 0) for name in expected)
    for size in [*range(8, 512), *range(512, 4097, 8)]:
        listed = kernel.list_all(ROOT, size, is_plus)
        if size < needed:
            assert listed == errno.EINVAL
        else:
            assert isinstance(listed, list)
            assert [one.name for one in listed] == expected
    kernel.check()
    kernel.forget_all()


@settings(max_examples=100)
@given(st.booleans(), st.booleans(), st.data())
def test_a_listing_goes_on_from_any_cookie(is_plus: bool, is_settled: bool, data: st.DataObject) -> None:
    """In any order, as who has noted where it was may come back to it."""
    named = [Member((b"%d" % number,), Blob(b"x", Memory(b""))) for number in range(15)]
    root = container_root(Group(b"", lambda: named), origin()) if is_settled else folder(links(15))
    kernel = kernel_over(root)
    # The last one is left out: whoever comes to the end has no more need of what a folder was.
    first = kernel.list(ROOT, 0, 1 << 20, is_plus)
    assert isinstance(first, list)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(first) - 2))
        size = data.draw(st.integers(300, 3000))
        some = kernel.list(ROOT, first[place].after, size, is_plus)
        assert isinstance(some, list)
        assert some
        assert [one[1:] for one in some] == [one[1:] for one in first[place + 1 : place + 1 + len(some)]]
    kernel.check()
    kernel.forget_all()


@settings(max_examples=200)
@given(st.integers(400, 2000), st.booleans(), st.data())
def test_a_folder_that_changes_while_it_is_listed(size: int, is_plus: bool, data: st.DataObject) -> None:
    """What was there all the time is listed exactly once, and nothing twice."""
    children = links(20)
    stays = set(list(children)[::3])
    root = folder(children)
    kernel = kernel_over(root)
    seen: list[str] = []
    after = 0
    while True:
        some = kernel.list(ROOT, after, size, is_plus)
        assert isinstance(some, list)
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
    assert not kernel.operations._snapshots
    kernel.forget_all()


def test_listings_that_nobody_ends_are_bounded() -> None:
    kernel = kernel_over(folder(links(30)))
    for _ in range(500):
        kernel.list(ROOT, 0, 400)
    assert len(kernel.operations._snapshots) <= 64
    listed = kernel.list_all(ROOT, 400)
    assert isinstance(listed, list)
    assert len(listed) == 33


def test_the_names_of_a_container_at_the_root_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with each of the many requests that a listing takes."""
    named = [Member((b"%04d" % number,), Blob(b"x", Memory(b""))) for number in range(3000)]
    kernel = kernel_over(container_root(Group(b"", lambda: named), origin()))
    counted = Counter[str]()
    original = Operations._note_all_at_root

    class Counted(list[Node]):
        def __iter__(self) -> Iterator[Node]:
            counted["all"] += 1
            return super().__iter__()

    monkeypatch.setattr(
        Operations, "_note_all_at_root", lambda self, nodes: original(self, Counted(nodes)),
    )
    listed = kernel.list_all(ROOT, 8192)
    assert isinstance(listed, list)
    assert len(listed) == 3003
    assert counted["all"] == 1
    stale = kernel.operations.stale("")
    assert {(ROOT, node.name) for node in kernel.operations.inodes.directory(ROOT).listing()} <= set(stale.entries)


# What the mount shows of itself


@pytest.mark.parametrize("names", [(), ("some",)], ids=["folder", "container"])
def test_the_status_is_made_anew_for_each_look_up(names: tuple[str, ...]) -> None:
    sources = sources_of(MemoryStore({"some": made(a=b"a")}), *names)
    asked: list[int] = []

    def status() -> dict[str, object]:
        asked.append(1)
        return {"count": len(asked), "long": "x" * (len(asked) * 1000)}

    operations = operations_of(sources, status=status)
    kernel = Kernel(operations)
    own = kernel.find(f"/{OWN}")
    found = [kernel.look_up(own, "status.json") for _ in range(3)]
    assert len({one.ident for one in found}) == 3
    for number, one in enumerate(found):
        assert one.entry_timeout == 0
        text = kernel.read(one.ident, 0, 1 << 20)
        assert isinstance(text, bytes)
        assert len(text) == one.attr.size
        assert json.loads(text)["count"] == number + 1
    listed = kernel.list_all(own, 4096)
    assert isinstance(listed, list)
    assert [(one.name, one.entry.ident if one.entry else None) for one in listed[2:]] == [("status.json", 0)]
    kernel.check()
    kernel.forget_all()


def test_errors_of_the_tree_are_counted() -> None:
    kernel = kernel_of()
    for _ in range(3):
        assert kernel.read(kernel.find("/bad.bin"), 0, 10) == errno.EIO
    assert kernel.failures.count == 3
    assert issubclass(Damaged, GlassfsError)


def test_requests_are_counted_by_kind() -> None:
    kernel = kernel_of()
    kernel.find("/dir/inner")
    kernel.ask(STATFS, ROOT)
    kernel.ask(51, ROOT)
    assert (kernel.payload.counts[LOOKUP], kernel.payload.counts[STATFS], sum(kernel.payload.counts)) == (2, 1, 4)
