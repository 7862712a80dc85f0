"""Errors in an IDV file that reading its contents does not reveal.

ML.NET's loader ignores them too: bytes after the values of a block or after a DEFLATE stream, unused indices, keys
without a value, names of slots that do not exist (docs/formats/idv.md §3, §5, §6, §8.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from glassfs.codec import compression, deflate
from glassfs.content import Extent, Fault, layout_faults
from glassfs.errors import Damaged
from glassfs.formats.idv.blocks import ENTRY_SIZE, FIRST_OFFSET, Blocks, located
from glassfs.formats.idv.columns import ColumnValues
from glassfs.formats.idv.runs import Texts, shown
from glassfs.formats.idv.table import TAIL, ColumnEntry, IdvFile, MetadataEntry, is_damage
from glassfs.lazy import np

MOST_FAULTS = 20  # of one kind for one column


def faults(opened: IdvFile) -> Iterator[Fault]:
    """Yield every error except those that reading the contents reports."""
    yield from _table_faults(opened)
    names = {column.number: name for column, name in opened.shown()}
    for column in opened.columns():
        place = f"columns/{_text(names.get(column.number, column.name))}"
        if column.fault:
            if is_damage(column.fault):
                yield Fault(place, column.fault)
        else:
            yield from islice(_column_faults(opened.blocks(column), place), MOST_FAULTS)
        yield from islice(_metadata_faults(opened, column, f"meta/{place}"), MOST_FAULTS)


def _table_faults(opened: IdvFile) -> Iterator[Fault]:
    source, allowance = opened.source, opened.file.allowance.part()
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
        with suppress(Damaged):
            yield from _block_faults(blocks, number, f"{place}, block {number}")
    item, above = blocks.codec.item, 0
    if item.count is None:
        return
    # Keys that are not stored are missing values, so checking the stored ones is enough.
    with suppress(Damaged):
        for piece in ColumnValues(blocks, item, is_stored=blocks.codec.dimensions is not None).pieces():
            above += int((np.frombuffer(piece, item.dtype) > item.count).sum())
        if above:
            yield Fault(place, f"{above} keys exceed their count of {item.count}")


def _block_faults(blocks: Blocks, number: int, place: str) -> Iterator[Fault]:
    vectors = blocks.vectors(number)
    run = vectors.run(blocks.codec.item)
    if vectors.unused_indices:
        yield Fault(place, f"{vectors.unused_indices} indices are used by no row")
    if run.end < run.block.size:
        yield Fault(place, f"{run.block.size - run.end} bytes follow its values")
    if isinstance(run, Texts) and not run.is_utf8:
        yield Fault(place, "has text that is not UTF-8")
    offset, length, _ = blocks.locate(number)
    extent = Extent(blocks.file.source, offset, length)
    if blocks.compression == compression.DEFLATE_PREFIX:
        yield from _stream_faults(extent, run.block.size, place)
    elif length > run.block.size:
        yield Fault(place, f"stores {length} bytes, but declares {run.block.size}")


def _stream_faults(extent: Extent, size: int, place: str) -> Iterator[Fault]:
    """Yield errors after the first ``size`` bytes of a DEFLATE stream."""
    decoder, stored, given = deflate.inflater(), extent.pieces(), 0
    try:
        for raw in deflate.inflated(decoder, stored):
            given += len(raw)
            if given > size:
                yield Fault(place, f"its stream is longer than the declared {size} bytes")
                return
    except Damaged as error:
        yield Fault(place, f"its stream is damaged: {error.reason}")
        return
    left = len(decoder.unused_data) + sum(map(len, stored))
    if not decoder.eof:
        yield Fault(place, "its stream has no end")
    elif left:
        yield Fault(place, f"{left} bytes follow its stream")


def _metadata_faults(opened: IdvFile, column: ColumnEntry, place: str) -> Iterator[Fault]:
    kinds: Counter[bytes] = Counter()
    try:
        for entry in opened.metadata(column):
            kinds[entry.kind] += 1
            if kinds[entry.kind] == 2:
                yield Fault(place, f"has {shown(entry.kind)} more than once")
            yield from _value_faults(opened, column, entry, f"{place}/{_text(entry.kind)}")
    except Damaged as error:
        yield Fault(place, f"its table {error.reason}")


def _value_faults(opened: IdvFile, column: ColumnEntry, entry: MetadataEntry, place: str) -> Iterator[Fault]:
    if entry.fault:
        if is_damage(entry.fault):
            yield Fault(place, entry.fault)
        return
    blocks = opened.value(column, entry)
    with suppress(Damaged):
        yield from _block_faults(blocks, 0, place)
    codec, size = column.codec, entry.codec.size
    if column.fault or entry.codec.dimensions is None or not size:
        return
    if entry.kind == b"SlotNames" and codec.dimensions is not None and codec.size not in (0, size):
        yield Fault(place, f"names {size} slots, but a vector has {codec.size}")
    if entry.kind == b"KeyValues" and codec.item.count not in (None, size):
        yield Fault(place, f"has {size} values, but keys go up to {codec.item.count}")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
