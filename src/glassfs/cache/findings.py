"""What formats found out about containers, kept in the catalogue for later mounts, commands and workers. Any thread.

A format may have to read much of a container to find its contents, as in a section without a table of offsets. It keeps
what it found under a name, and asks for it before it searches again. The findings of one container are one entry of the
catalogue, under a digest of its stamp. No method raises, and any value may be lost: formats check what they get.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from glassfs.lru import LRU
from glassfs.settings import settings

if TYPE_CHECKING:
    from glassfs.cache.catalogue import Catalogue, Key

MOST_VALUE = 1 << 20
"""Bytes of one value; a larger one is not kept."""
MOST_OF_CONTAINER = 4 << 20
"""Bytes that are kept of one container."""
KNOWN_BYTES = 4 << 20
"""Memory for what was found or kept last."""
SETTLED_NANOSECONDS = 2 * 10**9
ENTRY_BYTES = 512
"""Memory of what is known about a container, beside its values."""
_ITEM = struct.Struct("<II")


@dataclass(slots=True)
class Kept:
    """What is kept of one container: values by name, which are only added to, and their ``size`` in memory."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    size: int = ENTRY_BYTES

    def add(self, name: bytes, value: bytes) -> None:
        self.values[name] = value
        self.size += _size(name, value)


class Findings:
    """What is kept of the containers of one tree. ``catalogue`` returns the catalogue, or None if there is none.

    Findings of another ``version`` of glassfs are not used.
    """

    def __init__(self, catalogue: Callable[[], Catalogue | None], version: str) -> None:
        self._catalogue = catalogue
        self._version = version
        self._known: LRU[str, Kept] = LRU(KNOWN_BYTES)
        """By stamp, as computing the key of the catalogue takes longer than everything else here."""
        self._changed: dict[str, Kept] = {}
        self._due = 0.0
        """When what changed is stored."""
        self._lock = threading.Lock()

    def find(self, stamp: str, name: bytes) -> bytes | None:
        """Return what is kept under a name of the container with that stamp."""
        if self._changed and time.monotonic() >= self._due:
            self.flush()
        return self._of(stamp).values.get(name)

    def keep(self, stamp: str, mtime_ns: int, name: bytes, value: bytes) -> None:
        """Keep a value, unless the container was modified a moment ago: it may change under the same stamp."""
        if len(value) > MOST_VALUE or abs(time.time_ns() - mtime_ns) < SETTLED_NANOSECONDS:
            return
        kept = self._of(stamp)
        now = time.monotonic()
        with self._lock:
            if name in kept.values or kept.size + _size(name, value) > MOST_OF_CONTAINER:
                return
            kept.add(name, value)
            if not self._changed:
                self._due = now + settings.findings_flush
            self._changed[stamp] = kept
            # Many containers are stored together, as each change of the file takes a transaction.
            is_due = len(self._changed) >= 128 or now >= self._due
        self._known.put(stamp, kept, kept.size)
        if is_due:
            self.flush()

    def flush(self) -> None:
        """Store what was kept since the previous call, soon."""
        with self._lock:
            changed, self._changed = self._changed, {}
        catalogue = self._catalogue() if changed else None
        if catalogue is not None:
            values = {_key(stamp, self._version): _packed(kept) for stamp, kept in changed.items()}
            catalogue.put(values, _merged)  # workers of a library find different parts of one container

    def _of(self, stamp: str) -> Kept:
        """Return all that is kept of a container."""
        kept = self._known.get(stamp)
        if kept is None:
            kept = self._changed.get(stamp)
        if kept is not None:
            return kept
        catalogue = self._catalogue()
        stored = None if catalogue is None else catalogue.find([_key(stamp, self._version)])[0]
        kept = _unpacked(stored or b"")
        self._known.put(stamp, kept, kept.size)
        return kept


def _key(stamp: str, version: str) -> Key:
    return xxhash.xxh128_digest(f"findings\0003\0{version}\0{sys.byteorder}\0{stamp}".encode())


def _size(name: bytes, value: bytes) -> int:
    return _ITEM.size + len(name) + len(value)


def _packed(kept: Kept) -> bytes:
    """Return names and values, each after their lengths. The catalogue adds a checksum."""
    values = list(kept.values.items())  # in one step, as other threads may add to them
    return b"".join(_ITEM.pack(len(name), len(value)) + name + value for name, value in values)


def _merged(stored: bytes, packed: bytes) -> bytes:
    """Return what is stored with what is new, unless it is too much."""
    found = _unpacked(packed)
    for name, value in _unpacked(stored).values.items():
        if name not in found.values and found.size + _size(name, value) <= MOST_OF_CONTAINER:
            found.add(name, value)
    return _packed(found)


def _unpacked(packed: bytes) -> Kept:
    kept = Kept()
    at = 0
    while at < len(packed):
        name, value = _ITEM.unpack_from(packed, at)
        at += _ITEM.size + name
        kept.add(packed[at - name : at], packed[at : at + value])
        at += value
    return kept
