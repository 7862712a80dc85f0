"""No modules import each other in a circle, however long: inside functions and behind TYPE_CHECKING count, too."""

from __future__ import annotations

from graphlib import TopologicalSorter

from tests.test_architecture import MODULES, imports_of, inner_name, module_name


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {}
    for path in MODULES:
        inner = (inner_name(imported) for _, imported in imports_of(path) if imported != "glassfs.__version__")
        imports[module_name(path)] = {name for name in inner if name is not None} - {module_name(path)}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules of a circle
