"""Directories and files that exist nowhere: names, sizes, inode numbers, attributes. No FUSE here."""

from __future__ import annotations

from collections.abc import Sequence

from glassfs.cache import BlockCache
from glassfs.source import locate
from glassfs.tree.nodes import Directory, File, Node, Origin, Settled, Symlink
from glassfs.tree.places.containers import Containers
from glassfs.tree.places.joined import Audience
from glassfs.tree.places.named import Sources
from glassfs.tree.tree import Tree

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
    "open_sources",
]


def open_sources(
    names: Sequence[str], containers: Containers | None = None, audience: Audience = Audience(),  # noqa: B008
) -> Sources:
    """What a person named, opened. Raises Refused for what is not a container or a broken one, and others."""
    return Sources(locate(names), containers or Containers(BlockCache()), audience)
