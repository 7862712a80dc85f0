"""Data sets: the rows of many containers as one table, and work on many containers.

``joined`` shows tables over everything below a root, and is all that the mount and the library use of this room.
``snapshots`` has their rows at one moment, made of ``files`` and ``rows``. ``where`` selects rows, ``table`` writes
them, and ``batch`` maps work over containers.
"""
