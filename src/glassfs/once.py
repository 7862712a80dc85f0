"""A property that is computed once for each object.

``functools.cached_property`` holds a lock that all objects of a class share, until Python 3.11: the long pass of one
file would stop all others. Here two threads that need a value at the same time may both compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class once(Generic[Value]):  # noqa: N801  # used like ``property``
    """A decorator for methods without arguments that return the same value at each call."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Value:
        # Found before this descriptor, which is not called again for the object.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
