"""The episodes of many containers as one table.

Episodes of every container are reduced to the columns below. A piece, about a thousand rows of one container, is bytes
that can be stored anywhere; a block of the joined table consists of pieces of several containers. Other columns of a
container are dropped; values that are not of a column's type become unknown. Any thread.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from io import BytesIO
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content.data import Data
from glassfs.content.model import Records
from glassfs.content.table import Cells, Column, Table
from glassfs.errors import Damaged

NAME = b"episodes"
CONTAINER, POSITION = "container", "position"
TEXT, TEXTS = "", "list"
COLUMNS = {
    CONTAINER: TEXT,
    POSITION: "<i8",
    "episode_id": "<u8",
    "episode_name": TEXT,
    "embodiment": TEXT,
    "language_instruction": TEXT,
    "fps": "<f8",
    "success": "|b1",
    "total_reward": "<f8",
    "num_frames": "<i8",
    "state_dim": "<i8",
    "action_dim": "<i8",
    "channels": TEXTS,
    "cameras": TEXTS,
}
"""The dtypes of the columns; columns of text have none."""
RECORD_COLUMNS = tuple(name for name in COLUMNS if name not in (CONTAINER, POSITION))
"""The columns that come from the records of a container."""
LAYOUT = 4
"""Raise this when the same containers give other pieces than before."""
PIECE_ROWS = 1024
PIECE_BYTES = 256 << 10
"""A piece ends with the block of its table in which it reaches this size."""
BLOCK_BYTES = 4 * PIECE_BYTES
"""Limit of a block of the joined table, unless it is a single piece."""
LONGEST = 64 << 10
"""Limit of characters in a text, and in a list of texts in all."""
LONG = 256
"""Longer texts, in characters, are stored as UTF-8 behind the JSON: writing and parsing escapes takes much longer."""
LARGEST_INTEGER = 1 << 1000
"""Limit of integers that become floats."""
AS_JSON = 24
"""The memory in bytes that rows take while they become a piece, for each character of their texts."""
FROM_JSON = 6
"""The memory in bytes that pieces take while they become a block, for each of their bytes."""
BLOCK_COST, ROWS_COST, LONG_COST = 4 << 10, 16, 6
"""The memory in bytes that the rows of a block may take: for each block, for each byte of JSON, and of long texts."""
SIZES = 2 * len(COLUMNS)
"""How many sizes a block has: of each column as JSON, and of its long texts."""
_NUMBERS = {name: number for number, name in enumerate(COLUMNS)}
_RANGES = {"<i8": (-(1 << 63), (1 << 63) - 1), "<u8": (0, (1 << 64) - 1)}
_BOUNDS = struct.Struct(f"<{SIZES + 1}Q")
_PIECE_HEAD = struct.Struct("<Q")


class Piece(NamedTuple):
    """Consecutive rows of one container, as bytes: the size of the columns as JSON, these columns, and long texts.

    The first row is that of block ``block`` of the container's own table.
    """

    rows: int
    data: bytes
    block: int = 0


class ContainerPiece(NamedTuple):
    """A piece of the container at ``path``, whose first row has the number ``first``."""

    path: str
    first: int
    piece: Piece


def pieces_of(table: Table, cache: BlockCache, first: int = 0) -> Iterator[Piece]:
    """Yield a table in pieces, from its block ``first`` on; at least one, even without rows.

    Memory is reserved from ``cache`` meanwhile. Raises Damaged if all rows are wanted and their number is not that of
    the table.
    """
    records = table.records
    blocks = records.blocks if records else 0
    columns: list[list[Any]] = [[] for _ in RECORD_COLUMNS]
    begin, size, total = first, 0, 0
    for block in range(first, blocks):
        work.check()
        cost = records.cost(block) if records else 0
        with cache.measuring(cost):
            for record in records.block(block) if records else ():
                total += 1
                for name, column in zip(RECORD_COLUMNS, columns, strict=True):
                    value = _value(record, name)
                    column.append(value)
                    size += _weight(value)
        if len(columns[0]) >= PIECE_ROWS or size >= PIECE_BYTES or block == blocks - 1:
            with cache.measuring(AS_JSON * size):
                piece = piece_of(columns, begin)
            columns, begin, size = [[] for _ in RECORD_COLUMNS], block + 1, 0
            yield piece
    if first >= blocks:
        yield piece_of(columns, begin)
    if records and not first and total != table.rows:
        raise Damaged(f"has {total} rows, but its table should have {table.rows}")


def piece_of(columns: Sequence[Sequence[Any]], block: int = 0) -> Piece:
    """Return rows as a piece, given their values in the columns of ``RECORD_COLUMNS``."""
    long: list[bytes] = []
    shown = [_apart(column, name, long) for name, column in zip(RECORD_COLUMNS, columns, strict=True)]
    text = _as_json(shown)
    return Piece(len(columns[0]), b"".join([_PIECE_HEAD.pack(len(text)), text, *long]), block)


def values_of(piece: Piece, is_decoded: bool = True) -> list[list[Any]]:
    """Return the columns of a piece, those of ``RECORD_COLUMNS``; long texts as UTF-8 unless ``is_decoded``.

    Raises Damaged for an invalid piece.
    """
    (size,) = _PIECE_HEAD.unpack_from(piece.data)
    end = _PIECE_HEAD.size + size
    columns = json.loads(piece.data[_PIECE_HEAD.size : end])
    if len(columns) != len(RECORD_COLUMNS) or any(len(column) != piece.rows for column in columns):
        raise Damaged("has other rows than were counted")
    if end == len(piece.data):
        return list(columns)
    long = BytesIO(piece.data[end:])
    return [_rejoined(column, name, long, is_decoded) for name, column in zip(RECORD_COLUMNS, columns, strict=True)]


def _apart(column: Sequence[Any], name: str, long: list[bytes]) -> Sequence[Any]:
    """Return a column with its size in bytes in place of each long text, which is appended to ``long`` as UTF-8.

    Long texts may be UTF-8 already.
    """

    def shortened(text: Any) -> Any:
        if text is None or len(text) <= LONG:
            return text
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        long.append(raw)
        return len(raw)

    if COLUMNS[name] == TEXT:
        return list(map(shortened, column))
    if COLUMNS[name] == TEXTS:
        return [texts and list(map(shortened, texts)) for texts in column]
    return column


def _rejoined(column: list[Any], name: str, long: BytesIO, is_decoded: bool) -> list[Any]:
    """Reverse ``_apart``."""

    def whole(text: Any) -> Any:
        if not isinstance(text, int):
            return text
        raw = long.read(text)
        if len(raw) != text:
            raise Damaged("ends within a text")
        return raw.decode("utf-8", "surrogatepass") if is_decoded else raw

    if COLUMNS[name] == TEXT:
        return list(map(whole, column))
    if COLUMNS[name] == TEXTS:
        return [texts and list(map(whole, texts)) for texts in column]
    return column


def _as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _value(record: Any, name: str) -> Any:
    """Return a value of a record, None if it has none of the column's type."""
    if not isinstance(record, dict):
        return None
    value = record.get(name)
    if name == "episode_name" and value is None and isinstance(record.get("episode_id"), str):
        value = record["episode_id"]
    dtype = COLUMNS[name]
    if dtype == TEXT:
        return value[:LONGEST] if isinstance(value, str) else None
    if dtype == TEXTS:
        is_right = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
        return _within_limit(value) if is_right and value is not None else None
    if dtype == "|b1" or isinstance(value, bool):
        return value if dtype == "|b1" and isinstance(value, bool) else None
    if dtype in _RANGES:
        least, most = _RANGES[dtype]
        return value if isinstance(value, int) and least <= value <= most else None
    if isinstance(value, int):
        return float(value) if abs(value) < LARGEST_INTEGER else None
    return value if isinstance(value, float) else None


def _within_limit(texts: Sequence[str]) -> list[str]:
    """Return as many of the texts as fit the limit."""
    characters = accumulate(len(text) + 1 for text in texts)
    return [text for text, end in zip(texts, characters, strict=True) if end <= LONGEST]


def _weight(value: Any) -> int:
    """Return about how many bytes a value adds to a piece."""
    if isinstance(value, list):
        return sum(len(text) + 1 for text in value)
    return len(value) if isinstance(value, str) else 8


def joined_block(parts: Iterable[ContainerPiece]) -> bytes:
    """Return the rows of a block: the bounds of the columns, then each column as JSON and its long texts.

    Raises Damaged for an invalid piece.
    """
    columns: list[list[Any]] = [[] for _ in COLUMNS]
    for path, first, piece in parts:
        columns[0] += [path] * piece.rows
        columns[1] += range(first, first + piece.rows)
        for column, values in zip(columns[2:], values_of(piece, is_decoded=False), strict=True):
            column += values
    return _packed(columns)


def block_without(block: Data, containers: AbstractSet[str]) -> bytes:
    """Return a block without the rows of some containers, which are given by their paths."""
    columns = _unpacked(block)
    kept = [number for number, path in enumerate(columns[0]) if path not in containers]
    return _packed([[column[number] for number in kept] for column in columns])


def _packed(columns: Sequence[Sequence[Any]]) -> bytes:
    parts: list[bytes] = []
    bounds = [_BOUNDS.size]
    for name, column in zip(COLUMNS, columns, strict=True):
        long: list[bytes] = []
        text = _as_json(_apart(column, name, long))
        parts += [text, *long]
        bounds += [bounds[-1] + len(text), bounds[-1] + len(text) + sum(map(len, long))]
    return _BOUNDS.pack(*bounds) + b"".join(parts)


def _unpacked(block: Data) -> list[list[Any]]:
    whole = block.read(0, block.size)
    bounds = _BOUNDS.unpack_from(whole)
    return [_column_of(whole, name, *bounds[2 * number :][:3]) for number, name in enumerate(COLUMNS)]


def _column_of(raw: bytes, name: str, start: int, middle: int, end: int) -> list[Any]:
    """Return the column whose JSON is at ``[start, middle)`` in ``raw``, and whose long texts follow up to ``end``."""
    column: list[Any] = json.loads(raw[start:middle])
    return column if middle == end else _rejoined(column, name, BytesIO(raw[middle:end]), is_decoded=True)


def sizes_of(block: Data) -> list[int]:
    """Return the ``SIZES`` sizes of a block in bytes."""
    return [end - start for start, end in pairwise(_BOUNDS.unpack(block.read(0, _BOUNDS.size)))]


class JoinedRows(NamedTuple):
    """The contents of a joined table: ``block(i)`` returns the result of ``joined_block`` for block ``i`` of
    ``blocks``.

    ``sizes`` are those of all blocks, ``SIZES`` of each, one block after another.
    """

    rows: int
    blocks: int
    block: Callable[[int], Data]
    sizes: Sequence[int]
    omitted: int = 0
    """Number of containers left out because not every user may read them."""
    error: str = ""
    """What else is missing, and why."""


class Joined(Table):
    """A table of the episodes in all containers below a folder. ``find`` is called when its contents are first needed.

    ``directory_of`` returns, for the path of a container, the path from the folder to the directory that has a
    directory for each episode, named by its position; None if the container itself is one episode. ``title`` is the
    folder's name if it has one.
    """

    def __init__(
        self, find: Callable[[], JoinedRows], directory_of: Callable[[str], str | None], title: str = "",
    ) -> None:
        self.key = NAME
        self.title = title
        self.columns = self._columns
        self.records = _JoinedRecords(find)
        self.directory = b""
        self.width: int | None = len(COLUMNS)
        self._find = find
        self._directory_of = directory_of

    @property
    def shared_width(self) -> float:  # type: ignore[override]
        found = self._find()
        return sum(found.sizes) / max(1, found.rows)

    @property
    def rows(self) -> int:  # type: ignore[override]
        return self._find().rows

    def attributes(self) -> dict[str, str]:
        found = self._find()
        facts = {"omitted": str(found.omitted), "error": found.error}
        return {name: text for name, text in facts.items() if text and text != "0"}

    def path_of(self, record: dict[str, Any]) -> str:
        """Return the path from the folder to the directory of a row's episode, as trees show it."""
        container = record[CONTAINER]
        directory = self._directory_of(container)
        return f"{container}/{directory}/{record[POSITION]}" if directory else str(container)

    def _columns(self) -> list[Column]:
        return [self._column(name.encode(), dtype) for name, dtype in COLUMNS.items()]

    def _column(self, name: bytes, dtype: str) -> Column:
        content: Records = (
            _JoinedRecords(self._find, name.decode()) if dtype in (TEXT, TEXTS)
            else _JoinedCells(self._find, name.decode(), dtype)
        )
        return Column(name, content, is_list=dtype == TEXTS)


class _JoinedRecords(Records):
    """The rows, or one column of them."""

    def __init__(self, find: Callable[[], JoinedRows], name: str | None = None) -> None:
        self.key = NAME if name is None else name.encode()
        self.type_name = ""
        self.block = partial(_rows, find) if name is None else partial(_column, find, name)
        self.cost = partial(_cost, find, name)
        self._find = find

    @property
    def blocks(self) -> int:  # type: ignore[override]
        return self._find().blocks


class _JoinedCells(Cells, _JoinedRecords):
    """The values of a column that is not text."""

    def __init__(self, find: Callable[[], JoinedRows], name: str, dtype: str) -> None:
        _JoinedRecords.__init__(self, find, name)
        self.dtype = dtype


def _cost(find: Callable[[], JoinedRows], name: str | None, block: int) -> int:
    """Return the memory in bytes that the rows of a block may take, or those of one column."""
    first, end = block * SIZES, (block + 1) * SIZES
    if name is not None:
        first += 2 * _NUMBERS[name]
        end = first + 2
    sizes = find().sizes[first:end]
    return BLOCK_COST + ROWS_COST * sum(sizes[::2]) + LONG_COST * sum(sizes[1::2])


def _column(find: Callable[[], JoinedRows], name: str, block: int) -> list[Any]:
    data = find().block(block)
    start, middle, end = _BOUNDS.unpack(data.read(0, _BOUNDS.size))[2 * _NUMBERS[name] :][:3]
    return _column_of(data.read(start, end - start), name, 0, middle - start, end - start)


def _rows(find: Callable[[], JoinedRows], block: int) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*_unpacked(find().block(block)), strict=True)]
