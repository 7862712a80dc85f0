"""A cache on disk for the next process: checksummed values in an SQLite file (``cache``).

The cache of remote blocks (``source.remote.blocks``) and the catalogue (``cache.catalogue``) use it, and import it when
they open it, as SQLite takes time to load. Its folder, and the way there, must be out of reach of other users
(``private``).
"""
