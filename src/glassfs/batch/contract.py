"""What goes to those who do the work and what comes back: small values that can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassfs.errors import GlassfsError
from glassfs.source import Connection, Kind, Path

MOST_FAULTS = 1000
"""Faults of one container that are told; the last one says of the others only how many there are."""


class BatchError(GlassfsError):
    """Why the work on many cannot go on."""


@dataclass(frozen=True)
class Settings:
    """What holds for all containers, wherever they are opened: whoever adds to it has it in every worker.

    ``connection`` is how URLs are reached. ``threads`` are those that may read the files of one container, 0 for one
    each core.
    """

    views: str = ""
    connection: Connection = field(default_factory=Connection)
    threads: int = 0


class Found(NamedTuple):
    """Something that was named or stands below what was named.

    ``name`` is its path or URL as everybody may see it. Whoever works on it finds it at ``inner`` in the ``source``
    that was named. ``path`` is that in a tree of all that was named, where a file that was named itself has its own
    name. ``key`` is the path from what was named on, as it is stored, so that it does not depend on where that is
    mounted.
    """

    name: str
    source: str
    inner: Path
    path: str
    key: str
    kind: Kind
    version: str
    size: int
    is_named: bool = False


class Fault(NamedTuple):
    """Something wrong at ``place`` in a container.

    One that ``is_passing`` says only that it could not be looked at now: so the container is to be tried again.
    """

    place: str
    reason: str
    is_passing: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


class Outcome(NamedTuple):
    """What came of one item.

    ``data`` is what the command makes of the container. Where that is much it comes in parts: there is more as long as
    there is a ``rest``, which the next part is made from. Where it ``is_several`` files the version of its own one does
    not tell whether it is as it was. ``rows`` is how many there are in ``data``, if it is a table. ``fatal`` is why
    nothing else can be done either.
    """

    faults: tuple[Fault, ...] = ()
    is_container: bool = True
    data: Any = None
    rest: Any = None
    is_several: bool = False
    rows: int | None = None
    fatal: str = ""


class Item(NamedTuple):
    """One container, or what is left of it."""

    found: Found
    rest: Any = None


Work = Callable[[Iterator[Item]], Iterator[Outcome]]
"""Gives an outcome for each item, before it takes the next one. Can be pickled; raises nothing that is foreseen."""


class Faults:
    """Those of one container: not more than MOST_FAULTS, and one that tells how many others there are."""

    def __init__(self) -> None:
        self._told: list[Fault] = []
        self._more = 0
        self._is_passing = False

    def add(self, fault: Fault) -> bool:
        """One more; whether it is among those that are told."""
        is_told = len(self._told) < MOST_FAULTS
        if is_told:
            self._told.append(fault)
        else:
            self._more += 1
            self._is_passing = self._is_passing or fault.is_passing
        return is_told

    @property
    def others(self) -> tuple[Fault, ...]:
        """What tells of those that are not told."""
        return (Fault("", f"and {self._more:,} more", self._is_passing),) if self._more else ()

    @property
    def all(self) -> tuple[Fault, ...]:
        return (*self._told, *self.others)
