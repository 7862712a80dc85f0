"""What the kernel does with the answers, for tests without one: it holds node ids, and gives them back."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from glassfs.errors import NotFound
from glassfs.mount.inodes import ROOT
from glassfs.mount.operations import Listing, Operations, Stale
from glassfs.mount.status import OwnDirectory
from glassfs.tree import Directory, Settled, Sources
from glassfs.tree.nodes import FixedDirectory
from tests.memory_store import MemoryStore
from tests.tree.trees import origin, sources_of

OWNER = 7, 8


def operations_over(root: Callable[[], Directory], umask: int = 0) -> Operations:
    """The file system over a root that is made by hand, with nothing of the mount's own."""
    own = FixedDirectory(".glassfs", 9, origin("own"), {})
    return Operations(root, lambda: own, lambda: 10_000, umask=umask)


def operations_of(sources: Sources) -> Operations:
    """The file system over sources, with ``.glassfs``."""
    operations = Operations(
        sources.root, lambda: OwnDirectory(sources, lambda: b'{"version": 1}', operations.omitted.text, OWNER),
        lambda: 10_000,
    )
    return operations


class Kernel:
    """Node ids by path, each looked up once; ``held`` are the references."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.held: Counter[int] = Counter()

    def find(self, path: str) -> int:
        """The id of what is at a path now, looked up from the root."""
        ident = ROOT
        for name in path.split("/")[1:]:
            if name:
                ident = self.operations.look_up(ident, name).ident
                if not ident:
                    raise NotFound(path)
                self.held[ident] += 1
        return ident

    def read(self, ident: int, size: int = 100, offset: int = 0) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.operations.read_into(ident, memoryview(buffer), offset)])

    def list(self, ident: int) -> dict[str, int]:
        """Names and ids (0 where there is none), each held once more."""
        listing, _ = self.operations.listing(ident, 0)
        found = dict(held_by(listing))
        self.held.update(child for child in found.values() if child)
        return found

    def forget_all(self) -> None:
        for ident, references in self.held.items():
            self.operations.inodes.forget(ident, references)
        self.held.clear()


def held_by(listing: Listing, start: int = 0) -> list[tuple[str, int]]:
    """Names and ids (0 where there is none) of what is listed from a position on, each held once more."""
    found = [(node.name, child) for child, node in listing.held_from(start)]
    start += len(found)
    if not isinstance(listing.directory, Settled) or start >= len(listing):
        return found
    run, first, facts = listing.held_inside(listing.directory.inside, start)
    inside = [(os.fsdecode(name), ident) for ident, (name, *_) in enumerate(facts, first)]
    listing._inodes.keep(run, len(inside), [(first, len(inside))])
    return found + inside


def nodes_of(stale: Stale) -> set[int]:
    """Return all nodes that are stale, also those of versions."""
    return {*stale.nodes, *(ident for known in stale.versions.values() for ident in known)}


def abandoned_by(operations: Operations) -> list[int]:
    """Return the abandoned ids that the kernel may know, version by version."""
    return [ident for known in operations.inodes.abandoned().values() for ident in known]


def served(store: MemoryStore, *names: str) -> tuple[Sources, Kernel]:
    """Return the sources of these names in a store, and a kernel that uses them."""
    sources = sources_of(store, *names, on_drop=lambda lease: operations.inodes.drop_nodes(lease))
    operations = operations_of(sources)
    return sources, Kernel(operations)


def notify_kernel(sources: Sources, kernel: Kernel) -> None:
    """Check the sources, and have the kernel forget what changed, as the watch does."""
    for place in sources.refresh():
        kernel.operations.stale([place])
