"""What a mount shows of itself: ``.glassfs`` at its root, with ``status.json`` and, not listed, ``source/PATH``."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from glassfs.content import Memory
from glassfs.tree import Directory, File, Node, Sources
from glassfs.tree.lease import Lease
from glassfs.tree.names import RESERVED
from glassfs.tree.nodes import Access, Origin, inode, not_found
from glassfs.tree.places.own import OwnFiles

STATUS = "status.json"
SOURCE = "source"
STATUS_STEP = 4 << 10
"""The status ends in blanks up to a multiple of this: the kernel remembers sizes for a while, and few differ then."""


class MountRoot(Directory):
    """The root of the tree, with the mount's own directory, which belongs to ``owner``: a user and a group."""

    __slots__ = ("_inner", "_own")

    def __init__(
        self, inner: Directory, sources: Sources, status: Callable[[], dict[str, Any]], owner: tuple[int, int],
    ) -> None:
        super().__init__("", inner.ino, inner.origin)
        self._inner = inner
        self._own = _Own(inode(RESERVED, self.ino), inner.origin, sources, status, owner)

    @property
    def mode(self) -> int:
        return self._inner.mode

    def listing(self) -> Sequence[Node]:
        return [self._own, *self._inner.listing()]

    def child(self, name: str) -> Node:
        return self._own if name == RESERVED else self._inner.child(name)

    def xattrs(self) -> dict[str, bytes]:
        return self._inner.xattrs()


class _Own(Directory):
    """``.glassfs``"""

    __slots__ = ("_outer", "_sources", "_status")

    def __init__(
        self, ino: int, outer: Origin, sources: Sources, status: Callable[[], dict[str, Any]], owner: tuple[int, int],
    ) -> None:
        # Its own identity and lease: it goes on whatever becomes of the container whose root it is shown in.
        own = replace(outer, identity=RESERVED, access=Access(0o444, *owner), lease=Lease(()))
        super().__init__(RESERVED, ino, own)
        self._outer = outer
        self._sources = sources
        self._status = status

    is_of_mount = True

    def listing(self) -> Sequence[Node]:
        return [self._snapshot()]

    def child(self, name: str) -> Node:
        if name == STATUS:
            return self._snapshot()
        if name == SOURCE:
            return OwnFiles(SOURCE, inode(SOURCE, self.ino), self._outer, self._sources)
        raise not_found(name)

    def _snapshot(self) -> StatusFile:
        return StatusFile(inode(STATUS, self.ino), self.origin, self._status())


class StatusFile(File):
    """What the status was when the file was looked up. Only the owner of the mount may read it."""

    __slots__ = ()
    is_volatile = is_of_mount = True

    def __init__(self, ino: int, origin: Origin, status: dict[str, Any]) -> None:
        text = json.dumps(status, indent=2).encode()
        blanks = -(len(text) + 1) % STATUS_STEP
        super().__init__(STATUS, ino, origin, Memory(text + b" " * blanks + b"\n"))

    @property
    def mode(self) -> int:
        return stat.S_IFREG | 0o400
