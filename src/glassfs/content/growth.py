"""The memory that names, rows and members hold: counted from the lengths of their strings, as containers are untrusted.

A caller that collects many of them reserves memory while they grow. Any thread; a ``Growth`` belongs to one thread.
"""

from __future__ import annotations

from contextlib import ExitStack
from sys import getsizeof
from types import TracebackType
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content.allowance import OBJECT
from glassfs.content.model import Content, Link, Member, Omitted, Series
from glassfs.errors import TooLarge
from glassfs.sizes import PIECE

ENTRY_COST = OBJECT


def held(value: Any) -> int:
    """Return the bytes that a value of a row holds, or a name: of a list or a tuple, with all that is in it."""
    size = getsizeof(value)
    if isinstance(value, (list, tuple)):
        size += sum(map(held, value))
    return size


def held_by_member(member: Member) -> int:
    """Return the bytes that a member holds, except for its data and for what other members hold as well."""
    return ENTRY_COST + held(member.name) + held_by_content(member.content)


def held_by_content(content: Content) -> int:
    """Return the bytes that a content holds, except for its data and for what it makes when it is used."""
    # Data are left out: they refer to sources and to metadata that the container holds once for all members.
    size = getsizeof(content) + getsizeof(content.key)
    if isinstance(content, Link):
        size += held(content.target) + getsizeof(content.shown)
    elif isinstance(content, Omitted):
        size += getsizeof(content.reason)
    elif isinstance(content, Series):
        size += content.kept + (0 if content.numbers is None else getsizeof(content.numbers))
    return size


class Growth:
    """Reserves memory for what is being collected, ``most`` bytes in all, until the end of the ``with``.

    ``what`` names it in messages.
    """

    def __init__(self, cache: BlockCache, most: int, what: bytes) -> None:
        self._cache = cache
        self._what = what
        self._most = most
        self._size = 0
        self._reserved = ExitStack()
        self._left = PIECE

    def __enter__(self) -> Growth:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        self._reserved.close()

    def add(self, size: int) -> None:
        """Count so many bytes more. May wait for memory. Raises TooLarge beyond ``most``."""
        self._size += size
        if self._size > self._most:
            reason = f"takes more than {self._most >> 20} MiB of memory, which a larger cache_size allows"
            raise TooLarge(reason, part=self._what.decode("utf-8", "replace"))
        # A piece is reserved at a time; the last one is not, as most collections are smaller.
        self._left -= size
        if self._left < 0:
            step = PIECE - self._left
            self._reserved.enter_context(self._cache.reserved(step))
            self._left += step
