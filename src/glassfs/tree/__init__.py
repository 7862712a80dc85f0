"""Directories and files that exist nowhere: names, sizes, inode numbers, attributes. No FUSE here."""

from glassfs.tree.nodes import Directory, File, Node, Symlink
from glassfs.tree.places import Places, open_tree
from glassfs.tree.tree import Tree

__all__ = ["Directory", "File", "Node", "Places", "Symlink", "Tree", "open_tree"]
