"""Values sent to workers and returned by them: small and picklable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from glassfs.errors import GlassfsError
from glassfs.source import Kind, Path

MOST_FAULTS = 1000
"""Faults reported per container; one more says how many others there are."""


class BatchError(GlassfsError):
    """The work on many containers cannot continue."""


class SearchHit(NamedTuple):
    """A file, folder or link that the user named or that is below a named folder.

    ``name`` is its path or URL as shown. Workers find it at ``inner`` in the named ``source``. ``path`` is its path in
    a tree of all that was named, ``key`` below the named folder, as stored. ``rest`` is what an outcome has left.
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
    rest: Any = None


class Problem(NamedTuple):
    """Something wrong at ``place``, a path in a container.

    If ``is_passing``, the container could not be examined now, and is tried again by ``--resume``. If ``is_omitted``,
    nothing is wrong: glassfs does not show what the container has there.
    """

    place: str
    reason: str
    is_passing: bool = False
    is_omitted: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


class Outcome(NamedTuple):
    """The result for one item.

    ``data`` is the command's output, ``rows`` table rows, in parts if it is large: the next part starts from ``rest``
    unless that is None. If the container ``is_several`` files, the version of its main file does not cover all of them.
    ``fatal`` is why no other item can be processed either. ``tables`` are the joined tables to which it may give rows.
    ``known`` counts the values of each column in the rows to which a condition was applied.
    """

    faults: tuple[Problem, ...] = ()
    is_container: bool = True
    data: Any = None
    rest: Any = None
    is_several: bool = False
    rows: int | None = None
    fatal: str = ""
    tables: tuple[str, ...] = ()
    known: Counter[str] | None = None


Work = Callable[[], AbstractContextManager[Callable[[SearchHit], Outcome]]]
"""Begin the work for a ``with``, which gets what returns the outcome of a container. Picklable."""


class Problems:
    """The faults of one container, and what is omitted: of both at most MOST_FAULTS, and one that counts the others."""

    def __init__(self) -> None:
        self._reported: list[Problem] = []
        self._counts: Counter[bool] = Counter()
        """Of faults, and of what is omitted."""
        self._is_passing = False

    def add(self, fault: Problem) -> None:
        self._counts[fault.is_omitted] += 1
        if self._counts[fault.is_omitted] <= MOST_FAULTS:
            self._reported.append(fault)
        else:
            self._is_passing = self._is_passing or fault.is_passing

    @property
    def all(self) -> tuple[Problem, ...]:
        return (*self._reported, *(
            Problem("", f"and {count - MOST_FAULTS:,} more", self._is_passing, is_omitted)
            for is_omitted, count in self._counts.items() if count > MOST_FAULTS
        ))
