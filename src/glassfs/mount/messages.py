"""Capture what libfuse and fusermount write to stderr, for the error message if mounting fails.

For the thread that mounts. Meanwhile descriptor 2 of the whole process is another file; the log has a duplicate of the
real one (``logs``). Needs no folder for temporary files.
"""

from __future__ import annotations

import os
import sys

from glassfs.names import text
from glassfs.terminal import printable


class Messages:
    """Captures stderr from its creation until ``restore`` or ``text``, or captures nothing."""

    def __init__(self, is_capturing: bool = True) -> None:
        self._lines: list[str] = []
        self._stderr: int | None = None
        if is_capturing:
            self._stderr = os.dup(2)
            self._caught = _unnamed_file()
            os.dup2(self._caught, 2)

    def restore(self) -> None:
        """Restore stderr. May be called again, and from any thread."""
        stderr, self._stderr = self._stderr, None
        if stderr is None:
            return
        os.dup2(stderr, 2)
        os.close(stderr)
        size = os.fstat(self._caught).st_size
        self._lines = text(os.pread(self._caught, size, 0)).split("\n")
        os.close(self._caught)

    def text(self) -> str:
        """Return all captured text as one printable line, and restore stderr."""
        self.restore()
        return "; ".join(printable(line.strip()) for line in self._lines if line.strip())


def _unnamed_file() -> int:
    # Not a pipe: it could fill up, and would kill a fusermount that outlives its reader.
    if sys.platform == "linux":
        return os.memfd_create("glassfs-messages")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
