"""How much memory something keeps: measured, as what a stranger's container makes of few bytes cannot be guessed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from sys import getsizeof
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from glassfs.cache import BlockCache
from glassfs.source import Source, Store
from glassfs.tree.lease import Lease

_SHARED = (type, ModuleType, CodeType, FrameType, BlockCache, Store, Source, Lease)
"""What does not go when the one who refers to it does."""
_MOST_TYPES = 1 << 12

_Below = Callable[[Any], Iterable[object]]


def weight_of(thing: object, limit: int) -> int:
    """The bytes of all that ``thing`` refers to, itself included, or a number above ``limit`` if these are more.

    While others use it, that is about right. What it shares with others of its kind is counted, unless it is code, a
    module, or one of those services that are there only once.
    """
    seen: set[int] = set()
    weight = 0
    waiting = [thing]
    while waiting and weight <= limit:
        one = waiting.pop()
        kind = type(one)
        if id(one) in seen:
            continue
        below = _known.get(kind, _unknown)
        if below is _unknown:
            below = _below(kind)
        if below is None:
            continue
        seen.add(id(one))
        weight += getsizeof(one)
        if below is not _nothing:
            waiting += below(one)
    return weight


def _nothing(one: object) -> Iterable[object]:
    return ()


def _of_function(one: Any) -> Iterable[object]:
    """Its globals are not its own."""
    return one.__closure__, one.__defaults__, one.__kwdefaults__


def _of_method(one: Any) -> Iterable[object]:
    """Its function is that of the class, unless it was made at run time."""
    return (one.__self__, one.__func__) if getattr(one.__func__, "__closure__", None) else (one.__self__,)


def _of_array(one: Any) -> Iterable[object]:
    """Arrays of NumPy do not tell the collector whose bytes they show."""
    return *gc.get_referents(one), one.base


def _unknown(one: object) -> Iterable[object]:
    """Stands for what has to be found out first."""
    raise NotImplementedError


_PLAIN: dict[type, _Below | None] = dict.fromkeys((str, bytes, int, float, bool, bytearray, type(None)), _nothing)
_known = dict(_PLAIN)


def _below(kind: type) -> _Below | None:
    """What gives all that an object of this kind refers to; None for those that are shared."""
    found: _Below | None = gc.get_referents
    if issubclass(kind, _SHARED):
        found = None
    elif kind is FunctionType:
        found = _of_function
    elif kind is MethodType:
        found = _of_method
    elif hasattr(kind, "__array_interface__"):
        found = _of_array
    if len(_known) >= _MOST_TYPES:
        _known.clear()
        _known.update(_PLAIN)
    _known[kind] = found
    return found
