"""What the kernel says of its connection to one FUSE file system, and how it is cut. Needs root."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.mount.mounts import mountinfo

FOLDER = Path("/sys/fs/fuse/connections")


class Connection:
    """That of the file system which is mounted at ``path``, also after it is not mounted there any more."""

    def __init__(self, path: Path) -> None:
        if not any(FOLDER.iterdir()):
            subprocess.run(["mount", "-t", "fusectl", "fusectl", FOLDER], check=True)
        self._folder = FOLDER / mountinfo(path)[-1][2].partition(":")[2]

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        return int((self._folder / "waiting").read_text())

    def abort(self) -> None:
        (self._folder / "abort").write_text("1")


def forget() -> None:
    """Has the kernel give up all names and attributes that nobody uses, of all file systems."""
    Path("/proc/sys/vm/drop_caches").write_text("2")
