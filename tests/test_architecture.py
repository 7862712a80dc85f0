"""The architecture: which package may import which, how long files are, what a start must not load, and caches."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from glassfs.content import dtypes
from glassfs.lru import LONGEST_CACHED, LRU, cached_if_short
from glassfs.tree.preload import LIBRARIES, ROOMS
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "glassfs"
LONGEST_FILE = 500

GROUND_FLOOR = {
    "errors", "forks", "installing", "interpreter", "keyed_lock", "lru", "names", "once", "outputs",
    "settings", "sizes", "terminal", "threads", "work",
}
BELOW_FORMATS = {"content", "codec", "source", "cache"}

# What each room may import besides itself and the ground floor.
MAY_IMPORT: dict[str, set[str]] = {
    **{module: set() for module in GROUND_FLOOR},
    "persistent": set(),
    "source": {"persistent"},
    "codec": {"source"},
    "cache": {"codec", "persistent", "source"},
    "content": {"cache", "codec", "source"},
    "sandbox": {"source"},
    "formats": BELOW_FORMATS | {"sandbox"},
    "view": BELOW_FORMATS,
    "layouts": BELOW_FORMATS,
    "tree": BELOW_FORMATS | {"view", "formats.registry", "layouts"},
    "datasets": BELOW_FORMATS | {"view", "tree", "formats.registry", "layouts"},
    "library": BELOW_FORMATS | {"view", "tree", "datasets.joined", "layouts"},
    "arguments": {"source.remote.url"},
    "mount": BELOW_FORMATS | {
        "tree", "datasets.joined", "arguments", "layouts", "sandbox.confinement", "sandbox.pool", "",
    },
    "cli": BELOW_FORMATS | {
        "view", "tree", "datasets", "library", "mount", "formats.registry", "arguments", "layouts", "",
    },
    "filesystem": {"source.remote", "tree", "library"},
    "testing": BELOW_FORMATS | {"view", "tree", "formats.registry"},
    "": {"library"},
    "__main__": {"cli"},
}

# Modules that can open files. Rooms that read through stores must not import them.
FILES = {"os", "pathlib", "shutil", "tempfile", "mmap", "glob", "fcntl", "subprocess", "ctypes", "posix", "_io"}
ONLY_STORES = {"content", "codec", "formats", "view", "tree"}
# Spool files, the number of cores, and the user's catalogue.
MAY_KNOW_THE_SYSTEM = {"cache.spool", "cache.cores", "cache.catalogue"}
# Kinds of stores: the rooms above know only the contract.
KINDS_OF_STORES = {"source.local", "source.descriptors", "source.system"}

MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("numpy", "PIL", "sqlite3", "zstandard", "lz4", "crc32c", "zlib_ng", "inotify_simple")


def module_name(path: Path) -> str:
    """Return the dotted name inside the package; "" is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    """Return line and full name of every import of a file, also in functions and behind TYPE_CHECKING."""
    return list(imports_below(parsed(path)))


def imports_below(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute in this package"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@cache
def inner_name(imported: str) -> str | None:
    """Return the module of this package that an imported name is in; None for other packages."""
    if imported.partition(".")[0] != "glassfs":
        return None
    name = imported.removeprefix("glassfs").removeprefix(".")
    while name and not (PACKAGE / f"{name.replace('.', '/')}.py").exists() and not (
        PACKAGE / name.replace(".", "/")
    ).is_dir():
        name = name.rpartition(".")[0]
    return name


def is_allowed(importer: str, imported: str) -> bool:
    room = importer.partition(".")[0]
    target = imported.partition(".")[0]
    if target == room or target in GROUND_FLOOR:
        return True
    return any(
        imported == allowed or (allowed and imported.startswith(f"{allowed}.")) for allowed in MAY_IMPORT[room]
    )  # a KeyError names a room without a rule


def test_imports_point_downwards() -> None:
    wrong = [
        f"{path}:{line}: {imported}"
        for path in MODULES
        for line, imported in imports_of(path)
        if (inner := inner_name(imported)) is not None and not is_allowed(module_name(path), inner)
        and imported != "glassfs.__version__"
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """However long the circle is; imports inside functions and behind TYPE_CHECKING count, too."""
    imports = {}
    for path in MODULES:
        inner = (inner_name(imported) for _, imported in imports_of(path) if imported != "glassfs.__version__")
        imports[module_name(path)] = {name for name in inner if name is not None} - {module_name(path)}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules of a circle



def is_opening(call: ast.Call) -> bool:
    """Return whether a call opens a file by name, with a built-in function or ``io``."""
    called = call.func
    if isinstance(called, ast.Attribute):
        return called.attr in ("open", "open_code", "FileIO") and getattr(called.value, "id", "") == "io"
    return isinstance(called, ast.Name) and called.id in ("open", "__import__", "eval", "exec")


def ways_to_files(path: Path) -> list[str]:
    """Return the imports and calls with which a module could open files."""
    found = [f"{path}:{line}: {name}" for line, name in imports_of(path) if name.partition(".")[0] in FILES]
    calls = (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call) and is_opening(node))
    return found + [f"{path}:{call.lineno}: {ast.unparse(call.func)}" for call in calls]


def test_only_sources_open_files() -> None:
    readers = [
        path for path in MODULES if module_name(path).partition(".")[0] in {*ONLY_STORES, "cache"}
        and module_name(path) not in MAY_KNOW_THE_SYSTEM
    ]
    assert [way for path in readers for way in ways_to_files(path)] == []


def test_only_source_imports_kinds_of_stores() -> None:
    wrong = [
        f"{path}:{line}: {imported}"
        for path in MODULES if module_name(path).partition(".")[0] not in ("source", "testing")
        for line, imported in imports_of(path) if inner_name(imported) in KINDS_OF_STORES
    ]
    assert wrong == []


@pytest.mark.parametrize("place", ["src", "tests", "scripts"])
def test_no_file_is_too_long(place: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / place).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_FILE
    }
    assert not long


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(path) for path in MODULES
        if path.stat().st_size and ast.get_docstring(parsed(path)) is None
    ]
    assert not silent


def loaded_by(program: str, *arguments: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after running ``program``."""
    script = f"{program}\nimport sys\nprint('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOADED "))
    return set(line.split()[1:])


def heavy_or_format(modules: set[str]) -> set[str]:
    formats = {name for name in modules if name.startswith("glassfs.formats.")} - {"glassfs.formats.registry"}
    return formats | {name for name in modules if name.partition(".")[0] in HEAVY}


@pytest.mark.parametrize("program", [
    "import glassfs; glassfs.open",
    "from glassfs.cli import run; assert run(['--help']) == 0",
    "from glassfs.cli import run; assert run(['ls', '--help']) == 0",
    "from glassfs.cli import run; assert run(['mount', '--help']) == 0",
])
def test_start_loads_no_format_and_no_heavy_library(program: str) -> None:
    assert not heavy_or_format(loaded_by(program))


def test_listing_needs_neither_fuse_nor_numpy(store: Path) -> None:
    """Commands without a mount need the tree only, and an index is read without NumPy."""
    program = "import sys; from glassfs.cli import run; assert run(['ls', '-l', sys.argv[1]]) == 0"
    modules = loaded_by(program, str(store))
    assert "glassfs.formats.kastore" in modules
    assert not {name for name in modules if name.partition(".")[0] in ("numpy", "PIL")}
    assert not {name for name in modules if name.startswith("glassfs.mount")}
    remote = {name.rpartition(".")[2] for name in modules if name.startswith("glassfs.source.remote.")}
    assert remote <= {"connection", "storage_options", "url"}


def test_samples_need_no_tables_servers_or_workers(tmp_path: Path) -> None:
    """A training worker imports what it uses: each module counts for each worker."""
    from tests.formats.kinodb_files import three_episodes

    (tmp_path / "run.kdb").write_bytes(three_episodes(tmp_path))
    program = (
        "import sys, glassfs\n"
        "episode = glassfs.open(sys.argv[1])['run.kdb/episodes/0']\n"
        "assert len(episode['state'].numpy()) == 4 and episode['images/front/000001'].bytes()"
    )
    modules = loaded_by(program, str(tmp_path))
    tables = {f"glassfs.datasets.{name}" for name in ("snapshots", "blocks", "rows", "rights")}
    assert not modules & tables
    assert not {name for name in modules if name.startswith("glassfs.sandbox")}
    without = loaded_by("import numpy")
    assert not (modules - without) & {"hashlib", "html", "base64", "urllib.parse", "ipaddress", "socket"}


def test_a_mount_loads_all_that_is_imported_where_it_is_used() -> None:
    """Imports inside functions of the rooms below mount/, except those of Python and of servers."""
    found = set()
    for path in MODULES:
        room = module_name(path)
        if not room.startswith(tuple(ROOMS)) or room.startswith(("source.remote", "datasets.batch")):
            continue
        for function in ast.walk(parsed(path)):
            if isinstance(function, ast.FunctionDef):
                found |= {name for _, name in imports_below(function)}
    others = {name for name in found if name.partition(".")[0] not in {*sys.stdlib_module_names, "glassfs"}}
    assert others
    assert {name for name in others if not name.startswith(LIBRARIES)} == set()


# No cache of a module grows with what containers hold.


DECORATORS = {"lru_cache", "cache", "cached"}
MAPPINGS = {
    "LRU", "dict", "defaultdict", "OrderedDict", "Counter", "list", "set", "deque", "lru_cache",
    "WeakSet", "WeakKeyDictionary", "WeakValueDictionary",
}
HARMLESS = {
    "words of the command line": "arguments._secrets",
    "users of the system": "cli.ls._owner",
    "one value, of this process": """
        codec.deflate.library formats.hdf5.answers._library formats.hdf5.__init__.is_installed
        formats.registry._built_in formats.registry.installed formats.registry.joined_names
        formats.registry.plug_ins datasets.rows._program view.html.listing._page view.registry.available
    """,
    "a few numbers each, and a fixed number of them": """
        codec.h264.head content.parts._field_of codec.thrift.i32 codec.thrift.i64 formats.kinodb.episode.shortest
        mount.engines.wire.direntplus mount.engines.wire.tail mount.engines.wire.times source.local._volume
        tree.build._shape tree.nodes._access view.lerobot.statistics._of_steps view.mp4._head
    """,
    "layouts that were asked for, and those of glassfs": "layouts.known._chosen",
    "five types": "content.dtypes._values",
    "the tables of tskit, made once": "formats.tskit.TABLES",
    "weak references, to what other objects own": """
        filesystem.system._all forks._all_per_process library.session._sessions persistent.cache._all
        source.local_source._mappings
    """,
    "sessions of the parent process": "library.session._inherited",
    "connections of the parent process": "persistent.cache._inherited",
    "caches of this process, while it forks": "persistent.cache._held",
    "types of Python": "tree.containers.weight._below",
    "64 of 4 KiB": "view.json._encoder",
    "plans of requests of the kernel": "view.png._plan",
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
    for path in MODULES:
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found |= {f"{module}.{name}" for name in caches_in(parsed(path))}
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
