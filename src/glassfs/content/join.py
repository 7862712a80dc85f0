"""Rows of many containers as one table, whose blocks consist of pieces of several containers.

Columns that containers have under the same name become one; where their types differ, numbers become floats and all
else text. Any thread.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from functools import partial
from io import BytesIO
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from glassfs.content.data import Data
from glassfs.content.episodes import POSITION, TEXT, TEXTS
from glassfs.content.model import Records
from glassfs.content.pieces import PIECE_BYTES, SIZE, ContainerPiece, apart, as_json, rejoined, values_of
from glassfs.content.summary import CONTAINER, EPISODES, FEATURES, INTEGER, NUMBER, UNSIGNED, Columns
from glassfs.content.table import Cells, Column, Episode, Recording, Table
from glassfs.lru import cached_if_short

BLOCK_BYTES = 4 * PIECE_BYTES
"""Limit of a block of the joined table, unless it is a single piece."""
FROM_JSON = 6
"""The memory in bytes that pieces take while they become a block, for each of their bytes."""
_NUMBERS = (INTEGER, UNSIGNED, NUMBER)


class Layout:
    """The columns of a joined table in the order in which containers bring them. They are only added, and widened.

    Containers choose their number and names: columns beyond ``most``, and beyond so many ``characters`` in all names,
    are left out.
    """

    most, characters = 512, 32 << 10

    def __init__(self, columns: Columns = ()) -> None:
        self.dtypes = {CONTAINER: TEXT, POSITION: INTEGER}
        self.is_cut = False
        """Whether columns are left out."""
        self._characters = 0
        self._last: tuple[Columns, int] = (), 0
        self._head: bytes | None = None
        self.add(columns)

    def add(self, columns: Columns) -> int:
        """Make space for rows with these columns; return their numbers as the bits of an integer."""
        last, numbers = self._last
        # Containers of one dataset have the same columns one after another.
        if columns is last or columns == last:
            return numbers
        places = {name: number for number, name in enumerate(self.dtypes)}
        numbers = 0
        for name, dtype in columns:
            known = self.dtypes.get(name)
            if known is None:
                if len(self.dtypes) >= self.most or self._characters + len(name) > self.characters:
                    self.is_cut = True
                    continue
                self._characters += len(name)
                places[name] = len(places)
            # The type of a column may only become wider: rows that were made before stay right, and are converted when
            # they are read.
            wide = dtype if known is None else _widened(known, dtype)
            if known != wide and name not in (CONTAINER, POSITION):
                self.dtypes[name] = wide
                self._head = None
            numbers |= 1 << places[name]
        self._last = columns, numbers
        return numbers

    @property
    def head(self) -> bytes:
        """The columns, as they are at the beginning of a block."""
        if self._head is None:
            self._head = as_json(self.dtypes)
        return self._head

    def shown(self, numbers: int) -> dict[str, JoinedColumn]:
        """Return the columns with these numbers, and those that every table has."""
        numbers |= 0b11
        columns = enumerate(self.dtypes.items())
        return {name: JoinedColumn(number, dtype) for number, (name, dtype) in columns if numbers >> number & 1}


class JoinedColumn(NamedTuple):
    """A column's number in the layout of its table, and its type."""

    number: int
    dtype: str


def _widened(one: str, other: str) -> str:
    """Return the type of a column that has values of two types."""
    if one == other:
        return one
    return NUMBER if one in _NUMBERS and other in _NUMBERS else TEXT


def _converted(values: Iterable[Any], dtype: str, wide: str) -> list[Any]:
    """Return values of one type as those of a wider one."""
    if wide == dtype:
        return list(values)
    to = float if wide == NUMBER else partial(json.dumps, ensure_ascii=False)
    return [None if value is None else value if isinstance(value, (str, bytes)) else to(value) for value in values]


def joined_block(parts: Iterable[ContainerPiece], head: bytes) -> bytes:
    """Return the rows of a block: its columns, their bounds, then each column as JSON and its long texts.

    Raises Damaged for an invalid piece.
    """
    dtypes = _dtypes(head)
    columns: dict[str, list[Any]] = {name: [] for name in dtypes}
    rows = 0
    for path, first, piece in parts:
        columns[CONTAINER] += [path] * piece.rows
        columns[POSITION] += range(first, first + piece.rows)
        # Long texts stay encoded if nothing has to be converted: a block is made of pieces without decoding them.
        is_same = all(dtypes.get(name, dtype) == dtype for name, dtype in piece.columns)
        for (name, dtype), values in zip(piece.columns, values_of(piece, is_decoded=not is_same), strict=True):
            column = columns.get(name)
            if column is not None and len(column) == rows:  # else another column of the piece has its name
                column += values if is_same else _converted(values, dtype, dtypes[name])
        rows += piece.rows
        for column in columns.values():
            if len(column) < rows:
                column += [None] * (rows - len(column))
    return _packed(columns.values(), head)


def block_without(block: Data, containers: AbstractSet[str]) -> bytes:
    """Return a block without the rows of some containers, which are given by their paths."""
    found = JoinedBlock(block.read(0, block.size))
    columns = [found.column(number) for number in range(len(found.dtypes))]
    kept = [number for number, path in enumerate(columns[0]) if path not in containers]
    return _packed([[column[number] for number in kept] for column in columns], found.head)


def _packed(columns: Iterable[Sequence[Any]], head: bytes) -> bytes:
    parts: list[bytes] = []
    dtypes = _dtypes(head)
    bounds = [_bounds_of(dtypes).size + SIZE.size + len(head)]
    for dtype, column in zip(dtypes.values(), columns, strict=True):
        long: list[bytes] = []
        text = as_json(apart(column, dtype, long))
        parts += [text, *long]
        bounds += [bounds[-1] + len(text), bounds[-1] + len(text) + sum(map(len, long))]
    return b"".join([SIZE.pack(len(head)), head, _bounds_of(dtypes).pack(*bounds), *parts])


@cached_if_short(64)
def _dtypes(head: bytes) -> Mapping[str, str]:
    found: dict[str, str] = json.loads(head)
    return found


def _bounds_of(dtypes: Mapping[str, str]) -> struct.Struct:
    return struct.Struct(f"<{2 * len(dtypes) + 1}Q")


class JoinedBlock:
    """The columns of a block. Of ``raw``, what is before its columns is read at once, and each column when needed."""

    def __init__(self, raw: bytes | Data) -> None:
        self._raw = raw
        (size,) = SIZE.unpack(self._read(0, SIZE.size))
        self.head = self._read(SIZE.size, size)
        self.dtypes = _dtypes(self.head)
        bounds = _bounds_of(self.dtypes)
        self.bounds = bounds.unpack(self._read(SIZE.size + size, bounds.size))

    def column(self, number: int) -> list[Any]:
        """Return a column."""
        start, middle, end = self.bounds[2 * number :][:3]
        raw = self._read(start, end - start)
        column: list[Any] = json.loads(raw[: middle - start])
        if middle == end:
            return column
        return rejoined(column, list(self.dtypes.values())[number], BytesIO(raw[middle - start :]), is_decoded=True)

    def shown(self, name: str, column: JoinedColumn) -> list[Any]:
        """Return a column of the table, whose type may be wider than here; other containers may have brought it."""
        dtype = self.dtypes.get(name)
        if dtype is None:
            return [None] * len(self.column(0))
        values = self.column(column.number)
        return values if dtype == column.dtype else _converted(values, dtype, column.dtype)

    def _read(self, start: int, size: int) -> bytes:
        return self._raw[start : start + size] if isinstance(self._raw, bytes) else self._raw.read(start, size)


def sizes_of(block: Data) -> list[int]:
    """Return two sizes in bytes of each column of a block: as JSON, and of its long texts."""
    return [end - start for start, end in pairwise(JoinedBlock(block).bounds)]


class JoinedRows(NamedTuple):
    """The contents of a joined table: ``block(i)`` returns the result of ``joined_block`` for block ``i`` of
    ``blocks``.

    ``sizes`` are those of each block, two for each column.
    """

    rows: int
    blocks: int
    block: Callable[[int], Data]
    sizes: Sequence[Sequence[int]]
    columns: Mapping[str, JoinedColumn]
    features: JoinedColumn | None = None
    """The column of the features of episodes, which the table does not show."""
    omitted: int = 0
    """Number of containers left out because not every user may read them."""
    error: str = ""
    """What else is missing, and why."""


class Opened(Protocol):
    """What opens the containers of a joined table: see the methods of ``Table``."""

    def recordings(self, container: str, is_kept: bool) -> AbstractContextManager[Callable[[int], Recording]]: ...

    def demand_readable(self, container: str) -> None: ...

    def found(self, container: str, name: bytes) -> bytes | None: ...

    def keep(self, container: str, name: bytes, value: bytes) -> None: ...


class Joined(Table):
    """The joined table called ``name``. ``find`` is called when its contents are first needed.

    ``directory_of`` returns, for the path of a container, the path from the folder to the directory that has a
    directory for each row, named by its position; None if the container itself is what the row describes. ``title`` is
    the folder's name if it has one. ``is_first`` of all tables over the folder is the one that a reader sees first;
    ``tables`` returns the names of all that have rows, the first of them first. ``opened`` opens a container of a table
    of episodes.
    """

    def __init__(
        self, name: str, find: Callable[[], JoinedRows], directory_of: Callable[[str], str | None] = lambda path: None,
        title: str = "", is_first: bool = True, tables: Callable[[], Sequence[str]] = tuple,
        opened: Opened | None = None,
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
        self._opened = opened
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

    @property
    def has_recordings(self) -> bool:
        return self._opened is not None and self.name == EPISODES

    def described(self) -> Iterator[Episode]:
        found = self._find()
        if found.features is None:
            return
        last: tuple[str, str] = "", ""
        for number in range(found.blocks):
            block = found.block(number)
            whole = JoinedBlock(block.read(0, block.size))
            columns = [whole.shown(name, column) for name, column in found.columns.items()]
            features = whole.shown(FEATURES, found.features)
            for text, *row in zip(features, *columns, strict=True):
                record = dict(zip(found.columns, row, strict=True))
                container = record[CONTAINER]
                if text is None:
                    text = last[1] if container == last[0] else ""
                last = container, text
                yield Episode(container, record[POSITION], record, text)

    def recordings(self, container: str, is_kept: bool) -> AbstractContextManager[Callable[[int], Recording]]:
        if self._opened is None:
            raise TypeError("the rows of this table are no episodes")
        return self._opened.recordings(container, is_kept)

    def demand_readable(self, container: str) -> None:
        if self._opened is not None:
            self._opened.demand_readable(container)

    def found(self, container: str, name: bytes) -> bytes | None:
        return self._opened.found(container, name) if self._opened is not None else None

    def keep(self, container: str, name: bytes, value: bytes) -> None:
        if self._opened is not None:
            self._opened.keep(container, name, value)

    def _columns(self) -> list[Column]:
        return [self._column(name, column) for name, column in self._find().columns.items()]

    def _column(self, name: str, column: JoinedColumn) -> Column:
        key, find = name.encode("utf-8", "replace"), self._find
        block, cost = partial(_column, name=name, column=column), partial(_cost, column=column)
        content: Records = (
            _JoinedRecords(find, key, block, cost) if column.dtype in (TEXT, TEXTS)
            else _JoinedCells(find, key, block, cost, column.dtype)
        )
        return Column(key, content, is_list=column.dtype == TEXTS)


class _JoinedRecords(Records):
    """The rows, or one column of them: what ``block`` and ``cost`` return for the rows found and a block's number."""

    def __init__(
        self, find: Callable[[], JoinedRows], key: bytes, block: Callable[[JoinedRows, int], list[Any]],
        cost: Callable[[JoinedRows, int], int],
    ) -> None:
        self.key = key
        self.type_name = ""
        self.block = lambda number: block(find(), number)
        self.cost = lambda number: cost(find(), number)
        self._find = find

    @property
    def blocks(self) -> int:  # type: ignore[override]
        return self._find().blocks


class _JoinedCells(Cells, _JoinedRecords):
    """The values of a column that is not text."""

    def __init__(
        self, find: Callable[[], JoinedRows], key: bytes, block: Callable[[JoinedRows, int], list[Any]],
        cost: Callable[[JoinedRows, int], int], dtype: str,
    ) -> None:
        _JoinedRecords.__init__(self, find, key, block, cost)
        self.dtype = dtype


def _cost(found: JoinedRows, block: int, column: JoinedColumn | None = None) -> int:
    """Return the memory in bytes that the rows of a block may take, or those of one column."""
    sizes = found.sizes[block]
    if column is not None:
        sizes = sizes[2 * column.number :][:2]
    # A byte of JSON may become an object of its own; one of long texts a character, on its way through two copies.
    return (4 << 10) + 16 * sum(sizes[::2]) + 6 * sum(sizes[1::2])


def _column(found: JoinedRows, block: int, name: str, column: JoinedColumn) -> list[Any]:
    return JoinedBlock(found.block(block)).shown(name, column)


def _rows(found: JoinedRows, block: int) -> list[dict[str, Any]]:
    data = found.block(block)
    whole = JoinedBlock(data.read(0, data.size))
    columns = [whole.shown(name, column) for name, column in found.columns.items()]
    return [dict(zip(found.columns, row, strict=True)) for row in zip(*columns, strict=True)]
