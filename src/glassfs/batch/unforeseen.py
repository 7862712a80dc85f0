"""Errors that nobody has foreseen: each costs the container that it was met in, and is logged. Any thread."""

from __future__ import annotations

import logging

from glassfs.errors import Damaged, GlassfsError, Unavailable

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # where nobody has asked for a log none is printed


def as_fault(error: Exception, name: str) -> GlassfsError:
    """What is told of it: that of memory passes, all else is taken for a fault of what is called ``name``."""
    text = str(error)
    reason = f"cannot be read: {type(error).__name__}{': ' if text else ''}{text}"
    log.error("%s: %s", name, reason, exc_info=error)
    return (Unavailable if isinstance(error, MemoryError) else Damaged)(reason)
