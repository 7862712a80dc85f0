"""What libfuse and fusermount say on stderr, kept for the one sentence if mounting fails.

For the thread that mounts; while it lasts, descriptor 2 of the whole process is another file. The log has a stderr of
its own (``logs``) and is not caught. Needs no folder for temporary files.
"""

from __future__ import annotations

import os
import sys

from glassfs.names import text
from glassfs.terminal import printable


class Messages:
    """Catches from the moment it is made until ``restore`` or ``text``."""

    def __init__(self) -> None:
        self._stderr: int | None = os.dup(2)
        self._lines: list[str] = []
        self._caught = _nameless()
        os.dup2(self._caught, 2)

    def restore(self) -> None:
        """Gives stderr back. May be called again, and from another thread than the one that mounts."""
        stderr, self._stderr = self._stderr, None
        if stderr is None:
            return
        os.dup2(stderr, 2)
        os.close(stderr)
        size = os.fstat(self._caught).st_size
        self._lines = text(os.pread(self._caught, size, 0)).split("\n")
        os.close(self._caught)

    def text(self) -> str:
        """All that was said, in one printable line. Gives stderr back if that was not done yet."""
        self.restore()
        return "; ".join(printable(line.strip()) for line in self._lines if line.strip())


def _nameless() -> int:
    # A pipe would be full some day, or kill a fusermount that lives on and finds nobody to read it.
    if sys.platform == "linux":
        return os.memfd_create("glassfs-messages")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
