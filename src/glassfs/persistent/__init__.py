"""A cache on disk for the next process: checksummed values in an SQLite file (``cache``) out of reach of other users
(``private``), for remote blocks (``source.remote.blocks``) and the catalogue. SQLite takes time to load.
"""
