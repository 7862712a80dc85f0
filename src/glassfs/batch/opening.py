"""Opening what was found, in whichever process works on it: a store for what was named, and for all that is below it.

One thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from glassfs.batch.contract import Found, Settings
from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.errors import Changed, Refused
from glassfs.formats.registry import may_be_container
from glassfs.source import Named, Version, is_url, locate
from glassfs.tree import Containers, ContainerSettings, Sources, Tree
from glassfs.tree.containers.lease import Location


class Opener:
    """The store of the source that was asked for last, and the ``cache`` for what is read of it.

    ``is_several`` tells whether what was opened last is made of several files, or refused for what is wrong with one of
    these: then its own file does not tell whether it is still so.
    """

    def __init__(self, settings: Settings) -> None:
        self.cache = BlockCache()
        self.is_several = False
        self._settings = settings
        self._source = ""
        self._named: Named | None = None

    def __enter__(self) -> Opener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def named(self, found: Found) -> Named:
        """Where it is. Raises NotFound and its like."""
        self.is_several = False
        named = self._named
        if named is None or self._source != found.source:
            self._close()
            connection = self._settings.connection
            if is_url(found.source):
                connection = connection.within(self.cache.lend())
            (named,) = locate([found.source], connection, may_be_container)
            self._source, self._named = found.source, named
        return named if not found.inner else Named(named.store, (*named.path, *found.inner), found.inner[-1])

    @contextmanager
    def opened(self, named: Named) -> Iterator[tuple[Tree, Container]]:
        """The tree of a container and the container behind it. Raises why it cannot be opened."""
        with self._noting():
            sources = Sources([named], ContainerSettings(self.cache))
        try:
            containers = sources.containers.all_open()
            if not containers:
                raise Changed("is a folder by now", named.store.shown(named.path))
            container = containers[0].container
            self.is_several = len(container.sources) > 1
            yield sources.tree, container
        finally:
            sources.joins.close()
            sources.containers.close()

    @contextmanager
    def glimpsed(self, named: Named, version: Version) -> Iterator[Container]:
        """This version of a container, without a tree of it. Raises why it cannot be opened."""
        with ExitStack() as stack:
            with self._noting():
                glimpse = Containers(ContainerSettings(self.cache)).glimpsed(Location(named.store, named.path), version)
                container, entries = stack.enter_context(glimpse)
            self.is_several = len(entries) > 1
            yield container

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """What is refused in here for one of its parts is several files."""
        try:
            yield
        except Refused as error:
            self.is_several = bool(error.part)
            raise

    def _close(self) -> None:
        if self._named is not None:
            self._named.store.close()
            self._named = None
