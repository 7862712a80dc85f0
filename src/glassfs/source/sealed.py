"""A source that delivers bytes only if its SHA-256 is the expected one."""

from __future__ import annotations

import hashlib
import threading

from glassfs.errors import Damaged
from glassfs.sizes import PIECE
from glassfs.source.contract import Source


class SealedSource(Source):
    """``file``, whose bytes are verified before the first read after ``seal``. Without ``sha256`` nothing is checked.

    The first reader hashes the whole file. If the hash differs, every read raises Damaged.
    """

    def __init__(self, file: Source, sha256: str | None) -> None:
        self.file = file
        self.name, self.entry = file.name, file.entry
        self._sha256 = sha256
        self._is_open = True
        self._is_right: bool | None = None
        self._lock = threading.Lock()

    def seal(self) -> None:
        """Require verification before the next read."""
        self._is_open = self._sha256 is None

    def verify(self) -> None:
        """Hash the whole file, at most once. Raises Damaged if the hash is not the expected one."""
        # Readers that come meanwhile wait, so that the file is hashed once.
        with self._lock:
            if self._is_right is None:
                self._is_right = self._sha256 is None or self._digest() == self._sha256
            if not self._is_right:
                raise Damaged("was changed: its SHA-256 is not the expected one", self.name)
            self._is_open = True

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._verified().read_into(buffer, offset)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        return self._verified().mapped(offset, size)

    def keep(self) -> None:
        self.file.keep()

    def park(self) -> None:
        self.file.park()

    def close(self) -> None:
        self.file.close()

    def _verified(self) -> Source:
        if not self._is_open:
            self.verify()
        return self.file

    def _digest(self) -> str:
        digest = hashlib.sha256()
        piece = memoryview(bytearray(min(PIECE, self.size)))
        for offset in range(0, self.size, PIECE):
            read = piece[: min(PIECE, self.size - offset)]
            self.file.read_into(read, offset)
            digest.update(read)
        return digest.hexdigest()
