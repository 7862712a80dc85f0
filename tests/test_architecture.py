"""The architecture: which package may import which, how long files are, and what a start must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from glassfs.tree.preload import LIBRARIES, ROOMS
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "glassfs"
LONGEST_FILE = 500

GROUND_FLOOR = {
    "errors", "forks", "interpreter", "keyed_lock", "lazy", "lru", "names", "once", "outputs",
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
    "library": BELOW_FORMATS | {
        "view", "tree", "datasets.joined", "datasets.selecting", "datasets.selections", "layouts",
    },
    "arguments": {"source.remote.url"},
    "mount": BELOW_FORMATS | {
        "tree", "datasets.joined", "datasets.selecting", "datasets.selections", "arguments", "layouts",
        "sandbox.confinement", "sandbox.pool", "",
    },
    "serve": {"content", "datasets.where", "library", "tree", "view.html", ""},
    "cli": BELOW_FORMATS | {
        "view", "tree", "datasets", "library", "mount", "serve", "formats.registry", "arguments", "layouts", "",
    },
    "filesystem": {"source.remote", "tree", "datasets.selections", "library"},
    "testing": BELOW_FORMATS | {"view", "tree", "formats.registry"},
    "": {"library"},
    "__main__": {"cli"},
}

# Modules that can open files. Rooms that read through stores must not import them.
FILES = {"os", "pathlib", "shutil", "tempfile", "mmap", "glob", "fcntl", "subprocess", "ctypes", "posix", "_io"}
ONLY_STORES = {"content", "codec", "formats", "view", "tree"}
# Spool files, and the user's catalogue.
MAY_KNOW_THE_SYSTEM = {"cache.spool", "cache.catalogue"}
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
    "from glassfs.cli import execute; assert execute(['--help']) == 0",
    "from glassfs.cli import execute; assert execute(['ls', '--help']) == 0",
    "from glassfs.cli import execute; assert execute(['mount', '--help']) == 0",
])
def test_start_loads_no_format_and_no_heavy_library(program: str) -> None:
    assert not heavy_or_format(loaded_by(program))


def test_listing_needs_neither_fuse_nor_numpy(tmp_path: Path) -> None:
    """Commands without a mount need the tree only: an index is read without NumPy, and nothing is watched."""
    from writers.kastore import KastoreWriter

    path = tmp_path / "store.kas"
    with KastoreWriter(path) as store:
        store.add("a/b", [1, 2, 3])
    program = "import sys; from glassfs.cli import execute; assert execute(['ls', '-l', sys.argv[1]]) == 0"
    modules = loaded_by(program, str(path))
    assert "glassfs.formats.kastore" in modules
    # The suffix says which format to ask first.
    assert not {"glassfs.formats.kinodb", "glassfs.formats.wshard"} & modules
    assert not modules & {"numpy", "PIL", "inotify_simple", "glassfs.source.watching"}
    assert not {name for name in modules if name.startswith("glassfs.mount")}
    remote = {name.rpartition(".")[2] for name in modules if name.startswith("glassfs.source.remote.")}
    assert remote <= {"options", "url"}


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
