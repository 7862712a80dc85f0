"""The protocol, written independently for tests: a caller that parses the replies, and trees to ask about."""

from __future__ import annotations

import errno
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from glassfs.content import Array, Blob, Group, Member, Memory, Records, Unreadable
from glassfs.errors import Damaged
from glassfs.mount.engines.answers import Answers, Buffers
from glassfs.mount.errors import Failures
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import Operations
from glassfs.tree import Directory, Node
from glassfs.tree.build import container_root
from glassfs.tree.nodes import FixedDirectory, Origin, Symlink
from tests.mount_unit.kernel import operations_over
from tests.tree.trees import origin

LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ, STATFS = 1, 2, 3, 5, 14, 15, 17
GETXATTR, LISTXATTR, OPENDIR, RELEASEDIR, BATCH_FORGET, READDIRPLUS = 22, 23, 27, 29, 42, 44
ANSWERED = {
    LOOKUP, GETATTR, READLINK, READ, STATFS, GETXATTR, LISTXATTR, OPENDIR, RELEASEDIR, READDIRPLUS,
}
OWN = ".glassfs"


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
    """A ``struct fuse_direntplus``."""

    entry: Entry
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


class Caller:
    """Sends requests and collects the replies; ``held`` counts the references that it was given, by id."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.failures = Failures()
        self.sent: list[bytes] = []
        self.takes = True
        self.answers = Answers(operations, self.failures, self._take)
        self.buffers = Buffers()
        self.unique = 100
        self.held: Counter[int] = Counter()

    def _take(self, parts: Sequence[bytes | bytearray | memoryview]) -> bool:
        self.sent.append(b"".join(bytes(part) for part in parts))
        return self.takes

    def send(self, opcode: int, ident: int, body: bytes = b"") -> None:
        self.unique += 2
        header = struct.pack("=IIQQIIII", 40 + len(body), opcode, self.unique, ident, 1000, 1000, 4242, 0)
        self.answers.answer(opcode, self.unique, ident, header + body, self.buffers)

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

    def ask_listing(self, ident: int, after: int, size: int) -> bytes | int:
        """Return the entries after a cookie as they are encoded, or the errno."""
        return self.ask(READDIRPLUS, ident, struct.pack("=QQIIQII", 0, after, size, *[0] * 4))

    def list(self, ident: int, after: int, size: int) -> list[Listed]:
        """Return some entries. Raises OSError with the errno of the answer."""
        body = self.ask_listing(ident, after, size)
        if isinstance(body, int):
            raise OSError(body, "is refused")
        assert len(body) <= size
        found, place = [], 0
        while place < len(body):
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

    def list_all(self, ident: int, size: int) -> list[Listed]:
        found: list[Listed] = []
        while some := self.list(ident, found[-1].after if found else 0, size):
            found += some
        return found

    def check(self) -> None:
        """Check that the table counts the references that the kernel was given."""
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


def kernel_over(root: Directory, umask: int = 0) -> Caller:
    return Caller(operations_over(lambda: root, umask))


def kernel_of() -> Caller:
    kept = list(members())
    return kernel_over(container_root(Group(b"", lambda: kept), origin()))


def folder(nodes: dict[str, Node], mtime_ns: int = 9 * 10**9) -> FixedDirectory:
    """One that may change."""
    base = origin("folder")
    return FixedDirectory("", 77, Origin("folder", base.access, mtime_ns, base.services, base.lease), nodes)


def links(count: int) -> dict[str, Node]:
    """Names of any length."""
    names = [f"{'n' * (number * 7 % 50)}{number}" for number in range(count)]
    return {name: Symlink(name, 1000 + number, origin(name), "target") for number, name in enumerate(names)}
