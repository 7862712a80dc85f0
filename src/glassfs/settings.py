"""Times in seconds: for how long something is waited for, valid, kept, or left alone. The one place for defaults.

Tests set the fields of ``settings``; nothing else does. Fields are named after what happens then, not after a module.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Settings:
    """The fields are in sections, one for each room, in the order of the rooms."""

    # Commands, the library and data sets

    # The mount

    # Engines: the kernel's requests and notifications

    # The tree

    # Data and views

    # Formats and their worker processes

    # The cache of blocks
    cache_idle: float = 20.0
    """After this time without a read no more than 4 MiB stay cached: the kernel has those that were read."""
    spool_kept: float = 60.0
    """A spool file is dropped after this time without a read."""
    spool_ahead: float = 0.05
    """After this time without a read nothing more is decoded ahead into a spool file."""
    prefetch_valid: float = 0.05
    """A block that no thread began to decode ahead within this time is no longer wanted: its reader has gone."""

    # Sources

    # Servers


settings = Settings()
