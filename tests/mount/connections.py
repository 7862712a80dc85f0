"""The kernel's connection to a FUSE file system, and its caches. Needs root."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.mount.mounts import Mount, mountinfo

FOLDER = Path("/sys/fs/fuse/connections")


class Connection:
    """The connection of the file system mounted at ``path``; it stays valid after an unmount."""

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
    """Make the kernel drop all unused names and attributes of all file systems."""
    Path("/proc/sys/vm/drop_caches").write_text("2")


def nodes_after_forgetting(mount: Mount) -> dict[str, int]:
    """Return the daemon's counts of nodes after the kernel dropped the unused ones."""
    forget()
    found: dict[str, int] = mount.status()["nodes"]
    return found
