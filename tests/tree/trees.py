"""Trees made in memory, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable

from glassfs.cache import BlockCache
from glassfs.content import Group, Member
from glassfs.tree import Directory, File, Tree
from glassfs.tree.build import container_root
from glassfs.tree.nodes import Listings, Origin


def origin(identity: str = "1:2:3:4", listings: Listings | None = None) -> Origin:
    kept = Listings() if listings is None else listings
    return Origin(identity, 0o100444, 0o040555, 7, 8, 9 * 10**9, BlockCache(), kept, "made")


def tree_of(members: Iterable[Member], is_mount_root: bool = False, limit: int = 100_000) -> Tree:
    kept = list(members)
    group = Group(b"", lambda: kept)
    return Tree(container_root(group, origin(listings=Listings(limit)), is_mount_root=is_mount_root))


def files_of(tree: Tree, path: str = "/") -> dict[str, bytes]:
    """All files by their paths."""
    return {place: node.read(0, node.size) for place, node in tree.walk(path) if isinstance(node, File)}


def paths_of(tree: Tree) -> set[str]:
    """All paths; those of directories end with a slash."""
    return {f"{place}/" if isinstance(node, Directory) else place for place, node in tree.walk()}
