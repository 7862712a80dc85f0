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
MOST = 128
"""Descriptors that sources hold together; opening one again costs little."""
MOST_LOST = 4096
LEAST = 8

Opened = TypeVar("Opened")


class Holder(Protocol):
    """A source that may hold a descriptor."""

    was_read: bool
    is_lost: bool
    """Whether its file is in use and has no name any more, so that nobody could open it again."""

    def evict(self, is_forced: bool = False) -> bool:
        """Gives the descriptor back; whether it has none.

        Not while it is being read, and that of a file without a name only if ``is_forced`` or nobody has it in use.
        """


_Holders = OrderedDict[int, "ref[Holder]"]


class Descriptors:
    """The sources that hold a descriptor, oldest first. Those not read lately give theirs back when there are many.

    Those whose files have lost their names keep theirs for as long as there is room in the process. Without a lock, as
    a source that nobody refers to any more may say so in the middle of anything: each step is one of a dictionary.
    """

    def __init__(self) -> None:
        self._holders: _Holders = OrderedDict()
        self._lost: _Holders = OrderedDict()

    def add(self, holder: Holder) -> None:
        """Notes that a source has opened a descriptor, and takes one from another if these are too many."""
        self._holders[id(holder)] = ref(holder)
        most = limit()
        if len(self._holders) > most:
            self._reduce(most)
            if self._lost:
                self._reduce_lost(room_for_lost())

    def discard(self, holder: Holder) -> None:
        """Notes that it has none any more."""
        self._holders.pop(id(holder), None)
        self._lost.pop(id(holder), None)

    def release_all(self) -> None:
        """Takes the descriptors of all that do not read right now, but for those that could not be opened again."""
        self._reduce(0)

    def release_lost(self) -> None:
        """Takes those of files without a name, too."""
        self._reduce_lost(0)

    def _reduce(self, most: int) -> None:
        for _ in range(2 * len(self._holders)):
            if len(self._holders) <= most:
                return
            found = _oldest(self._holders)
            if found is None:
                continue
            number, weak, holder = found
            if most and holder.was_read:
                holder.was_read = False  # a second chance
            elif holder.evict():
                continue
            (self._lost if holder.is_lost else self._holders)[number] = weak

    def _reduce_lost(self, most: int) -> None:
        for _ in range(len(self._lost)):
            if len(self._lost) <= most:
                return
            found = _oldest(self._lost)
            if found is not None and not found[2].evict(is_forced=True):
                self._lost[found[0]] = found[1]


def _oldest(holders: _Holders) -> tuple[int, ref[Holder], Holder] | None:
    """Takes out the first one; None where it is not there any more."""
    try:
        number, weak = holders.popitem(last=False)
    except KeyError:  # others were quicker
        return None
    holder = weak()
    return None if holder is None else (number, weak, holder)


def limit() -> int:
    """How many descriptors sources may hold together: the rest is for folders, spool files, connections and users."""
    return max(LEAST, min(MOST, _half()))


def room_for_lost() -> int:
    """How many more are left to files without a name."""
    return max(0, min(MOST_LOST, _half()) - limit())


def _half() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_LOST + MOST if soft == resource.RLIM_INFINITY else soft // 2 - 16


def opened(open_one: Callable[[], Opened]) -> Opened:
    """What ``open_one`` opens; where there is no descriptor left, sources give theirs back first.

    Raises Unavailable where that does not help, and whatever else ``open_one`` raises.
    """
    try:
        return open_one()
    except OSError as error:
        if error.errno not in EXHAUSTED:
            raise
    for release in (pool.release_all, pool.release_lost):
        release()
        try:
            return open_one()
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            last = error
    raise Unavailable(os.strerror(last.errno or 0)) from last


pool = Descriptors()
