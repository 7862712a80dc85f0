"""obstore, in a copy of its own for each process that was forked off one that has used it.

Its threads do not come along into such a process, and it waits for them forever. What it keeps in static memory is that
of one loaded library; a copy of the file is another library.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import threading
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from glassfs.errors import Refused

NAME = "obstore"
EXTRA = "needs more than is installed: pip install 'glassfs[remote]'"

_lock = threading.RLock()
_process = 0


def obstore(shown: str) -> ModuleType:
    """The package, for what is called ``shown``. Raises Refused where it is not installed."""
    global _process
    with _lock:
        if _process == os.getpid():
            return sys.modules[NAME]
        is_inherited = _process != 0
        try:
            found = importlib.import_module(NAME)
            if is_inherited:
                found = _copied(found)
            importlib.import_module(f"{NAME}.store")
        except ImportError:
            raise Refused(EXTRA, shown) from None
        _process = os.getpid()
        return found


def _copied(package: ModuleType) -> ModuleType:
    """The same package from other files, in the place of the one that cannot be used here any more."""
    folder = tempfile.mkdtemp(prefix="glassfs-")
    try:
        copy = os.path.join(folder, NAME)
        shutil.copytree(package.__path__[0], copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
        for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
            del sys.modules[name]
        spec = spec_from_file_location(NAME, os.path.join(copy, "__init__.py"), submodule_search_locations=[copy])
        if spec is None or spec.loader is None:
            raise ImportError(NAME)
        fresh = sys.modules[NAME] = module_from_spec(spec)
        spec.loader.exec_module(fresh)
        importlib.import_module(f"{NAME}.store")
        importlib.import_module(f"{NAME}.exceptions")
        return fresh
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _begin_after_fork() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_after_fork)
