"""Columns of one length: what IDV columns, the tables of tskit and per-step vectors have in common.

A table is made of contents that are there for themselves as well; it adds their names, their order and that row i of
one belongs to row i of the others. Cheap to make; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from glassfs.content.data import Data
from glassfs.content.model import Array, Content, RaggedText, Records
from glassfs.errors import Damaged, TooLarge

WIDEST = 10_000
"""Columns of a table at the most: once somebody asks for them all are in memory, 1 to 3 KiB each."""


@dataclass(slots=True)
class Ragged(Content):
    """Runs of numbers by row: row i is ``values[offsets[i]:offsets[i + 1]]``, counted in items of ``dtype``.

    ``offsets`` holds ``rows + 1`` integers of ``offset_dtype``; that they do not rise from 0 to the number of values is
    found when they are read (Damaged). A run of ``|V1`` is bytes that are opaque.
    """

    values: Data
    dtype: str
    offsets: Data
    offset_dtype: str
    rows: int


@dataclass(slots=True)
class Cells(Records):
    """Records of another type than text: ``dtype`` is that of the values that are not None."""

    dtype: str = ""


@dataclass(slots=True)
class Documents(Content):
    """A column that is there for itself, and each row of which is a JSON document too; one of no bytes is ``{}``.

    ``rows`` is asked when somebody looks, may raise Damaged, and gives None where they turn out not to be documents.
    """

    rows: Callable[[], RaggedText | None]


ColumnContent: TypeAlias = "Array | RaggedText | Ragged | Records"


class Column(NamedTuple):
    """A name and the values under it.

    An array of n rows gives a value a row where it has one dimension, else a vector. Of records, ``is_list`` says that
    each row is a list of values, or None, and not a value or None.
    """

    name: bytes
    content: ColumnContent
    is_list: bool = False


@dataclass(slots=True)
class Table(Content):
    """``rows`` rows of columns. ``columns`` is asked when somebody first looks at them, and may raise Damaged.

    ``width`` is how many there are, where that is known before: a table that is too wide or has none is not to be shown
    (``demand_columns``), and its ``columns`` may lack some. Where each row tells of a thing, ``records`` has them as
    objects, and ``directory`` is the name of what holds a directory for each, called by its number.
    """

    rows: int
    columns: Callable[[], Sequence[Column]]
    records: Records | None = None
    directory: bytes = b""
    width: int | None = None


def demand_columns(table: Table) -> None:
    """Raises TooLarge for a table that is too wide to be shown, and Damaged for one without columns."""
    if table.width == 0:
        raise Damaged("a table of no columns shows nothing")
    if table.width is not None and table.width > WIDEST:
        raise TooLarge(f"a table of {table.width} columns is too wide to be shown, at most {WIDEST} are")


def is_sized(column: Column) -> bool:
    """Whether the sizes of what a column is made of are known without reading blocks; those of records never are."""
    content = column.content
    if isinstance(content, Array):
        return isinstance(content.shape, tuple) and content.data.is_sized
    if isinstance(content, RaggedText):
        return content.text.is_sized and content.offsets.is_sized
    return isinstance(content, Ragged) and content.values.is_sized and content.offsets.is_sized
