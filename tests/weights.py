"""Measure what objects hold, to compare it with what formats say that they hold."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from sys import getsizeof
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from glassfs.cache import BlockCache
from glassfs.cache.catalogue import Findings
from glassfs.layouts.form import Layout
from glassfs.source import Source, Store
from glassfs.tree.lease import Lease

_SHARED = (type, ModuleType, CodeType, FrameType, BlockCache, Findings, Store, Source, Lease, Layout)
"""Types of objects that outlive what refers to them."""

_Below = Callable[[Any], Iterable[object]]


def weight_of(thing: object) -> int:
    """Return the bytes of an object and all that it refers to.

    Shared objects count, except code, modules and the services of which a process has only one.
    """
    seen: set[int] = set()
    weight = 0
    found = [thing]
    for one in found:  # which grows meanwhile
        number = id(one)
        if number in seen:
            continue
        seen.add(number)
        kind: Any = type(one)
        below = _below(kind)
        if below is None:
            continue
        weight += getsizeof(one)
        if below is not _nothing:
            found += below(one)
    return weight


def _nothing(one: object) -> Iterable[object]:
    return ()


def _of_function(one: Any) -> Iterable[object]:
    """Leave out its globals, which belong to the module."""
    return one.__closure__, one.__defaults__, one.__kwdefaults__


def _of_method(one: Any) -> Iterable[object]:
    """Count its function only if that is a closure; others belong to the class."""
    return (one.__self__, one.__func__) if getattr(one.__func__, "__closure__", None) else (one.__self__,)


def _of_array(one: Any) -> Iterable[object]:
    """Add the owner of the bytes, which NumPy arrays do not report to the garbage collector."""
    return *gc.get_referents(one), one.base


def _below(kind: type) -> _Below | None:
    """Return a function that lists what objects of a type refer to; None if they do not count."""
    if kind in (str, bytes, int, float, bool, bytearray, type(None)):
        return _nothing
    if issubclass(kind, _SHARED):
        return None
    if kind is FunctionType:
        return _of_function
    if kind is MethodType:
        return _of_method
    return _of_array if hasattr(kind, "__array_interface__") else gc.get_referents
