"""Load the code that a mount may need later, while it serves: after an upgrade or removal of glassfs, imports would
fail or give modules of another version.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

from glassfs.formats import registry
from glassfs.layouts.known import chosen
from glassfs.view import available

ROOMS = ("cache", "codec", "content", "datasets", "formats", "layouts", "persistent", "source", "tree", "view")
REMOTE = "glassfs.source.remote"
LIBRARIES = (
    "numpy", "PIL", "PIL.Image", "PIL.ImageFile", "PIL.JpegImagePlugin", "PIL.PngImagePlugin", "PIL.WebPImagePlugin",
    "zstandard", "lz4", "lz4.block", "lz4.frame", "crc32c", "xxhash", "zlib_ng", "zlib_ng.zlib_ng", "inotify_simple",
    "google.protobuf", "google.protobuf.message", "google.protobuf.descriptor_pb2", "google.protobuf.descriptor_pool",
    "google.protobuf.message_factory",
)
"""What glassfs imports only where it is used. Some may be missing.

Packages stand before what is in them: a module in a package does not wait for another thread that imports the package,
and would find it half made.
"""


def preload() -> None:
    """Import what is not loaded yet. Takes some 0.3 s of processor time and 25 MiB, most of it for numpy and Pillow."""
    for name in (*(f"glassfs.{room}" for room in ROOMS), "glassfs.sandbox.client", *LIBRARIES):
        _import(name)
    # Code for servers counts only if one is used, and only commands need batches.
    left_out = ("glassfs.datasets.batch", *([] if f"{REMOTE}.open" in sys.modules else [REMOTE]))
    for room in ROOMS:
        for found in walk_packages(sys.modules[f"glassfs.{room}"].__path__, f"glassfs.{room}."):
            if not found.name.startswith(left_out):
                _import(found.name)
    registry.installed()
    available()
    chosen()


def _import(name: str) -> None:
    with suppress(ImportError):
        import_module(name)  # even if it is known: another thread may be importing it
    time.sleep(0.001)  # between two modules, for threads that answer requests
