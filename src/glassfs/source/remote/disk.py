"""Blocks of remote objects, cached on disk for the next process (``-o disk_cache=DIR,disk_cache_size=SIZE``).

A block is identified by the object's key (an opaque text without secrets), its validator (the ETag), its number and its
size. A validator that is empty or weak (``W/…``) identifies no bytes: nothing is cached under it, neither blocks nor
facts. Threads, processes and errors: see ``glassfs.persistent.cache``.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping

from glassfs.errors import Refused
from glassfs.sizes import human_size
from glassfs.source.remote.server import Facts

FILE = "blocks.sqlite"
_BLOCK = struct.Struct("<Q")


class DiskCache:
    """The cache in ``folder`` (made with mode 0700 if missing), of up to ``budget`` bytes.

    Raises Refused if the folder cannot be made or trusted (see ``glassfs.persistent.private``), and if the budget is
    smaller than one block.
    """

    def __init__(self, folder: str, budget: int) -> None:
        if budget < 512 << 10:
            raise Refused(f"a disk cache of {human_size(budget)} is smaller than one block of 512K", folder)
        from glassfs.persistent.cache import PersistentCache

        self._cache = PersistentCache(folder, budget, FILE)

    def get(self, object_key: str, validator: str, sizes: Mapping[int, int]) -> list[bytes] | None:
        """Return the blocks with these numbers, which have these sizes; None unless all are cached."""
        if not _identifies_bytes(validator):
            return None
        owner = _owner(object_key, validator)
        found = self._cache.find([owner + _BLOCK.pack(number) for number in sizes])
        parts = [part for part in found if part is not None]
        return parts if [len(part) for part in parts] == [*sizes.values()] else None

    def put(self, object_key: str, validator: str, number: int, data: bytes | bytearray | memoryview) -> None:
        """Cache a block if possible."""
        if data and _identifies_bytes(validator):
            self._cache.store({_owner(object_key, validator) + _BLOCK.pack(number): data})

    def facts(self, object_key: str) -> Facts | None:
        """Return the last facts of an object; the server must confirm them (If-None-Match) before they are trusted."""
        (stored,) = self._cache.find([_owner(object_key, "")])
        return None if stored is None else Facts(*json.loads(stored))

    def note_facts(self, object_key: str, facts: Facts) -> None:
        """Store the facts that a server reported of an object."""
        if _identifies_bytes(facts.etag):
            self._cache.store({_owner(object_key, ""): json.dumps(facts).encode()})

    def close(self) -> None:
        """Release everything; afterwards the cache seems empty. May be called twice."""
        self._cache.close()


def _owner(object_key: str, validator: str) -> bytes:
    """Return a cryptographic hash, so that no other object has the same owner."""
    key, tag = (text.encode("utf-8", "surrogatepass") for text in (object_key, validator))
    return hashlib.blake2b(struct.pack("<Q", len(key)) + key + tag, digest_size=32).digest()


def _identifies_bytes(validator: str) -> bool:
    return Facts(0, validator, 0).has_strong_etag
