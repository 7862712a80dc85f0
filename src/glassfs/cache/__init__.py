"""Decoded blocks within a budget of memory: ``blocks`` keeps them, ``room`` counts bytes, ``spool`` has large ones.

``turns`` shares the cores among those who make blocks. Every function may be called from any thread.
"""

from glassfs.cache.blocks import BlockCache
from glassfs.cache.notes import Notes
from glassfs.cache.recipe import Recipe
from glassfs.cache.room import DEFAULT_BUDGET

__all__ = ["DEFAULT_BUDGET", "BlockCache", "Notes", "Recipe"]
