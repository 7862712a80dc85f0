"""The derived views that exist, and the ones that a tree has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module

from glassfs.cache import BlockCache
from glassfs.content import Content
from glassfs.errors import GlassfsError, NotFound, Passing
from glassfs.view.contract import Key, Shown, View

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
