"""Directories and files that exist nowhere: names, sizes, inode numbers, attributes. No FUSE here."""

from __future__ import annotations

from collections.abc import Sequence

from glassfs.cache import BlockCache
from glassfs.formats.registry import may_be_container
from glassfs.source import Connection, is_url, locate
from glassfs.tree.containers.containers import Containers
from glassfs.tree.nodes import Directory, File, Node, Origin, Settled, Symlink
from glassfs.tree.sources.joined import Audience
from glassfs.tree.sources.sources import Sources
from glassfs.tree.tree import Tree
from glassfs.view import chosen as views_named

__all__ = [
    "Audience",
    "Containers",
    "Directory",
    "File",
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
    names: Sequence[str], containers: Containers | None = None, audience: Audience = Audience(),  # noqa: B008
    connection: Connection = Connection(),  # noqa: B008
) -> Sources:
    """What a person named, opened. Raises Refused for what is not a container or a broken one, and others.

    What is elsewhere is reached by ``connection``, and its blocks have a share of the memory that containers have.
    """
    containers = containers or Containers(BlockCache())
    if any(map(is_url, names)):
        connection = connection.within(containers.services.cache.lend())
    return Sources(locate(names, connection, may_be_container), containers, audience)
