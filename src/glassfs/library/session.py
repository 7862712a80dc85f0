"""What is behind the entries of one ``glassfs.open``: the tree, in this process, for as long as it is open.

Any thread. A process that was forked off must not touch the tree of its parent, whose locks may be held by threads that
it does not have: it opens one of its own when it first needs one. Whoever got an entry pickled does the same.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakSet, WeakValueDictionary

from glassfs.cache import DEFAULT_BUDGET, BlockCache
from glassfs.errors import Closed
from glassfs.library.finding import Paths
from glassfs.source import Connection, absolute
from glassfs.source.remote.url import shown
from glassfs.tree import ContainerSettings, Sources, Tree, open_sources
from glassfs.tree.lease import Lease
from glassfs.view import chosen

KEPT_SHARE = 4
"""The part of the cache's size that what is parsed of containers may have, and the part for their listings."""


@dataclass(frozen=True)
class Asked:
    """What ``glassfs.open`` was asked for."""

    sources: tuple[str, ...] = field(repr=False)
    cache_size: int | None = None
    spool: str | None = None
    views: str = ""
    connection: Connection = field(default_factory=Connection)

    @property
    def shown(self) -> str:
        """The sources as everybody may see them."""
        return ", ".join(map(shown, self.sources))

    def elsewhere(self) -> Asked:
        """The same for a process with another working directory."""
        return replace(self, sources=tuple(absolute(source) for source in self.sources))

    def opened(self, on_drop: Callable[[Lease], None]) -> Sources:
        budget = DEFAULT_BUDGET if self.cache_size is None else self.cache_size
        cache = BlockCache(budget, self.spool)
        settings = ContainerSettings(
            cache, budget=budget // KEPT_SHARE, views=chosen(self.views), has_catalogue=True,
            listing_budget=max(1, budget // KEPT_SHARE),
        )
        return open_sources(self.sources, settings, connection=self.connection, on_drop=on_drop)


def open_tree(
    *sources: str | os.PathLike[str], cache_size: int | None = None, spool: str | None = None, views: str = "",
    connection: Connection = Connection(),  # noqa: B008
) -> Tree:
    """The tree of what ``glassfs.open`` would open, for whoever works with nodes."""
    cache = BlockCache(DEFAULT_BUDGET if cache_size is None else cache_size, spool)
    settings = ContainerSettings(cache, views=chosen(views), has_catalogue=True)
    return open_sources(named(sources), settings, connection=connection).tree


class LibrarySession:
    """The tree of what was asked for. ``token`` tells it from all others, in other processes, too.

    ``era`` is another one whenever nodes of before are not to be used any more.
    """

    def __init__(self, asked: Asked, token: str = "") -> None:
        self.asked = asked
        self.token = token or uuid.uuid4().hex
        self.era = 0
        self.is_closed = False
        self._away = asked.elsewhere()
        self._lock = threading.Lock()
        self._paths: Paths | None = None
        with _lock:
            _sessions[self.token] = self
            _all.add(self)

    @property
    def paths(self) -> Paths:
        """Raises Closed, and what opening raises."""
        paths = self._paths
        if paths is None:
            with self._lock:
                if self.is_closed:
                    raise Closed("was closed", self.asked.shown)
                paths = self._paths
                if paths is None:
                    asked = self._away if self.era else self.asked
                    paths = self._paths = Paths(asked.opened)
        return paths

    def close(self) -> None:
        """Gives back all at once. Whatever is asked of it later raises Closed."""
        with self._lock:
            paths, self._paths = self._paths, None
            self.is_closed = True
            self.era += 1
        if paths is not None:
            paths.sources.close()

    def begin_after_fork(self) -> None:
        _inherited.append(self._paths)
        self._paths = None
        self._lock = threading.Lock()
        self.era += 1

    def __reduce__(self) -> tuple[object, ...]:
        return restored, (self.token, self._away)


_lock = threading.RLock()
_sessions: WeakValueDictionary[str, LibrarySession] = WeakValueDictionary()
_all: WeakSet[LibrarySession] = WeakSet()
_inherited: list[object] = []
"""What a parent had opened: nobody may even give it up, however long the session lasts."""


def restored(token: str, asked: Asked) -> LibrarySession:
    """That session, if it is one of this process, or one like it for all who come from it."""
    with _lock:
        found = _sessions.get(token)
        return LibrarySession(asked, token) if found is None else found


def _begin_after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for session in list(_all):
        session.begin_after_fork()


def named(sources: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    return tuple(os.fspath(source) for source in sources)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_after_fork)
