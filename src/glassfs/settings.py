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

    root_check: float = 0.1
    """Interval between two checks whether the store's root was replaced, made when something below it is used."""
    disk_lock: float = 0.25
    """TODO"""
    catalogue_wait: float = 2.0
    """TODO"""
    findings_flush: float = 2.0
    """After so long, fewer are stored with the next call: workers of a library end without closing anything."""
    watching_pause: float = 0.02
    """Between two batches of events about watched folders."""
    watching_young: float = 30.0
    """Age up to which a watch is not dropped for another one."""
    watching_quiet: float = 30.0
    """How long a folder with too many events, and what is below it, is not watched again."""
    watching_refused: float = 5.0
    """How long a watch that failed is not tried again."""

    # Servers

    server_first_pause: float = 0.1
    """Pause after the first attempt; each later one is twice as long."""
    server_replace: float = 0.05
    """Time until a thread that hangs is replaced by another one."""
    server_release: float = 0.05
    """Time that obstore's threads get to release the last answers when the loop ends."""
    server_join: float = 2.0
    """How long the end of the process waits for the thread of the requests."""
    server_probe: float = 2.0
    """How long to find out whether a server that fails speaks another protocol than its URL says."""
    listing_news: float = 1.0
    """How long a look-up waits for news of a listing that is much too old."""
    connection_idle: float = 30.0
    """Connections idle for so long are replaced, as a router may have dropped them silently."""
    hub_pin: float = 5.0
    """For how long at most a branch on Hugging Face is taken to point to the same commit."""
    long_listing: float = 2.0
    """A listing that takes longer is repeated page by page where possible: obstore collects names without a limit.

    On other services it fails after the part of the timeout that is allowed for silence.
    """
    upload_part: float = 300.0
    """How long one request of an upload may take."""
    server_grace: float = 0.5
    """What a waiting reader gives a server beyond its timeout, in which the server raises the better error."""
    server_fail_fast: float = 0.5
    """After a read timed out, other reads of the object fail at once for so long: the kernel repeats it immediately."""
    disk_finish: float = 2.0
    """How long the end of a command waits for the disk cache."""


settings = Settings()
