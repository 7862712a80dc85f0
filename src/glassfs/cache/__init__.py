"""Decoded blocks within a memory budget.

``blocks`` caches them, ``budget`` counts bytes, ``spool`` holds blocks too large for memory, ``cores`` has the threads
that decode ahead of readers. Every function may be called from any thread.
"""

from glassfs.cache.blocks import DEFAULT_SPOOL_SIZE, BlockCache, Notes
from glassfs.cache.budget import DEFAULT_BUDGET
from glassfs.cache.spool import LongStream, Recipe

__all__ = ["DEFAULT_BUDGET", "DEFAULT_SPOOL_SIZE", "BlockCache", "LongStream", "Notes", "Recipe"]
