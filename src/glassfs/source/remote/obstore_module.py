"""Import obstore, also in a process that was forked from one that has used it.

obstore's threads do not exist in a forked process, and its calls wait for them forever. A copy of the files is loaded
there instead: another shared library with static memory of its own.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from glassfs import installing
from glassfs.errors import Refused
from glassfs.forks import PerProcess

NAME = "obstore"

_is_used = False
"""Whether this process, or one that it was forked from, has used obstore."""


def not_installed(extra: str = "remote") -> str:
    """Return the reason to refuse a URL that needs an extra of this package."""
    return f"needs more than is installed: {installing.command(extra)}"


def obstore(shown: str) -> ModuleType:
    """Return the package; ``shown`` is the URL that needs it. Raises Refused if it is not installed."""
    try:
        return _module.get()
    except ImportError:
        raise Refused(not_installed(), shown) from None


def _load() -> ModuleType:
    global _is_used
    if _is_used:
        return _copy_of(importlib.import_module(NAME))
    package = _imported()
    _is_used = True
    return package


def _imported() -> ModuleType:
    for part in ("store", "exceptions"):
        importlib.import_module(f"{NAME}.{part}")
    return sys.modules[NAME]


def _copy_of(package: ModuleType) -> ModuleType:
    """Import a copy of the package in place of the inherited one."""
    with tempfile.TemporaryDirectory(prefix="glassfs-") as folder:
        copy = Path(folder, NAME)
        shutil.copytree(package.__path__[0], copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
        # The modules of the parent are left as they are; those that import obstore from now on get the copy, and the
        # old one stays alive in what was made before the fork.
        for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
            del sys.modules[name]
        sys.path.insert(0, folder)
        try:
            return _imported()
        finally:
            sys.path.remove(folder)


_module: PerProcess[ModuleType] = PerProcess(_load)
