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

    cached: float = 86_400.0
    """Timeout in the kernel of what cannot change, or of whose changes the kernel is notified."""
    cached_unwatched: float = 0.5
    """That of names in folders that are not watched, and of their attributes."""
    status_quick: float = 0.001
    """A status that takes no longer is made for each reader."""
    settled: float = 2.0
    """Age of a folder's mtime after which the next change is sure to change it."""

    # Engines: the kernel's requests and notifications

    # The tree

    listing_in_use: float = 2.0
    """For so long after its use a large listing is not evicted: a directory is listed in many calls."""
    listing_idle: float = 20.0
    """Large listings that were not used for so long are dropped."""
    weighing_pause: float = 10.0
    """Pause between two rounds that weigh all parsed containers, and for each second that weighing takes."""
    sizing: float = 10.0
    """Processor time that finding the size of a file may take, beside ``sizing_most`` for each GiB of its container."""
    sizing_most: float = 600.0

    # Data and views

    # Formats and their worker processes

    # The cache of blocks

    # Sources

    # Servers


settings = Settings()
