"""The Python API: what ``glassfs.open`` returns. Any thread, in forked processes, and unpickled in other processes.

``entry`` has the public classes, ``session`` the tree behind them in each process, ``finding`` leads from paths to
nodes; ``arrays``, ``stream`` and ``table`` convert files, ``arrays`` and ``arraylike`` index arrays.
"""

from glassfs.library.session import open_tree

__all__ = ["open_tree"]
