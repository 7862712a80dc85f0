"""Pages that show episodes in a browser, without a server: frames, plots, metadata, and lists of episodes.

``episode`` has the page of one episode, ``plots`` its values, ``listing`` the page of many; ``page`` is what all
share, and keeps untrusted text text. Scripts and styles are files of this package, embedded in pages; ``data.js``
beside a page is loaded by it. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from glassfs.cache import BlockCache
from glassfs.content import Recording, Table
from glassfs.view.contract import Key, Shown, View
from glassfs.view.html import episode, listing


def show(content: Recording | Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the files of an episode or of a table of episodes."""
    if isinstance(content, Recording):
        yield from episode.shown(content, cache, key)
    else:
        yield from listing.shown(content, cache, key)


VIEW = View("html", "episodes in a browser: a page for each, and lists of them", (Recording, Table), show)
