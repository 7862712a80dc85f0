"""What a daemon takes and gives up at its start: all descriptors it may have, and capabilities it can do without.

Capabilities (capabilities(7)) belong to threads, and new threads inherit them: given up before there are any. Linux
only; elsewhere, and for a user who is not root, there is nothing to give up.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys

log = logging.getLogger(__name__)

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN = 1, 2, 21
KEPT = 1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH | 1 << CAP_SYS_ADMIN
"""To read sources whoever owns them, and to mount and unmount."""

_VERSION_3 = 0x20080522
_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 38, 24
_CAPABILITIES = 64


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def raise_descriptor_limit() -> None:
    """Raises the soft limit of open files to the hard one: a container of many parts has as many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.info("the limit of open files stays at %d: %s", soft, error)


def drop() -> None:
    """Gives up what is not needed. Where the system does not allow that, the log says so, and the mount is served."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_CAPABILITIES):
        if not KEPT >> capability & 1:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for numbers that this kernel does not have
    header = _Header(_VERSION_3, 0)
    held = (_Data * 2)()
    if libc.capget(ctypes.byref(header), held) != 0:
        log.warning("capabilities cannot be read: %s", os.strerror(ctypes.get_errno()))
        return
    for number, part in enumerate(held):
        mask = KEPT >> 32 * number & 0xFFFFFFFF
        part.effective, part.permitted, part.inheritable = part.effective & mask, part.permitted & mask, 0
    if libc.capset(ctypes.byref(header), held) != 0:
        log.warning("capabilities cannot be given up: %s", os.strerror(ctypes.get_errno()))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
