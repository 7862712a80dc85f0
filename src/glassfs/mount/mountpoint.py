"""A mount point that glassfs makes itself, where nobody named one, and takes away again when the mount ends.

The process that serves the mount removes it, so that it goes however the mount ends, except by ``kill -9``. Only an
empty directory is ever removed, and only if it is the one that was made.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from glassfs.mount.errors import MountError
from glassfs.names import component, raw
from glassfs.source.remote.url import is_url, local_name, parsed, shown
from glassfs.tree import may_be_container

SUFFIX = "-glassfs"
PATIENCE = 10.0
_TRIES = 1000
_UNFINISHED = ".partial"  # what a writer adds to the name of a container until it is complete


@dataclass(frozen=True)
class OwnMountPoint:
    """A directory that was made for one mount. ``name`` is relative to where that was, ``path`` is not."""

    name: str
    path: str
    device: int
    inode: int

    def remove(self) -> None:
        """Removes it if it is still there, still the same, and empty. Never raises."""
        try:
            status = os.lstat(self.path)
            if (status.st_dev, status.st_ino) == (self.device, self.inode):
                os.rmdir(self.path)
        except OSError:  # gone already, or somebody keeps something in it
            return


def is_own(path: str) -> bool:
    """Whether the mount at ``path`` says that its mount point was made for it and goes with it."""
    from glassfs.mount import probe

    options = probe.statuses([path])[0].get("options")
    return isinstance(options, dict) and options.get("own_mountpoint") is True


def wait_for_removal(path: str) -> None:
    """Waits for the process that served a mount to remove its mount point; not for long if somebody fills it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if os.listdir(path):
                return
        except OSError:
            return
        time.sleep(0.01)


def make(source: str) -> OwnMountPoint:
    """A new directory in the current one, named after the source. What is there already is never used, no server asked.

    A container gives its name without the suffix, anything else its name with ``-glassfs`` after it, which is also
    the second choice for a container; then come numbers. Raises MountError.
    """
    for name in _names(source):
        try:
            os.mkdir(name)
        except FileExistsError:
            continue
        except OSError as error:
            raise MountError(f"{name}: cannot be made here ({error.strerror}); name a mount point yourself") from None
        status = os.lstat(name)
        return OwnMountPoint(name, os.path.abspath(name), status.st_dev, status.st_ino)
    raise MountError(f"{shown(source)}: no name is left for a mount point here; name one yourself")


def _names(source: str) -> list[str]:
    name, is_folder = _of_url(source) if is_url(source) else _of_file(local_name(source))
    stem = name if is_folder else os.path.splitext(name.removesuffix(_UNFINISHED))[0]
    base = f"{stem}{SUFFIX}"
    names = [base, *(f"{base}-{number}" for number in range(2, _TRIES))]
    if stem not in ("", name):
        names.insert(0, stem)
    # With ./ in front, a name that begins like an option can be given back to a command as it is.
    return [f"./{name}" if name.startswith("-") else name for name in names]


def _of_file(source: str) -> tuple[str, bool]:
    """What it is called, and whether it is a folder."""
    return os.path.basename(os.path.abspath(source)), os.path.isdir(source)


def _of_url(source: str) -> tuple[str, bool]:
    """The same, as far as the name tells: of a bucket or server as a whole it is its own."""
    url = parsed(source)
    name = url.path[-1] if url.path else url.host.partition(":")[0]
    return component(raw(name)), url.is_folder or not may_be_container(name)
