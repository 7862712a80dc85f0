"""Show the mount's own directory, ``.glassfs``: ``README``, ``status.json``, ``omitted.jsonl``, ``source``, ``views``.

The last two are not listed because programs that copy a tree with its hidden directories would copy the data again.
"""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from glassfs.content import Memory
from glassfs.content.allowance import OBJECT
from glassfs.lru import LRU
from glassfs.names import RESERVED
from glassfs.settings import settings
from glassfs.sizes import PIECE
from glassfs.tree import Directory, File, Node, Sources
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, inode, not_found
from glassfs.tree.omissions import MOST_NAMED, Omission
from glassfs.tree.sources.sources import OwnFiles

README = "README"
STATUS = "status.json"
OMITTED = "omitted.jsonl"
SOURCE = "source"
VIEWS = "views"
TEXT = b"""\
This directory belongs to the mount, not to the data.

status.json    version, process, sources, options, use of the cache; only for the owner of the mount
omitted.jsonl  what containers have and their directories do not show, of directories listed so far; only for the owner
views/PATH     the same tree with all views: videos as MP4, tables as Parquet, pages for a browser (views/index.html)
source/PATH    the container files themselves, unchanged

views and source can be opened, but are not listed: whatever copies everything in here would copy the data again.
"""


class StatusText:
    """The status as JSON: what ``status`` returns now or, if that takes long, returned a moment ago. Any thread.

    One that takes long is made for at most a tenth of the time of a processor, however often it is read.
    """

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status
        self._lock = threading.Lock()
        self._text = b""
        self._took = 0.0
        """How long the last one took, in seconds of processor time."""
        self._until = 0.0

    def __call__(self) -> bytes:
        with self._lock:
            # With many sources the status takes long, and any user may read it in a loop: so it may be a little old.
            now = time.monotonic()
            if now >= self._until:
                begun = time.thread_time()
                self._text = json.dumps(self._status(), indent=2).encode() + b"\n"
                before, self._took = self._took, time.thread_time() - begun
                took = min(before, self._took)  # the garbage collector may have run during one of them
                self._until = now + 10 * took if took > settings.status_quick else now
            return self._text


class ListedOmissions:
    """Omissions by the path of their directory: of those listed last, as many as take 1 MiB of memory. Any thread."""

    def __init__(self) -> None:
        self._lines: LRU[str, bytes] = LRU(PIECE)

    def __bool__(self) -> bool:
        return self._lines.weight > 0

    def note(self, path: str, omitted: Sequence[Omission]) -> None:
        """Replace what is known of a directory."""
        lines = b"".join(
            json.dumps({"path": path, "name": one.name, "reason": one.reason, "is_damage": one.is_damage}).encode()
            + b"\n" for one in omitted[:MOST_NAMED]
        )
        if len(lines) > PIECE:
            lines = lines[: lines.rfind(b"\n", 0, PIECE) + 1]
        if lines:
            self._lines.put(path, lines, len(lines) + 2 * OBJECT)
        else:
            self._lines.pop(path)

    def text(self) -> bytes:
        """Return a line of JSON for each."""
        return b"".join(lines for _, lines in self._lines.items())


class OwnDirectory(Directory):
    """``.glassfs`` in the root of ``sources``. ``status`` and ``omitted`` return the bytes of these files.

    ``owner`` is a user id and a group id.
    """

    def __init__(
        self, sources: Sources, status: Callable[[], bytes], omitted: Callable[[], bytes], owner: tuple[int, int],
    ) -> None:
        root = sources.tree.root
        outer = root.origin
        # Its own identity and lease: it stays when the container whose root it is shown in is replaced.
        own = replace(outer, identity=RESERVED, volume=RESERVED, access=Access(0o444, *owner), lease=Lease(()))
        super().__init__(RESERVED, inode(RESERVED, root.ino), own)
        self._outer = outer
        self._sources = sources
        self._private = {STATUS: status, OMITTED: omitted}

    is_of_mount = True

    def listing(self) -> Sequence[Node]:
        return [self._readme(), *map(self._snapshot, self._private)]

    def child(self, name: str) -> Node:
        if name == README:
            return self._readme()
        if name in self._private:
            return self._snapshot(name)
        if name == SOURCE:
            return OwnFiles(SOURCE, inode(SOURCE, self.ino), self._outer, self._sources)
        if name == VIEWS:
            return self._sources.viewed(VIEWS, inode(VIEWS, self.ino))
        raise not_found(name)

    def _readme(self) -> OwnFile:
        return OwnFile(README, inode(README, self.ino), self.origin, Memory(TEXT))

    def _snapshot(self, name: str) -> PrivateFile:
        return PrivateFile(name, inode(name, self.ino), self.origin, Memory(self._private[name]()))


class OwnFile(File):
    """A file of the mount itself."""

    is_of_mount = True


class PrivateFile(OwnFile):
    """A file as it was at the time of the look-up. Only the owner of the mount may read it."""

    is_volatile = True

    @property
    def mode(self) -> int:
        return stat.S_IFREG | 0o400
