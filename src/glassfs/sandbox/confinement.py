"""Take from this process what a worker does not need, or raise. Linux on x86-64 and ARM64.

A worker serves nothing before this has succeeded.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import signal
import struct

from glassfs.sandbox import seccomp
from glassfs.sandbox.seccomp import Prctl

MOST_MEMORY = 192 << 20
"""Address space in bytes that a worker may take beside that of the server."""
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)
"""Version 3 of the interface of capset(2), for this process."""


def keep_few_capabilities() -> None:
    """Keep only those with which a server confines its workers, and ends them. Raises OSError."""
    if seccomp.why_impossible():
        return  # no worker will serve
    libc = ctypes.CDLL(None, use_errno=True)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: of the first 32, and of the others
    if libc.capget(_CAPABILITY_HEADER, held) == 0:
        few = 0b1111 << 5  # CAP_KILL, CAP_SETGID, CAP_SETUID and CAP_SETPCAP
        held[:] = [held[0] & few, held[1] & few, 0, 0, 0, 0]
        if libc.capset(_CAPABILITY_HEADER, held) == 0:
            return
    raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def confine(parent: int) -> None:
    """Confine a child of the process ``parent``, and have it end with its parent. Raises OSError."""
    reason = seccomp.why_impossible()
    if reason:
        raise OSError(reason)
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(64):
        libc.prctl(Prctl.CAPBSET_DROP, number, 0, 0, 0)  # only with CAP_SETPCAP; nothing gains from the set below
    if os.geteuid() == 0:
        _become_nobody()
    for name, *arguments in (
        ("capset", _CAPABILITY_HEADER, bytes(24)), ("prctl", Prctl.SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        ("prctl", Prctl.SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    ):
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(f"{name}: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        raise OSError("the process that started it has ended")
    _limit()
    seccomp.restrict()


def _become_nobody() -> None:
    """Give up root's user id, group id and groups."""
    try:
        nobody = (65534,) * 3
        os.setresgid(*nobody)
        os.setgroups([])
        os.setresuid(*nobody)
    except OSError as error:
        # A user namespace may have no such id. Its root is the ordinary user who made it, as in a mount of that user's.
        if error.errno != errno.EINVAL:
            raise OSError(f"cannot become the user nobody: {error.strerror}") from error


def _limit() -> None:
    """Bound what the process may take. Its memory has to be available now: later a lack is due to what it reads."""
    try:
        with open("/proc/self/statm", "rb") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + MOST_MEMORY
        mmap.mmap(-1, MOST_MEMORY, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        for limit, value in (
            (resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_NPROC, 0),
        ):
            resource.setrlimit(limit, (value, value))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise OSError(f"{MOST_MEMORY >> 20} MiB of memory are not available (see ulimit -v)") from error
        raise OSError(f"its memory cannot be limited: {error}") from error
