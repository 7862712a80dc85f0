"""Episodes by instruction and by success: symbolic links to their directories.

Listing them takes a pass over the records. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Group, Link, Member, Table
from glassfs.content.join import CONTAINER, POSITION, Joined
from glassfs.errors import TooLarge
from glassfs.names import raw
from glassfs.view.contract import Key, Shown, View

INSTRUCTION, SUCCESS = "language_instruction", "success"
DIGITS = 6
MOST = 100_000
"""Limit of links in a directory: listing it takes all of them in memory, and a file may declare any number."""
_UP = (b"..", b"..")


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    if table.records is None or not (table.directory or isinstance(table, Joined)):
        return
    if not isinstance(table, Joined):  # its number of rows is found when it is listed
        _demand_few(table)
    for name, word in ((b"by-task", _task), (b"by-success", _success)):
        yield Shown(Group(name, _members(table, word)), name=name)


def _demand_few(table: Table) -> None:
    if table.rows > MOST:
        raise TooLarge(f"links to {table.rows} episodes are too many for a directory, at most {MOST} are shown")


def _task(record: dict[str, Any]) -> bytes:
    return str(record.get(INSTRUCTION) or "").encode("utf-8", "replace")


def _success(record: dict[str, Any]) -> bytes:
    outcome = record.get(SUCCESS)
    return b"true" if outcome is True else b"false" if outcome is False else b"unknown"


def _members(table: Table, word: Callable[[dict[str, Any]], bytes]) -> Callable[[], Iterator[Member]]:
    """Return a function that yields links, grouped by the word of each row."""

    def members() -> Iterator[Member]:
        _demand_few(table)
        records, number = table.records, 0
        for block in range(records.blocks if records else 0):
            for record in records.block(block) if records else ():
                if isinstance(table, Joined):
                    name, link = _from_folder(table, record)
                else:
                    name = b"%0*d" % (DIGITS, number)
                    link = Link(b"%d" % number, (*_UP, table.directory, b"%d" % number))
                yield Member((word(record), name), link)
                number += 1

    return members


def _from_folder(table: Joined, record: dict[str, Any]) -> tuple[bytes, Link]:
    """Return the link to an episode of one of many containers, and its name."""
    name = raw(f"{record[CONTAINER]}~{record[POSITION]}")
    return name, Link(name, (), f"../../{table.path_of(record)}")


VIEW = View("by-task", "episodes by their instructions and by success, as symbolic links", (Table,), show)
