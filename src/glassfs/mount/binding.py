"""Which libfuse, and which Python binding for it.

libfuse 3 goes through mfusepy, libfuse 2 through fusepy. mfusepy would take libfuse 2 where both are installed, so the
library is chosen here and named to the binding before it is imported. ``GLASSFS_FUSE=2`` or ``3`` asks for one of them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from glassfs.mount.errors import MountError

ENVIRONMENT = "GLASSFS_FUSE"
_LIBRARIES = {
    3: ("libfuse3.so.4", "libfuse3.so.3", "libfuse3.4.dylib", "libfuse3.dylib"),
    2: ("libfuse.so.2", "libfuse.2.dylib", "libosxfuse.2.dylib"),
}
_MODULES = {3: "mfusepy", 2: "fuse"}
_INSTALL = "install it ('apt install fuse3' on Debian and Ubuntu, 'dnf install fuse3' on Fedora)"


@dataclass(frozen=True)
class Binding:
    """A libfuse and the module that speaks to it. ``version`` is the library's, such as (3, 14)."""

    module: Any
    library: ctypes.CDLL
    version: tuple[int, int]

    @property
    def generation(self) -> int:
        return self.version[0]

    @property
    def keeps_threads(self) -> bool:
        """Whether it can be told never to end a thread; older ones end idle threads all the time."""
        return self.version >= (3, 12)


def load() -> Binding:
    """The best binding that works here. Raises MountError, saying what to install."""
    wanted = os.environ.get(ENVIRONMENT, "")
    if wanted not in ("", "2", "3"):
        raise MountError(f"{ENVIRONMENT}={wanted}: may be 2 or 3")
    reasons = []
    for generation in (int(wanted),) if wanted else (3, 2):
        name = _library(generation)
        if name is None:
            reasons.append(f"libfuse {generation} is not installed")
            continue
        os.environ["FUSE_LIBRARY_PATH"] = name
        try:
            module = import_module(_MODULES[generation])
        except (ImportError, OSError, AttributeError) as error:
            reasons.append(f"the Python package for libfuse {generation} does not load ({error})")
            continue
        finally:
            del os.environ["FUSE_LIBRARY_PATH"]
        library = ctypes.CDLL(name)
        return Binding(module, library, divmod(int(library.fuse_version()), 100 if generation == 3 else 10))
    advice = "install macFUSE" if sys.platform == "darwin" else _INSTALL
    if wanted == "2":
        advice = "install it ('apt install libfuse2')"
    raise MountError(f"{' and '.join(reasons)}: {advice}; without it there are 'glassfs ls', 'cat' and 'export'")


def _library(generation: int) -> str | None:
    for name in _LIBRARIES[generation]:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None

