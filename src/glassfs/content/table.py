"""Tables: columns of one length, such as IDV columns, tables of tskit and per-step vectors; episodes, made of them.

A table refers to contents that exist by themselves as well. It adds their names, their order and that row i of one
belongs to row i of the others. Cheap to make; any thread.

``ColumnBlocks`` are rows whose values stand side by side in a container: a block is read or decoded once for all
columns, and kept by the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from glassfs.cache import BlockCache
from glassfs.content.blocks import Rendered
from glassfs.content.data import Data, Parted, Regular
from glassfs.content.model import Array, Content, Member, RaggedText, Records
from glassfs.errors import LASTING, Damaged, TooLarge
from glassfs.sizes import PIECE

WIDEST = 10_000
"""Limit of columns in a table: once they are asked for, all are in memory, 1 to 3 KiB each."""


@dataclass
class Ragged(Content):
    """Runs of numbers by row: row i is ``values[offsets[i]:offsets[i + 1]]``, counted in items of ``dtype``.

    ``offsets`` holds ``rows + 1`` integers of ``offset_dtype``. Readers raise Damaged if they do not rise from 0 to the
    number of values. A run of ``|V1`` is opaque bytes.
    """

    values: Data
    dtype: str
    offsets: Data
    offset_dtype: str
    rows: int


@dataclass
class Documents(Content):
    """A column that is a content by itself, and each row of which is a JSON document too; an empty row is ``{}``.

    ``rows`` is called when needed, may raise Damaged, and returns None if the rows turn out not to be documents.
    """

    rows: Callable[[], RaggedText | None]


ColumnContent: TypeAlias = "Array | RaggedText | Ragged | Records"


class Column(NamedTuple):
    """A name and the values under it.

    An array of n rows gives a value for each row if it has one dimension, else a vector. For records, ``is_list`` says
    that each row is None or a list of values, rather than None or a value; for an array, that vectors stay lists in
    views that make several columns of short ones, and lists of lists where there are more axes. ``slots`` returns names
    of the elements of vectors, any number of any texts, and is called when they are needed. Times of a ``zone`` are
    those of UTC, and programs show them in this time zone.
    """

    name: bytes
    content: ColumnContent
    is_list: bool = False
    slots: Callable[[], Sequence[str]] | None = None
    zone: str = ""


class Selection(NamedTuple):
    """What a user selected of the sources, for views.

    ``text`` is for people, in several lines. Of the features of LeRobot some are ``renamed``, by their names, and those
    that are ``dropped`` are left out.
    """

    text: str
    renamed: Mapping[str, str] = MappingProxyType({})
    dropped: frozenset[str] = frozenset()


@dataclass
class Table(Content):
    """``rows`` rows of columns. ``columns`` is called when they are first needed, and may raise Damaged.

    ``width`` is the number of columns, if it is known before: a table that is too wide or has none is not shown
    (``demand_columns``), and its ``columns`` may be incomplete. If each row describes a thing, ``records`` has the rows
    as objects, and ``directory`` names the directory that has a subdirectory for each, named by its number.
    ``shared_width`` is the average size in bytes of a row in cached blocks from which all columns are made; 0 if each
    column has blocks of its own.

    If each row is an episode, ``recording(number)`` returns it, given ``number_of`` its record, and ``features(block)``
    the features of the rows in a block of ``records`` (``content.episodes``), both when needed. They may raise Damaged.
    ``selection`` is what a user selected, if rows are only some of the episodes.
    """

    rows: int
    columns: Callable[[], Sequence[Column]]
    records: Records | None = None
    directory: bytes = b""
    width: int | None = None
    shared_width: float = 0
    recording: Callable[[int], Recording] | None = None
    features: Callable[[int], Sequence[str]] | None = None
    selection: Selection | None = None

    @property
    def has_recordings(self) -> bool:
        """Whether ``described`` and ``recordings`` give something."""
        return self.recording is not None and self.features is not None

    def described(self) -> Iterator[Episode]:
        """Yield what is known of each episode. Takes a pass over the records."""
        row = 0
        for block in range(self.records.blocks if self.records and self.features else 0):
            records = self.records.block(block) if self.records else ()
            found = self.features(block) if self.features else ()
            for record, features in zip(records, found, strict=True):
                yield Episode("", number_of(record, row), record, features)
                row += 1

    def recordings(self, container: str, is_kept: bool) -> AbstractContextManager[Callable[[int], Recording]]:
        """Open a container of the table: provide what returns its recording with a number.

        If ``is_kept``, contents of the recording can be read after the end of the ``with``, as long as the container is
        not replaced. Raises Changed if it was replaced already.
        """
        if self.recording is None:
            raise TypeError("the rows of this table are no episodes")
        return nullcontext(self.recording)

    def demand_readable(self, container: str) -> None:
        """Raise Changed if contents of a container must not be read any more."""

    def found(self, container: str, name: bytes) -> bytes | None:
        """Return what ``keep`` stored under a name for this version of a container; the caller must check it."""
        return None

    def keep(self, container: str, name: bytes, value: bytes) -> None:
        """Store, if possible, what took long to find in a container, for other processes and later."""


def number_of(record: Mapping[str, Any], row: int) -> int:
    """Return the number of an episode in its container: what its record says, else that of the row."""
    number = record.get("position")
    return row if number is None else number


class Episode(NamedTuple):
    """What a table knows of an episode: its container's path, empty in the container's own table; its number there; its
    row; and its features, empty if unknown.
    """

    container: str
    number: int
    record: dict[str, Any]
    features: str


@dataclass
class Recording(Content):
    """An episode, for views that show it as a whole. Its parts are contents of their own as well.

    ``record`` returns what is known of the episode, JSON values by name. ``steps`` has a row for each recorded step.
    ``cameras`` returns videos, and arrays that views may take for videos, named by the path from the episode's
    directory to the directory that has a file for each frame. ``omitted`` returns the ``Omitted`` members of the
    episode. The functions are called when needed and may raise Damaged. ``depth`` is the number of directories from the
    container's root to the episode's, by the path without links, if it is in none that is named by its number.
    ``is_aligned`` says that steps and cameras are chosen by times, so that row i of a file need not belong to step i.
    """

    record: Callable[[], dict[str, Any]]
    steps: Table
    cameras: Callable[[], Sequence[Member]]
    omitted: Callable[[], Sequence[Member]] = tuple
    depth: int | None = None
    is_aligned: bool = False


def slot_names(column: Column, length: int) -> list[str]:
    """Return a distinct name for each element of a vector: the column's own where it is unique, else its number.

    All are numbers if there are not ``length`` names, or if they are damaged. Empty and very long names are not used,
    nor one that is the number of another element.
    """
    numbers = [str(number) for number in range(length)]
    try:
        names = column.slots() if column.slots else ()
    except LASTING:
        names = ()
    if len(names) != length:
        return numbers
    # A name that is also the number of another element would make two columns of one name.
    others = Counter([*names, *numbers])
    return [
        name if name and len(name) <= 200 and others[name] == 1 + (name == number) else number
        for name, number in zip(names, numbers, strict=True)
    ]


def demand_columns(table: Table) -> None:
    """Raise TooLarge for a table that is too wide to show, and Damaged for one without columns."""
    if table.width == 0:
        raise Damaged("a table of no columns shows nothing")
    if table.width is not None and table.width > WIDEST:
        raise TooLarge(f"a table of {table.width} columns is too wide to be shown, at most {WIDEST} are")


def is_sized(column: Column) -> bool:
    """Return whether the sizes of a column's data are known without reading blocks; those of records never are."""
    content = column.content
    if isinstance(content, Array):
        return content.known_shape is not None and content.data.is_sized
    if isinstance(content, RaggedText):
        return content.text.is_sized and content.offsets.is_sized
    return isinstance(content, Ragged) and content.values.is_sized and content.offsets.is_sized


class ColumnBlocks:
    """``rows`` rows of ``width`` bytes. ``make(first, count)`` returns some of them, one column after another."""

    def __init__(
        self, rows: int, width: int, make: Callable[[int, int], bytes], cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        self.rows = rows
        self.rows_a_block = 1 << max(1, PIECE // max(1, width)).bit_length() - 1
        self._width = width
        self._make = make
        self._cache = cache
        self._key = key

    def column(self, offset: int, width: int) -> Data:
        """Return the ``width`` bytes of each row that begin ``offset`` bytes after the start of the row."""
        return _BlockColumn(self, offset, width)

    def columns(self, described: Iterable[tuple[str, str, tuple[int, ...]]]) -> Iterator[Column]:
        """Yield all columns in order, given their names, their dtypes and the shapes of a row."""
        offset = 0
        for name, dtype, shape in described:
            width = prod(shape) * int(dtype[2:])
            values = Array(b"", self.column(offset, width), dtype, (self.rows, *shape))
            yield Column(name.encode(), values, is_list=bool(shape))
            offset += width

    def block(self, number: int) -> tuple[Data, int]:
        """Return a block, and its number of rows."""
        first = number * self.rows_a_block
        rows = min(self.rows_a_block, self.rows - first)
        # Making a block takes the values as they are stored, the same in columns, and the joined bytes.
        size = rows * self._width
        made = partial(self._make, first, rows)
        return Rendered(self._cache, (*self._key, "rows", first), made, size, cost=4 * size), rows


class _BlockColumn(Parted):
    bounds: Sequence[int] = ()

    def __init__(self, blocks: ColumnBlocks, offset: int, width: int) -> None:
        self._blocks = blocks
        self._offset = offset
        self.bounds = Regular(blocks.rows_a_block * width, blocks.rows * width)

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        block, rows = self._blocks.block(number)
        block.read_into(buffer, rows * self._offset + offset)
