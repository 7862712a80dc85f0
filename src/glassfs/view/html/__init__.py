"""Pages to look at episodes with, in a browser and without a server: frames, plots, metadata, and lists of episodes.

``episode`` has the page of one, ``plots`` the values on it, ``listing`` the page of many; ``page`` is what all have in
common, ``escape`` how a stranger's text stays text. Scripts and styles are files of this package and stand in the page;
``data.js`` beside it is loaded by the page. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from glassfs.cache import BlockCache
from glassfs.content import Recording, Table
from glassfs.view.contract import Key, Shown, View
from glassfs.view.html import episode, listing


def show(content: Recording | Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Raises Damaged where nobody can tell what a table is about."""
    if isinstance(content, Recording):
        yield from episode.shown(content, cache, key)
    else:
        yield from listing.shown(content, cache, key)


VIEW = View("html", "episodes in a browser: a page for each, and lists of them", (Recording, Table), show)
