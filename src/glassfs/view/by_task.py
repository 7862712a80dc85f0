"""Episodes by what was to be done and by how that went: symbolic links to their directories.

Listing them takes a pass over the records. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Group, Link, Member, Table
from glassfs.content.join import CONTAINER, POSITION, Joined
from glassfs.view.contract import Key, Shown, View

INSTRUCTION, SUCCESS = "language_instruction", "success"
DIGITS = 6
_UP = (b"..", b"..")


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    if table.records is None or not (table.directory or isinstance(table, Joined)):
        return
    for name, word in ((b"by-task", _task), (b"by-success", _success)):
        yield Shown(Group(name, _members(table, word)), name=name)


def _task(record: dict[str, Any]) -> bytes:
    return str(record.get(INSTRUCTION) or "").encode("utf-8", "surrogateescape")


def _success(record: dict[str, Any]) -> bytes:
    outcome = record.get(SUCCESS)
    return b"true" if outcome is True else b"false" if outcome is False else b"unknown"


def _members(table: Table, word: Callable[[dict[str, Any]], bytes]) -> Callable[[], Iterator[Member]]:
    """Links under the words that are found for their rows."""

    def members() -> Iterator[Member]:
        records, number = table.records, 0
        for block in range(records.blocks if records else 0):
            for record in records.block(block) if records else ():
                name, link = b"%0*d" % (DIGITS, number), Link(b"%d" % number, (*_UP, table.directory, b"%d" % number))
                if isinstance(table, Joined):
                    name, link = _from_folder(table, record)
                yield Member((word(record), name), link)
                number += 1

    return members


def _from_folder(table: Joined, record: dict[str, Any]) -> tuple[bytes, Link]:
    """The name of a link to an episode of one of many containers, and the link."""
    name = f"{record[CONTAINER]}~{record[POSITION]}".encode("utf-8", "surrogateescape")
    return name, Link(name, (), f"../../{table.path_of(record)}")


VIEW = View("by-task", "episodes by their instructions and by success, as symbolic links", (Table,), show)
