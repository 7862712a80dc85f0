"""What the worker is asked for: descriptions, lists of chunks, and elements that it reads, which are strings, rows of
variable length, unusual numbers, and what only plug-ins decode. What it sends is checked for its size. Any thread.

Answers are kept in the catalogue where they are small: later programs need no worker (§3). Only what the container says
is kept, never an error, and nothing that depends on which filters are installed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.abc import SourceLoader
from importlib.util import find_spec
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeAlias

from glassfs.cache import BlockCache
from glassfs.content import Blocked, Data, Records, Rendered
from glassfs.content.allowance import OBJECT, Allowance, held
from glassfs.errors import Damaged
from glassfs.formats.hdf5.chunks import RECORD, Grid, Shape, place_of
from glassfs.formats.hdf5.description import ValueType
from glassfs.formats.registry import Opening
from glassfs.lazy import np
from glassfs.sizes import PIECE
from glassfs.source import Source

LARGEST_KEPT = 2 * PIECE
"""Bytes of an answer that is kept, compressed: those of one container share a few MiB of the catalogue."""

Path: TypeAlias = "tuple[bytes, ...]"
ROWS = 1_000
"""Strings, or rows of variable length, that are asked for at once."""
ASKED_SIZE = PIECE // ROWS
"""Bytes of a row of ``records`` of which each block is asked for at once."""
MOST_TEXTS = 100_000
"""Strings of a dataset with several axes that are one document, and cells of MATLAB that are links."""
ASKED_COST = 3
"""Memory for a byte of elements that are asked for."""


class WorkerAnswers:
    """Requests on one container: to the catalogue if it may know the answer, else to the worker."""

    def __init__(self, opening: Opening) -> None:
        self._opening, self.ask = opening, opening.sandbox().ask

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


class DatasetRequests(NamedTuple):
    """A dataset of a container, for requests to the worker."""

    answers: WorkerAnswers
    cache: BlockCache
    allowance: Allowance
    source: Source
    path: Path
    virtual: Data | None = None
    """Its elements as they are shown, if they are in other datasets."""

    def ask(self, do: str, most: int = 0, **arguments: Any) -> tuple[Any, bytearray]:
        """Return the worker's answer to a request for this object."""
        return self.answers.ask({"do": do, "path": as_text(self.path), **arguments}, most)

    def key(self, what: str, *more: object) -> tuple[object, ...]:
        return (self.source.version, what, *self.path, *more)


class LibraryGrid(Grid):
    """The elements of a dataset as the library reads them as ``dtype``, ``item`` bytes each; None is the file's type.

    They are asked for by whole chunks, by several if these are small: the library decodes a chunk for each request.
    """

    def __init__(self, asked: DatasetRequests, shape: Shape, chunks: Shape, item: int, dtype: object) -> None:
        steps = together(shape, chunks, item, min(asked.cache.budget // 8, 8 * PIECE))
        super().__init__(asked.cache, (*shape, item), (*steps, item))
        self._asked, self._dtype = asked, dtype

    def _block(self, number: int) -> Rendered:
        start = [place * step for place, step in zip(place_of(number, self.grid), self.steps, strict=True)]
        key, size = self._asked.key("elements", *self.steps[-1:], *start), self.block_size
        return Rendered(self._asked.cache, key, partial(self._elements, start), size, ASKED_COST * size)

    def _elements(self, start: list[int]) -> bytearray:
        """Return the elements of the block at ``start``, which may stick out of the dataset."""
        fits = [
            min(count, length - first) for first, count, length in zip(start, self.steps, self.shape, strict=True)
        ]
        size = prod(fits)
        _, elements = self._asked.ask("elements", size, start=start[:-1], shape=fits[:-1], dtype=self._dtype)
        if len(elements) != size:
            raise Damaged("its worker process sends other elements than asked for")
        if tuple(fits) == self.steps:
            return elements
        # At the edge the library has fewer elements, but all blocks have one shape: the rest of the block is never
        # read.
        whole = np.zeros(self.steps, np.uint8)
        whole[tuple(map(slice, fits))] = np.frombuffer(elements, np.uint8).reshape(fits)
        return bytearray(whole.tobytes())


def together(shape: Shape, chunks: Shape, item: int, most: int) -> Shape:
    """Return the shape of what is asked for at once: whole chunks, as many as have PIECE bytes, in C order.

    Of a chunk of more than ``most`` bytes, a part: the worker keeps the chunk while parts of it are asked for.
    """
    found = [min(step, length) for step, length in zip(chunks, shape, strict=True)]
    for axis in range(len(shape)):
        found[axis] = max(1, min(found[axis], most // (prod(found[axis + 1 :]) * item)))
    for axis in reversed(range(len(shape))):
        found[axis] *= max(1, min(-(-shape[axis] // found[axis]), PIECE // (prod(found) * item)))
        if found[axis] < shape[axis]:
            break
    return tuple(found)


def documents(asked: DatasetRequests, first: int, count: int, members: tuple[int, ...] = ()) -> list[Any]:
    """Return elements of a dataset as values of JSON, in C order: of compounds the member at the end of ``members``.

    Raises TooLarge, and Damaged.
    """
    found: list[Any] = []
    allowance = asked.allowance.part()
    with asked.cache.measuring(ASKED_COST * PIECE):
        while len(found) < count:
            start, left = first + len(found), count - len(found)
            values, _ = asked.ask("values", first=start, count=min(ROWS, left), members=members)
            if not isinstance(values, list) or not 0 < len(values) <= left:
                raise Damaged("its worker process sends other rows than asked for")
            allowance.take(held(values), "rows")
            found += values
    return found


def weight_of(kind: ValueType) -> int:
    """Return about how many bytes a value takes in memory that the worker reads, with its JSON."""
    # As JSON, a byte may take several, and each value is an object.
    inner = sum(weight_of(field.kind) for field in kind.fields)
    return 2 * OBJECT + inner + 4 * int(kind.shown[2:] or 16) * prod(kind.dims)


def lines(key: bytes, asked: DatasetRequests, count: int, kind: ValueType) -> Records:
    """Return a row for each of ``count`` strings, or values of JSON."""
    def block(first: int, end: int) -> list[Any]:
        return documents(asked, first, end - first)

    type_name = "string" if kind.name == "text" and not kind.dims else "json"
    return records(key, count, ASKED_SIZE, weight_of(kind), block, type_name=type_name)


def records(
    key: bytes, rows: int, size: int, weight: int, block: Callable[[int, int], Sequence[Any]], dtype: str = "",
    type_name: str = "string",
) -> Records:
    """Return records of which ``block`` makes the rows ``[first, end)``: of ``size`` bytes, in memory ``weight``."""
    step = max(1, PIECE // max(128, size))  # rows of few bytes take many times as much

    def made(number: int) -> Sequence[Any]:
        return block(number * step, min((number + 1) * step, rows))

    blocks, cost = -(-rows // step), min(step, rows) * weight
    return Records(key, blocks, made, "" if dtype else type_name, lambda number: cost, dtype)


@dataclass
class VariableRows:
    """Rows of variable length: their values one after another, and where each begins. A value has ``item`` bytes."""

    _asked: DatasetRequests
    _rows: int
    _dtype: str
    _item: int
    _firsts: Sequence[int] = ()
    """The first row of each block of values, and the number of rows."""

    def offsets(self) -> Data:
        """Return ``rows + 1`` rising 64-bit integers, which take a pass over all rows."""
        return Rendered(self._asked.cache, self._asked.key("offsets"), self._found_offsets, 8 * (self._rows + 1))

    def values(self) -> Data:
        def bounds() -> Sequence[int]:
            offsets = self.offsets()
            self._firsts = [*self._divided(offsets), self._rows]
            return [int.from_bytes(offsets.read(8 * row, 8), "little") * self._item for row in self._firsts]

        def block(number: int) -> Rendered:
            starts = values.bounds
            first, end = self._firsts[number : number + 2]
            return self._rendered("values", number, first, end, starts[number + 1] - starts[number])

        values = Blocked(self._asked.cache, bounds, block)
        return values

    def row(self, number: int) -> Data:
        """Return the bytes of a row, which the worker is asked for alone: not all others of its block."""
        start, end = struct.unpack("<2q", self.offsets().read(8 * number, 16))
        return self._rendered("row", number, number, number + 1, (end - start) * self._item)

    def _rendered(self, what: str, number: int, first: int, end: int, size: int) -> Rendered:
        """Return the values of the rows ``[first, end)``, which have ``size`` bytes."""
        return Rendered(
            self._asked.cache, self._asked.key(what, number),
            lambda: b"".join(raw for _, raw in self._answers(first, end, self._item, size)), size, 3 * size,
        )

    def count(self) -> int:
        """Return the number of all values."""
        return int.from_bytes(self.offsets().read(8 * self._rows, 8), "little")

    def _divided(self, offsets: Data) -> Iterator[int]:
        """Yield the first row of each block: ROWS rows, fewer if they have more than 8 MiB."""
        # Rows are of any length, and a block is made as a whole. So a run of long rows is cut where the next row would
        # exceed the limit, and a row that is longer alone is a block of its own.
        for first in range(0, self._rows, ROWS):
            count = min(ROWS, self._rows - first)
            ends = struct.unpack(f"<{count + 1}q", offsets.read(8 * first, 8 * (count + 1)))
            yield first
            start = ends[0]
            for number in range(1, count if (ends[-1] - start) * self._item > 8 * PIECE else 0):
                if (ends[number + 1] - start) * self._item > 8 * PIECE:
                    start = ends[number]
                    yield first + number

    def _found_offsets(self) -> bytes:
        lengths = [length for some, _ in self._answers(0, self._rows, 0, 0) for length in some]
        return np.fromiter(accumulate(lengths, initial=0), "<i8", len(lengths) + 1).tobytes()

    def _answers(self, first: int, end: int, item: int, most: int) -> Iterator[tuple[list[int], bytearray]]:
        """Yield the lengths of rows, and their values, of which an answer has up to ``most`` bytes.

        Values are not sent if ``item``, the bytes of one, is 0.
        """
        while first < end:
            count = min(ROWS, end - first)
            lengths, raw = self._asked.ask(
                "runs", most, first=first, count=count, dtype=self._dtype, has_values=item > 0,
            )
            is_list = isinstance(lengths, list) and all(type(one) is int and one >= 0 for one in lengths)
            if not is_list or not 0 < len(lengths) <= count or sum(lengths) * item != len(raw):
                raise Damaged("its worker process sends other rows than asked for")
            yield lengths, raw
            first += len(lengths)
