"""How much memory something keeps: measured, as what a stranger's container makes of few bytes cannot be guessed."""

from __future__ import annotations

import gc
import sys
from types import CodeType, FrameType, FunctionType, ModuleType

from glassfs.cache import BlockCache
from glassfs.source import Source, Store
from glassfs.tree.lease import Lease

_SHARED = (type, ModuleType, CodeType, FrameType, BlockCache, Store, Source, Lease)
"""What does not go when the one who refers to it does."""
_PLAIN = (str, bytes, int, float, bool, bytearray, type(None))
_AT_ONCE = 50_000


def weight_of(thing: object, limit: int) -> int:
    """The bytes of all that ``thing`` refers to, itself included, or a number above ``limit`` if these are more.

    While others use it, that is about right. What it shares with others of its kind is counted, unless it is code, a
    module, or one of those services that are there only once.
    """
    seen: set[int] = set()
    weight = 0
    waiting = [thing]
    while waiting and weight <= limit:
        some = waiting[-_AT_ONCE:]
        del waiting[-_AT_ONCE:]
        onward = []
        for one in some:
            if id(one) in seen or isinstance(one, _SHARED):
                continue
            seen.add(id(one))
            weight += sys.getsizeof(one)
            if isinstance(one, FunctionType):  # its globals are not its own
                waiting += (one.__closure__, one.__defaults__, one.__kwdefaults__)
            elif isinstance(one, memoryview):
                waiting.append(one.obj)
            elif not isinstance(one, _PLAIN):
                if not gc.is_tracked(one):  # an array of NumPy does not tell the collector whose bytes it shows
                    waiting.append(getattr(one, "base", None))
                onward.append(one)
        waiting += gc.get_referents(*onward)
    return weight
