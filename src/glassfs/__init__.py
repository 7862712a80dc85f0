"""glassfs: data containers as read-only directories.

``glassfs.open(source)`` opens containers, or a folder of them, for Python programs; for the command line see
``glassfs --help``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassfs.library.entry import Entry, Library
    from glassfs.library.table import Table

__version__ = "0.3.0"
__all__ = ["Entry", "Library", "Table", "__version__", "configure", "open"]

# Programs that want the log configure it, as the daemon does; others must not get it on stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def open(  # noqa: A001 - reads as glassfs.open
    *sources: str | os.PathLike[str], cache_size: int | None = None, spool: str | None = None, views: str = "",
    layout: str | os.PathLike[str] = "", where: str = "", trim: str = "", every: int = 1,
    storage_options: Mapping[str, Any] | None = None,
) -> Library:
    """Open containers and folders as a mapping of paths to entries. Sources are local paths or URLs, or the file of a
    selection, which ends with ``.toml``.

    ::

        with glassfs.open("datasets/") as data:
            data["run1.kdb/episodes/0/state"].numpy()

    ``views`` are further forms of contents to list, such as ``"mp4+parquet"``, or ``"all"``; views that are not
    listed can still be opened by path. ``layout`` is the file, the folder or the name of layouts that find episodes in
    HDF5, NPZ and MCAP files, before the layouts that glassfs has. Only episodes are shown whose rows satisfy ``where``,
    such as ``"not success"``, of these only the steps in ``trim``, a slice such as ``"10:-5"``, and of these one of
    ``every`` so many.

    ``cache_size`` bounds the decoded blocks in memory, in bytes (256 MiB); larger blocks go through unlinked files in
    the folder ``spool``. ``storage_options`` are for URLs: ``endpoint``, ``region``, ``profile``, ``anonymous``,
    ``timeout`` (seconds), ``poll`` (seconds), ``disk_cache``, ``disk_cache_size``, and the options of fsspec's file
    system for the protocol. Raises ``glassfs.errors.Refused`` if a source is no container or a damaged one, NotFound if
    a source, a view or a layout does not exist, LayoutError or SelectionError for a wrong layout or selection, and
    other OSError.
    """
    from glassfs.library.entry import opened

    selected = where, trim, every
    return opened(sources, cache_size, spool, views, os.fspath(layout), storage_options or {}, selected)


def configure(*, python: str | os.PathLike[str]) -> None:
    """Name the Python interpreter that runs the worker processes of glassfs, by its path or a name in ``PATH``.

    Only a program needs it that is frozen, or in which Python is embedded: there ``sys.executable`` is no interpreter.
    The environment variable ``GLASSFS_PYTHON`` does the same. A frozen program's interpreter needs glassfs of the same
    version, with its extras, among its own packages.
    """
    from glassfs import interpreter

    interpreter.configure(os.fspath(python))


def __getattr__(name: str) -> Any:
    """Load the types of the library on first use: commands need none, and programs that only load samples no tables."""
    if name == "Table":
        from glassfs.library.table import Table

        return Table
    if name in ("Entry", "Library"):
        from glassfs.library import entry

        return getattr(entry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
