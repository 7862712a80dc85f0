"""A cache on disk for the next process: checksummed blocks as files, and small values in an SQLite index.

The cache of remote blocks (``glassfs.source.remote.disk``) and the catalogue (``glassfs.cache.catalogue``) use it. Its
folder, and the way there, must be out of reach of other users (``private``).
"""

from glassfs.persistent.cache import PersistentCache

__all__ = ["PersistentCache"]
