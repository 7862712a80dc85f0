"""Directories and files shown for containers: names, sizes, inode numbers, attributes. Nothing here knows FUSE."""

from __future__ import annotations

from glassfs.formats.registry import may_be_container
from glassfs.tree.build import NestedDirectory
from glassfs.tree.containers.containers import Containers, ContainerSettings
from glassfs.tree.nodes import Directory, File, Node, Origin, Settled, Symlink
from glassfs.tree.sources.sources import Sources
from glassfs.tree.tree import Tree
from glassfs.view import ViewSet
from glassfs.view import chosen as views_named

__all__ = [
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
    "ViewSet",
    "may_be_container",
    "views_named",
]
