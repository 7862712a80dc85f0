"""Files mapped into memory, for those who ask for it: see ``Source.mapped``. Any thread.

Before Python 3.13 a mapping keeps a descriptor of its own, so that there are only some of them at a time.
"""

from __future__ import annotations

import mmap
import sys
from weakref import WeakSet

MOST = 128
_HAS_DESCRIPTORS = sys.version_info < (3, 13)
_mappings: WeakSet[mmap.mmap] = WeakSet()


def is_room() -> bool:
    """Whether there may be one more."""
    return not _HAS_DESCRIPTORS or len(_mappings) < MOST


def mapped(number: int, offset: int, size: int) -> memoryview:
    """So many bytes of a descriptor's file, ``size`` not 0. Raises OSError, ValueError and OverflowError."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + size - start
    if sys.version_info >= (3, 13):
        pages = mmap.mmap(number, length, access=mmap.ACCESS_READ, offset=start, trackfd=False)
    else:
        pages = mmap.mmap(number, length, access=mmap.ACCESS_READ, offset=start)
        _mappings.add(pages)
    return memoryview(pages)[offset - start :]
