"""glassfs: data containers as read-only directories.

``glassfs.open(source)`` gives the tree of a container, of several, or of a folder to Python programs; the command
line is ``glassfs --help``.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassfs.tree import Tree

__version__ = "0.2.0.dev0"
__all__ = ["__version__", "open"]

# Whoever wants the log configures it, as the daemon does; others must not find it in their stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def open(  # noqa: A001 - reads as glassfs.open
    *sources: str | os.PathLike[str], cache_size: int | None = None, spool: str | None = None, views: str = "",
) -> Tree:
    """The tree of one container, of one folder, or of several of either side by side.

    ``views`` are further forms to show contents in, such as ``"mp4+parquet"``, or ``"all"``.

    ``cache_size`` bounds the decoded blocks in memory, in bytes; blocks too large for it go through unlinked files in
    the folder ``spool``. To give all of that back at once, close the tree, or use it as a context manager. Raises
    ``glassfs.errors.Refused`` for what is not a container or a broken one, NotFound for a view that there is not, and
    OSError.
    """
    from glassfs.cache import DEFAULT_BUDGET, BlockCache
    from glassfs.tree import Containers, open_sources
    from glassfs.view import chosen

    cache = BlockCache(DEFAULT_BUDGET if cache_size is None else cache_size, spool)
    containers = Containers(cache, views=chosen(views), has_catalogue=True)
    return open_sources([os.fspath(source) for source in sources], containers).tree
