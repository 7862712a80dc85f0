"""Times in seconds: for how long something is waited for, valid, kept, or left alone. The one place for defaults.

Tests set the fields of ``settings``; nothing else does. Fields are named after what happens then, not after a module.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Settings:
    """The fields are in sections, one for each room, in the order of the rooms."""

    # Commands, the library and data sets

    # Work

    cancel_check: float = 0.2
    """A thread that waits for another one or for a server looks so often whether its work was canceled."""

    # The mount

    watch: float = 0.2
    """How often changes are looked for and sent to the kernel while a mount is used."""
    rest_after: float = 15.0
    """Time without a request after which a mount rests."""
    rest: float = 2.0
    """How often a mount that rests drops what is no longer used, and compares sources that report no changes."""
    cool_after: float = 100.0
    """Time without a request after which nothing is left to be dropped: spools are kept for a minute."""
    loading: float = 1.0
    """Time after the start at which code is loaded that may be needed later: the first commands come before."""
    removal_of_metrics: float = 1.0
    """How long the end waits for it."""

    # Engines: the kernel's requests and notifications

    slow_read: float = 0.001
    """After a read that took longer, the next one is expected to be slow as well."""
    supervision: float = 0.001
    """How often it is checked whether a thread waits for requests, while some are answered."""
    supervised: float = 0.05
    """Time without anything to do after which nothing is checked until the next request."""
    resumption: float = 0.02
    """How often it is checked whether deferred requests may begin."""
    shortage_warning: float = 60.0
    """Time between two warnings that there are not enough threads."""
    interruption: float = 2.0
    """Time after which an interrupted request is answered. Less would break requests that are only slow."""
    repetition: float = 2.0
    """Time in which a thread that was interrupted may ask again for what is being done."""
    crowded_switch: float = 0.0002
    """How long a thread keeps the interpreter while many compute: each waits for all others."""

    # The tree

    # Data and views

    # Formats and their worker processes

    # The cache of blocks

    # Sources

    # Servers


settings = Settings()
