"""All columns of a file as one table, one row per row of the file.

Sparse vectors of known size become two list columns, their values and their slots; vectors of unknown size become one.
Making the columns reads the table of contents and no block. Any thread may use this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from glassfs.content import Array, Column, Data, Ragged, Records, Table
from glassfs.content.table import WIDEST
from glassfs.formats.idv.codecs import DENSE_SLOTS, INT32, Item
from glassfs.formats.idv.columns import Indices, RowEnds, StoredValues, TextRows, Values
from glassfs.formats.idv.table import IdvFile

NAME = b"columns"


def whole_table(opened: IdvFile) -> Table:
    """Return the table of all readable columns; hidden columns come last."""
    header = opened.header
    return Table(NAME, header.rows, lambda: list(islice(_columns(opened), WIDEST)), width=header.columns)


def _columns(opened: IdvFile) -> Iterator[Column]:
    for column, codec, name, _ in opened.shown():
        blocks, key = opened.blocks(column, codec), column.name
        if codec.item.is_text:
            texts = TextRows(blocks)
            records = Records(key, texts.count, texts.group, codec.type_name, texts.cost)
            yield Column(name, records, is_list=codec.dimensions is not None)
            continue
        if codec.size > DENSE_SLOTS:
            ends = RowEnds(blocks, is_stored=True)
            for item in codec.item.arrays:
                yield _runs(name + b".data", key, StoredValues(blocks, item), item, ends)
            yield _runs(name + b".indices", key, Indices(blocks, INT32), INT32, ends)
            continue
        for item in codec.item.arrays:
            shown, values = name + item.label.encode(), Values(blocks, item)
            if codec.size:
                shape = (blocks.rows, *(codec.dimensions or ()), *item.tail)
                yield Column(shown, Array(key, values, item.dtype, shape, codec.type_name, label=item.label))
            else:
                yield _runs(shown, key, values, item, RowEnds(blocks, is_stored=False))


def _runs(name: bytes, key: bytes, values: Data, item: Item, ends: RowEnds) -> Column:
    """Return a list column. A value shown as several numbers, such as an id, is raw bytes here."""
    dtype = f"|V{item.width}" if item.tail else item.dtype
    return Column(name, Ragged(key, values, dtype, ends, "<i8", ends.rows))
