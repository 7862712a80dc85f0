"""Find what to work on, open it in the process that works on it, and what workers get and return, small and picklable.

The files are those that the user named, and those below the folders that the user named, which are walked lazily.
Workers open the files: the first bytes decide whether a file is a container, in remote folders also its name. Links
inside are not followed. One thread.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.content.selected import Picks
from glassfs.datasets.rows import dependencies
from glassfs.datasets.selecting import located, selected_store
from glassfs.errors import Changed, GlassfsError, Refused
from glassfs.formats.registry import may_be_container
from glassfs.names import distinct, raw
from glassfs.source import Connection, Kind, Named, Path, Version, locate
from glassfs.source.remote.url import shown
from glassfs.tree import Containers, ContainerSettings, Sources, Tree
from glassfs.tree.containers.lease import Location
from glassfs.tree.containers.selected import SelectedStore
from glassfs.tree.sources.folder import omission, shown_entries
from glassfs.tree.sources.walk import Branch, DeadEnd, Listed, walk

TABLE = "episodes.parquet"
"""The table beside exported episodes."""
MOST_FAULTS = 1000
"""Faults reported per container; one more says how many others there are."""



class BatchError(GlassfsError):
    """The work on many containers cannot continue."""


class SearchHit(NamedTuple):
    """A file, folder or link that the user named or that is below a named folder.

    ``name`` is its path or URL as shown. Workers find it at ``inner`` in the named ``source``. ``path`` is its path in
    a tree of all that was named, ``key`` below the named folder, as stored. ``rest`` is what an outcome has left. Of a
    selected container, ``picks`` are what is shown.
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
    picks: Picks | None = None


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


class Unlisted(NamedTuple):
    """A folder that cannot be listed, or what of one is damaged or left out (LeftOut)."""

    name: str
    error: GlassfsError


class Search:
    """The walk under ``names``. Raises NotFound and similar if one of them does not exist.

    All paths are sorted by their bytes. With ``has_all``, folders, links and files that cannot be containers are there.
    """

    def __init__(
        self, names: Sequence[str], connection: Connection = Connection(), *, has_all: bool = False,  # noqa: B008
    ) -> None:
        names, found = located(names, connection, ContainerSettings(BlockCache(), has_catalogue=True))
        self._named = list(zip(names, found, distinct(raw(one.name) for one in found), strict=True))
        self._named.sort(key=lambda one: raw(one[2]) + (b"" if one[1].path else b"/"))
        self._has_all = has_all

    def all(self) -> Iterator[SearchHit | Unlisted]:
        """Walk everything; each call starts over."""
        is_single = len(self._named) == 1
        for name, named, label in self._named:
            if named.store.hides(named.path):
                continue
            try:
                entry = named.store.entry(named.path)
            except GlassfsError as error:
                yield Unlisted(shown(name), error)
                continue
            if entry.kind is Kind.FOLDER:
                yield from self._below(name, named, (), "" if is_single else label)
            else:
                facts = Kind.FILE, str(entry.version), entry.size
                picks = _picks(named, named.path, entry.version)
                yield SearchHit(shown(name), name, (), label, named.name, *facts, is_named=True, picks=picks)

    def below(self, location: Location | None = None, path: str = "") -> Iterator[SearchHit | Unlisted]:
        """Walk a folder in the first named source, by default all of it, which is shown at ``path``."""
        name, named, _ = self._named[0]
        return self._below(name, named, location.path[len(named.path) :] if location else (), path)

    def _below(self, source: str, named: Named, inner: Path, path: str) -> Iterator[SearchHit | Unlisted]:
        start = Branch(path, Location(named.store, (*named.path, *inner)))
        for found in walk(start, partial(self._listed, named)):
            store, whole = found.folder.location if isinstance(found, DeadEnd) else found.location
            below = whole[len(named.path) :]
            if isinstance(found, DeadEnd):
                yield Unlisted(store.shown(whole), found.error)
                continue
            if left_out := omission(found.path, found.location, found.entry):
                yield Unlisted(store.shown(whole), left_out.error)
            if found.entry.kind is Kind.FILE or (self._has_all and found.entry.kind is not Kind.OTHER):
                facts = found.entry.kind, str(found.entry.version), found.entry.size
                picks = _picks(named, whole, found.entry.version)
                yield SearchHit(store.shown(whole), source, below, found.path, "/".join(below), *facts, picks=picks)

    def _listed(self, named: Named, folder: Branch) -> Listed:
        """List a folder in order."""
        store, path = folder.location
        listed = [
            one for one in shown_entries(folder.location, path == named.path)
            if one[2].kind in (Kind.FILE, Kind.FOLDER, Kind.LINK) or one[2].omitted
        ]
        if store.is_remote and not self._has_all:
            listed = [one for one in listed if one[2].kind is not Kind.FILE or may_be_container(one[1])]
        # A folder sorts as if its name ended with a slash, so that a walk yields all paths in the order of their bytes.
        listed.sort(key=lambda one: raw(one[0]) + (b"/" if one[2].kind is Kind.FOLDER else b""), reverse=True)
        return (listed.pop() for _ in range(len(listed)))  # free each entry of a large folder once it is used


def _picks(named: Named, path: Path, version: str) -> Picks | None:
    return named.store.picks(path, version) if isinstance(named.store, SelectedStore) else None


class Opener:
    """The store of the last source, and the ``cache`` for what is read from it.

    ``is_several`` is set if the container opened last consists of several files, or was refused because of one of them:
    its main file's version does not cover those.
    """

    def __init__(self, connection: Connection) -> None:
        self.cache = BlockCache()
        self.is_several = False
        self._containers = Containers(ContainerSettings(self.cache, has_catalogue=True))
        """For glimpses: none stays open, but what formats find in them is kept for later programs."""
        self._connection = connection
        self._source = ""
        self._named: Named | None = None

    def named(self, found: SearchHit) -> Named:
        """Return store and path of a hit. Raises NotFound and similar."""
        self.is_several = False
        named = self._named
        if named is None or self._source != found.source:
            self._close_store()
            (named,) = locate([found.source], self._connection, may_be_container, cache=self.cache)
            self._source, self._named = found.source, named
        if found.inner:
            named = Named(named.store, (*named.path, *found.inner), found.inner[-1])
        return named if found.picks is None else named._replace(store=selected_store(named, found.picks))

    @contextmanager
    def opened(self, named: Named) -> Iterator[tuple[Tree, Container]]:
        """Open a container and its tree. Raises the reason if it cannot be opened."""
        with self._noting():
            sources = Sources([named], ContainerSettings(self.cache))
        with closing(sources.containers):
            # Opening sources opens a container that is named itself; a folder is not one.
            containers = sources.containers.all_open()
            if not containers:
                raise Changed("is a folder now", named.store.shown(named.path))
            container = containers[0].container
            self.is_several = len(container.sources) > 1
            yield sources.tree, container

    @contextmanager
    def glimpsed(self, named: Named, version: Version) -> Iterator[Container]:
        """Open this version of a container without a tree. Raises the reason if it cannot be opened."""
        with ExitStack() as stack:
            with self._noting():
                glimpse = self._containers.glimpsed(Location(named.store, named.path), version)
                container, entries = stack.enter_context(glimpse)
            self.is_several = len(entries) > 1
            yield container

    def known(self, named: Named, name: str, find: Callable[[Container], Any]) -> Any:
        """Return what ``find`` finds in a container, a JSON value, from the catalogue if that has it under this name.

        Raises the reason if the container cannot be opened, and what ``find`` raises.
        """
        entry, kept = named.store.entry(named.path), self._containers.kept
        key = f"{name}\0{dependencies(self._containers.layout)}".encode()
        found = kept.find(entry.stamp, key) if named.store.has_lasting_versions else None
        if found is not None:
            return json.loads(found)
        with self.glimpsed(named, entry.version) as container:
            value = find(container)
        # The stamp is that of one file.
        if named.store.has_lasting_versions and not self.is_several:
            kept.keep(entry.stamp, entry.mtime_ns, key, json.dumps(value).encode())
        return value

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note refusals caused by a part of a container: then it consists of several files."""
        try:
            yield
        except Refused as error:
            self.is_several = bool(error.part)
            raise

    def close(self) -> None:
        """Close the store, and write what was found."""
        self._containers.close()
        self._close_store()

    def _close_store(self) -> None:
        if self._named is not None:
            self._named.store.close()
            self._named = None
