"""ML.NET's binary data view (``.idv``): a table in blocks of rows, each column encoded and compressed on its own.

Modules, lowest first: ``runs`` parses column types and decodes sequences of values, ``blocks`` decompresses blocks and
decodes their vectors, ``columns`` serves byte ranges of columns, ``table`` parses header and tables,
and this module makes contents, and finds errors that reading does not reveal: bytes that belong to nothing, keys
without a value, names of slots that do not exist (§3, §6). What follows the values of a block, or its DEFLATE stream,
is ignored, as in ML.NET. Any thread may use opened files.

A file with a wrong header or table of contents is refused. A column with an unknown codec or compression, or with
impossible parameters, is listed in the schema but has no file. Damaged metadata cost only themselves; a damaged block
its own rows, and the sizes of a column whose sizes only blocks give. Byte layout: docs/formats/idv.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, cast

from glassfs.content import (
    Array,
    Container,
    Data,
    Document,
    Fault,
    Group,
    Member,
    Omitted,
    Ragged,
    Records,
    Summary,
    Table,
    layout_faults,
    summary_of,
)
from glassfs.content import Column as TableColumn
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.content.episodes import TEXTS
from glassfs.content.summary import INTEGER
from glassfs.content.table import WIDEST
from glassfs.errors import Damaged, Refused, TooLarge
from glassfs.formats.idv.blocks import ENTRY_SIZE, FIRST_OFFSET, Blocks, located
from glassfs.formats.idv.columns import ColumnValues, row_ends, text_rows, text_slots
from glassfs.formats.idv.runs import DENSE_SLOTS, INT32, Item, Texts, shown
from glassfs.formats.idv.table import (
    SIGNATURE,
    TAIL,
    ColumnEntry,
    IdvFile,
    MetadataEntry,
    is_damage,
    read_header,
    version_text,
)
from glassfs.formats.registry import Format, Opening
from glassfs.lazy import np
from glassfs.sizes import PIECE

COMPRESSION_NAMES = {0: "None", 1: "Deflate"}
TABLES = "tables"
SUMMARY = (("rows", INTEGER), ("columns", INTEGER), ("names", TEXTS))
"""The joined table with a row for each file, and its columns."""
SLOT_NAMES = b"SlotNames"

Name = tuple[bytes, ...]
MOST_FAULTS = 20  # of one kind for one column


def open_idv(opening: Opening) -> Container:
    """Read and check header and table of contents. Raises Refused if they are wrong."""
    source = opening.source
    header = read_header(source)
    opening.allowance.take(4 * OBJECT * header.columns, "columns")
    opened = IdvFile(source, opening.cache, header.tail, opening.allowance, header)
    end, unreadable = header.toc, 0
    for column in opened.columns():
        fault = opened.layout_fault(column)
        if fault:
            raise Refused(fault, source.name)
        unreadable += column.fault is not None
        end = column.end
    version = version_text(header.version)
    facts = {
        "compatible_version": version_text(header.compatible_version), "rows": header.rows,
        "columns": header.columns, "unreadable_columns": unreadable,
    }
    root = Group(b"", partial(_members, opened, unreadable, end - header.toc))
    summaries = {TABLES: partial(_summary, opened)}
    return Container("idv", version, root, [source], facts, partial(faults, opened), summaries=summaries)


def _summary(opened: IdvFile) -> Summary:
    """Return the file's row in the table ``tables`` over a folder. The names of columns are those of the first ones."""
    header = opened.header

    def row(block: int) -> list[dict[str, Any]]:
        names, left = list[str](), 64 << 10
        for column in islice(opened.columns(), WIDEST):
            left -= len(column.name)
            if left < 0:
                break
            names.append(column.name.decode("utf-8", "replace"))
        return [{"rows": header.rows, "columns": header.columns, "names": names}]

    return summary_of(TABLES, SUMMARY, 1, Records(TABLES.encode(), 1, row, cost=lambda block: PIECE))


def _members(opened: IdvFile, unreadable: int, toc_size: int) -> Iterator[Member]:
    """Yield the contents of a file with a table of contents of ``toc_size`` bytes, some columns unreadable."""
    yield Member((b"meta",), Group(b"meta", partial(_meta, opened, toc_size)))
    if opened.header.columns > unreadable:
        yield Member((b"columns",), Group(b"columns", partial(_columns, opened)))
        table = _table(opened)
        yield Member((table.key,), table)
    for column in opened.columns() if unreadable else ():
        if column.fault:
            yield Member((b"columns", column.name), Omitted(column.name, column.fault, is_damage(column.fault)))


def _columns(opened: IdvFile) -> Iterator[Member]:
    for column, name in opened.shown():
        blocks, key, codec = opened.blocks(column), column.name, column.codec
        if codec.item.is_text:
            yield Member((name,), text_rows(key, blocks))
        elif 0 < codec.size <= DENSE_SLOTS:
            yield from _arrays((name,), key, blocks, (blocks.rows, *(codec.dimensions or ())))
        else:
            yield Member((name,), Group(key, partial(_vectors, key, blocks)))


def _meta(opened: IdvFile, toc_size: int) -> Iterator[Member]:
    # The schema may hold many names, kinds and types, all with escapes.
    allowance = opened.allowance.part()
    cost = PIECE + 32 * OBJECT * opened.header.columns + 12 * toc_size + opened.allowance.size // 4
    yield Member((b"schema",), Document(b"schema", partial(_schema, opened), cost))
    for column, name in opened.shown():
        try:
            for entry in opened.metadata(column):
                _count(entry, allowance)
                yield from _value(opened, column, name, entry)
        except Damaged as error:
            yield Member((b"columns", name, b""), Omitted(b"", f"its table {error.reason}", is_damage=True))
        except TooLarge as error:  # many columns may share one table
            yield Member((b"columns", name, b""), Omitted(b"", f"too many metadata: {error.reason}"))
            break


def _value(opened: IdvFile, column: ColumnEntry, name: bytes, entry: MetadataEntry) -> Iterator[Member]:
    place = (b"columns", name, entry.kind)
    if entry.fault:
        yield Member(place, Omitted(entry.kind, entry.fault, is_damage(entry.fault)))
        return
    blocks = opened.value(column, entry)
    if entry.codec.item.is_text:
        yield Member(place, text_slots(entry.kind, blocks))
    else:
        yield from _arrays(place, entry.kind, blocks, entry.codec.dimensions or ())


def _schema(opened: IdvFile) -> dict[str, Any]:
    hidden = {column.number for column, name in opened.shown() if name != column.name}
    allowance = opened.allowance.part()
    columns = [
        {
            "name": column.name,
            "type": column.codec.type_name or None,
            "shape": list(column.codec.dimensions) if column.codec.dimensions and column.codec.size else None,
            "codec": column.codec_name,
            "compression": COMPRESSION_NAMES.get(column.compression, str(column.compression)),
            "rows_per_block": column.rows_per_block,
            "hidden": column.number in hidden,
            "readable": column.fault is None,
            "metadata": _kinds(opened, column, allowance),
        }
        for column in opened.columns()
    ]
    return {"version": version_text(opened.header.version), "rows": opened.header.rows, "columns": columns}


def _kinds(opened: IdvFile, column: ColumnEntry, allowance: Allowance) -> list[bytes]:
    """Return the metadata kinds of a column, as far as its table can be read."""
    kinds = []
    with suppress(Damaged):  # the listing of the metadata says why
        for entry in opened.metadata(column):
            _count(entry, allowance)
            kinds.append(entry.kind)
    return kinds


def _count(entry: MetadataEntry, allowance: Allowance) -> None:
    allowance.take(4 * OBJECT + len(entry.kind), "metadata")


def _arrays(name: Name, key: bytes, blocks: Blocks, shape: tuple[int, ...]) -> Iterator[Member]:
    """Yield all elements of a column or metadata value; vectors of unknown size are flattened into one axis."""
    for item in blocks.codec.item.arrays:
        full = (*shape, *item.tail) if blocks.codec.size else partial(_flat_shape, blocks, item.tail)
        values = ColumnValues(blocks, item)
        yield Member(name, Array(key, values, item.dtype, full, blocks.codec.type_name, label=item.label))


def _flat_shape(blocks: Blocks, tail: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the stored elements of sparse vectors, or all elements of vectors of unknown size."""
    return (blocks.totals(is_stored=blocks.codec.size > 0)[-1], *tail)


def _vectors(key: bytes, blocks: Blocks) -> Iterator[Member]:
    """Yield the files of sparse vectors, or of vectors of unknown size: values, slots if sparse, and rows."""
    for name, item, data in _elements(blocks):
        type_name = "" if name == b"indices" else blocks.codec.type_name
        shape = partial(_flat_shape, blocks, item.tail)
        yield Member((name,), Array(key, data, item.dtype, shape, type_name, label=item.label))
    ends = Array(key, row_ends(blocks), "<i8", (blocks.rows + 1,))
    yield Member((b"indptr" if blocks.codec.size else b"offsets",), ends)


def _elements(blocks: Blocks) -> Iterator[tuple[bytes, Item, Data]]:
    is_sparse = blocks.codec.size > 0
    for item in blocks.codec.item.arrays:
        yield b"data" if is_sparse else b"values", item, ColumnValues(blocks, item, is_sparse)
    if is_sparse:
        yield b"indices", INT32, ColumnValues(blocks, INT32, is_stored=True, is_index=True)


def _table(opened: IdvFile) -> Table:
    """Return the table of all readable columns, one row per row of the file; hidden columns come last.

    Sparse vectors of known size become two list columns, their values and their slots; vectors of unknown size become
    one. Making the columns reads the table of contents and no block.
    """
    header = opened.header
    return Table(b"columns", header.rows, lambda: list(islice(_table_columns(opened), WIDEST)), width=header.columns)


def _slot_names(opened: IdvFile, column: ColumnEntry) -> list[str]:
    """Return the names of the slots of vectors (§6), or none. Raises Damaged, or TooLarge for very long ones."""
    for entry in islice(opened.metadata(column), 64):
        codec = entry.codec
        if entry.kind == SLOT_NAMES and not entry.fault and codec.item.is_text and codec.size in (0, column.codec.size):
            records = text_slots(entry.kind, opened.value(column, entry))
            cost = records.cost(0)
            if records.blocks > 1 or cost > PIECE:
                raise TooLarge("has slot names that are too long to name columns")
            with opened.cache.reserved(cost):
                return list(records.block(0))
    return []


def _table_columns(opened: IdvFile) -> Iterator[TableColumn]:
    for column, name in opened.shown():
        blocks, key, codec = opened.blocks(column), column.name, column.codec
        if codec.item.is_text:
            yield TableColumn(name, text_rows(key, blocks), is_list=codec.dimensions is not None)
        elif 0 < codec.size <= DENSE_SLOTS:
            for member in _arrays((name,), key, blocks, (blocks.rows, *(codec.dimensions or ()))):
                array = cast(Array, member.content)
                yield TableColumn(name + array.label.encode(), array, slots=partial(_slot_names, opened, column))
        else:
            ends = row_ends(blocks)
            for part, item, data in _elements(blocks):
                title = (name if part == b"values" else name + b"." + part) + item.label.encode()
                # A value shown as several numbers, such as an id, is raw bytes here.
                dtype = f"|V{item.width}" if item.tail else item.dtype
                yield TableColumn(title, Ragged(key, data, dtype, ends, "<i8", blocks.rows))


def faults(opened: IdvFile) -> Iterator[Fault]:
    """Yield every error except those that reading the contents reports."""
    yield from _table_faults(opened)
    names = {column.number: name for column, name in opened.shown()}
    for column in opened.columns():
        place = f"columns/{_text(names.get(column.number, column.name))}"
        if not column.fault:  # which the listing says
            yield from islice(_column_faults(opened.blocks(column), place), MOST_FAULTS)
        yield from islice(_metadata_faults(opened, column, f"meta/{place}"), MOST_FAULTS)


def _table_faults(opened: IdvFile) -> Iterator[Fault]:
    source, allowance = opened.source, opened.allowance.part()
    # Where a table cannot be read, which is reported below, the bytes of its values would count as gaps.
    with suppress(Damaged):
        yield from layout_faults(_layout(opened), source.size, allowance, may_share=True)
    if len({column.rows_per_block for column in opened.columns()}) > 1:
        yield Fault("file", "its columns differ in rows per block, which ML.NET refuses")
    for column in opened.columns():
        if not column.name:
            yield Fault(f"column {column.number}", "has no name, which ML.NET refuses")
        elif column.name.decode("utf-8", "ignore").encode() != column.name:
            yield Fault(f"column {column.number}", f"its name {shown(column.name)} is not UTF-8")


def _layout(opened: IdvFile) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and name of all parts, blocks as they are written: those of the same rows together (§5)."""
    header, columns = opened.header, list(opened.columns())
    counts = [-(-header.rows // max(1, column.rows_per_block)) for column in columns]
    yield 0, FIRST_OFFSET, "the header"
    for number in range(max(counts, default=0)):
        for column, count in zip(columns, counts, strict=True):
            if number < count:
                offset, length, _ = located(opened.source, column.lookup, number)
                yield offset, offset + length, f"block {number} of column {shown(column.name)}"
    for column, count in zip(columns, counts, strict=True):
        yield column.lookup, column.lookup + ENTRY_SIZE * count, f"the lookup table of column {shown(column.name)}"
    for column in columns:
        end = column.metadata
        for entry in opened.metadata(column):
            yield entry.offset, entry.offset + entry.length, f"metadata of column {shown(column.name)}"
            end = entry.end
        yield column.metadata, end, f"the metadata table of column {shown(column.name)}"
    yield header.toc, max((column.end for column in columns), default=header.toc), "the table of contents"
    yield header.tail, header.tail + len(TAIL), "the tail"


def _column_faults(blocks: Blocks, place: str) -> Iterator[Fault]:
    for number in range(blocks.count):
        yield from _text_faults(blocks, number, f"{place}, block {number}")
    item, above = blocks.codec.item, 0
    if item.count is None:
        return
    # Keys that are not stored are missing values, so checking the stored ones is enough.
    with suppress(Damaged):
        for piece in ColumnValues(blocks, item, is_stored=blocks.codec.dimensions is not None).pieces():
            above += int((np.frombuffer(piece, item.dtype) > item.count).sum())
        if above:
            yield Fault(place, f"{above} keys exceed their count of {item.count}")


def _text_faults(blocks: Blocks, number: int, place: str) -> Iterator[Fault]:
    with suppress(Damaged):
        run = blocks.vectors(number).run(blocks.codec.item) if blocks.codec.item.is_text else None
        if isinstance(run, Texts) and not run.is_utf8:
            yield Fault(place, "has text that is not UTF-8")


def _metadata_faults(opened: IdvFile, column: ColumnEntry, place: str) -> Iterator[Fault]:
    try:
        for entry in opened.metadata(column):
            yield from _value_faults(opened, column, entry, f"{place}/{_text(entry.kind)}")
    except Damaged as error:
        yield Fault(place, f"its table {error.reason}")


def _value_faults(opened: IdvFile, column: ColumnEntry, entry: MetadataEntry, place: str) -> Iterator[Fault]:
    if entry.fault:
        if is_damage(entry.fault):
            yield Fault(place, entry.fault)
        return
    yield from _text_faults(opened.value(column, entry), 0, place)
    codec, size = column.codec, entry.codec.size
    if column.fault or entry.codec.dimensions is None or not size:
        return
    if entry.kind == b"SlotNames" and codec.dimensions is not None and codec.size not in (0, size):
        yield Fault(place, f"names {size} slots, but a vector has {codec.size}")
    if entry.kind == b"KeyValues" and codec.item.count not in (None, size):
        yield Fault(place, f"has {size} values, but keys go up to {codec.item.count}")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


FORMAT = Format("idv", lambda head: head.startswith(SIGNATURE), open_idv)
