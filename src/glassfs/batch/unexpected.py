"""Report unexpected errors: each is logged and costs only the container in which it occurred. Any thread."""

from __future__ import annotations

import logging

from glassfs.errors import Damaged, GlassfsError, Unavailable

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # print nothing unless logging is configured


def as_fault(error: Exception, name: str) -> GlassfsError:
    """Log an unexpected error and return the fault to report: temporary for lack of memory, else damage of ``name``."""
    text = str(error)
    reason = f"cannot be read: {type(error).__name__}{': ' if text else ''}{text}"
    log.error("%s: %s", name, reason, exc_info=error)
    return (Unavailable if isinstance(error, MemoryError) else Damaged)(reason)
