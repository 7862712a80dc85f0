"""A cache on disk for the next process: checksummed blocks as files, and small values in an SQLite index.

The cache of remote blocks (``glassfs.source.remote.disk``) and the catalogue (``glassfs.cache.catalogue``) use it.
"""

from glassfs.persistent.cache import PersistentCache

__all__ = ["PersistentCache"]
