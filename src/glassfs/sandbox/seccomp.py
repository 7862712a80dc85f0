"""Restrict this process to the system calls that compute and use open sockets (seccomp(2)). Linux on x86-64 and ARM64.

All other calls fail with EPERM: no file, socket or process is opened, and no other process of the same user can be
traced or killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""Instructions of a filter (linux/bpf_common.h): load a word, skip unless equal, return."""
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in ``struct seccomp_data`` (linux/seccomp.h)."""
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_INSTRUCTION = struct.Struct("=HBBI")

_MACHINES = ("x86_64", "aarch64")
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
ALLOWED = {
    "brk": (12, 214), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "close": (3, 57), "exit": (60, 93),
    "exit_group": (231, 94), "fstat": (5, 80), "futex": (202, 98), "getpid": (39, 172), "getppid": (110, 173),
    "getrandom": (318, 278), "getrusage": (98, 165), "gettid": (186, 178), "lseek": (8, 62), "madvise": (28, 233),
    "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216), "munmap": (11, 215), "ppoll": (271, 73),
    "read": (0, 63), "recvfrom": (45, 207), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sched_yield": (24, 124), "sendto": (44, 206),
}
OWN = {"prlimit64": (302, 261), "tgkill": (234, 131)}
"""Numbers of system calls on each kind of machine; those of ``OWN`` are allowed only for the process itself."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def why_impossible() -> str:
    """Return why this machine has no such restriction; "" if it has one."""
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES or sys.maxsize < 1 << 32:
        return f"system calls are restricted on Linux on x86-64 and ARM64 only, not on {platform.machine()}"
    return ""


def restrict() -> None:
    """Restrict this process permanently, after PR_SET_NO_NEW_PRIVS. Raises OSError if the system refuses.

    Limits may be set, and signals sent, only for the process itself.
    """
    machine = _MACHINES.index(platform.machine())
    code = [_load(_ARCHITECTURE), _equal(_AUDIT_ARCH[machine], 0, 1), _return(_KILL), _load(_NUMBER)]
    for numbers in ALLOWED.values():
        code += _equal(numbers[machine]), _return(_ALLOW)
    for name, process in (("prlimit64", 0), ("tgkill", os.getpid())):
        code += _equal(OWN[name][machine], 4), _load(_ARGUMENTS), _equal(process), _return(_ALLOW), _return(_FAIL)
    code.append(_return(_FAIL))
    program = _Program(len(code), b"".join(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(_LOAD, 0, 0, offset)


def _equal(value: int, otherwise: int = 1, then: int = 0) -> bytes:
    """Skip ``then`` instructions if the loaded word has this value, else ``otherwise``."""
    return _INSTRUCTION.pack(_EQUAL, then, otherwise, value)


def _return(action: int) -> bytes:
    return _INSTRUCTION.pack(_RETURN, 0, 0, action)
