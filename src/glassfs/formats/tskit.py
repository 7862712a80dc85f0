"""tskit tree sequences stored in kastore: text, tables and checks (docs/formats/kastore.md §6). Any thread.

Text columns become text beside the arrays; columns are checked against each other one stretch in memory at a time.
Reading raises the errors of the data. Violated rules never raise: they leave text out or are reported as faults.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from glassfs.content import Array, Column, Content, Documents, Fault, Json, Member, Ragged, RaggedText, Table, Text
from glassfs.content.allowance import EXPANSION
from glassfs.content.data import Data
from glassfs.errors import TooLarge
from glassfs.formats.registry import Opening
from glassfs.lazy import np


class Rule(NamedTuple):
    """The element type of an array, and its traits: words as in the tables below."""

    kind: str
    traits: tuple[str, ...]


def _rules(described: str) -> dict[str, Rule]:
    return {key: Rule(kind, tuple(traits)) for key, kind, *traits in map(str.split, described.strip().splitlines())}


PROPERTIES = _rules("""
format/name                         int8     text
format/version                      uint32   length:2
sequence_length                     float64  length:1
uuid                                int8     text  length:36
time_units                          int8     text
reference_sequence/data             uint8    text
reference_sequence/url              uint8    text
metadata_schema                     int8     schema
reference_sequence/metadata_schema  uint8    schema
individuals/metadata_schema         uint8    schema
nodes/metadata_schema               uint8    schema
edges/metadata_schema               uint8    schema
migrations/metadata_schema          uint8    schema
sites/metadata_schema               uint8    schema
mutations/metadata_schema           uint8    schema
populations/metadata_schema         uint8    schema
metadata                            int8     metadata
reference_sequence/metadata         uint8    metadata
indexes/edge_insertion_order        int32    row:edges>=0
indexes/edge_removal_order          int32    row:edges>=0
""")
"""Arrays beside the tables. Those with a length must exist. Metadata are shown if their schema says that they are JSON.
"""
COLUMNS = _rules("""
individuals/flags          uint32
individuals/location       float64  ragged
individuals/parents        int32    ragged  optional  row:individuals>=-1
individuals/metadata       uint8    ragged
nodes/time                 float64  finite
nodes/flags                uint32
nodes/population           int32    row:populations>=-1
nodes/individual           int32    row:individuals>=-1
nodes/metadata             uint8    ragged
edges/left                 float64
edges/right                float64
edges/parent               int32    row:nodes>=0
edges/child                int32    row:nodes>=0
edges/metadata             uint8    ragged  optional
migrations/left            float64
migrations/right           float64
migrations/time            float64  finite
migrations/node            int32    row:nodes>=0
migrations/source          int32    row:populations>=0
migrations/dest            int32    row:populations>=0
migrations/metadata        uint8    ragged  optional
sites/position             float64
sites/ancestral_state      uint8    ragged  text
sites/metadata             uint8    ragged
mutations/site             int32    row:sites>=0
mutations/node             int32    row:nodes>=0
mutations/parent           int32    row:mutations>=-1
mutations/time             float64  optional
mutations/derived_state    uint8    ragged  text
mutations/metadata         uint8    ragged
populations/metadata       uint8    ragged
provenances/timestamp      uint8    ragged  text
provenances/record         uint8    ragged  text  json
""")
"""Columns of the tables. A ragged one has a column of offsets beside it. Values with ``row:TABLE>=LOWEST`` are numbers
of rows there, or -1 for none."""
RULES = PROPERTIES | COLUMNS
TABLES: dict[str, dict[str, Rule]] = {}
for _key, _rule in COLUMNS.items():
    TABLES.setdefault(_key.partition("/")[0], {})[_key.partition("/")[2]] = _rule
KEYS = frozenset(key.encode() for key in (*RULES, *(f"{key}_offset" for key in COLUMNS)))
NAME = b"tskit.trees"
MAJOR = 12
UNKNOWN_TIME = 0x7FF874736B697421  # a NaN with this payload
LONGEST_NAME = 200
MOST_RECORDS, RECORD_BYTES = 1000, 16 << 20
"""Of provenance, where programs are looked for."""


def recognise(columns: Mapping[bytes, Array], opening: Opening) -> TreeSequence | None:
    """Return the tree sequence in ``columns`` by key, or None. ``format/name`` decides; only KEYS are used."""
    name = columns.get(b"format/name")
    if name is None or name.data.size != len(NAME) or name.data.whole() != NAME:
        return None
    return TreeSequence(columns, opening)


@dataclass
class TreeSequence:
    """The columns of a tree sequence by key. Columns of the wrong type count as missing."""

    columns: Mapping[bytes, Array]
    opening: Opening

    def facts(self) -> dict[str, Any]:
        """Return version, sequence length and rows per table; None for missing values."""
        version = self._numbers("format/version", "<2I")
        length = self.sequence_length()
        return {
            "tskit_version": ".".join(map(str, version)) or None,
            "sequence_length": length if math.isfinite(length) else None,
            "rows": {table: self.rows(table) for table in TABLES},
        }

    def rows(self, table: str) -> int | None:
        """Return the number of rows, from the first column that gives it."""
        for name, rule in TABLES[table].items():
            is_ragged = "ragged" in rule.traits
            column = self.column(f"{table}/{name}_offset" if is_ragged else f"{table}/{name}")
            if column is not None:
                return max(0, length_of(column) - is_ragged)
        return None

    def members(self) -> Iterator[Member]:
        """Yield the text. Text of the wrong type, or with other rows than its table, is left out."""
        for key, (kind, traits) in PROPERTIES.items():
            column = self.column(key, kind)
            if column is not None and "text" in traits:
                yield _member(Text(column.key, column.data))
            elif column is not None and column.data.size and (
                "schema" in traits or ("metadata" in traits and self._is_json(f"{key}_schema", kind))
            ):
                yield _member(Json(column.key, column.data))
        for key, rule in COLUMNS.items():
            rows = self._ragged_text(key, "json" in rule.traits) if "text" in rule.traits else None
            if rows is not None:
                yield _member(rows)

    def tables(self) -> Iterator[Member]:
        """Yield each table with any data, unless its columns differ in rows, and its metadata as documents.

        Whether metadata are documents is found out on first access.
        """
        for table in TABLES:
            metadata = f"{table}/metadata".encode()
            if metadata in self.columns:
                yield _member(Documents(metadata, partial(self._documents, table)))
            rows = self.rows(table)
            if rows is not None and self._is_whole(table, rows):
                yield Member((table.encode(),), Table(table.encode(), rows, partial(self._columns_of, table, rows)))

    def _is_whole(self, table: str, rows: int) -> bool:
        for name, rule in TABLES[table].items():
            key = f"{table}/{name}"
            column, offsets = self.column(key), self.column(f"{key}_offset")
            if "ragged" not in rule.traits:
                if column is not None and length_of(column) != rows:
                    return False
            elif (column is None) != (offsets is None) or (offsets is not None and self._offsets(key) is None):
                return False
        return True

    def _columns_of(self, table: str, rows: int) -> list[Column]:
        """Return the columns of a complete table. Bytes are text where tskit or the table's schema says so."""
        found = []
        for name in TABLES[table]:
            key = f"{table}/{name}"
            column, offsets = self.column(key), self._offsets(key)
            if column is None:
                continue
            content: Array | RaggedText | Ragged | None = column
            if offsets is not None and column.type_name == "uint8" and self._is_text(key):
                content = self._ragged_text(key)
            elif offsets is not None:
                dtype = "|V1" if column.type_name == "uint8" else column.dtype
                content = Ragged(column.key, column.data, dtype, offsets.data, offsets.dtype, rows)
            if content is not None:
                found.append(Column(name.encode(), content))
        return found

    def _documents(self, table: str) -> RaggedText | None:
        """Return the metadata of a table's rows if its schema says that they are JSON."""
        rows = self._ragged_text(f"{table}/metadata", is_json=True)
        return rows if rows is not None and self._is_text(f"{table}/metadata") else None

    def _ragged_text(self, key: str, is_json: bool = False) -> RaggedText | None:
        text, offsets = self.column(key, "uint8"), self._offsets(key)
        if text is None or offsets is None:
            return None
        return RaggedText(text.key, text.data, offsets.data, offsets.dtype, length_of(offsets) - 1, is_json)

    def _is_text(self, key: str) -> bool:
        return "text" in COLUMNS[key].traits or (key.endswith("/metadata") and self._is_json(f"{key}_schema", "uint8"))

    def faults(self) -> Iterator[Fault]:
        """Yield violations of tskit's rules, each with its key as place; for the values of a column only the first."""
        for key, (kind, traits) in PROPERTIES.items():
            column = self.column(key)
            length = next((int(word.removeprefix("length:")) for word in traits if word.startswith("length:")), None)
            if column is None:
                if length:
                    yield Fault(key, "is missing")
                continue
            if column.type_name != kind:
                yield Fault(key, f"is {column.type_name}, but {kind} is expected")
            if length and length_of(column) != length:
                yield Fault(key, f"has {length_of(column)} elements, but {length} are expected")
        if self._numbers("format/version", "<2I")[:1] != (MAJOR,):
            return  # tables of other versions are unknown
        if not 0 < self.sequence_length() < math.inf:
            yield Fault("sequence_length", "is not a positive number")
        for key, rule in COLUMNS.items():
            yield from self._column_faults(key, *rule)
        yield from self._index_faults()
        yield from self._value_faults()

    def _column_faults(self, key: str, kind: str, traits: Sequence[str]) -> Iterator[Fault]:
        column = self.column(key)
        offsets = self.column(f"{key}_offset") if "ragged" in traits else None
        if column is None:
            if offsets is not None or "optional" not in traits:
                yield Fault(key, "is missing")
            return
        if column.type_name != kind:
            yield Fault(key, f"is {column.type_name}, but {kind} is expected")
        rows = self.rows(key.partition("/")[0]) or 0
        if "ragged" not in traits:
            if length_of(column) != rows:
                yield Fault(key, f"has {length_of(column)} rows, but its table has {rows}")
        elif offsets is None:
            yield Fault(f"{key}_offset", "is missing")
        elif self._offsets(key) is None:
            found = f"{offsets.type_name} [{length_of(offsets)}]"
            yield Fault(f"{key}_offset", f"is {found}, but uint32 or uint64 [{rows + 1}] is expected")
        elif not _rises(offsets, length_of(column)):
            yield Fault(f"{key}_offset", f"does not rise from 0 to its column's length, {length_of(column)}")

    def _index_faults(self) -> Iterator[Fault]:
        indexes = (key for key in PROPERTIES if key.startswith("indexes/"))
        found = [(key, column) for key in indexes if (column := self.column(key)) is not None]
        if len(found) == 1:
            yield Fault(found[0][0], "exists, but the other index is missing")
        for key, column in found:
            if length_of(column) != self.rows("edges"):
                yield Fault(key, f"has {length_of(column)} rows, but edges has {self.rows('edges')}")

    def _value_faults(self) -> Iterator[Fault]:
        for key, rule in RULES.items():
            for trait in rule.traits:
                table, _, lowest = trait.removeprefix("row:").partition(">=")
                rows = self.rows(table) if lowest else None
                if rows is not None:
                    is_row = partial(_is_within, lowest=int(lowest), end=rows)
                    yield from self._first_wrong([key], is_row, f"is not a row of {table}, which has {rows}")
                if trait == "finite":
                    yield from self._first_wrong([key], np.isfinite, "is not finite")
        yield from self._first_wrong(
            ["mutations/time"],
            lambda time: np.isfinite(time) | (time.view("<u8") == UNKNOWN_TIME),
            "is neither finite nor tskit's unknown time",
        )
        length = self.sequence_length()
        if not length > 0:
            length = math.inf
        is_inside = partial(_is_within, lowest=0, end=length)
        yield from self._first_wrong(["sites/position"], is_inside, "is outside the sequence")
        for table in ("edges", "migrations"):
            yield from self._first_wrong(
                [f"{table}/left", f"{table}/right"],
                lambda left, right: (left >= 0) & (left < right) & (right <= length),
                "is not an interval of the sequence",
            )

    def _first_wrong(self, keys: Sequence[str], are_valid: Callable[..., Any], reason: str) -> Iterator[Fault]:
        """Yield the first row of the columns, read side by side, whose values are wrong."""
        columns = [column for key in keys if (column := self.column(key, RULES[key].kind)) is not None]
        if len(columns) < len(keys) or len(set(map(length_of, columns))) > 1:
            return
        position = 0
        for pieces in zip(*(column.data.pieces() for column in columns), strict=True):
            values = [np.frombuffer(piece, column.dtype) for piece, column in zip(pieces, columns, strict=True)]
            wrong = np.flatnonzero(~are_valid(*values))
            if wrong.size:
                found = " to ".join(str(column[wrong[0]]) for column in values)
                yield Fault(keys[0], f"value {position + wrong[0]}, {found}, {reason}")
                return
            position += len(values[0])

    def column(self, key: str, kind: str | None = None) -> Array | None:
        """Return the column under ``key`` if it exists, and is of the element type ``kind`` if that is given."""
        column = self.columns.get(key.encode())
        return column if column is not None and kind in (None, column.type_name) else None

    def _offsets(self, key: str) -> Array | None:
        """Return the offsets of a ragged column if their type and number are right."""
        offsets = self.column(f"{key}_offset")
        if offsets is None or offsets.type_name not in ("uint32", "uint64"):
            return None
        return offsets if length_of(offsets) - 1 == self.rows(key.partition("/")[0]) else None

    def sequence_length(self) -> float:
        """Return the sequence length, or NaN."""
        return next(iter(self._numbers("sequence_length", "<d")), math.nan)

    def _numbers(self, key: str, layout: str) -> tuple[Any, ...]:
        """Return the numbers of a property, or none if their count is wrong."""
        column = self.column(key, PROPERTIES[key].kind)
        if column is None or column.data.size != struct.calcsize(layout):
            return ()
        return struct.unpack(layout, column.data.whole())

    def _is_json(self, key: str, kind: str) -> bool:
        """Return whether the schema under ``key`` says that metadata are JSON."""
        schema = self.json(key, kind)
        return isinstance(schema, dict) and schema.get("codec") == "json"

    def json(self, key: str, kind: str) -> Any:
        """Return the document under ``key``; an empty one is an object, a missing, damaged or large one None."""
        column = self.column(key, kind)
        return None if column is None else self._parsed(column.data, 0, column.data.size)

    def _parsed(self, data: Data, start: int, size: int) -> Any:
        try:
            with self.opening.allowance.temporary(self.opening.cache) as allowance:
                allowance.take(EXPANSION * size, "JSON")
                return json.loads(data.read(start, size) or b"{}")
        except (ValueError, RecursionError, TooLarge):
            return None

    def programs(self) -> list[tuple[str, str]]:
        """Return name and version ("": unknown) of each program that the provenance names, in order, each once.

        Records that break its schema name none, nor do those behind the first MOST_RECORDS or RECORD_BYTES.
        """
        rows, found = self._ragged_text("provenances/record"), dict[tuple[str, str], None]()
        if rows is None:
            return []
        width = int(rows.offset_dtype[2:])
        offsets = rows.offsets.read(0, width * min(rows.rows + 1, MOST_RECORDS + 1))
        for start, end in pairwise(np.frombuffer(offsets, rows.offset_dtype).tolist()):
            if not start <= end <= min(rows.text.size, RECORD_BYTES):
                break
            record = self._parsed(rows.text, start, end - start)
            software = record.get("software") if isinstance(record, dict) else None
            if isinstance(software, dict):
                name, version = (software.get(key) for key in ("name", "version"))
                if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME:
                    found[name, version[:LONGEST_NAME] if isinstance(version, str) else ""] = None
        return list(found)


def length_of(column: Array) -> int:
    """Return the number of elements of a column."""
    return column.data.size // int(column.dtype[2:])


def _member(content: Content) -> Member:
    return Member(tuple(content.key.split(b"/")), content)


def _is_within(values: Any, lowest: float, end: float) -> Any:
    return (values >= lowest) & (values < end)


def _rises(offsets: Array, end: int) -> bool:
    """Return whether offsets go from 0 to ``end`` without decreasing."""
    last = 0
    for number, piece in enumerate(offsets.data.pieces()):
        values = np.frombuffer(piece, offsets.dtype)
        if values[0] < last or (number == 0 and values[0] != 0) or (values[1:] < values[:-1]).any():
            return False
        last = int(values[-1])
    return last == end
