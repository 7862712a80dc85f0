"""Open a folder of this user alone, on a path that no other user can change.

Root or the user must own each folder on the way, and no other user may write to it, unless its sticky bit keeps other
users from replacing its entries. A link is followed only if no other user may write to its folder at all. The folder
itself is no link. So what the path names stays what was checked, also for SQLite, which opens files by their path.

Modes decide: an access list counts as far as the bits of the group show it. Any thread.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from glassfs.errors import Refused

_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL_USERS = "0 0 4294967295"
"""The map of a user namespace that has all users."""


def opened(folder: str, made: int = 0) -> int:
    """Return a descriptor of ``folder``, an absolute path.

    Of its last ``made`` components, the missing ones are made with mode 0700. Nothing else changes.
    Raises Refused if other users own the folder, can use it, or could replace it or a folder on the way: the reason
    does not name the folder. Raises OSError.
    """
    walk = _Walk()
    try:
        pending = _parts(folder)[::-1]
        while pending:
            name = pending.pop()
            target = walk.enter(name, is_made=len(pending) < made)
            if target is None:
                continue
            if not pending:
                raise Refused("it is a link")
            pending += _parts(target)[::-1]
            if target.startswith("/"):
                walk.leave()
        status = os.fstat(walk.descriptor)
        if status.st_uid != os.geteuid():
            raise Refused("it belongs to another user")
        if status.st_mode & 0o077:
            raise Refused("it is open to others (chmod 700)")
        return os.open(".", _FOLDER, dir_fd=walk.descriptor)
    finally:
        os.close(walk.descriptor)


def own_home() -> str:
    """Return the home of this user; "" if there is none. ``su`` and ``sudo`` may leave another user's in ``HOME``."""
    import pwd

    home = os.environ.get("HOME", "")
    with suppress(OSError):
        if os.stat(home).st_uid == os.geteuid():
            return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


class _Walk:
    """The folder that a walk has reached, which other users cannot replace."""

    def __init__(self) -> None:
        self.path = "/"
        self.descriptor = os.open("/", _STEP)
        self._owners = _trusted_owners()
        self._links = 0

    def leave(self) -> None:
        """Go back to the root."""
        self._go("/", "/")

    def enter(self, name: str, is_made: bool) -> str | None:
        """Enter a folder, or return the target of a link. Raises Refused if another user could replace either."""
        status = os.fstat(self.descriptor)
        if status.st_uid not in self._owners:
            raise Refused(f"{self.path} belongs to another user")
        is_writable = is_writable_by_others(status)
        if is_writable and not status.st_mode & stat.S_ISVTX:
            raise Refused(f"other users can write to {self.path}")
        path = os.path.normpath(os.path.join(self.path, name))
        try:
            self._go(name, path)
        except FileNotFoundError:
            if not is_made:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.descriptor)
            self._go(name, path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            try:
                target = os.readlink(name, dir_fd=self.descriptor)
            except OSError:
                raise error from None
            self._links += 1
            if is_writable:
                raise Refused(f"{path} is a link in a folder that other users can write to") from None
            if self._links > 40:  # as many as the kernel follows
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
            return target
        return None

    def _go(self, name: str, path: str) -> None:
        descriptor = os.open(name, _STEP, dir_fd=self.descriptor)
        os.close(self.descriptor)
        self.descriptor, self.path = descriptor, path


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def is_writable_by_others(status: os.stat_result) -> bool:
    """Return whether the mode of a folder lets another user than this one and its owner write to it."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not (
        status.st_uid == os.geteuid() and _is_private_group(status.st_gid)
    )


def _is_private_group(number: int) -> bool:
    """Return whether it is the group that many systems give each user, so that a umask of 002 is usual there."""
    import grp
    import pwd

    try:
        group, name = grp.getgrgid(number), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


def _trusted_owners() -> set[int]:
    """Return root, this user and, in a user namespace that lacks users, the number that all those have in it.

    Among them is the root of the system, the usual owner of ``/``.
    """
    owners = {0, os.geteuid()}
    with suppress(OSError, ValueError):
        with open("/proc/self/uid_map", encoding="ascii") as file:
            has_all = file.read().split() == _ALL_USERS.split()
        if not has_all:
            with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
                owners.add(int(file.read()))
    return owners
