"""The tree behind the entries of one ``glassfs.open``, in this process, while it is open. Any thread.

A forked process must not use its parent's tree: threads that it does not have may hold the locks. It opens a tree of
its own on first use, as does a process that unpickles an entry.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from glassfs.cache import DEFAULT_BUDGET, BlockCache
from glassfs.datasets.selecting import open_sources
from glassfs.datasets.selections import Words
from glassfs.errors import Closed
from glassfs.layouts import known
from glassfs.library.finding import LibraryPaths
from glassfs.source import Connection, absolute
from glassfs.source.remote.url import shown
from glassfs.tree import ContainerSettings, Sources, Tree
from glassfs.tree.lease import Lease
from glassfs.view import chosen


@dataclass(frozen=True)
class OpenArguments:
    """The arguments of ``glassfs.open``."""

    sources: tuple[str, ...] = field(repr=False)
    cache_size: int | None = None
    spool: str | None = None
    views: str = ""
    connection: Connection = field(default_factory=Connection)
    layout: str = ""
    words: Words | None = None

    @property
    def shown(self) -> str:
        """The sources without credentials."""
        return ", ".join(map(shown, self.sources))

    @property
    def budget(self) -> int:
        """The bytes of decoded blocks in memory."""
        return DEFAULT_BUDGET if self.cache_size is None else self.cache_size

    @property
    def directories(self) -> int:
        """The bytes of directories whose children are cached, and of those that are found by their paths."""
        return max(1, self.budget // 8)

    def absolute(self) -> OpenArguments:
        """Return the same for a process with another working directory."""
        return replace(self, sources=tuple(map(absolute, self.sources)), layout=known.absolute(self.layout))

    def opened(self, on_drop: Callable[[Lease], None] = lambda lease: None) -> Sources:
        cache = BlockCache(self.budget, self.spool)
        settings = ContainerSettings(
            cache, budget=self.budget // 4, views=chosen(self.views), has_catalogue=True,
            listing_budget=self.directories, layout=self.layout,
        )
        return open_sources(
            self.sources, settings, connection=self.connection, on_drop=on_drop, words=self.words,
        )


def open_tree(
    *sources: str | os.PathLike[str], cache_size: int | None = None, spool: str | None = None, views: str = "",
    connection: Connection = Connection(),  # noqa: B008
) -> Tree:
    """Return the tree of what ``glassfs.open`` would open, for programs that work with nodes.

    Views that are not listed are found by their paths.
    """
    return OpenArguments(named(sources), cache_size, spool, views, connection).opened().reachable


class LibrarySession:
    """A tree that is opened on first use. ``token`` identifies it in all processes.

    ``era`` changes whenever earlier nodes must no longer be used.
    """

    def __init__(self, asked: OpenArguments, token: str = "") -> None:
        self.asked = asked
        self.token = token or os.urandom(16).hex()
        self.era = 0
        self.is_closed = False
        self._away = asked.absolute()
        self._lock = threading.Lock()
        self._paths: LibraryPaths | None = None
        with _lock:
            _sessions[self.token] = self

    @property
    def paths(self) -> LibraryPaths:
        """The paths of the tree. Raises Closed, or what opening raises."""
        paths = self._paths
        if paths is None:
            with self._lock:
                if self.is_closed:
                    raise Closed("was closed", self.asked.shown)
                paths = self._paths
                if paths is None:
                    # The parent may have changed its folder after it opened the sources; a child resolves what it
                    # resolved.
                    asked = self._away if self.era else self.asked
                    paths = self._paths = LibraryPaths(asked.opened, asked.directories)
        return paths

    def close(self) -> None:
        """Release everything. Later use raises Closed."""
        with self._lock:
            paths, self._paths = self._paths, None
            self.is_closed = True
            self.era += 1
        if paths is not None:
            paths.sources.close()

    def begin_after_fork(self) -> None:
        # Not closed, as the descriptors are shared with the parent, and not freed either.
        _inherited.append(self._paths)
        self._paths = None
        self._lock = threading.Lock()
        self.era += 1

    def __reduce__(self) -> tuple[object, ...]:
        return restored, (self.token, self._away)


_lock = threading.RLock()
_sessions: WeakValueDictionary[str, LibrarySession] = WeakValueDictionary()
_inherited: list[object] = []
"""Trees opened by the parent. They are kept, as releasing them could wait for a lock forever."""


def restored(token: str, asked: OpenArguments) -> LibrarySession:
    """Return this process's session with a token, or a new one shared by all entries unpickled from it."""
    with _lock:
        found = _sessions.get(token)
        return LibrarySession(asked, token) if found is None else found


def _begin_after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for session in list(_sessions.values()):
        session.begin_after_fork()


def named(sources: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    return tuple(os.fspath(source) for source in sources)


os.register_at_fork(after_in_child=_begin_after_fork)
