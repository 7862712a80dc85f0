"""Find what to work on, and open it in the process that works on it.

The files are those that the user named, and those below the folders that the user named, which are walked lazily.
Workers open the files: the first bytes decide whether a file is a container, in remote folders also its name. Links
inside are not followed. One thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.datasets.batch.contract import SearchHit
from glassfs.datasets.rows import dependencies
from glassfs.errors import Changed, GlassfsError, Refused
from glassfs.formats.registry import may_be_container
from glassfs.names import distinct, raw
from glassfs.source import Connection, Kind, Named, Path, Version, locate
from glassfs.source.remote.url import shown
from glassfs.tree import Containers, ContainerSettings, Sources, Tree
from glassfs.tree.containers.lease import Location
from glassfs.tree.sources.folder import omission, shown_entries
from glassfs.tree.sources.walk import Branch, DeadEnd, Listed, walk

TABLE = "episodes.parquet"
"""The table beside exported episodes."""


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
        located = locate(names, connection, may_be_container)
        self._named = list(zip(names, located, distinct(raw(one.name) for one in located), strict=True))
        self._named.sort(key=lambda one: raw(one[2]) + (b"" if one[1].path else b"/"))
        self._has_all = has_all

    def all(self) -> Iterator[SearchHit | Unlisted]:
        """Walk everything; each call starts over."""
        is_single = len(self._named) == 1
        for name, named, label in self._named:
            try:
                entry = named.store.entry(named.path)
            except GlassfsError as error:
                yield Unlisted(shown(name), error)
                continue
            if entry.kind is Kind.FOLDER:
                yield from self._below(name, named, (), "" if is_single else label)
            else:
                facts = Kind.FILE, str(entry.version), entry.size
                yield SearchHit(shown(name), name, (), label, named.name, *facts, is_named=True)

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
                yield SearchHit(store.shown(whole), source, below, found.path, "/".join(below), *facts)

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
        return named if not found.inner else Named(named.store, (*named.path, *found.inner), found.inner[-1])

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
