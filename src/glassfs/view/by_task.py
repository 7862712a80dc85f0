"""Episodes by instruction and by success: symbolic links to their directories.

Listing them takes a pass over the records; of a container's own, only the numbers of the episodes with each word are
kept. A word of more than 255 bytes is kept as its name. Any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from glassfs.cache import BlockCache
from glassfs.content import Group, Link, Member, Series, Table
from glassfs.content.growth import Growth, held, held_by_member
from glassfs.content.join import CONTAINER, POSITION, Joined
from glassfs.errors import TooLarge
from glassfs.names import raw, shortened
from glassfs.view.contract import Key, Shown, View

INSTRUCTION, SUCCESS = "language_instruction", "success"
DIGITS = 6
MOST = 100_000
"""Limit of links in a directory: listing it takes all of them in memory, and a file may declare any number."""
DIRECTORY_COST = 640
"""Bytes of a directory of links, beside its name and the numbers of its links."""
_UP = (b"..", b"..")

Word: TypeAlias = Callable[[Any], bytes]
"""Returns the word for a value of a row, a name of at most 255 bytes."""


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    if table.records is None or not (table.directory or isinstance(table, Joined)):
        return
    if not isinstance(table, Joined):  # its number of rows is found when it is listed
        _demand_few(table)
    for name, column, word in ((b"by-task", INSTRUCTION, _task), (b"by-success", SUCCESS, _success)):
        if isinstance(table, Joined):
            links = partial(_from_folder, table, column, word, cache)
        else:
            links = partial(_numbered, table, column, word, cache)
        yield Shown(Group(name, links), name=name)


def _demand_few(table: Table) -> None:
    if table.rows > MOST:
        raise TooLarge(f"links to {table.rows} episodes are too many for a directory, at most {MOST} are shown")


def _task(task: Any) -> bytes:
    return shortened(str(task or "").encode("utf-8", "replace"))


def _success(outcome: Any) -> bytes:
    return b"true" if outcome is True else b"false" if outcome is False else b"unknown"


def _named(table: Table, column: str, word: Word) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield each row and its word."""
    last, name = None, word(None)
    for record in _records(table):
        value = record.get(column)
        if value is not last and not (type(value) is str and value == last):
            last, name = value, word(value)
        yield record, name


def _records(table: Table) -> Iterator[dict[str, Any]]:
    _demand_few(table)
    records = table.records
    for block in range(records.blocks if records else 0):
        yield from records.block(block) if records else ()


def _numbered(table: Table, column: str, word: Word, cache: BlockCache) -> Iterator[Member]:
    """Yield a directory for each word, with links to the episodes that have it."""
    found: dict[bytes, array[int]] = {}
    with Growth(cache) as growth:
        for number, (_, name) in enumerate(_named(table, column, word)):
            numbers = found.get(name)
            if numbers is None:
                numbers = found[name] = array("I")
                growth.add(DIRECTORY_COST + held(name))
            numbers.append(number)
            growth.add(numbers.itemsize)
        for name, numbers in found.items():
            link = partial(_link, table.directory)
            yield Member((name,), Series(name, len(numbers), link, DIGITS, numbers=numbers))


def _link(directory: bytes, number: int) -> Link:
    name = b"%d" % number
    return Link(name, (*_UP, directory, name))


def _from_folder(table: Joined, column: str, word: Word, cache: BlockCache) -> Iterator[Member]:
    """Yield links to the episodes of many containers, below their words."""
    with Growth(cache) as growth:
        for record, word_name in _named(table, column, word):
            name = raw(f"{record[CONTAINER]}~{record[POSITION]}")
            member = Member((word_name, shortened(name)), Link(name, (), f"../../{table.path_of(record)}"))
            growth.add(held_by_member(member))
            yield member


VIEW = View("by-task", "episodes by their instructions and by success, as symbolic links", (Table,), show)
