"""Rows of many containers as one table: what each contributes, in pieces, and the table made of them. Any thread.

A *joined table* has the rows of all containers below a folder that contribute to it, under a name that formats agree
on: ``episodes``, ``trees``, ``tables``, or any other. Columns may differ between containers: the table has all of them.
Those under one name become one; where their types differ, numbers become floats, all else text.

A *piece* has about a thousand rows of one container, as bytes that can be stored. Blocks of the table have several.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content.data import Data, Memory
from glassfs.content.episodes import EPISODE_COLUMNS, EPISODES_KEY, LONGEST, POSITION, TEXT, TEXTS, columns_of
from glassfs.content.model import Records
from glassfs.content.table import Column, Episode, Selection, Table
from glassfs.errors import Damaged

INTEGER, UNSIGNED, NUMBER, BOOLEAN = "<i8", "<u8", "<f8", "|b1"
"""The types of columns, beside TEXT and TEXTS."""
Columns: TypeAlias = tuple[tuple[str, str], ...]
"""Names and types of columns."""
CONTAINER = "container"
"""The first column of each joined table, the container's path. The second is POSITION, the row's number there."""
EPISODES = EPISODES_KEY.decode()
ARRAYS = "arrays"
"""The joined table of arrays, which is read by itself: finding all arrays may take much longer than all other rows."""
RECORD_COLUMNS: Columns = tuple((name, dtype) for name, dtype in EPISODE_COLUMNS.items() if name != POSITION)
"""The columns of episodes, from whatever format."""
FEATURES = "features"
EPISODE_ROWS: Columns = (*RECORD_COLUMNS, (FEATURES, TEXT))
"""The columns of episodes in pieces: a joined table does not show the last one. In a block of rows, it is None if it is
the same as in the previous row."""
COLUMNS: Mapping[str, str] = {CONTAINER: TEXT, POSITION: INTEGER, **dict(RECORD_COLUMNS)}
"""All columns of the table of episodes."""
_RANGES = {INTEGER: (-(1 << 63), (1 << 63) - 1), UNSIGNED: (0, (1 << 64) - 1)}


class Summary(NamedTuple):
    """Rows for a joined table: the ``records`` of a table, reduced to ``columns``.

    Values that are not of a column's type become unknown; so does what a record lacks. If each row has a directory, the
    table names the directory that has them (``Table.directory``).
    """

    columns: Columns
    table: Table

    def block(self, number: int) -> Sequence[Any]:
        """Return the records of a block, those of episodes with their features, if these have a column."""
        records = self.table.records.block(number) if self.table.records else ()
        if self.table.features is None or (FEATURES, TEXT) not in self.columns:
            return records
        found, last = [], None
        for record, text in zip(records, self.table.features(number), strict=True):
            found.append({**record, FEATURES: None if text == last else text})
            last = text
        return found


def summary_of(name: str, columns: Columns, rows: int, records: Records) -> Summary:
    """Return rows for a joined table that are no table yet: ``records`` of ``rows`` objects with these columns."""
    return Summary(columns, Table(name.encode(), rows, partial(columns_of, columns, records, value_of), records))


def value_of(record: Any, name: str, dtype: str) -> Any:
    """Return a value of a record, None if it has none of the column's type."""
    if not isinstance(record, dict):
        return None
    value = record.get(name)
    # Texts as ids would make the column of ids text for all containers.
    if name == "episode_name" and value is None and isinstance(record.get("episode_id"), str):
        value = record["episode_id"]
    if dtype == TEXT:
        return value[:LONGEST] if isinstance(value, str) else None
    if dtype == TEXTS:
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            return None
        characters = accumulate(len(text) + 1 for text in value)
        return [text for text, end in zip(value, characters, strict=True) if end <= LONGEST]  # those that fit
    if dtype == BOOLEAN or isinstance(value, bool):
        return value if dtype == BOOLEAN and isinstance(value, bool) else None
    if dtype in _RANGES:
        least, most = _RANGES[dtype]
        return value if isinstance(value, int) and least <= value <= most else None
    if isinstance(value, int):
        return float(value) if abs(value) < 1 << 1000 else None  # which fits into a float
    return value if isinstance(value, float) else None


LAYOUT = 9
"""Raise this when the same containers give other pieces than before."""
PIECE_ROWS = 1024
PIECE_BYTES = 256 << 10
"""A piece ends with the block of its table in which it reaches this size."""
AS_JSON = 24
"""The memory in bytes that rows take while they become a piece, for each character of their texts."""


class Piece(NamedTuple):
    """Consecutive rows of one container: ``data`` is a JSON list of the values of each column.

    The first row is that of block ``block`` of the container's own table.
    """

    rows: int
    data: bytes
    columns: Columns
    block: int = 0


class ContainerPiece(NamedTuple):
    """A piece of the container at ``path``, whose first row has the number ``first``."""

    path: str
    first: int
    piece: Piece


def pieces_of(summary: Summary, cache: BlockCache, first: int = 0) -> Iterator[Piece]:
    """Yield the rows of a container in pieces, from block ``first`` of its table on; at least one, even without rows.

    Memory is reserved from ``cache`` meanwhile. Raises Damaged if all rows are wanted and their number is not that of
    the table.
    """
    wanted, table = summary
    records = table.records
    blocks = records.blocks if records else 0
    columns: list[list[Any]] = [[] for _ in wanted]
    begin, size, rows, total = first, 0, 0, 0
    for block in range(first, blocks):
        work.check()
        cost = records.cost(block) if records else 0
        with cache.measuring(cost):
            for record in summary.block(block):
                rows += 1
                for (name, dtype), column in zip(wanted, columns, strict=True):
                    value = value_of(record, name, dtype)
                    column.append(value)
                    size += _weight(value)
        # A piece ends with a block of the container's table, so that a later opening can go on from that block.
        if rows >= PIECE_ROWS or size >= PIECE_BYTES or block == blocks - 1:
            with cache.measuring(AS_JSON * size):
                piece = piece_of(columns, wanted, begin, rows)
            total += rows
            columns, begin, size, rows = [[] for _ in wanted], block + 1, 0, 0
            yield piece
    if first >= blocks:
        yield piece_of(columns, wanted, begin, rows)
    if records and not first and total != table.rows:
        raise Damaged(f"has {total} rows, but its table should have {table.rows}")


def piece_of(values: Sequence[Sequence[Any]], columns: Columns, block: int = 0, rows: int | None = None) -> Piece:
    """Return rows as a piece, given their values by column."""
    return Piece(len(values[0]) if rows is None else rows, as_json(values), columns, block)


def values_of(piece: Piece) -> list[list[Any]]:
    """Return the columns of a piece. Raises Damaged for an invalid piece."""
    columns: list[list[Any]] = json.loads(piece.data)
    if len(columns) != len(piece.columns) or any(len(column) != piece.rows for column in columns):
        raise Damaged("has other rows than were counted")
    return columns


def rows_in(placed: ContainerPiece) -> Iterator[tuple[Any, ...]]:
    """Yield path, number and values of each row."""
    for number, values in enumerate(zip(*values_of(placed.piece), strict=True), placed.first):
        yield (placed.path, number, *values)


def records(placed: ContainerPiece) -> Iterator[dict[str, Any]]:
    """Yield each row by the names of its columns in a joined table."""
    names = CONTAINER, POSITION, *(name for name, _ in placed.piece.columns)
    return (dict(zip(names, row, strict=True)) for row in rows_in(placed))


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _weight(value: Any) -> int:
    """Return about how many bytes a value adds to a piece."""
    if isinstance(value, list):
        return sum(len(text) + 1 for text in value)
    return len(value) if isinstance(value, str) else 8


BLOCK_BYTES = 4 * PIECE_BYTES
"""Limit of a block of the joined table, unless it is a single piece."""
FROM_JSON = 16
"""The memory in bytes that pieces or columns take as objects, for each byte of their JSON."""
_SIZE = struct.Struct("<Q")
_NUMBERS = (INTEGER, UNSIGNED, NUMBER)


class Layout:
    """The columns of a joined table in the order in which containers bring them. They are only added, and widened.

    Containers choose their number and names: columns beyond ``most``, and beyond so many ``characters`` in all names,
    are left out.
    """

    most, characters = 512, 32 << 10

    def __init__(self, columns: Columns) -> None:
        self.dtypes = {CONTAINER: TEXT, POSITION: INTEGER}
        self.is_cut = False
        """Whether columns are left out."""
        self._characters = 0
        self.add(columns)

    def add(self, columns: Columns) -> None:
        """Make space for rows with these columns."""
        for name, dtype in columns:
            known = self.dtypes.get(name)
            if known is None:
                if len(self.dtypes) >= self.most or self._characters + len(name) > self.characters:
                    self.is_cut = True
                    continue
                self._characters += len(name)
                self.dtypes[name] = dtype
            elif known != dtype and name not in (CONTAINER, POSITION):
                # The type of a column may only become wider: rows that were made before stay right, and are converted
                # when they are read.
                self.dtypes[name] = NUMBER if known in _NUMBERS and dtype in _NUMBERS else TEXT

    @property
    def columns(self) -> Columns:
        """The columns so far, as they are at the beginning of a block."""
        return tuple(self.dtypes.items())

    def shown(self) -> dict[str, JoinedColumn]:
        return {name: JoinedColumn(number, dtype) for number, (name, dtype) in enumerate(self.dtypes.items())}


class JoinedColumn(NamedTuple):
    """A column's number in the layout of its table, and its type."""

    number: int
    dtype: str


def _converted(values: list[Any], dtype: str, wide: str) -> list[Any]:
    """Return values of one type as those of a wider one."""
    if wide == dtype:
        return values
    to = float if wide == NUMBER else partial(json.dumps, ensure_ascii=False)
    return [value if value is None or isinstance(value, str) else to(value) for value in values]


def joined_block(parts: Iterable[ContainerPiece], columns: Columns) -> bytes:
    """Return the rows of a block: its columns and their sizes in bytes, then each column as JSON.

    Raises Damaged for an invalid piece.
    """
    dtypes = dict(columns)
    found: dict[str, list[Any]] = {name: [] for name in dtypes}
    rows = 0
    for path, first, piece in parts:
        found[CONTAINER] += [path] * piece.rows
        found[POSITION] += range(first, first + piece.rows)
        for (name, dtype), values in zip(piece.columns, values_of(piece), strict=True):
            column = found.get(name)
            if column is not None and len(column) == rows:  # else another column of the piece has its name
                column += _converted(values, dtype, dtypes[name])
        rows += piece.rows
        for column in found.values():
            column += [None] * (rows - len(column))
    texts = [as_json(column) for column in found.values()]
    head = as_json([rows, columns, [len(text) for text in texts]])
    return b"".join([_SIZE.pack(len(head)), head, *texts])


class JoinedBlock:
    """The columns of a block: what is before them is read at once, and each column when needed.

    ``sizes`` are those of the columns in bytes.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        (size,) = _SIZE.unpack(data.read(0, _SIZE.size))
        self._rows, self._columns, self.sizes = json.loads(data.read(_SIZE.size, size))
        self._starts = [*accumulate(self.sizes, initial=_SIZE.size + size)]

    def column(self, column: JoinedColumn) -> list[Any]:
        """Return a column of the table, whose type may be wider than here; other containers may have brought it."""
        number, wide = column
        if number >= len(self._columns):
            return [None] * int(self._rows)
        values = json.loads(self._data.read(self._starts[number], self.sizes[number]))
        return _converted(values, self._columns[number][1], wide)


class JoinedRows(NamedTuple):
    """The contents of a joined table: ``blocks`` are results of ``joined_block``.

    ``counts`` are the numbers of rows of each block, and ``sizes`` those of bytes of each of its columns.
    """

    blocks: Sequence[Data]
    counts: Sequence[int]
    sizes: Sequence[Sequence[int]]
    columns: Mapping[str, JoinedColumn]
    features: JoinedColumn | None = None
    """The column of the features of episodes, which the table does not show."""
    omitted: int = 0
    """Number of containers left out because not every user may read them."""
    error: str = ""
    """What else is missing, and why."""

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def read(self, number: int, columns: Iterable[JoinedColumn]) -> list[list[Any]]:
        """Return several columns of a block, which is read at once."""
        data = self.blocks[number]
        whole = JoinedBlock(Memory(data.read(0, data.size)))
        return [whole.column(column) for column in columns]


class Joined(Table):
    """The joined table called ``name``. ``find`` is called when its contents are first needed.

    ``directory_of`` returns, for the path of a container, the path from the folder to the directory that has a
    directory for each row, named by its position; None if the container itself is what the row describes. ``title`` is
    the folder's name if it has one. ``is_first`` of all tables over the folder is the one that a reader sees first;
    ``tables`` returns the names of all that have rows, the first of them first.
    """

    def __init__(
        self, name: str, find: Callable[[], JoinedRows], directory_of: Callable[[str], str | None] = lambda path: None,
        title: str = "", is_first: bool = True, tables: Callable[[], Sequence[str]] = tuple,
        selection: Selection | None = None,
    ) -> None:
        self.key = name.encode()
        self.name = name
        self.title = title
        self.is_first = is_first
        self.tables = tables
        self.columns = self._columns
        self.records = _JoinedRecords(find, self.key, _rows, _cost)
        self.directory = b""
        self.width: int | None = None
        self.recording = self.features = None
        self.selection = selection
        self._find = find
        self._directory_of = directory_of

    @property
    def shared_width(self) -> float:  # type: ignore[override]
        found = self._find()
        return sum(map(sum, found.sizes)) / max(1, found.rows)

    @property
    def rows(self) -> int:  # type: ignore[override]
        return self._find().rows

    def attributes(self) -> dict[str, str]:
        found = self._find()
        facts = {"omitted": str(found.omitted), "error": found.error}
        return {name: text for name, text in facts.items() if text and text != "0"}

    def path_of(self, record: dict[str, Any]) -> str:
        """Return the path from the folder to the directory of what a row describes, as trees show it."""
        container = record[CONTAINER]
        directory = self._directory_of(container)
        return f"{container}/{directory}/{record[POSITION]}" if directory else str(container)

    def described(self) -> Iterator[Episode]:
        found = self._find()
        if found.features is None:
            return
        last: tuple[str, str] = "", ""
        for number in range(len(found.blocks)):
            features, *columns = found.read(number, (found.features, *found.columns.values()))
            for text, *row in zip(features, *columns, strict=True):
                record = dict(zip(found.columns, row, strict=True))
                container = record[CONTAINER]
                if text is None:
                    text = last[1] if container == last[0] else ""
                last = container, text
                yield Episode(container, record[POSITION], record, text)

    def _columns(self) -> list[Column]:
        return [self._column(name, column) for name, column in self._find().columns.items()]

    def _column(self, name: str, column: JoinedColumn) -> Column:
        key, find = name.encode("utf-8", "replace"), self._find
        block, cost = partial(_column, column=column), partial(_cost, column=column)
        is_list = column.dtype == TEXTS
        return Column(key, _JoinedRecords(find, key, block, cost, TEXT if is_list else column.dtype), is_list)


class _JoinedRecords(Records):
    """The rows, or one column of them: what ``block`` and ``cost`` return for the rows found and a block's number."""

    def __init__(
        self, find: Callable[[], JoinedRows], key: bytes, block: Callable[[JoinedRows, int], list[Any]],
        cost: Callable[[JoinedRows, int], int], dtype: str = TEXT,
    ) -> None:
        self.key = key
        self.type_name = ""
        self.dtype = dtype
        self.block = lambda number: block(find(), number)
        self.cost = lambda number: cost(find(), number)
        self._find = find

    @property
    def blocks(self) -> int:  # type: ignore[override]
        return len(self._find().blocks)


def _cost(found: JoinedRows, block: int, column: JoinedColumn | None = None) -> int:
    """Return the memory in bytes that the rows of a block may take, or those of one column."""
    sizes, rows = found.sizes[block], found.counts[block]
    cost = 4 << 10
    for number, dtype in found.columns.values() if column is None else (column,):
        # A byte of JSON may become an object of its own; one of a text a character, on its way through some copies.
        size = sizes[number] if number < len(sizes) else 0
        cost += 64 * rows + 6 * size if dtype == TEXT else FROM_JSON * size
    return cost


def _column(found: JoinedRows, block: int, column: JoinedColumn) -> list[Any]:
    return JoinedBlock(found.blocks[block]).column(column)


def _rows(found: JoinedRows, block: int) -> list[dict[str, Any]]:
    columns = found.read(block, found.columns.values())
    return [dict(zip(found.columns, row, strict=True)) for row in zip(*columns, strict=True)]
