"""Times in seconds: for how long something is waited for, valid, kept, or left alone. The one place for defaults.

Tests set the fields of ``settings``; nothing else does. Fields are named after what happens then, not after a module.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Settings:
    """The fields are in sections, one for each room, in the order of the rooms."""

    # Commands, the library and data sets

    container_valid: float = 0.1
    """How long the library takes a container as unchanged after it was compared with its store."""

    # The mount

    # Engines: the kernel's requests and notifications

    # The tree

    # Data and views

    # Formats and their worker processes

    # The cache of blocks

    # Sources

    # Servers


settings = Settings()
