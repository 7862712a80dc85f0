"""Write counters of a mount to a file, as Prometheus' node_exporter and others collect them, every few seconds.

The file contains no name from sources or containers, and every user may read it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)

SECONDS = 10.0
MODE = 0o644
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

    The label ``mount`` of all values is the name of the file without its suffix. ``write`` replaces the file, so that
    readers see it whole; ``remove`` removes it at the end. Both log the first failure only.
    """

    def __init__(self, path: str, status: Callable[[], dict[str, Any]]) -> None:
        self._folder, self._name = os.path.split(path)
        self._status = status
        self._has_failed = False

    def write(self) -> None:
        part = f".{self._name}.{os.getpid()}"
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._complain(error)
            return
        try:
            with suppress(FileNotFoundError):  # of a previous process with this number
                os.unlink(part, dir_fd=folder)
            # New and not a link, whatever others may put into the folder.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(part, flags, MODE, dir_fd=folder), "w", encoding="ascii") as file:
                file.write("".join(self._lines()))
                os.fchmod(file.fileno(), MODE)
            os.rename(part, self._name, src_dir_fd=folder, dst_dir_fd=folder)
            self._has_failed = False
        except OSError as error:
            self._complain(error)
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
        finally:
            os.close(folder)

    def remove(self) -> None:
        with suppress(OSError):
            os.unlink(os.path.join(self._folder, self._name))

    def _complain(self, error: OSError) -> None:
        if not self._has_failed:
            log.warning("%s: metrics cannot be written: %s", os.path.join(self._folder, self._name), error.strerror)
        self._has_failed = True

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
