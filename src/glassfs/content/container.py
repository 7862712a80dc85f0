"""An open container: its contents, facts about it, and its damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassfs.content.model import Collection
from glassfs.content.table import Table
from glassfs.source import Source


class Fault(NamedTuple):
    """Damage in a container: where (a path or the name of a part) and what."""

    place: str
    reason: str


@dataclass(slots=True)
class Container:
    """An open container.

    ``facts`` are what its header and index say: JSON values in display order. ``sources`` are all its files, its own
    first. ``check`` yields damage that reading all contents does not find (holes, overlaps, cross-references).
    ``episodes`` returns the table of its episodes; for a container that is one episode, a table of one row and no
    ``directory``.
    """

    format: str
    version: str
    root: Collection
    sources: list[Source]
    facts: dict[str, Any] = field(default_factory=dict)
    check: Callable[[], Iterator[Fault]] = lambda: iter(())
    episodes: Callable[[], Table | None] = lambda: None

    def keep(self) -> None:
        """Keep descriptors open once they are needed."""
        for source in self.sources:
            source.keep()

    def park(self) -> None:
        """Close descriptors; contents still in use stay readable, but slower."""
        for source in self.sources:
            source.park()

    def close(self) -> None:
        for source in self.sources:
            source.close()
