"""The Python API: what ``glassfs.open`` returns. Any thread, in forked processes, and unpickled in other processes.

``entry`` has the public classes, ``session`` the tree behind them in each process, ``finding`` leads from paths to
nodes; ``arrays``, ``images``, ``stream`` and ``table`` convert files, ``arraylike`` and ``selecting`` index arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glassfs.library.entry import Entry, Library
from glassfs.library.session import open_tree

if TYPE_CHECKING:
    from glassfs.library.table import Table

__all__ = ["Entry", "Library", "Table", "open_tree"]


def __getattr__(name: str) -> Any:
    """Load the type of tables on first use: programs that only load samples need none."""
    if name != "Table":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from glassfs.library.table import Table

    return Table
