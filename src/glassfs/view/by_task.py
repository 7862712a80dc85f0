"""Episodes by instruction and by success: symbolic links to their directories.

Listing them takes a pass over the records. A word of more than 255 bytes is kept as its name. Any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from sys import getsizeof
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Group, Link, Member, Series, Table
from glassfs.content.allowance import OBJECT, Allowance, held, held_by_member
from glassfs.content.episodes import POSITION
from glassfs.content.rows import of_records
from glassfs.content.summary import CONTAINER, EPISODES, Joined
from glassfs.content.table import number_of
from glassfs.content.video import DIGITS
from glassfs.errors import TooLarge
from glassfs.lru import cached_if_short
from glassfs.names import raw, shortened
from glassfs.view.contract import Key, Shown, View

MOST = 100_000
"""Limit of links in a directory: listing it takes all of them in memory, and a file may declare any number."""


class Grouping(NamedTuple):
    """A directory that has a directory of links for each word: ``word`` of a value in ``column``, at most 255 bytes."""

    name: bytes
    column: str
    word: Callable[[Any], bytes]

    def rows(self, table: Table) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield each row after its word."""
        _demand_few(table)
        for record in of_records(table.records) if table.records else ():
            yield self.word(record.get(self.column)), record


def _task(task: Any) -> bytes:
    return _shortened(str(task or ""))


@cached_if_short(16)  # rows of one task follow one another, and shortening takes most of a listing's time
def _shortened(task: str) -> bytes:
    return shortened(task.encode("utf-8", "replace"))


def _success(outcome: Any) -> bytes:
    return b"true" if outcome is True else b"false" if outcome is False else b"unknown"


GROUPINGS = Grouping(b"by-task", "language_instruction", _task), Grouping(b"by-success", "success", _success)


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    is_of_episodes = table.name == EPISODES if isinstance(table, Joined) else table.directory
    if table.records is None or not is_of_episodes:
        return
    if not isinstance(table, Joined):  # its number of rows is found when it is listed
        _demand_few(table)
    for grouping in GROUPINGS:
        links: Callable[..., Iterator[Member]] = _of_containers if isinstance(table, Joined) else _of_container
        yield Shown(Group(grouping.name, partial(links, table, grouping, cache)), name=grouping.name)


def _demand_few(table: Table) -> None:
    if table.rows > MOST:
        raise TooLarge(f"links to {table.rows} episodes are too many for a directory, at most {MOST} are shown")


def _of_container(table: Table, grouping: Grouping, cache: BlockCache) -> Iterator[Member]:
    """Yield a directory for each word, with links to the episodes of one container."""
    found: dict[bytes, array[int]] = {}
    with _allowance(cache).temporary(cache) as allowance:
        for row, (word, record) in enumerate(grouping.rows(table)):
            number = number_of(record, row)
            if word not in found:
                found[word] = array("I")
                allowance.take(5 * OBJECT + held(word), "links")
            found[word].append(number)
        for word, numbers in found.items():
            link = partial(_link, table.directory)
            yield Member((word,), Series(word, numbers, link, DIGITS, has_links=True, kept=getsizeof(numbers)))


def _link(directory: bytes, number: int) -> Link:
    return Link(b"%d" % number, (b"..", b"..", directory, b"%d" % number))


def _of_containers(table: Joined, grouping: Grouping, cache: BlockCache) -> Iterator[Member]:
    """Yield links to the episodes of many containers, below their words."""
    with _allowance(cache).temporary(cache) as allowance:
        for word, record in grouping.rows(table):
            name = shortened(raw(f"{record[CONTAINER]}~{record[POSITION]}"))
            member = Member((word, name), Link(name, (), f"../../{table.path_of(record)}"))
            allowance.take(held_by_member(member), "links")
            yield member


def _allowance(cache: BlockCache) -> Allowance:
    """Return what bounds the names of links: half of the cache, or 32 MiB if that is more."""
    return Allowance(max(32 << 20, cache.budget // 2))


VIEW = View("by-task", "episodes by their instructions and by success, as symbolic links", (Table,), show)
