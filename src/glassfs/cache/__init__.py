"""Decoded blocks within a memory budget.

``blocks`` caches them, ``budget`` counts bytes, ``spool`` holds blocks too large for memory. Every function may be
called from any thread.
"""

from glassfs.cache.blocks import DEFAULT_SPOOL_SIZE, BlockCache, Notes
from glassfs.cache.budget import DEFAULT_BUDGET
from glassfs.cache.spool import LongStream, Recipe

__all__ = ["DEFAULT_BUDGET", "DEFAULT_SPOOL_SIZE", "BlockCache", "LongStream", "Notes", "Recipe"]
