"""Check a mount command before anything is mounted; each common mistake has a message of its own.

Runs while the process has one thread. A mount that hangs at the mount point does not make the checks hang.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from glassfs.mount import system
from glassfs.mount.errors import MountError
from glassfs.mount.options import MountOptions
from glassfs.outputs import is_inside
from glassfs.source.mountinfo import FILE_SYSTEM, glassfs_devices
from glassfs.source.remote.url import is_url, local_name, parsed


def check(sources: Sequence[str], mountpoint: str, options: MountOptions) -> str:
    """Check sources and mount point, and unmount a dead glassfs mount at the mount point; return a record about that.

    No server is asked: the daemon opens remote sources. Raises MountError with what to do.
    """
    for source in sources:
        check_source(source)
    files = [local_name(source) for source in sources if not is_url(source)]
    for source in files:
        if not os.access(source, os.R_OK):
            raise MountError(f"{source}: this user may not read it")
        if os.stat(source).st_dev in glassfs_devices():
            raise MountError(f"{source}: is on a mount of glassfs, which cannot be mounted again")
    # Before anything touches the mount point: a dead mount there answers nothing, and one that hangs never does.
    removed = _check_nothing_is_mounted(mountpoint)
    if not os.path.exists(mountpoint):
        raise MountError(f"{mountpoint}: the mount point does not exist; 'mkdir -p {mountpoint}' first")
    if not os.path.isdir(mountpoint):
        raise MountError(f"{mountpoint}: the mount point is not a directory")
    if "nonempty" not in options.flags and os.listdir(mountpoint):
        raise MountError(f"{mountpoint}: the mount point is not empty; choose an empty directory, or add -o nonempty")
    for source in files:
        if os.path.isdir(source) and is_inside(mountpoint, os.stat(source)):
            advice = "choose a mount point outside of it"
            raise MountError(f"{mountpoint}: lies inside {source}, which would then contain itself; {advice}")
    for written in filter(None, (options.metrics, options.log_file)):
        for folder in (mountpoint, *files):
            if os.path.isdir(folder) and is_inside(os.path.dirname(os.path.abspath(written)), os.stat(folder)):
                # Each line of a log about a change in the source would be a change in the source.
                raise MountError(f"{written}: lies inside {folder}, and glassfs writes to it; name a file outside")
    return removed


def check_source(typed: str) -> None:
    """Raise MountError for a local source that does not exist, and Refused for a URL that must not be typed."""
    if is_url(typed):
        parsed(typed)
    elif not os.path.exists(local_name(typed)):
        raise MountError(f"{local_name(typed)}: no such file or folder")


def _check_nothing_is_mounted(mountpoint: str) -> str:
    path = system.real_path(mountpoint)
    existing = system.mount_at(path)
    if existing is None or existing.file_system != FILE_SYSTEM:
        return ""
    from glassfs.mount import probe

    (state,) = probe.ask([lambda: b"dead" if system.is_dead(path) else b"alive"])
    if state == b"dead":
        system.unmount(path, lazy=True)
        return f"{mountpoint}: a glassfs mount whose daemon is gone was unmounted"
    if state == b"alive":
        advice = f"'glassfs umount {mountpoint}' first"
        raise MountError(f"{mountpoint}: {existing.source} is mounted there already; {advice}")
    advice = f"'glassfs umount --lazy {mountpoint}' removes it"
    raise MountError(f"{mountpoint}: {existing.source} is mounted there and does not answer; {advice}")
