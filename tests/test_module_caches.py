"""Caches drop what was used least recently; one of a module does not grow with what containers hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import glassfs
from glassfs.content import dtypes
from glassfs.lru import LONGEST_CACHED, LRU, cached_if_short

ROOT = Path(glassfs.__file__).parent
DECORATORS = {"lru_cache", "cache", "cached"}
MAPPINGS = {
    "LRU", "dict", "defaultdict", "OrderedDict", "Counter", "list", "set", "deque", "lru_cache",
    "WeakSet", "WeakKeyDictionary", "WeakValueDictionary",
}
HARMLESS = {
    "words of the command line": "arguments._secrets",
    "users of the system": "cli.ls._owner",
    "one value, of this process": """
        codec.deflate.library formats.hdf5.elements._library formats.hdf5.__init__.is_installed
        formats.registry._built_in formats.registry.installed formats.registry.joined_names
        formats.registry.plug_ins datasets.rows._program source.watching._parsed view.html.__init__._list_page
        view.contract.available
    """,
    "a few numbers each, and a fixed number of them": """
        codec.h264.head formats.mcap.definitions.layout codec.thrift.i32 codec.thrift.i64
        formats.kinodb.episode.shortest mount.engines.wire.direntplus mount.engines.wire.tail mount.engines.wire.times
        source.local._volume view.lerobot.statistics._of_steps view.mp4._head
    """,
    "layouts that were asked for, and those of glassfs": "layouts.known._chosen",
    "five types": "content.dtypes._values",
    "folders and files that one call asks for": "datasets.files.is_open",
    "the tables of tskit, made once": "formats.tskit.TABLES",
    "weak references, to what other objects own": """
        filesystem.system._all forks._all_per_process library.session._sessions persistent.cache._all
        source.local_source._mappings
    """,
    "sessions of the parent process": "library.session._inherited",
    "connections of the parent process": "persistent.cache._inherited",
    "caches of this process, while it forks": "persistent.cache._held",
    "64 of 4 KiB": "view.json._encoder",
    "64 of 1000 places in a chunk": "view.png._parts",
}
"""Why a container cannot fill caches of modules, and their names."""


def caches_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of functions with a cache, and of mappings and sequences of a module that begin empty."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(named(one) in DECORATORS for one in node.decorator_list):
            yield node.name
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        is_empty = isinstance(value, (ast.Dict, ast.List)) and not ast.unparse(value)[1:-1]
        if isinstance(target, ast.Name) and (is_empty or (isinstance(value, ast.Call) and named(value) in MAPPINGS)):
            yield target.id


def named(node: ast.expr) -> str:
    """Return the name of what is called or decorates: the last one of ``functools.lru_cache(8)(compute)``."""
    while isinstance(node, ast.Call):
        node = node.func
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def all_caches() -> set[str]:
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found |= {f"{module}.{name}" for name in caches_in(ast.parse(path.read_text()))}
    return found


def test_every_cache_of_a_module_is_known_to_be_harmless() -> None:
    """Others belong to a container, a lease or a budget."""
    assert all_caches() == {name for names in HARMLESS.values() for name in names.split()}


@pytest.mark.parametrize("length", [LONGEST_CACHED, LONGEST_CACHED + 1])
def test_results_for_long_texts_are_not_kept(length: int) -> None:
    computed: list[str] = []

    @cached_if_short(8)
    def one(text: str, more: int) -> int:
        computed.append(text)
        return more

    assert [one("x" * length, 7) for _ in range(2)] == [7, 7]
    assert len(computed) == (1 if length == LONGEST_CACHED else 2)


def test_large_types_are_not_kept() -> None:
    """A header of 12 KiB takes megabytes as a dtype."""
    small, large = "[('x', '<f4')]", repr([(f"field_{number}", "<f4") for number in range(1_000)])
    assert dtypes.parsed(small) is dtypes.parsed(small)
    assert dtypes.parsed(large) is not dtypes.parsed(large)


def test_entries_used_least_recently_are_evicted() -> None:
    entries: LRU[str, int] = LRU(10, most=3)
    for number, key in enumerate("abc"):
        assert entries.put(key, number) == []
    assert (entries.get("a"), entries.peek("b")) == (0, 1)
    assert entries.put("d", 3) == [("b", 1)]
    assert entries.items() == [("c", 2), ("a", 0), ("d", 3)]
    assert entries.reweigh("a", 9) == [("c", 2)] and entries.weight == 10
    assert entries.reweigh("c", 9) == [], "it is gone"
    assert entries.put("large", 4, 99) == [("a", 0), ("d", 3)] and entries.weight == 99, "the newest stays"
    assert entries.put("e", 5) == [("large", 4)] and entries.weight == 1
    assert entries.put("e", 6, 4) == [] and entries.weight == 4


def test_entries_are_removed_by_key_or_condition() -> None:
    entries: LRU[int, str] = LRU(100)
    for number in range(6):
        entries.put(number, str(number), 2)
    assert [entries.pop(key) for key in (5, 5, 0)] == ["5", None, "0"]
    assert entries.pop_where(lambda key: key % 2 == 0) == ["2", "4"] and entries.weight == 4
    entries.clear()
    assert (entries.weight, entries.items()) == (0, [])
