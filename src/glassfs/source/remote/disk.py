"""Blocks of remote objects, kept on disk for the next process (``-o disk_cache=DIR,disk_cache_size=SIZE``).

What is asked for is known by the object's key (an opaque text without secrets), its validator (the ETag), the number
of the block and its size. A validator that is empty or weak (``W/…``) names no bytes: nothing is kept under it, neither
blocks nor facts.

Any thread, and several processes at a time may use one folder; the bound holds for all of them together, but for one
block for each process that is just writing. Everything is done in the thread that asks.
Refused is raised when the cache is made (``DiskCache``), and nothing later: where the disk is full, fails, can only be
read or has gone, there is one line in the log, and blocks are fetched as if there were no cache.
"""

from __future__ import annotations

from glassfs.source.remote.server import Facts


class DiskCache:
    """The cache in ``folder`` (made with 0700 if need be), of up to ``budget`` bytes.

    Raises Refused where the folder is somebody else's, open to others, a link or cannot be made, and where the budget
    is smaller than one block.
    """

    def __init__(self, folder: str, budget: int) -> None:
        self._folder = folder
        self._budget = budget

    def get(self, object_key: str, validator: str, number: int, size: int) -> bytes | None:
        """Block ``number``, which is ``size`` bytes long; None where it is not there as it was put."""
        return None

    def put(self, object_key: str, validator: str, number: int, data: bytes | bytearray | memoryview) -> None:
        """Keeps a block, or does not."""

    def facts(self, object_key: str) -> Facts | None:
        """What was noted of an object last: to be asked about (If-None-Match) before it is believed."""
        return None

    def note_facts(self, object_key: str, facts: Facts) -> None:
        """Notes what a server has said of an object."""

    def close(self) -> None:
        """Gives back what is held; afterwards the cache is empty to whoever asks. Twice does no harm."""
