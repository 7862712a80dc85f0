"""Functions of the C library that Python does not offer."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any


def function(name: str, result: Any, *arguments: Any, use_errno: bool = False) -> Callable[..., int] | None:
    """Return a function of the C library on Linux; None on other systems and if there is no such function."""
    if sys.platform != "linux":
        return None
    try:
        found: Any = getattr(ctypes.CDLL(None, use_errno=use_errno), name)
    except (AttributeError, OSError):
        return None
    found.argtypes, found.restype = arguments, result
    return found  # type: ignore[no-any-return]
