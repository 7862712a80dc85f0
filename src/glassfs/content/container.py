"""A container that was opened: what is in it, what is known of it, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassfs.content.model import Collection
from glassfs.content.table import Table
from glassfs.source import Source


class Fault(NamedTuple):
    """Something wrong in a container: where (a path or a part's name) and what."""

    place: str
    reason: str


def no_faults() -> Iterator[Fault]:
    return iter(())


def no_episodes() -> None:
    return None


@dataclass(slots=True)
class Container:
    """An opened container.

    ``facts`` are what its header and index tell (JSON values, in the order to show them). ``sources`` are all files it
    is made of, its own first. ``check`` goes through what reading all contents does not cover (holes, overlaps,
    cross-references) and yields what is wrong. ``episodes`` gives the table of those that are in it: one that is an
    episode itself has a table of one row and no ``directory``.
    """

    format: str
    version: str
    root: Collection
    sources: list[Source]
    facts: dict[str, Any] = field(default_factory=dict)
    check: Callable[[], Iterator[Fault]] = no_faults
    episodes: Callable[[], Table | None] = no_episodes

    def keep(self) -> None:
        """Holds on to descriptors as they are needed."""
        for source in self.sources:
            source.keep()

    def park(self) -> None:
        """Gives back descriptors; what is left of the contents can still be read, slower."""
        for source in self.sources:
            source.park()

    def close(self) -> None:
        for source in self.sources:
            source.close()
