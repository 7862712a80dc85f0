"""Containers for Python programs: what ``glassfs.open`` gives, and what people do with it at a notebook.

``entry`` has what they hold in their hands, ``session`` what is behind it, ``finding`` how a path leads to a node;
``arrays``, ``pictures``, ``documents``, ``stream`` and ``table`` make of a file what it stands for. Everything may be
used from any thread, in a process that was forked off, and in one that got it pickled.
"""

from glassfs.library.entry import Entry, Library
from glassfs.library.session import open_tree
from glassfs.library.table import Table

__all__ = ["Entry", "Library", "Table", "open_tree"]
