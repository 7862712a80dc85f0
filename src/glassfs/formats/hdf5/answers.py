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

from glassfs.content.allowance import OBJECT
from glassfs.formats.hdf5.chunks import RECORD
from glassfs.formats.registry import Opening
from glassfs.lru import LRU
from glassfs.sandbox import wire
from glassfs.sandbox.client import Sandbox
from glassfs.sizes import PIECE

LARGEST_KEPT = 256 << 10
"""Bytes of an answer that is kept: those of one container share a few MiB of the catalogue."""

Path: TypeAlias = "tuple[bytes, ...]"


class WorkerAnswers:
    """Requests on one container: to the catalogue if it may know the answer, else to the worker."""

    def __init__(self, opening: Opening, sandbox: Sandbox) -> None:
        self._opening, self._sandbox = opening, sandbox
        self.ask = sandbox.ask
        self._small: dict[Path, int] = {}
        """Datasets of few chunks that were listed, and how many chunks they may have."""
        self._indexes: LRU[Path, bytes] = LRU(PIECE)
        """Lists of chunks that came along with another one, until they are needed."""

    def described(self, request: dict[str, Any], **hints: Any) -> Any:
        """Return the answer to a request that describes objects, which may be a kept one. Untrusted as well.

        ``hints`` are further arguments for the worker, on which the answer to the request proper does not depend.
        """
        name = json.dumps(request).encode()
        with suppress(ValueError, zlib.error):
            raw = zlib.decompressobj().decompress(self._find(name) or b"", wire.LARGEST_ANSWER)
            return json.loads(raw)
        answer, _ = self._sandbox.ask(request | hints)
        text = json.dumps(answer)
        # A description says which filters the library lacks, of which a plug-in may be installed later.
        if '"available": false' not in text:
            self._keep(name, zlib.compress(text.encode(), 1))
        return answer

    def note(self, path: Path, count: int) -> None:
        """Note a dataset that may have ``count`` chunks. Lists of few chunks will be asked for together."""
        if count <= 2_000 and len(self._small) < 200:
            self._small[path] = count

    def chunks(self, path: Path) -> bytearray:
        """Return the list of a dataset's chunks. Raises Damaged."""
        index = self._indexes.get(path)
        if index is None:
            self._remember(self._find(b"chunks") or b"")
            index = self._indexes.get(path)
        if index is None:
            # Frames of many demonstrations are many small datasets. Asking for the lists of all of them at once takes
            # one request instead of hundreds, and one entry of the catalogue.
            paths = [as_text(path), *self._together(path)]
            most = self._opening.allowance.size // RECORD.size
            request = {"do": "chunks", "path": paths[0], "more": paths[1:], "most": most}
            answer, raw = self._sandbox.ask(request, most * RECORD.size)
            sizes = answer if _are_sizes(answer, len(paths), len(raw)) else [len(raw)]
            head = json.dumps([paths, sizes]).encode()
            lists = len(head).to_bytes(4, "little") + head + raw
            self._keep(b"chunks", lists, is_last=True)
            self._remember(lists)
            index = bytes(raw[: sizes[0]])
        return bytearray(index)

    def _together(self, path: Path) -> list[list[str]]:
        """Return further datasets whose lists are wanted with this one; none if reading them costs requests."""
        left = 0 if self._opening.source.is_remote else 8_000
        further = []
        for other, count in self._small.items():
            if other != path and count <= left and self._indexes.peek(other) is None:
                left -= count
                further.append(as_text(other))
        return further

    def _remember(self, lists: bytes) -> None:
        """Remember lists of chunks, which may be kept ones and are untrusted then."""
        with suppress(ValueError, TypeError, AttributeError):
            at = 4 + int.from_bytes(lists[:4], "little")
            paths, sizes = json.loads(lists[4:at])
            for path, size in zip(paths, sizes, strict=False):
                if 0 <= size <= PIECE:
                    key = tuple(part.encode("latin-1") for part in path)
                    self._indexes.put(key, lists[at : at + size], OBJECT + size)
                at += max(0, size)

    def _find(self, name: bytes) -> bytes | None:
        library = _library()
        return self._opening.found(library + name) if library else None

    def _keep(self, name: bytes, value: bytes, is_last: bool = False) -> None:
        library = _library()
        if library and len(value) <= LARGEST_KEPT:
            self._opening.keep(library + name, value, is_last)


def _are_sizes(answer: Any, count: int, total: int) -> bool:
    """Return whether the worker says how many bytes each of the lists has, -1 for one that it could not read."""
    if not isinstance(answer, list) or not 0 < len(answer) <= count or not all(type(size) is int for size in answer):
        return False
    return bool(answer[0] >= 0 and sum(size for size in answer if size > 0) == total)


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
    return f"4 h5py {spec.loader.path_stats(spec.origin)}\0".encode()  # its version takes much longer to find
