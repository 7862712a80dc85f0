"""Open a folder of this user alone, on a path that no other user can change. Any thread.

Root or the user must own each folder on the way, and no other user may write to it, unless its sticky bit keeps other
users from replacing its entries. A link is followed only if no other user may write to its folder at all. The folder
itself is no link. So what the path names stays what was checked, also for SQLite, which opens files by their path.
Modes decide: an access list counts as far as the bits of the group show it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from glassfs.errors import Refused

_NAME = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL_USERS = "0 0 4294967295"
"""The map of a user namespace that has all users."""


class Reached(NamedTuple):
    """Where a walk has ended: ``name`` in an open ``folder``, opened as ``found`` (O_PATH); ``at`` is its path."""

    folder: int
    name: str
    found: int
    at: str

    def close(self) -> None:
        os.close(self.folder)
        os.close(self.found)


def walked(
    folder: int | None, at: str, path: str, may_look: Callable[[int, str, str], None],
    may_pass: Callable[[int, str, os.stat_result], None], made: int = 0, follows_last: bool = True,
) -> Reached:
    """Walk along a path from an open folder, whose own path is ``at``, and follow links, of the last name if wanted.

    If ``folder`` is None, the walk begins at the root. Each name is opened from the descriptor of the previous one,
    without following a link, so that swapping names gains nothing. ``may_look(folder, at, name)`` raises if a name must
    not be looked up in an open folder, and ``may_pass(folder, at, status)`` if what is found there, at that path, must
    not be used. Of the last ``made`` names, missing folders are made with mode 0700. The caller closes what is
    returned. Raises OSError.
    """
    folder = os.open("/" if folder is None else ".", _NAME | os.O_DIRECTORY, dir_fd=folder)
    found, rest, links = -1, _parts(path)[::-1] or ["."], 0
    try:
        while True:
            name = rest.pop()
            # The folder is checked before the name is looked up in it, by the descriptor that the look-up uses: users
            # who could replace the name afterwards would have failed the check.
            if name not in ("/", ".."):  # what these lead to is no entry that a user could replace
                may_look(folder, at, name)
            try:
                found = os.open(name, _NAME, dir_fd=folder)
            except FileNotFoundError:
                if len(rest) >= made:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
                found = os.open(name, _NAME, dir_fd=folder)
            inner = os.path.normpath(os.path.join(at, name))
            status = os.fstat(found)
            may_pass(folder, inner, status)
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link and (rest or follows_last):
                links += 1
                if links > 40:  # as many as the kernel follows
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink("", dir_fd=found)
                rest += _parts(target)[::-1]
                if target.startswith("/"):
                    rest.append("/")
                os.close(found)
            elif rest:
                os.close(folder)
                folder, at = found, inner
            else:
                return Reached(folder, name, found, inner)
            found = -1
    except BaseException:
        for one in {folder, found} - {-1}:
            os.close(one)
        raise


def opened(path: str, made: int = 0) -> int:
    """Return a descriptor of the folder at ``path``, which is absolute.

    Of its last ``made`` components, the missing ones are made with mode 0700. Nothing else changes.
    Raises Refused if other users own the folder, can use it, or could replace it or a folder on the way: the reason
    does not name the folder. Raises OSError.
    """
    owners = _trusted_owners()

    def may_look(folder: int, at: str, name: str) -> None:
        status = os.fstat(folder)
        if status.st_uid not in owners:
            raise Refused(f"{at} belongs to another user")
        if is_writable_by_others(status) and not status.st_mode & stat.S_ISVTX:
            raise Refused(f"other users can write to {at}")

    def may_pass(folder: int, at: str, status: os.stat_result) -> None:
        # The sticky bit keeps others from replacing a folder, but they may make a link where nothing was before.
        if stat.S_ISLNK(status.st_mode) and is_writable_by_others(os.fstat(folder)):
            raise Refused(f"{at} is a link in a folder that other users can write to")

    reached = walked(None, "/", path, may_look, may_pass, made, follows_last=False)
    try:
        status = os.fstat(reached.found)
        if stat.S_ISLNK(status.st_mode):
            raise Refused("it is a link")
        if status.st_uid != os.geteuid():
            raise Refused("it belongs to another user")
        if status.st_mode & 0o077:
            raise Refused("it is open to others (chmod 700)")
        return os.open(".", _FOLDER, dir_fd=reached.found)
    finally:
        reached.close()


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
