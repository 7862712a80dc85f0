"""Choose the engine: libfuse 3 if it works, else libfuse 2. ``GLASSFS_FUSE=2`` or ``3`` forces one of them."""

from __future__ import annotations

import ctypes
import os
import sys

from glassfs.mount.engines.contract import Engine, MountPoint
from glassfs.mount.errors import Failures, MountError

__all__ = ["Engine", "MountPoint", "load"]

ENVIRONMENT = "GLASSFS_FUSE"
_LIBRARIES = {
    3: ("libfuse3.so.4", "libfuse3.so.3"),
    2: ("libfuse.so.2", "libfuse.2.dylib", "libosxfuse.2.dylib"),
}
_INSTALL = "install it ('apt install fuse3' on Debian and Ubuntu, 'dnf install fuse3' on Fedora)"


def load(failures: Failures, is_debugging: bool = False) -> Engine:
    """Return the best engine that works here. Raises MountError with what to install."""
    wanted = os.environ.get(ENVIRONMENT, "")
    if wanted not in ("", "2", "3"):
        raise MountError(f"{ENVIRONMENT}={wanted}: must be 2 or 3")
    reasons = []
    for generation in (int(wanted),) if wanted else (3, 2):
        found = _library(generation)
        if found is None:
            reasons.append(f"libfuse {generation} is not installed")
            continue
        name, library = found
        if generation == 3:
            from glassfs.mount.engines.libfuse3 import Libfuse3

            return Libfuse3(library, failures, is_debugging)
        try:
            from glassfs.mount.engines.libfuse2 import Libfuse2

            return Libfuse2(name, failures, is_debugging)
        except (ImportError, OSError, AttributeError) as error:
            reasons.append(f"the Python package fusepy, for libfuse 2, does not load ({error})")
    advice = "install macFUSE" if sys.platform == "darwin" else _INSTALL
    if wanted == "2":
        advice = "install it ('apt install libfuse2')"
    raise MountError(f"{' and '.join(reasons)}: {advice}; all commands but 'mount', and Python, work without it")


def _library(generation: int) -> tuple[str, ctypes.CDLL] | None:
    for name in _LIBRARIES[generation]:
        try:
            return name, ctypes.CDLL(name)
        except OSError:
            continue
    return None
