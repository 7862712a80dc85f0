"""What a mount says of itself: its own directory, ``.glassfs``, and the file of counters for monitoring.

``source`` and ``views`` in the directory are not listed because programs that copy a tree with its hidden directories
would copy the data again. The counters contain no name from sources or containers, and every user may read them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from glassfs import outputs
from glassfs.content import Memory
from glassfs.content.allowance import OBJECT
from glassfs.lru import LRU
from glassfs.mount.errors import MountError
from glassfs.names import RESERVED
from glassfs.settings import settings
from glassfs.sizes import PIECE
from glassfs.tree import Directory, File, Node, Sources
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import Access, inode, not_found
from glassfs.tree.omissions import MOST_NAMED, Omission
from glassfs.tree.sources.sources import OwnFiles

log = logging.getLogger(__name__)

MARK = b"# TYPE glassfs_uptime_seconds "
"""How a file of counters begins."""
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


class Metrics:
    """The file of counters at the absolute ``path``, about what ``status`` returns, as Prometheus reads it. One thread.

    The label ``mount`` of all values is the name of the file without its suffix. ``write`` writes the file at once;
    ``remove`` removes it at the end. What fails is logged.

    Only one file is written: a new one, or one with the mark, which a killed mount leaves. It is locked. The folder is
    opened once, so that no link leads to another one later.

    Raises MountError if something else has the name, or another mount writes to the file; one that is about to end
    gets a few seconds.
    """

    def __init__(self, path: str, status: Callable[[], dict[str, Any]]) -> None:
        self._path, self._name = path, os.path.basename(path)
        self._status = status
        end = time.monotonic() + settings.metrics_claim
        try:
            self._folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            while (file := self._claimed()) < 0:
                if time.monotonic() >= end:
                    raise BlockingIOError(errno.EWOULDBLOCK, "another mount writes to it; name another file")
                time.sleep(0.05)
        except OSError as error:
            raise MountError(f"option metrics: {path}: {error.strerror}") from error
        self._file = file

    def write(self) -> None:
        try:
            text = self._text().encode("ascii")
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))
        except OSError as error:
            log.warning("%s: metrics cannot be written: %s", self._path, error.strerror)

    def remove(self) -> None:
        """Remove the file if the name still leads to it, and release it."""
        with suppress(OSError):
            if outputs.is_at(self._file, self._name, self._folder):
                os.unlink(self._name, dir_fd=self._folder)
        os.close(self._file)
        os.close(self._folder)

    def _claimed(self) -> int:
        """Open and lock the file; return -1 if another mount has it. Raises OSError."""
        file = outputs.opened(self._name, 0o644, self._folder)
        status = os.fstat(file)
        is_other = status.st_size and os.pread(file, len(MARK), 0) != MARK
        # Every user may lock a file that every user may read: a lock counts while the file is being written.
        is_fresh = time.time() - status.st_mtime < 3 * settings.metrics
        is_taken = (outputs.is_locked(file) and is_fresh) or not outputs.is_at(file, self._name, self._folder)
        if is_other or is_taken:
            os.close(file)
        if is_other:
            raise FileExistsError(errno.EEXIST, "exists and is not a file of counters; name another one")
        if is_taken:
            return -1
        os.fchmod(file, 0o644)
        fcntl.fcntl(file, fcntl.F_SETFL, 0)  # no O_APPEND, with which all is written at the end
        return file

    def _text(self) -> str:
        status = self._status()
        cache = status["cache"]
        values = {
            "uptime_seconds": status["uptime_seconds"], "open_containers": len(status["open_containers"]),
            "node_references": status["nodes"]["references"], "cache_budget_bytes": cache["budget"],
            "cache_used_bytes": cache["used"], "cache_hits_total": cache["hits"], "cache_misses_total": cache["misses"],
            "errors_total": status["errors"],
        }
        stem = os.path.splitext(self._name)[0].encode("ascii", "backslashreplace").decode()
        mount = stem.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines = list[str]()
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += f"# TYPE glassfs_{name} {kind}", f'glassfs_{name}{{mount="{mount}"}} {value}'
        lines.append("# TYPE glassfs_requests_total counter")
        for opcode, count in status["requests"].items():
            lines.append(f'glassfs_requests_total{{mount="{mount}",request="{opcode.lower()}"}} {count}')
        return "\n".join([*lines, ""])
