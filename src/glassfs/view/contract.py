"""The contract of views, contents in another form as files beside their canonical files; and the views that there are.

Views know contents, never formats. Other packages add views by entry points in the group ``glassfs.views``: the name is
the view's, the value a ``View``. A tree has a ``ViewSet`` of those that the user asked for. ``Known`` bounds what the
files of views keep in memory. Any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import finalize

from glassfs.cache import BlockCache
from glassfs.content import Collection, Content, Data
from glassfs.errors import GlassfsError, NotFound, Passing
from glassfs.keyed_lock import KeyedLock
from glassfs.lru import LRU

Key = tuple[Hashable, ...]
"""Begins with the version of the container, and identifies one content in one view."""


class File(NamedTuple):
    """A file for a content: the suffix to append to the content's name, and the bytes."""

    suffix: str
    data: Data


class Shown(NamedTuple):
    """A file that a view makes of a content, or a directory of further contents.

    Its name is that of the content with ``suffix`` appended, or ``name`` if that is given.
    """

    thing: Data | Collection
    suffix: str = ""
    name: bytes | None = None


@dataclass(frozen=True)
class View:
    """A view. ``show`` is called with contents of ``kinds``, and yields nothing for those that it does not show.

    It decodes nothing, and raises GlassfsError with the reason if a content cannot be shown. ``summary`` is one line
    for users. ``variants`` show the same contents otherwise: one that is chosen takes the place of this view.
    """

    name: str
    summary: str
    kinds: tuple[type[Content], ...]
    show: Callable[[Any, BlockCache, Key], Iterable[Shown]]
    variants: tuple[View, ...] = ()


Value = TypeVar("Value")


class Known(Generic[Value]):
    """What one file knows, as a whole or of each of its parts. ``make``, called with the part, returns it, again after
    it was dropped; ``cost`` is its memory in bytes.
    """

    def __init__(self, cache: BlockCache, make: Callable[..., Value], cost: Callable[[Value], int]) -> None:
        self._known = cache.of_files
        self._make = make
        self._cost = cost
        self._making = KeyedLock()
        self._keys = set[Hashable]()
        # What is known goes with the file: the table of all must not keep entries of objects that are gone.
        finalize(self, _drop, self._known, self._keys).atexit = False

    def get(self, *part: int) -> Value:
        key, known = (id(self), *part), self._known

        def make() -> Value:
            made = self._make(*part)
            self._keys.add(key)
            known.put(key, made, self._cost(made))
            return made

        found: Value | None = known.get(key)
        return self._making.once(part, lambda: known.get(key), make) if found is None else found


def _drop(known: LRU[Hashable, Any], keys: Iterable[Hashable]) -> None:
    for key in keys:
        known.pop(key)


GROUP = "glassfs.views"
ALL = "all"
_BUILT_IN = ("mp4", "parquet", "lines", "csv", "by_task", "html", "zarr", "plink", "lerobot")

log = logging.getLogger(__name__)


class ViewSet:
    """The derived views of a tree, in a fixed order; empty unless the user asked for some."""

    def __init__(self, *views: View) -> None:
        self.views = views

    def __bool__(self) -> bool:
        return bool(self.views)

    def with_all(self) -> ViewSet:
        """Return all views, in the variants that are chosen here."""
        return chosen("+".join([ALL, *(view.name for view in self.views)]))

    def shown(
        self, content: Content, cache: BlockCache, key: Key, on_error: Callable[[str, GlassfsError], None],
    ) -> Iterator[Shown]:
        """Yield what the views make of a content. ``on_error`` gets the name of a view that fails, and why."""
        for view in self.views:
            if isinstance(content, view.kinds):
                try:
                    yield from view.show(content, cache, (*key, view.name))
                # A lack of memory or a failing disk says nothing about the content: the caller asks again later.
                except Passing:
                    raise
                except GlassfsError as error:
                    on_error(view.name, error)
                except Exception as error:  # an error in the view, which may be from another package
                    log.warning("view %s fails: %r", view.name, error)
                    on_error(view.name, GlassfsError(f"fails: {error!r}"))


@cache
def available() -> dict[str, View]:
    """Return all derived views by name: those of this package and those of other packages."""
    from importlib.metadata import entry_points

    views: list[View] = [import_module(f"glassfs.view.{name}").VIEW for name in _BUILT_IN]
    found = {view.name: view for view in views}
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
        except Exception as error:
            log.warning("view %s cannot be loaded: %s", entry.name, error)
            continue
        if not isinstance(loaded, View):
            log.warning("view %s is not a glassfs.view.View", entry.name)
        elif loaded.name in found:
            log.warning("view %s exists already", entry.name)
        else:
            found[loaded.name] = loaded
    return found


def chosen(names: str) -> ViewSet:
    """Return the views with these names, separated by ``+``; ``all`` are all but variants. Raises NotFound."""
    wanted = [name for name in names.split("+") if name]
    if not wanted:
        return ViewSet()
    known = [(view, *view.variants) for view in available().values()]
    every = [one.name for forms in known for one in forms]
    for name in wanted:
        if name not in (ALL, *every):
            raise NotFound(f"there is no view {name!r}; there are {', '.join(every)}, and {ALL}")
    # A variant has files of the same names, so it takes the place of its view.
    by_place = [[one for one in forms if one.name in wanted] or list(forms[: ALL in wanted]) for forms in known]
    return ViewSet(*(forms[-1] for forms in by_place if forms))
