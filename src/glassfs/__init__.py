"""glassfs: data containers as read-only directories.

``glassfs.open(source)`` gives a container, several, or a folder of them to Python programs; the command line is
``glassfs --help``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassfs.library import Entry, Library, Table

__version__ = "0.2.0.dev0"
__all__ = ["Entry", "Library", "Table", "__version__", "open"]

# Whoever wants the log configures it, as the daemon does; others must not find it in their stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def open(  # noqa: A001 - reads as glassfs.open
    *sources: str | os.PathLike[str], cache_size: int | None = None, spool: str | None = None, views: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> Library:
    """One container, one folder, or several of either side by side, to be used like a mapping of paths to entries.

    Sources are local names or URLs.

    ::

        with glassfs.open("datasets/") as data:
            data["run1.kdb/episodes/0/state"].numpy()

    ``views`` are further forms of contents to be listed, such as ``"mp4+parquet"``, or ``"all"``; whoever asks for one
    by its path finds it in any case.

    ``cache_size`` bounds the decoded blocks in memory, in bytes (256 MiB); blocks too large for it go through unlinked
    files in the folder ``spool``. ``storage_options`` tell how to reach what has a URL: ``endpoint``, ``region``,
    ``profile``, ``anonymous``, ``timeout``, ``poll``, ``disk_cache``, ``disk_cache_size``, and what fsspec's file
    system of that protocol calls these. Raises ``glassfs.errors.Refused`` for what is not a container or a broken one,
    NotFound for what is not there and for a view that there is not, and other OSError.
    """
    from glassfs.library.entry import opened

    return opened(sources, cache_size, spool, views, storage_options or {})


def __getattr__(name: str) -> Any:
    """The types of what it gives, loaded when they are asked for."""
    if name not in ("Entry", "Library", "Table"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from glassfs import library

    return getattr(library, name)
