"""Create a mount point if the user named none or a missing one, and remove it when the mount ends.

The process that serves the mount removes it, however the mount ends, except by ``kill -9``. Only an empty directory is
removed, and only if it is the one that was created.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass

from glassfs.mount.errors import MountError
from glassfs.names import component, raw
from glassfs.settings import settings
from glassfs.source.remote.url import is_url, local_name, parsed, shown
from glassfs.tree import may_be_container

SUFFIX = "-glassfs"
_PARTIAL = ".partial"  # the suffix of a container that is still being written


@dataclass(frozen=True)
class OwnMountPoint:
    """A directory that was created for one mount. ``name`` is relative to where it was created, ``path`` absolute."""

    name: str
    path: str
    status: os.stat_result

    def remove(self) -> None:
        """Remove the directory if it is still the same one and empty. Never raises."""
        with suppress(OSError):  # removed already, or not empty
            if os.path.samestat(os.lstat(self.path), self.status):
                os.rmdir(self.path)


def is_own(path: str) -> bool:
    """Return whether the mount at ``path`` reports that its mount point was created for it."""
    from glassfs.mount import probe

    options = probe.statuses([path])[0].get("options")
    return isinstance(options, dict) and options.get("own_mountpoint") is True


def wait_for_removal(path: str) -> None:
    """Wait until the process that served a mount has removed its mount point, or the directory is no longer empty."""
    end = time.monotonic() + settings.unmounting
    with suppress(OSError):  # it is gone
        while time.monotonic() < end and not os.listdir(path):
            time.sleep(0.01)


def make(source: str) -> OwnMountPoint:
    """Create a directory in the current one, named after the source. Existing ones are not used; no server is asked.

    The name is that of a container without its suffix, or that of any other source with ``-glassfs`` appended, which is
    also the second choice for a container; then numbers are appended. Raises MountError.
    """
    for name in _names(source):
        try:
            os.mkdir(name)
        except FileExistsError:
            continue
        except OSError as error:
            raise MountError(f"{name}: cannot be created ({error.strerror}); name a mount point") from None
        return _own(name)
    raise MountError(f"{shown(source)}: no name is free for a mount point here; name one")


def make_at(path: str) -> OwnMountPoint | None:
    """Create a directory at ``path``; return None if that is impossible, or if the name is that of a container.

    Such a name is a mistyped source, rather than a mount point.
    """
    if may_be_container(os.path.basename(path)):
        return None
    try:
        os.mkdir(path)
    except OSError:  # the checks before mounting say what is wrong
        return None
    return _own(path)


def _own(name: str) -> OwnMountPoint:
    return OwnMountPoint(name, os.path.abspath(name), os.lstat(name))


def _names(source: str) -> list[str]:
    if is_url(source):
        # A whole bucket or server has its own name.
        url = parsed(source)
        name = url.path[-1] if url.path else url.host.partition(":")[0]
        name, is_folder = component(raw(name)), url.is_folder or not may_be_container(name)
    else:
        path = os.path.abspath(local_name(source))
        name, is_folder = os.path.basename(path), os.path.isdir(path)
    stem = name if is_folder else os.path.splitext(name.removesuffix(_PARTIAL))[0]
    base = f"{stem}{SUFFIX}"
    names = [base, *(f"{base}-{number}" for number in range(2, 1000))]
    if stem not in ("", name):
        names.insert(0, stem)
    # With ./ in front, a name that begins like an option can be passed to other commands.
    return [f"./{name}" if name.startswith("-") else name for name in names]
