"""A child in a mount namespace of its own: its mounts are invisible to other processes and end with it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from tests.security.users import Child

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
PR_SET_DUMPABLE = 4
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

_LIBC = ctypes.CDLL(None, use_errno=True)


def in_own_namespace(function: Callable[..., Any], *arguments: Any, patience: float = 200.0) -> Any:
    """Call the function in a new mount namespace and return its result."""
    def inside() -> Any:
        _checked(_LIBC.unshare(CLONE_NEWNS))
        _mount("none", "/", MS_REC | MS_PRIVATE)
        return function(*arguments)

    return Child(inside).result(patience)


def enter_user_namespace(uid: int) -> None:
    """Become root in a new user namespace that has only the user ``uid``, who calls this. Raises OSError."""
    _checked(_LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))  # else root owns /proc/self once the uid was changed
    _checked(_LIBC.unshare(CLONE_NEWUSER))
    with open("/proc/self/uid_map", "w", encoding="ascii") as file:
        file.write(f"0 {uid} 1")


def bind(source: str | os.PathLike[str], target: str | os.PathLike[str], is_read_only: bool = False) -> None:
    _mount(source, target, MS_BIND)
    if is_read_only:
        _mount("none", target, MS_BIND | MS_REMOUNT | MS_RDONLY)


def _mount(source: str | os.PathLike[str], target: str | os.PathLike[str], flags: int) -> None:
    _checked(_LIBC.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None))


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
