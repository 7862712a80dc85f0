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

    # Sources

    watching_pause: float = 0.02
    """Between two batches of events about watched folders."""
    watching_young: float = 30.0
    """Age up to which a watch is not dropped for another one."""
    watching_quiet: float = 30.0
    """How long a folder with too many events, and what is below it, is not watched again."""
    watching_refused: float = 5.0
    """How long a watch that failed is not tried again."""

    # Servers

    server_grace: float = 0.5
    """What a waiting reader gives a server beyond its timeout, in which the server raises the better error."""
    server_fail_fast: float = 0.5
    """After a read timed out, other reads of the object fail at once for so long: the kernel repeats it immediately."""
    disk_finish: float = 2.0
    """How long the end of a command waits for the disk cache."""


settings = Settings()
