"""Trees made in memory, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Group, Member
from glassfs.source import Entry, Kind, Named, Version
from glassfs.tree import ContainerSettings, Directory, File, Sources, Tree
from glassfs.tree.build import container_root
from glassfs.tree.containers.containers import NestedContainers
from glassfs.tree.lease import Lease
from glassfs.tree.listings import Listings
from glassfs.tree.nodes import Access, Facts, Origin, Services, Settled
from tests.memory_store import MemoryStore


def origin(identity: str = "1:2:3:4", listings: Listings | None = None) -> Origin:
    cache = BlockCache()
    nested = NestedContainers(cache, lambda lease: None, 1 << 20)
    services = Services(cache, Listings(cache.memory) if listings is None else listings, nested.opened)
    return Origin(identity, Access(0o444, 7, 8), 9 * 10**9, services, Lease(()), "made")


def tree_of(members: Iterable[Member], is_mount_root: bool = False, limit: int = 32 << 20) -> Tree:
    kept = list(members)
    whole = origin(listings=Listings(BlockCache().memory, limit))
    root = container_root(Group(b"", lambda: kept), whole, is_mount_root=is_mount_root)
    return Tree(lambda: root)


def sources_of(store: MemoryStore, *names: str, limit: int = 64, budget: int = 64 << 20, **listeners: Any) -> Sources:
    """The tree of what is in a store under these names, or of all of it."""
    named = [Named(store, tuple(name.split("/")), name.rpartition("/")[2]) for name in names]
    return Sources(named or [Named(store, (), "memory")], ContainerSettings(BlockCache(budget), limit), **listeners)


def entry(permissions: int = 0o644, uid: int = 0, gid: int = 0) -> Entry:
    return Entry(Kind.FILE, Version("v"), "place", "stamp", 0, permissions, uid, gid, 0)


def files_of(tree: Tree, path: str = "/") -> dict[str, bytes]:
    """All files by their paths."""
    return {place: node.read(0, node.size) for place, node in tree.walk(path) if isinstance(node, File)}


def paths_of(tree: Tree, path: str = "/") -> set[str]:
    """All paths; those of directories end with a slash."""
    return {f"{place}/" if isinstance(node, Directory) else place for place, node in tree.walk(path)}


def facts_of_nodes(folder: Settled, start: int, stop: int) -> list[Facts]:
    """What the facts must be, asked of each node."""
    return [
        (node.name.encode(), node.ino, node.mode,
         node.data.size if isinstance(node, File) and node.data.is_sized else None)
        for node in (folder.at(number) for number in range(folder.count)[start:stop])
    ]
