"""Answers of a container's worker, kept in the catalogue where they are small: later programs need no worker (§3).

Only what the container says is kept, never an error, and nothing that depends on which filters are installed. Any
thread.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.abc import SourceLoader
from importlib.util import find_spec
from typing import Any, TypeAlias

from glassfs.formats.registry import Opening
from glassfs.lru import LRU
from glassfs.sandbox.client import Sandbox

LARGEST_KEPT, LARGEST_ANSWER = 256 << 10, 16 << 20
"""Bytes of an answer that is kept, and of one before it is compressed."""
MOST_INDEX = 64 << 20
"""Bytes of a list of chunks."""
MOST_TOGETHER, MOST_CHUNKS = 200, 8_000
"""Datasets whose chunks are asked for together, and their chunks."""
MOST_REMEMBERED = 1 << 20
"""Bytes of lists of chunks that were sent along with another one, until they are needed."""
_COST, _SIZE = 200, 4

Path: TypeAlias = "tuple[bytes, ...]"


class Answers:
    """Requests on one container: to the catalogue if it may know the answer, else to the worker."""

    def __init__(self, opening: Opening, sandbox: Sandbox) -> None:
        self._opening, self._sandbox = opening, sandbox
        self._small: dict[Path, int] = {}
        """Datasets of few chunks that were listed, and how many chunks they may have."""
        self._indexes: LRU[Path, bytes] = LRU(MOST_REMEMBERED)

    def ask(
        self, request: dict[str, Any], most: int = 0, buffer: memoryview | None = None,
    ) -> tuple[Any, bytearray]:
        """Do and return what ``Sandbox.ask`` does, untrusted."""
        return self._sandbox.ask(request, most, buffer)

    def described(self, request: dict[str, Any], **hints: Any) -> Any:
        """Return the answer to a request that describes objects, which may be a kept one. Untrusted as well.

        ``hints`` are further arguments for the worker, on which the answer to the request proper does not depend.
        """
        name = json.dumps(request)
        answer = self.kept(name)
        if answer is None:
            answer, _ = self._sandbox.ask(request | hints)
            self.keep(name, answer)
        return answer

    def kept(self, name: str) -> Any:
        """Return what ``keep`` stored under a name, untrusted; None if there is nothing."""
        with suppress(ValueError, zlib.error):
            return json.loads(zlib.decompressobj().decompress(self._found(name.encode()) or b"", LARGEST_ANSWER))
        return None

    def keep(self, name: str, answer: Any) -> None:
        """Keep an answer, or what follows from some, unless it depends on the filters that are installed."""
        text = json.dumps(answer)
        if '"available": false' not in text:  # a plug-in may be installed later
            self._keep(name.encode(), zlib.compress(text.encode(), 1))

    def note(self, small: Iterable[tuple[Path, int]]) -> None:
        """Note datasets of few chunks, with the number of chunks: their lists will be asked for together."""
        for path, count in small:
            if len(self._small) < MOST_TOGETHER:
                self._small[path] = count

    def chunks(self, path: Path) -> bytearray:
        """Return the list of a dataset's chunks. Raises Damaged."""
        found = self._index(path)
        if found is not None:
            return found
        kept = self._found(b"chunks")
        if kept is not None:
            with suppress(ValueError, TypeError, AttributeError):
                self._remember(kept)
            found = self._index(path)
            if found is not None:
                return found
        together = self._together(path)
        answer, raw = self._sandbox.ask({"do": "chunks", "path": as_text(path), "more": together}, MOST_INDEX)
        sizes = answer if _are_sizes(answer, 1 + len(together), len(raw)) else [len(raw)]
        if len(raw) <= LARGEST_KEPT:
            head = json.dumps([[as_text(path), *together], sizes]).encode()
            value = len(head).to_bytes(_SIZE, "little") + head + raw
            self._keep(b"chunks", value, is_last=True)
            if len(sizes) > 1:
                self._remember(value)
        return raw[: sizes[0]]

    def _together(self, path: Path) -> list[list[str]]:
        """Return further datasets whose lists are wanted with this one; none if reading them costs requests."""
        left = 0 if self._opening.source.is_remote else MOST_CHUNKS
        found = []
        for other, count in self._small.items():
            if other != path and count <= left and self._indexes.peek(other) is None:
                left -= count
                found.append(as_text(other))
        return found

    def _index(self, path: Path) -> bytearray | None:
        found = self._indexes.get(path)
        return None if found is None else bytearray(found)

    def _remember(self, value: bytes) -> None:
        """Remember lists of chunks that are in a kept value."""
        at = _SIZE + int.from_bytes(value[:_SIZE], "little")
        paths, sizes = json.loads(value[_SIZE:at])
        for path, size in zip(paths, sizes, strict=False):
            key = tuple(part.encode("latin-1") for part in path)
            if size >= 0:
                self._indexes.put(key, value[at : at + size], _COST + size)
                at += size

    def _found(self, name: bytes) -> bytes | None:
        library = _library()
        return self._opening.found(library + name) if library else None

    def _keep(self, name: bytes, value: bytes, is_last: bool = False) -> None:
        library = _library()
        if library and len(value) <= LARGEST_KEPT:
            self._opening.keep(library + name, value, is_last)


def _are_sizes(answer: Any, count: int, total: int) -> bool:
    """Return whether the worker says how many bytes each of the lists has, -1 for one that it could not read."""
    if not isinstance(answer, list) or not 0 < len(answer) <= count or not all(type(one) is int for one in answer):
        return False
    found: list[int] = answer
    return found[0] >= 0 and sum(one for one in found if one > 0) == total


def as_text(path: Sequence[bytes]) -> list[str]:
    """Return a path as it is in requests."""
    return [part.decode("latin-1") for part in path]


@lru_cache(1)
def _library() -> bytes:
    """Return what the names of kept answers begin with, empty if none are kept: another h5py may describe more."""
    found = find_spec("h5py")
    if found is None or found.origin is None or not isinstance(found.loader, SourceLoader):
        return b""
    return f"h5py {found.loader.path_stats(found.origin)}\0".encode()  # its version takes much longer to find
