"""Take from this process what a worker does not need, or raise. Linux on x86-64 and ARM64.

A worker serves nothing before this has succeeded. Its system calls are restricted to those that compute and use open
sockets (seccomp(2)). All others fail with EPERM: no file, socket or process is opened, and no other process of the same
user can be traced or killed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import resource
import signal
import struct
import sys
from contextlib import suppress
from enum import IntEnum, IntFlag

MOST_MEMORY = 192 << 20
"""Address space in bytes that every worker may take beside that of the server."""
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)
"""Version 3 of the interface of capset(2), for this process."""


class Capabilities(IntFlag):
    """As in capabilities(7): each is the bit with its number."""

    DAC_OVERRIDE = 1 << 1
    DAC_READ_SEARCH = 1 << 2
    KILL = 1 << 5
    SETGID = 1 << 6
    SETUID = 1 << 7
    SETPCAP = 1 << 8
    SYS_ADMIN = 1 << 21


OF_SERVER = Capabilities.KILL | Capabilities.SETGID | Capabilities.SETUID | Capabilities.SETPCAP
"""With these a server gives its workers the user id of "nobody" and no capabilities, and ends them."""


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


def bound_capabilities(kept: int = 0) -> None:
    """Keep programs that this process or its children start from getting other capabilities than these, a mask."""
    libc = ctypes.CDLL(None)
    for number in range(64):
        if not kept >> number & 1:
            libc.prctl(Prctl.CAPBSET_DROP, number, 0, 0, 0)  # fails without CAP_SETPCAP: nothing is gained then either


def keep_capabilities(effective: int, permitted: int) -> None:
    """Keep at most these capabilities of this thread, masks of the first 32, and pass none on. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: of the first 32, and of the others
    if libc.capget(_CAPABILITY_HEADER, held) == 0:
        held[:] = [held[0] & effective, held[1] & permitted, 0, 0, 0, 0]
        if libc.capset(_CAPABILITY_HEADER, held) == 0:
            return
    raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def confine(parent: int, more: int = 0) -> None:
    """Confine a child of the process ``parent``, and have it end with its parent. Raises OSError.

    It may take ``more`` bytes of address space than MOST_MEMORY.
    """
    reason = why_impossible()
    if reason:
        raise OSError(reason)
    # If memory runs short, the kernel ends this process first. That is no verdict on the container.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    bound_capabilities()
    if os.geteuid() == 0:
        _become_nobody()
    # First all capabilities go, then the way to get new rights by executing a program, which a filter of system calls
    # needs. The kernel ends the worker when the server ends.
    keep_capabilities(0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((Prctl.SET_NO_NEW_PRIVS, 1), (Prctl.SET_PDEATHSIG, signal.SIGKILL)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(f"prctl: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the kernel knew that this process is to end with it.
    if os.getppid() != parent:
        raise OSError("the process that started it has ended")
    _limit(MOST_MEMORY + more)
    restrict()


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


def _limit(memory: int) -> None:
    """Bound what the process may take. Its memory has to be available now: later a lack is due to what it reads."""
    try:
        with open("/proc/self/statm", "rb") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + memory
        # If the memory is not there now, that is due to the machine. Later it would look like the fault of the
        # container.
        mmap.mmap(-1, memory, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        for limit, value in (
            (resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_NPROC, 0),
        ):
            resource.setrlimit(limit, (value, value))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise OSError(f"{memory >> 20} MiB of memory are not available (see ulimit -v)") from error
        raise OSError(f"its memory cannot be limited: {error}") from error


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
    # Numbers of calls depend on the architecture. A process may also make calls of another one, such as 32-bit calls on
    # x86-64, whose numbers mean others: it is killed.
    code = [
        _step(_Opcode.LOAD, _Offset.ARCHITECTURE), _unless(_AUDIT_ARCH[machine], 0, 1),
        _step(_Opcode.RETURN, _Action.KILL), _step(_Opcode.LOAD, _Offset.NUMBER),
    ]
    for numbers in ALLOWED.values():
        code += _unless(numbers[machine]), allow
    for name, process in (("prlimit64", 0), ("tgkill", os.getpid())):
        # The first argument names the process, 0 or its own id: limits and signals are only for itself.
        argument = _step(_Opcode.LOAD, _Offset.ARGUMENTS)
        code += _unless(OWN[name][machine], 4), argument, _unless(process), allow, fail
    code.append(fail)
    program = _Program(len(code), b"".join(code))
    if ctypes.CDLL(None, use_errno=True).prctl(Prctl.SET_SECCOMP, 2, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _step(opcode: _Opcode, operand: int) -> bytes:
    return _INSTRUCTION.pack(opcode, 0, 0, operand)


def _unless(value: int, otherwise: int = 1, then: int = 0) -> bytes:
    """Skip ``otherwise`` instructions unless the loaded word has this value, else ``then``."""
    return _INSTRUCTION.pack(_Opcode.EQUAL, then, otherwise, value)
