"""The Python interpreter that runs the worker processes of glassfs. Any thread.

``sys.executable`` is another program where Python is embedded in one, and the program itself where that was frozen.
Such a program would run its own code once more, and could start itself without end. So nothing is started that is not
known to be an interpreter.
"""

from __future__ import annotations

import os
import re
import shutil
import sys

from glassfs.errors import Unavailable

VARIABLE = "GLASSFS_PYTHON"
_NAME = re.compile(r"(python|pypy)[\d.]*[a-z]{0,2}")

_configured = ""


def configure(python: str) -> None:
    """Name the interpreter, before the environment variable ``GLASSFS_PYTHON`` does."""
    global _configured
    _configured = python


def is_frozen() -> bool:
    """Return whether this program has its modules inside, where no other interpreter finds them."""
    return bool(getattr(sys, "frozen", False))


def interpreter() -> str:
    """Return the path of the interpreter. Raises Unavailable if none is known."""
    named = _configured or os.environ.get(VARIABLE, "")
    if named:
        found = shutil.which(named)
        if found is None:
            raise Unavailable(f"{named}, which should be the Python interpreter, cannot be run: {_ADVICE}")
        return os.path.abspath(found)
    if not is_frozen():
        # The base executable is the interpreter where the executable of a virtual environment is a launcher.
        for path in (sys.executable, getattr(sys, "_base_executable", "")):
            if path and _NAME.fullmatch(os.path.basename(path)) and os.access(path, os.X_OK):
                return path
    raise Unavailable(f"{sys.executable or 'this program'} is not known to be a Python interpreter: {_ADVICE}")


_ADVICE = f"name one with {VARIABLE} or glassfs.configure(python=…)"
