"""Answer each request of the kernel from ``Operations`` in one message. Needs no kernel: ``send`` gets the replies.

Any thread. Every exception is answered with an errno. References that the kernel did not take are released.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Sequence

from glassfs.mount.engines import wire
from glassfs.mount.engines.wire import IN_HEADER, OUT_HEADER, Opcode
from glassfs.mount.errors import Answer, Failures
from glassfs.mount.operations import BLOCK, LONGEST_NAME, Listing, Operations
from glassfs.names import raw
from glassfs.tree import Node, Origin, Settled

LONGEST_READ = 1 << 20
OPCODES = max(Opcode) + 1
UNANSWERED = (Opcode.FORGET, Opcode.BATCH_FORGET)
_HEADER = OUT_HEADER.size
_REQUEST = IN_HEADER.size

Body = bytes | bytearray | memoryview
Send = Callable[[Sequence[Body]], bool]
"""Sends one message in parts; returns whether the kernel was still waiting for it."""


class Buffers:
    """The memory of one thread: for a request, and pages for data that is read."""

    def __init__(self) -> None:
        # Mapped: the kernel demands space for the longest write, of which only the first page is ever used.
        self.request = memoryview(mmap.mmap(-1, LONGEST_READ + wire.LEAST_READ))
        # Private: the first use of a shared page takes nearly twice as long.
        self._mapped = mmap.mmap(-1, LONGEST_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.pages = memoryview(self._mapped)
        self.given: list[tuple[int, int]] = []
        """The first and the number of ids that carry a reference in the reply that is being made."""

    def free(self) -> None:
        """Give the memory of the pages back until they are used again."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


Handler = Callable[[int, bytes, Buffers], Body | None]
"""Returns the body of the reply to a request about a node; None if it has none. Gets the whole message."""


class Answers:
    """Answers for one mount. OPEN has no handler: after ENOSYS the kernel opens files without a request."""

    def __init__(self, operations: Operations, failures: Failures, send: Send) -> None:
        self._operations = operations
        self._failures = failures
        self._send = send
        self._generation = int.from_bytes(os.urandom(4), "little")
        """Differs from mount to mount, as ids do not: else a file handle of an earlier mount, which servers of NFS and
        others give to their clients, would lead to another file of this one instead of ESTALE."""
        # Threads add to it without a lock. If a count were lost, no more would be wrong than a figure of the status.
        self.counts = [0] * OPCODES
        """Number of requests by opcode."""
        handlers: dict[int, Handler] = {
            Opcode.LOOKUP: self._look_up, Opcode.GETATTR: self._getattr, Opcode.READ: self._read,
            Opcode.READDIRPLUS: self._list, Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._batch_forget, Opcode.READLINK: self._readlink,
            Opcode.OPENDIR: self._opendir, Opcode.RELEASEDIR: lambda ident, message, buffers: b"",
            Opcode.GETXATTR: self._getxattr, Opcode.LISTXATTR: self._listxattr, Opcode.STATFS: self._statfs,
        }
        self._handlers = [handlers.get(opcode) for opcode in range(OPCODES)]

    def answer(self, opcode: int, unique: int, ident: int, message: bytes, buffers: Buffers) -> None:
        """Answer the request ``message``; the other arguments are from its header."""
        handler = None
        if opcode < OPCODES:
            self.counts[opcode] += 1
            handler = self._handlers[opcode]
        if handler is None:
            self.fail(unique, errno.ENOSYS)
            return
        try:
            body = handler(ident, message, buffers)
            # References count from the moment the kernel has the reply. If it refuses it, or making it failed midway,
            # all are given back.
            if body is not None and self._send((OUT_HEADER.pack(_HEADER + len(body), 0, unique), body)):
                buffers.given.clear()
        except BaseException as error:
            number = self._failures.errno_of(error)
            if opcode not in UNANSWERED:
                self.fail(unique, number)
        finally:
            while buffers.given:
                child, count = buffers.given.pop()
                self._operations.inodes.forget(child, 1, count)

    def fail(self, unique: int, number: int) -> None:
        self._send((wire.packed(number, unique),))

    def _look_up(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        if message.find(0, _REQUEST) > _REQUEST + LONGEST_NAME:  # the kernel passes on up to 4095 bytes
            raise Answer(errno.ENAMETOOLONG)
        child, attributes, entry_timeout, timeout = self._operations.look_up(ident, wire.name_at(message))
        if attributes is None:
            return wire.no_entry(entry_timeout)
        buffers.given.append((child, 1))
        return wire.entry_out(child, self._generation, entry_timeout, timeout, attributes)

    def _getattr(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        attributes, timeout = self._operations.attributes(ident)
        return wire.attr_out(timeout, attributes)

    def _read(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        _, offset, size = wire.READ_IN.unpack_from(message, _REQUEST)
        if size > LONGEST_READ:  # more than was negotiated
            raise Answer(errno.EINVAL)
        count = self._operations.read_into(ident, buffers.pages[:size], offset)
        return buffers.pages[:count]

    def _list(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        """Return as many entries as fit; each that has attributes carries a reference."""
        operations = self._operations
        _, cookie, size = wire.READ_IN.unpack_from(message, _REQUEST)
        listing, position = operations.listing(ident, cookie)
        body = bytearray(wire.dots(listing.directory.ino, listing.cookie)[position * wire.DOT :])
        is_full = self._fill(body, listing, max(2, position), size, buffers.given)
        if (is_full and not body) or len(body) > size:  # an empty reply would mean the end
            raise Answer(errno.EINVAL)
        if not body:
            operations.listed(ident, cookie)
        return body

    def _fill(
        self, body: bytearray, listing: Listing, position: int, size: int, given: list[tuple[int, int]],
    ) -> bool:
        """Append entries from ``position`` on; return whether there are more than fit in ``size`` bytes.

        ``given`` gets the first and the number of ids that carry a reference.
        """
        operations = self._operations
        for child, node in listing.held_from(position - 2):
            if child:
                given.append((child, 1))
            position += 1
            is_full = len(body) + wire.direntplus(len(raw(node.name))).size > size
            timeout = operations.timeout_of(node, listing.timeout)
            is_given = not is_full and self._put(body, child, node, listing.cookie + position, timeout)
            if child and not is_given:
                given.pop()
                operations.inodes.forget(child, 1)
            if is_full:
                return True
        if isinstance(listing.directory, Settled) and position - 2 < len(listing):
            return self._fill_inside(body, listing, listing.directory.inside, position, size, given)
        return False

    def _fill_inside(
        self, body: bytearray, listing: Listing, origin: Origin, position: int, size: int,
        given: list[tuple[int, int]],
    ) -> bool:
        """Append entries of a container with attributes. Optimized: listings are long, and few fields differ."""
        operations, generation = self._operations, self._generation
        seconds, nanoseconds = wire.times(listing.timeout)
        start = position - 2
        run, first, found = listing.held_inside(origin, start)
        # All children have a reference now, as one run of ids. Those that the kernel gets keep it, as a few stretches
        # of ids; ``keep`` takes back the others, also after an error.
        begun = end = first
        kept: list[tuple[int, int]] = []
        ahead = listing.cookie + position + 1 - first
        tail, tail_mode = b"", -1
        remaining, length, entry = size - len(body), 0, wire.direntplus(0)
        try:
            for ident, (name, ino, mode, file_size) in enumerate(found, first):
                if len(name) != length:
                    length = len(name)
                    entry = wire.direntplus(length)
                remaining -= entry.size
                if remaining < 0:
                    return True
                if file_size is None:
                    if not stat.S_ISDIR(mode):
                        node = listing.node(start + ident - first)
                        if not self._put(body, ident, node, ahead + ident, listing.timeout):
                            if begun < ident:
                                kept.append((begun, ident - begun))
                            begun = ident + 1
                        end = ident + 1
                        continue
                    file_size = 0
                if mode != tail_mode:  # directories come first, and files have one mode
                    shown, _, uid, gid, _, mtime_ns = operations.attributes_in(origin, mode)
                    tail, tail_mode = wire.tail(shown, uid, gid, mtime_ns), mode
                body += entry.pack(
                    ident, generation, seconds, seconds, nanoseconds, nanoseconds, ino, file_size,
                    -(-file_size // BLOCK), tail, ino, ahead + ident, length, mode >> 12, name,
                )
                end = ident + 1
        finally:
            if begun < end:
                kept.append((begun, end - begun))
            operations.inodes.keep(run, len(listing) - start, kept)
            given += kept
        return False

    def _put(self, body: bytearray, child: int, node: Node, after: int, timeout: float) -> bool:
        """Append one entry; return whether it has attributes: those of a node with an id that need no read."""
        attributes = self._operations.known_attributes(node) if child else None
        if attributes is None:
            body += wire.NO_ENTRY
        else:
            body += wire.entry_out(child, self._generation, timeout, timeout, attributes)
        body += wire.dirent(node.ino, after, node.mode, raw(node.name))
        return attributes is not None

    def _forget(self, ident: int, message: bytes, buffers: Buffers) -> None:
        self._operations.inodes.forget(ident, wire.FORGET_IN.unpack_from(message, _REQUEST)[0])

    def _batch_forget(self, ident: int, message: bytes, buffers: Buffers) -> None:
        count, _ = wire.BATCH_FORGET_IN.unpack_from(message, _REQUEST)
        start = _REQUEST + wire.BATCH_FORGET_IN.size
        for one, references in wire.FORGET_ONE.iter_unpack(message[start : start + count * wire.FORGET_ONE.size]):
            self._operations.inodes.forget(one, references)

    def _readlink(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        return raw(self._operations.readlink(ident))

    def _opendir(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        if not self._operations.has_presumed:
            raise Answer(errno.ENOSYS)
        self._operations.enter(ident)
        return wire.OPEN_OUT.pack(0, 1 << 1 | 1 << 3, 0)  # FOPEN_KEEP_CACHE and FOPEN_CACHE_DIR

    def _getxattr(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        name = wire.name_at(message, _REQUEST + wire.XATTR_IN.size)
        return _value(message, self._operations.getxattr(ident, name))

    def _listxattr(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        names = self._operations.listxattr(ident)
        return _value(message, b"".join(raw(name) + b"\0" for name in names))

    def _statfs(self, ident: int, message: bytes, buffers: Buffers) -> Body:
        blocks = -(-self._operations.total_size() // wire.BLOCK_SIZE)
        # No free space; names of up to 255 bytes.
        return wire.STATFS_OUT.pack(blocks, 0, 0, 0, 0, wire.BLOCK_SIZE, LONGEST_NAME, wire.BLOCK_SIZE, 0)


def _value(message: bytes, value: bytes) -> bytes:
    """Return a value, or its size if the kernel asks for that."""
    size, _ = wire.XATTR_IN.unpack_from(message, _REQUEST)
    if size and len(value) > size:
        raise Answer(errno.ERANGE)
    return value if size else wire.XATTR_OUT.pack(len(value), 0)
