"""Map files into memory for callers of ``Source.mapped``. Any thread.

Before Python 3.13 each mapping keeps a descriptor, so their number is limited.
"""

from __future__ import annotations

import mmap
import sys
from weakref import WeakSet

MOST = 128
_HAS_DESCRIPTORS = sys.version_info < (3, 13)
_mappings: WeakSet[mmap.mmap] = WeakSet()


def mapped(fd: int, offset: int, size: int) -> memoryview | None:
    """Return these bytes of an open file; None if they are not all in it or cannot be mapped now."""
    if not size or (_HAS_DESCRIPTORS and len(_mappings) >= MOST):
        return None
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + size - start
    try:
        if sys.version_info >= (3, 13):
            pages = mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start, trackfd=False)
        else:
            pages = mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start)
            _mappings.add(pages)
    except (OSError, ValueError, OverflowError):  # a file system that cannot, no descriptor, no room for it
        return None
    return memoryview(pages)[offset - start :]
