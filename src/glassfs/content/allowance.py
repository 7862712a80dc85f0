"""The memory that a container may take for what is parsed of it: names, entries, headers, attributes.

Containers are untrusted, and a small file can describe millions of objects. One number bounds them all: a parser takes
from the allowance before it keeps something, and a format has no limits of its own except those of its document.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from sys import getsizeof
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content.model import Content, Link, Member, Omitted, Series
from glassfs.errors import TooLarge
from glassfs.sizes import PIECE, human_size

LEAST = 8 << 20
"""Bytes that every container may take: enough for real files under the smallest ``cache_size``."""
EXPANSION = 64
"""Bytes of objects in Python for one of a file: short names and entries take 20 to 60, JSON as values 48."""
OBJECT = 128
"""Bytes of an entry in a dictionary or a list, with the smallest object there, for parsers to multiply."""


class Allowance:
    """``left`` of ``size`` bytes. One thread at a time, as it belongs to what one thread parses.

    What is kept as long as the container takes from that of its ``Opening``; what is dropped soon, or made by other
    threads later, from a ``part`` of it, or from a ``temporary`` one if it may be large.
    """

    def __init__(self, size: int) -> None:
        self.size = self.left = size

    @classmethod
    def of_container(cls, stored: int, budget: int) -> Allowance:
        """Return that of a container of ``stored`` bytes where ``budget`` bytes are for all blocks (``cache_size``)."""
        return cls(max(LEAST, min(EXPANSION * stored, budget // 4)))

    def take(self, size: int, what: str) -> None:
        """Count ``size`` bytes that the caller is about to keep for ``what``, such as ``names``.

        Raises TooLarge, and counts nothing, if so many are not left: the container, or this part of it, is refused.
        """
        if size > self.left:
            needed = human_size(self.size - self.left + size)
            reason = f"takes {needed} of memory or more for {what}, and {human_size(self.size)} are allowed"
            raise TooLarge(f"{reason}: a larger cache_size allows more")
        self.left -= size

    def part(self) -> Allowance:
        """Return an allowance of what is left, for something that is dropped soon: nothing is taken from this one."""
        return Allowance(self.left)

    @contextmanager
    def temporary(self, cache: BlockCache) -> Iterator[Allowance]:
        """Provide a ``part`` whose bytes are also reserved in the cache until the end of the ``with``.

        Taking from it may wait for memory.
        """
        with ExitStack() as stack:
            yield _Reserved(self.left, cache, stack)


class _Reserved(Allowance):
    """An allowance that reserves memory in steps of a piece; less than one is not reserved."""

    def __init__(self, size: int, cache: BlockCache, stack: ExitStack) -> None:
        super().__init__(size)
        self._cache, self._stack, self._reserved = cache, stack, 0

    def take(self, size: int, what: str) -> None:
        super().take(size, what)
        more = self.size - self.left - self._reserved
        if more > PIECE:
            self._stack.enter_context(self._cache.reserved(more))
            self._reserved += more


def held(value: Any) -> int:
    """Return the bytes that a value of a row holds, or a name: with all that is in lists, tuples and dictionaries."""
    size = getsizeof(value)
    if isinstance(value, (list, tuple)):
        size += sum(map(held, value))
    elif isinstance(value, dict):
        size += sum(map(held, value.values()))
    return size


def held_by_member(member: Member) -> int:
    """Return the bytes that a member holds, except for its data and for what other members hold as well."""
    return OBJECT + getsizeof(member.name) + sum(map(getsizeof, member.name)) + held_by_content(member.content)


def held_by_content(content: Content) -> int:
    """Return the bytes that a content holds, except for its data and for what it makes when it is used."""
    size = OBJECT + getsizeof(content) + getsizeof(content.key)
    if isinstance(content, Link):
        size += held(content.target) + getsizeof(content.shown)
    elif isinstance(content, Omitted):
        size += getsizeof(content.reason)
    elif isinstance(content, Series):
        size += content.kept
    return size
