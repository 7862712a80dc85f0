"""No modules import each other in a circle, however long: inside functions and behind TYPE_CHECKING count, too."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.test_architecture import MODULES, imports_of, inner_name, module_name


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the next, and the last one the first; empty if there is no such circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def imports_of_all() -> dict[str, set[str]]:
    imports = {}
    for path in MODULES:
        name = module_name(path)
        inner = (inner_name(imported) for _, imported in imports_of(path) if imported != "glassfs.__version__")
        imports[name] = {imported for imported in inner if imported is not None and imported != name}
    return imports


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle_in(imports_of_all()) == []


@pytest.mark.parametrize("hidden", [
    "def late():\n    from glassfs.formats.idv import check\n    return check\n",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from glassfs.formats.idv.check import faults\n",
])
def test_hidden_imports_count(tmp_path: Path, hidden: str) -> None:
    path = tmp_path / "table.py"
    path.write_text(hidden)
    imports = {"formats.idv.table": {inner_name(imported) or "" for _, imported in imports_of(path)}}
    imports = {name: found - {"typing", ""} for name, found in imports.items()}
    imports["formats.idv.check"] = {"formats.idv.blocks", "formats.idv.table"}
    assert sorted(set(circle_in(imports))) == ["formats.idv.check", "formats.idv.table"]
