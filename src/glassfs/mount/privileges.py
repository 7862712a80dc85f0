"""Raise a daemon's limit of open files, and drop the capabilities that it does not need.

Those for worker processes are kept only for programs that the daemon starts: none of its threads may use them.

Capabilities (capabilities(7)) belong to threads, and new threads inherit them: drop them before threads are started.
Only root on Linux has any.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys
from enum import IntEnum, IntFlag

log = logging.getLogger(__name__)


class Capabilities(IntFlag):
    """As in capabilities(7): each is the bit with its number."""

    DAC_OVERRIDE = 1 << 1
    DAC_READ_SEARCH = 1 << 2
    KILL = 1 << 5
    SETGID = 1 << 6
    SETUID = 1 << 7
    SETPCAP = 1 << 8
    SYS_ADMIN = 1 << 21


NEEDED = Capabilities.DAC_OVERRIDE | Capabilities.DAC_READ_SEARCH | Capabilities.SYS_ADMIN
"""To read sources of all owners, and to mount and unmount."""
PASSED_ON = NEEDED | Capabilities.KILL | Capabilities.SETGID | Capabilities.SETUID | Capabilities.SETPCAP
"""With these the server of the sandbox has its workers become the user nobody without capabilities, and ends them."""


class _Prctl(IntEnum):
    """Options of prctl(2)."""

    CAPBSET_DROP = 24
    SET_NO_NEW_PRIVS = 38



class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one: a container may consist of many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.info("the limit of open files stays at %d: %s", soft, error)


def drop() -> None:
    """Drop the capabilities that are not needed. A failure is logged, and the mount is served all the same."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        if not PASSED_ON >> capability & 1:
            libc.prctl(_Prctl.CAPBSET_DROP, capability, 0, 0, 0)  # fails for numbers that this kernel does not have
    # The bounding set limits programs that the daemon starts; these sets limit its own threads.
    header = _Header(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    held = (_Data * 2)()
    if libc.capget(ctypes.byref(header), held) != 0:
        log.warning("capabilities cannot be read: %s", os.strerror(ctypes.get_errno()))
        return
    for number, part in enumerate(held):
        needed, passed_on = (mask >> 32 * number & 0xFFFFFFFF for mask in (NEEDED, PASSED_ON))
        part.effective, part.permitted, part.inheritable = part.effective & needed, part.permitted & passed_on, 0
    if libc.capset(ctypes.byref(header), held) != 0:
        log.warning("capabilities cannot be dropped: %s", os.strerror(ctypes.get_errno()))
    libc.prctl(_Prctl.SET_NO_NEW_PRIVS, 1, 0, 0, 0)
