"""No modules import each other in a circle, however long: inside functions and behind TYPE_CHECKING count, too."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

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
