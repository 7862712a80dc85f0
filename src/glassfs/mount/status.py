"""``.glassfs/status.json`` at the root of a mount, and the root that carries it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from glassfs.content import Memory
from glassfs.tree.names import RESERVED
from glassfs.tree.nodes import Directory, File, FixedDirectory, Node, Origin, inode

SIZE = 4 << 10


class StatusFile(File):
    """A JSON document made anew for each who opens it, always SIZE bytes long: JSON may end in blanks."""

    __slots__ = ("_status",)

    def __init__(self, ino: int, origin: Origin, status: Callable[[], dict[str, Any]]) -> None:
        super().__init__("status.json", ino, origin, Memory(bytes(SIZE)))
        self._status = status

    def opened(self) -> File:
        return _Snapshot(self.name, self.ino, self.origin, Memory(render(self._status())))


class _Snapshot(File):
    """What the status was when the file was opened."""

    __slots__ = ()
    is_volatile = True


class MountRoot(Directory):
    """The root of the tree, with the mount's own directory."""

    __slots__ = ("_inner", "_own")

    def __init__(self, inner: Directory, status: Callable[[], dict[str, Any]]) -> None:
        super().__init__("", inner.ino, inner.origin)
        self._inner = inner
        ino = inode(RESERVED, self.ino)
        origin = replace(inner.origin)  # stays readable when the container is replaced
        file = StatusFile(inode("status.json", ino), origin, status)
        self._own = FixedDirectory(RESERVED, ino, origin, {file.name: file})

    @property
    def mode(self) -> int:
        return self._inner.mode

    def listing(self) -> Sequence[Node]:
        return [self._own, *self._inner.listing()]

    def child(self, name: str) -> Node:
        return self._own if name == RESERVED else self._inner.child(name)

    @property
    def link_count(self) -> int:
        count = self._inner.link_count + 1
        self.origin = self._inner.origin  # another where the source has changed
        return count

    def xattrs(self) -> dict[str, bytes]:
        return self._inner.xattrs()


def render(status: dict[str, Any]) -> bytes:
    """The document, filled up with blanks to SIZE bytes. Lists are cut where it would be longer."""
    while True:
        text = json.dumps(status, indent=2).encode()
        if len(text) < SIZE:
            return text + b" " * (SIZE - len(text) - 1) + b"\n"
        longest = max((value for value in status.values() if isinstance(value, list)), key=len)
        del longest[len(longest) // 2 :]
