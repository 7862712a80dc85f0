"""The descriptors of this process: how many sources may hold one, and what to do when there are none left."""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar
from weakref import ref

from glassfs.errors import Unavailable

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
MOST = 4096
LEAST = 8

Opened = TypeVar("Opened")


class Holder(Protocol):
    """A source that may hold a descriptor."""

    was_read: bool

    def evict(self) -> bool:
        """Gives the descriptor back, unless it is being used right now; whether it has none."""


class Descriptors:
    """The sources that hold a descriptor, oldest first. Those not read lately give theirs back when there are many.

    Without a lock, as a source that nobody refers to any more may say so in the middle of anything: each step is one of
    a dictionary.
    """

    def __init__(self) -> None:
        self._holders: OrderedDict[int, ref[Holder]] = OrderedDict()

    def add(self, holder: Holder) -> None:
        """Notes that a source has opened a descriptor, and takes one from another if these are too many."""
        self._holders[id(holder)] = ref(holder)
        self._reduce(limit())

    def discard(self, holder: Holder) -> None:
        """Notes that it has none any more."""
        self._holders.pop(id(holder), None)

    def release_all(self) -> None:
        """Takes the descriptors of all that do not read right now."""
        self._reduce(0)

    def _reduce(self, most: int) -> None:
        for _ in range(2 * len(self._holders)):
            if len(self._holders) <= most:
                return
            try:
                number, weak = self._holders.popitem(last=False)
            except KeyError:  # others were quicker
                return
            holder = weak()
            if holder is None:
                continue
            if most and holder.was_read:
                holder.was_read = False  # a second chance
            elif holder.evict():
                continue
            self._holders[number] = weak


def limit() -> int:
    """How many descriptors sources may hold together: the rest is for folders, spool files, connections and users."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(LEAST, min(MOST, soft // 2 - 16))


def opened(open_one: Callable[[], Opened]) -> Opened:
    """What ``open_one`` opens; where there is no descriptor left, sources give theirs back first.

    Raises Unavailable where that does not help, and whatever else ``open_one`` raises.
    """
    try:
        return open_one()
    except OSError as error:
        if error.errno not in EXHAUSTED:
            raise
    pool.release_all()
    try:
        return open_one()
    except OSError as error:
        if error.errno not in EXHAUSTED:
            raise
        raise Unavailable(os.strerror(error.errno)) from error


pool = Descriptors()
