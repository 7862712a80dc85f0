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
from enum import IntEnum


class Prctl(IntEnum):
    """Options of prctl(2)."""

    SET_PDEATHSIG = 1
    SET_SECCOMP = 22
    CAPBSET_DROP = 24
    SET_NO_NEW_PRIVS = 38


class _Opcode(IntEnum):
    """Instructions of a filter (linux/bpf_common.h): load a word, skip unless equal, return."""

    LOAD = 0x20
    EQUAL = 0x15
    RETURN = 0x06


class _Offset(IntEnum):
    """Offsets in ``struct seccomp_data`` (linux/seccomp.h)."""

    NUMBER = 0
    ARCHITECTURE = 4
    ARGUMENTS = 16


class _Action(IntEnum):
    """What becomes of a call (linux/seccomp.h)."""

    ALLOW = 0x7FFF0000
    FAIL = 0x00050000 | errno.EPERM
    KILL = 0x80000000


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
    allow, fail = _step(_Opcode.RETURN, _Action.ALLOW), _step(_Opcode.RETURN, _Action.FAIL)
    code = [
        _step(_Opcode.LOAD, _Offset.ARCHITECTURE), _unless(_AUDIT_ARCH[machine], 0, 1),
        _step(_Opcode.RETURN, _Action.KILL), _step(_Opcode.LOAD, _Offset.NUMBER),
    ]
    for numbers in ALLOWED.values():
        code += _unless(numbers[machine]), allow
    for name, process in (("prlimit64", 0), ("tgkill", os.getpid())):
        argument = _step(_Opcode.LOAD, _Offset.ARGUMENTS)
        code += _unless(OWN[name][machine], 4), argument, _unless(process), allow, fail
    code.append(fail)
    program = _Program(len(code), b"".join(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(Prctl.SET_SECCOMP, 2, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _step(opcode: _Opcode, operand: int) -> bytes:
    return _INSTRUCTION.pack(opcode, 0, 0, operand)


def _unless(value: int, otherwise: int = 1, then: int = 0) -> bytes:
    """Skip ``otherwise`` instructions unless the loaded word has this value, else ``then``."""
    return _INSTRUCTION.pack(_Opcode.EQUAL, then, otherwise, value)
