"""Write counters of a mount to a file, as Prometheus' node_exporter and others collect them, every few seconds.

The file contains no name from sources or containers, and every user may read it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from glassfs import outputs
from glassfs.mount.errors import MountError
from glassfs.settings import settings

log = logging.getLogger(__name__)

MARK = b"# HELP glassfs_uptime_seconds "
"""How the file begins."""
_VALUES = (
    ("uptime_seconds", "gauge", "Seconds since the mount was made", lambda status: status["uptime_seconds"]),
    ("open_containers", "gauge", "Containers that are open", lambda status: len(status["open_containers"])),
    ("node_references", "gauge", "References of the kernel", lambda status: status["nodes"]["references"]),
    ("cache_budget_bytes", "gauge", "Limit of the cache", lambda status: status["cache"]["budget"]),
    ("cache_used_bytes", "gauge", "Memory of the cache in use", lambda status: status["cache"]["used"]),
    ("cache_hits_total", "counter", "Blocks found in the cache", lambda status: status["cache"]["hits"]),
    ("cache_misses_total", "counter", "Blocks decoded", lambda status: status["cache"]["misses"]),
    ("errors_total", "counter", "Requests that failed", lambda status: status["errors"]),
)


class Metrics:
    """The file at the absolute ``path``, with what ``status`` returns. One thread.

    The label ``mount`` of all values is the name of the file without its suffix. ``write`` writes the file at once;
    ``remove`` removes it at the end. What fails is logged.

    Only files of this class are written: at first one with its mark, which a killed mount leaves, then the same one. It
    holds a lock on that. The folder is opened once, so that no link leads to another one later.

    Raises MountError if something else has the name, or another mount writes to the file; one that is about to end
    gets a few seconds.
    """

    def __init__(self, path: str, status: Callable[[], dict[str, Any]]) -> None:
        self._path, self._name = path, os.path.basename(path)
        self._status = status
        self._file = self._folder = -1
        end = time.monotonic() + settings.metrics_claim
        try:
            self._folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            while self._file < 0:
                try:
                    self._claim()
                except (BlockingIOError, FileNotFoundError):
                    if time.monotonic() >= end:
                        raise
                    time.sleep(0.05)
        except OSError as error:
            self._release()
            raise MountError(f"option metrics: {path}: {error.strerror}") from error

    def write(self) -> None:
        try:
            if not outputs.is_at(self._file, self._name, self._folder):
                self._claim()
            text = "".join(self._lines()).encode("ascii")
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))
        except OSError as error:
            log.warning("%s: metrics cannot be written: %s", self._path, error.strerror)

    def remove(self) -> None:
        """Remove the file if the name still leads to it, and release it."""
        with suppress(OSError):
            if outputs.is_at(self._file, self._name, self._folder):
                os.unlink(self._name, dir_fd=self._folder)
        self._release()

    def _release(self) -> None:
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)

    def _claim(self) -> None:
        """Open and lock the file: a new one, or one that a killed mount left. Raises OSError."""
        file = outputs.opened(self._name, 0o644, self._folder)
        try:
            status = os.fstat(file)
            if status.st_size and os.pread(file, len(MARK), 0) != MARK:
                raise FileExistsError(errno.EEXIST, "exists and is not a file of counters; name another one")
            # Every user may lock a file that every user may read: a lock counts while the file is being written.
            is_fresh = time.time() - status.st_mtime < 3 * settings.metrics
            if (outputs.is_locked(file) and is_fresh) or not outputs.is_at(file, self._name, self._folder):
                raise BlockingIOError(errno.EWOULDBLOCK, "another mount writes to it; name another file")
            os.fchmod(file, 0o644)
            fcntl.fcntl(file, fcntl.F_SETFL, 0)  # no O_APPEND, with which all is written at the end
        except BaseException:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file

    def _lines(self) -> Iterator[str]:
        status = self._status()
        stem = os.path.splitext(self._name)[0].encode("ascii", "backslashreplace").decode()
        mount = stem.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for name, kind, text, value in _VALUES:
            yield f"# HELP glassfs_{name} {text}\n# TYPE glassfs_{name} {kind}\n"
            yield f'glassfs_{name}{{mount="{mount}"}} {value(status)}\n'
        yield "# HELP glassfs_requests_total Requests of the kernel\n# TYPE glassfs_requests_total counter\n"
        for opcode, count in status["requests"].items():
            yield f'glassfs_requests_total{{mount="{mount}",request="{opcode.lower()}"}} {count}\n'
