"""Mount for one program, which this process is about to become. Linux.

Where the system allows it, the mount is in namespaces that only the program and the daemon are in: no other process
sees it, and it ends with the last of them, whatever is killed. Root needs a mount namespace (mount_namespaces(7)).
Other users need a user namespace as well (user_namespaces(7)), in which FUSE allows mounts since Linux 4.18. Their user
and group keep their numbers, and others have none there, so that programs such as sudo do not work. Where the system
refuses, the mount is an ordinary one.

A shell outlives program and daemon: it removes the mount point if that was made, and an ordinary mount whose daemon was
killed. Neither it nor the daemon is a child of the program, which may wait until it has none.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

from glassfs.errors import GlassfsError
from glassfs.mount.daemon import check, mount
from glassfs.mount.engines.mounting import MountPoint
from glassfs.mount.errors import MountError
from glassfs.mount.options import MountOptions
from glassfs.sandbox.confinement import keep_capabilities

_LIBC = ctypes.CDLL(None, use_errno=True)
MOUNTS, USERS = 0x20000, 0x10000000  # CLONE_NEWNS and CLONE_NEWUSER
SLAVE = 0x80000 | 0x4000  # MS_SLAVE and MS_REC: what the system mounts later appears inside, and nothing outside
LAST = """exec 3<&0; { trap '' HUP INT TERM; while read -r line; do last=$line; done; eval "$last"; } <&3 3<&- &"""
"""Runs the last of the lines that are written to it, when all processes that have its pipe have ended."""
REMOVE = b'rmdir -- "$0"'


def mount_for_program(sources: Sequence[str], place: str, is_new: bool, options: MountOptions) -> None:
    """Mount at the directory ``place``, made for this if it ``is_new``. The mount ends with this process.

    The process must have one thread. Raises MountError.
    """
    try:
        remove = _remover(place, is_new)
    except OSError as error:
        if is_new:
            os.rmdir(place)
        raise MountError(f"{place}: no shell can be started that removes it: {error.strerror}") from None
    options.flags.discard("auto_unmount")  # it needs fusermount3, and changes nothing here
    check(sources, place, options)  # before anything touches the mount point
    refused = _entered(place)
    if refused:
        by_user = 'fusermount3 -uqz -- "$0" || fusermount -uqz -- "$0"'
        remove('umount -l -- "$0"' if os.geteuid() == 0 else by_user)
    try:
        mount(sources, place, options, foreground=False, remove=remove, program=os.getpid())
    except MountError as error:
        hint = f"; in namespaces of its own: {refused}" if refused and refused not in str(error) else ""
        raise MountError(f"{error}{hint}") from None
    if not refused and os.geteuid() != 0:
        keep_capabilities(0, 0)


def _remover(place: str, is_new: bool) -> Callable[..., None]:
    """Start the shell; return a function that has it run a command in the end, before it removes what ``is_new``."""
    readable, writable = os.pipe()
    # systemd-tmpfiles(8) removes old empty directories, and so mounts at them in all namespaces, but none with a lock.
    folder = os.open(place if is_new else os.devnull, os.O_RDONLY)
    try:
        if is_new:
            fcntl.flock(folder, fcntl.LOCK_SH)
        done = subprocess.run(
            ["/bin/sh", "-c", LAST, place], stdin=readable, stdout=folder, stderr=subprocess.DEVNULL,
            env={"PATH": f"{os.environ.get('PATH', '')}:{os.defpath}"}, cwd="/", start_new_session=True, check=False,
        )
        if done.returncode != 0:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    finally:
        os.close(readable)
        os.close(folder)

    def remove(unmount: str = ":") -> None:
        with suppress(BrokenPipeError):  # the shell was killed
            os.write(writable, b"%s; %s\n" % (os.fsencode(unmount), REMOVE if is_new else b":"))

    remove()
    return remove


def _entered(place: str) -> str:
    """Enter namespaces in which this process can mount at ``place``; return why that is impossible, if it is."""
    reason = ""
    for kinds in [MOUNTS, MOUNTS | USERS] if os.geteuid() == 0 else [MOUNTS | USERS]:
        # What was entered cannot be left, so a child tries first.
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writable, _tried(kinds, place).encode(errors="replace"))
            finally:
                os._exit(0)
        os.close(writable)
        with open(readable, encoding="utf-8", errors="replace") as pipe:
            reason = pipe.read()
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        if not reason:
            _enter(kinds)
            break
    return reason


def _tried(kinds: int, place: str) -> str:
    """Enter such namespaces and mount at ``place``; return why that is impossible, if it is."""
    try:
        _enter(kinds)
        if MountPoint(place, "glassfs").mounted_by_system() is None:
            return f"mount(2): {os.strerror(errno.EPERM)}"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except GlassfsError as error:
        return str(error)
    return ""


def _enter(kinds: int) -> None:
    """Enter new namespaces. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    _check("unshare(2)", _LIBC.unshare(kinds))
    if kinds & USERS:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(line)
    _check("mount(2)", _LIBC.mount(b"none", b"/", None, ctypes.c_ulong(SLAVE), None))


def _check(name: str, result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
