"""Open containers in the process that works on them. One store serves everything below a named source. One thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from glassfs.batch.contract import SearchHit, Settings
from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.errors import Changed, Refused
from glassfs.formats.registry import may_be_container
from glassfs.source import Named, Version, locate
from glassfs.tree import Containers, ContainerSettings, Sources, Tree
from glassfs.tree.containers.lease import Location


class Opener:
    """The store of the last source, and the ``cache`` for what is read from it.

    ``is_several`` is set if the container opened last consists of several files, or was refused because of one of them:
    its main file's version does not cover those.
    """

    def __init__(self, settings: Settings) -> None:
        self.cache = BlockCache()
        self.is_several = False
        self._containers = Containers(ContainerSettings(self.cache, has_catalogue=True))
        """For glimpses: none stays open, but what formats find in them is kept for later programs."""
        self._settings = settings
        self._source = ""
        self._named: Named | None = None

    def named(self, found: SearchHit) -> Named:
        """Return store and path of a hit. Raises NotFound and similar."""
        self.is_several = False
        named = self._named
        if named is None or self._source != found.source:
            self._close_store()
            connection = self._settings.connection
            (named,) = locate([found.source], connection, may_be_container, cache=self.cache)
            self._source, self._named = found.source, named
        return named if not found.inner else Named(named.store, (*named.path, *found.inner), found.inner[-1])

    @contextmanager
    def opened(self, named: Named) -> Iterator[tuple[Tree, Container]]:
        """Open a container and its tree. Raises the reason if it cannot be opened."""
        with self._noting():
            sources = Sources([named], ContainerSettings(self.cache))
        try:
            containers = sources.containers.all_open()
            if not containers:
                raise Changed("is a folder now", named.store.shown(named.path))
            container = containers[0].container
            self.is_several = len(container.sources) > 1
            yield sources.tree, container
        finally:
            sources.joins.close()
            sources.containers.close()

    @contextmanager
    def glimpsed(self, named: Named, version: Version) -> Iterator[Container]:
        """Open this version of a container without a tree. Raises the reason if it cannot be opened."""
        with ExitStack() as stack:
            with self._noting():
                glimpse = self._containers.glimpsed(Location(named.store, named.path), version)
                container, entries = stack.enter_context(glimpse)
            self.is_several = len(entries) > 1
            yield container

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
