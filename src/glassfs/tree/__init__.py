"""Directories and files shown for containers: names, sizes, inode numbers, attributes. Nothing here knows FUSE."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassfs.cache import BlockCache
from glassfs.formats.registry import may_be_container
from glassfs.source import Connection, locate
from glassfs.tree.containers.containers import Containers, ContainerSettings
from glassfs.tree.lease import Lease
from glassfs.tree.nested import NestedDirectory
from glassfs.tree.nodes import Directory, File, Node, Origin, Settled, Symlink
from glassfs.tree.sources.joined import Audience
from glassfs.tree.sources.sources import Sources
from glassfs.tree.tree import Tree
from glassfs.view import chosen as views_named

__all__ = [
    "Audience",
    "ContainerSettings",
    "Containers",
    "Directory",
    "File",
    "NestedDirectory",
    "Node",
    "Origin",
    "Settled",
    "Sources",
    "Symlink",
    "Tree",
    "may_be_container",
    "open_sources",
    "views_named",
]


def open_sources(
    names: Sequence[str], settings: ContainerSettings | None = None, audience: Audience = Audience(),  # noqa: B008
    connection: Connection = Connection(),  # noqa: B008
    on_change: Callable[[], None] = lambda: None, on_drop: Callable[[Lease], None] = lambda lease: None,
    follows: bool = True,
) -> Sources:
    """Open what a user named. Raises Refused for what is not a container, and read errors.

    Remote sources are opened with ``connection``; their blocks share the memory budget of the cache. Links out of local
    ones are followed if ``follows``, for the user of this process alone. For the other arguments see ``Sources``.
    """
    settings = settings or ContainerSettings(BlockCache())
    located = locate(names, connection, may_be_container, follows, settings.cache)
    return Sources(located, settings, audience, on_change, on_drop)
