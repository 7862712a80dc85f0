"""Answers of a container's worker, kept in the catalogue where they are small: later programs need no worker (§3).

Only what the container says is kept, never an error, and nothing that depends on which filters are installed. Any
thread.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.abc import SourceLoader
from importlib.util import find_spec
from typing import Any, TypeAlias

from glassfs.formats.hdf5.chunks import RECORD
from glassfs.formats.registry import Opening
from glassfs.sandbox.client import Sandbox
from glassfs.sizes import PIECE

LARGEST_KEPT = 2 * PIECE
"""Bytes of an answer that is kept, compressed: those of one container share a few MiB of the catalogue."""

Path: TypeAlias = "tuple[bytes, ...]"


class WorkerAnswers:
    """Requests on one container: to the catalogue if it may know the answer, else to the worker."""

    def __init__(self, opening: Opening, sandbox: Sandbox) -> None:
        self._opening, self.ask = opening, sandbox.ask

    def described(self, request: dict[str, Any]) -> Any:
        """Return the answer to a request that describes objects, which may be a kept one. Untrusted as well."""
        name = json.dumps(request).encode()
        with suppress(ValueError):
            return json.loads(self._find(name))
        answer, _ = self.ask(request)
        text = json.dumps(answer)
        # A description says which filters the library lacks, of which a plug-in may be installed later.
        if '"available": false' not in text:
            self._keep(name, text.encode())
        return answer

    def chunks(self, path: Path) -> bytearray:
        """Return the list of a dataset's chunks. Raises Damaged."""
        request = {"do": "chunks", "path": as_text(path)}
        name = json.dumps(request).encode()
        found = bytearray(self._find(name))
        if not found:
            most = self._opening.allowance.size // RECORD.size
            _, found = self.ask(request | {"most": most}, most * RECORD.size)
            self._keep(name, found)
        return found

    def _find(self, name: bytes) -> bytes:
        """Return what ``_keep`` stored under a name, untrusted; nothing if there is none."""
        library = _library()
        with suppress(zlib.error):
            kept = self._opening.found(library + name) if library else None
            return zlib.decompressobj().decompress(kept or b"", LARGEST_KEPT)
        return b""

    def _keep(self, name: bytes, value: bytes | bytearray) -> None:
        library = _library()
        if library and len(value) <= LARGEST_KEPT:
            self._opening.keep(library + name, zlib.compress(value, 1))


def as_text(path: Sequence[bytes]) -> list[str]:
    """Return a path as it is in requests."""
    return [part.decode("latin-1") for part in path]


@lru_cache(1)
def _library() -> bytes:
    """Return what the names of kept answers begin with, empty if none are kept: another h5py may describe more."""
    spec = find_spec("h5py")
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceLoader):
        return b""
    # The first number is that of the layout of answers.
    return f"6 h5py {spec.loader.path_stats(spec.origin)}\0".encode()  # its version takes much longer to find
