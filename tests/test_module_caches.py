"""No cache of a module grows with what containers hold: such a cache belongs to a container, a lease or a budget."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import glassfs
from glassfs.content import dtypes
from glassfs.lru import LONGEST_CACHED, cached_if_short

ROOT = Path(glassfs.__file__).parent
DECORATORS = {"lru_cache", "cache", "cached"}
MAPPINGS = {
    "LRU", "dict", "defaultdict", "OrderedDict", "Counter", "list", "set", "deque", "lru_cache",
    "WeakSet", "WeakKeyDictionary", "WeakValueDictionary",
}
HARMLESS = {
    "arguments._secrets": "words of the command line",
    "cli.ls._owner": "users of the system",
    "codec.deflate.library": "one value, of this process",
    "codec.h264.head": "a few numbers each, and a fixed number of them",
    "codec.thrift.i32": "a few numbers each, and a fixed number of them",
    "codec.thrift.i64": "a few numbers each, and a fixed number of them",
    "content.dtypes._table": "four types",
    "filesystem.system._all": "weak references, to what other objects own",
    "forks._all_per_process": "weak references, to what other objects own",
    "formats.hdf5.answers._library": "one value, of this process",
    "formats.hdf5.__init__.is_installed": "one value, of this process",
    "formats.kinodb.episode.shortest": "a few numbers each, and a fixed number of them",
    "formats.registry._built_in": "one value, of this process",
    "formats.registry.installed": "one value, of this process",
    "formats.registry.joined_names": "one value, of this process",
    "formats.registry.plug_ins": "one value, of this process",
    "library.session._inherited": "sessions of the parent process",
    "library.session._sessions": "weak references, to what other objects own",
    "mount.engines.wire.direntplus": "a few numbers each, and a fixed number of them",
    "mount.engines.wire.tail": "a few numbers each, and a fixed number of them",
    "mount.engines.wire.times": "a few numbers each, and a fixed number of them",
    "persistent.cache._all": "weak references, to what other objects own",
    "persistent.cache._inherited": "connections of the parent process",
    "source.local._volume": "a few numbers each, and a fixed number of them",
    "source.local_source._mappings": "weak references, to what other objects own",
    "source.reader._structs": "filled by code of this program",
    "source.scattered._vector": "vectors of a system call",
    "tree.build._shape": "a few numbers each, and a fixed number of them",
    "tree.containers.weight._below": "types of Python",
    "tree.nodes._access": "a few numbers each, and a fixed number of them",
    "datasets.rows._dependencies": "one value, of this process",
    "view.html.listing._page": "one value, of this process",
    "view.json._template": "64 of 4 KiB",
    "view.known._KNOWN": "owned by a block cache, within a share of its budget",
    "view.lerobot.statistics._of_steps": "a few numbers each, and a fixed number of them",
    "view.mp4._head": "a few numbers each, and a fixed number of them",
    "view.png._plan": "plans of requests of the kernel",
    "view.png._stored": "a few numbers each, and a fixed number of them",
    "view.png.layout": "a few numbers each, and a fixed number of them",
    "view.registry.available": "one value, of this process",
}
"""Caches of modules, and why a container cannot fill them."""


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
    assert all_caches() == HARMLESS.keys()


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
