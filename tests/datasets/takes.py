"""A format of the tests' own whose containers have tables of episodes, and trees of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from glassfs.cache import BlockCache
from glassfs.content import EPISODES, Container, Group, Records, Table
from glassfs.datasets import files, joined, snapshots
from glassfs.datasets.joined import Audience, Joins
from glassfs.errors import Damaged, Refused
from glassfs.formats.registry import Format, Opening
from glassfs.settings import settings
from glassfs.source import Named, Store
from glassfs.tree import Containers, ContainerSettings, Sources
from glassfs.tree.containers.lease import Location
from glassfs.tree.sources.sources import Start
from glassfs.view import chosen
from tests.memory_store import MemoryStore

MAGIC = b"TAKES\n"


class LastingStore(MemoryStore):
    """One whose versions stay what they are, as those of a disk do."""

    has_lasting_versions = True

    def put(
        self, path: str, data: bytes, permissions: int = 0o644, uid: int = 0, gid: int = 0, mtime_ns: int | None = None,
    ) -> None:
        super().put(path, data, permissions, uid, gid)
        if mtime_ns is not None:
            parts = tuple(path.split("/"))
            kept, entry = self._files[parts]
            self._files[parts] = kept, entry._replace(mtime_ns=mtime_ns)


def takes(
    *records: dict[str, Any], declared: int | None = None, directory: str = "episodes", a_block: int = 2,
    broken_block: int = -1, parts: Sequence[str] = (), is_refused: bool = False,
) -> bytes:
    """A container of these episodes, ``a_block`` of them in each block of its table."""
    count = len(records) if declared is None else declared
    return MAGIC + json.dumps([records, count, directory, a_block, broken_block, list(parts), is_refused]).encode()


def take(task: str = "pick", success: bool | None = None, **more: Any) -> dict[str, Any]:
    return {"episode_id": 7, "language_instruction": task, "success": success, **more}


def _open(opening: Opening) -> Container:
    source = opening.source
    kept = json.loads(source.read(len(MAGIC), source.size - len(MAGIC)))
    records, declared, directory, a_block, broken, parts, is_refused = kept
    if is_refused:
        raise Refused("is of no use")
    siblings = [opening.sibling(name) for name in parts]

    def block(number: int) -> list[dict[str, Any]]:
        source.read(0, 1)
        if number == broken:
            raise Damaged("has a block that is broken")
        found: list[dict[str, Any]] = records[number * a_block : (number + 1) * a_block]
        return found

    rows = Records(b"episodes", -(-len(records) // a_block), block)
    table = Table(b"episodes", declared, list, rows, directory.encode())
    return Container("takes", "1", Group(b"", lambda: ()), [source, *siblings], episodes=lambda: table)


FORMAT = Format("takes", lambda head: head.startswith(MAGIC), _open, joined=(EPISODES,))


def tree_of(
    store: Store, *names: str, views: str = "all", audience: Audience = Audience(),  # noqa: B008
    has_catalogue: bool = False, budget: int = 64 << 20,
) -> Sources:
    """The tree of what is in a store under these names, or of all of it."""
    named = [Named(store, tuple(name.split("/")), name.rpartition("/")[2]) for name in names]
    of_containers = ContainerSettings(BlockCache(budget), views=chosen(views), has_catalogue=has_catalogue)
    return Sources(named or [Named(store, (), "memory")], of_containers, partial(Joins, audience=audience))


def use_clock(monkeypatch: pytest.MonkeyPatch, now: Callable[[], float]) -> None:
    """Have joined tables take the time from ``now``."""
    for module in (files, joined, snapshots):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=now))


def expire_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a joined table looked at anew each time."""
    monkeypatch.setattr(settings, "table_valid", 0.0)
    monkeypatch.setattr(settings, "table_valid_times", 0)


def joins_of(
    store: MemoryStore, audience: Audience = Audience(), cache: BlockCache | None = None,  # noqa: B008
    has_catalogue: bool = False,
) -> Joins:
    containers = Containers(ContainerSettings(cache or BlockCache(64 << 20), has_catalogue=has_catalogue))
    return Joins(containers, [Start("", Location(store, ()), True)], audience=audience)


def joins_in(sources: Sources) -> Joins:
    assert isinstance(sources.overview, Joins)
    return sources.overview


def rows_of(sources: Sources, name: str = "episodes") -> list[dict[str, Any]]:
    """The rows of a joined table, as its JSON lines have them."""
    file = sources.tree.file(f"/{name}.jsonl")
    return [json.loads(line) for line in file.read(0, file.size).splitlines()]


def listed(sources: Sources) -> list[str]:
    """The names of views at the root."""
    own = {node.name for node in sources.plain_root().listing()}
    return [node.name for node in sources.root().listing() if node.name not in own]
