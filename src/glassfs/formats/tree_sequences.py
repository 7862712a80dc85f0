"""One row for each tree sequence: what the table ``trees`` over a folder has of it (docs/formats/kastore.md §6).

Counts come from the lengths of columns; samples and trees are counted in one pass over their columns, unless these are
very large. Top-level metadata have columns where their schema has ``codec: json`` and declares properties of simple
types, also those of objects in it. Any thread. Reading raises the errors of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from glassfs.content.episodes import TEXT, TEXTS
from glassfs.content.summary import BOOLEAN, INTEGER, NUMBER, Columns
from glassfs.formats.tskit import LONGEST_NAME, TreeSequence, length_of
from glassfs.lazy import np

NAME = "trees"
COUNTS = {
    f"num_{table}": table
    for table in ("sites", "mutations", "nodes", "edges", "individuals", "populations", "migrations", "provenances")
}
"""Columns, and the tables whose rows they count."""
COLUMNS: Columns = (
    ("sequence_length", NUMBER), ("num_samples", INTEGER), ("num_trees", INTEGER), ("time_units", TEXT),
    *((name, INTEGER) for name in COUNTS), ("software", TEXTS), ("software_version", TEXTS),
)
METADATA = "metadata."
"""Before the names of properties, so that none is also that of another column."""
LARGEST_READ = 128 << 20
"""Bytes of columns that are read to count samples, or trees."""
MOST_PROPERTIES, DEEPEST = 200, 8
_TYPES = {"string": TEXT, "integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN}

Property = tuple[tuple[str, ...], str]
"""The path of values in the metadata, and the type of their column."""


def columns_of(sequence: TreeSequence) -> Columns:
    """Return the columns of its row."""
    schema = sequence.json("metadata_schema", "int8")
    return (*COLUMNS, *((name, dtype) for name, (_, dtype) in _properties(schema).items()))


def values_of(sequence: TreeSequence) -> dict[str, Any]:
    """Return the values of its row by column."""
    length = sequence.sequence_length()
    units = sequence.column("time_units", "int8")
    programs = sequence.programs()
    is_short = units is not None and units.data.size <= 64 << 10  # more than a table shows of a text
    return {
        "sequence_length": length if math.isfinite(length) else None,
        "num_samples": _num_samples(sequence),
        "num_trees": _num_trees(sequence),
        "time_units": units.data.whole().decode("utf-8", "replace") if units is not None and is_short else None,
        **{name: sequence.rows(table) for name, table in COUNTS.items()},
        "software": [name for name, _ in programs] or None,
        "software_version": [version for _, version in programs] or None,
        **_metadata(sequence),
    }


def cost_of(sequence: TreeSequence) -> int:
    """Return the memory in bytes that making the values takes."""
    edges = sum(column.data.size for key in ("left", "right") if (column := sequence.column(f"edges/{key}")))
    return 4 * min(edges, LARGEST_READ)


def _metadata(sequence: TreeSequence) -> dict[str, Any]:
    """Return the metadata as tskit decodes them, with the defaults of the schema at its top level."""
    schema = sequence.json("metadata_schema", "int8")
    wanted = _properties(schema)
    metadata = sequence.json("metadata", "int8")
    if not wanted or not isinstance(metadata, dict):
        return {}
    declared = {key: one for key, one in schema["properties"].items() if isinstance(one, dict)}
    metadata = {key: one["default"] for key, one in declared.items() if "default" in one} | metadata
    return {name: _value(metadata, path, dtype) for name, (path, dtype) in wanted.items()}


def _properties(schema: Any) -> dict[str, Property]:
    """Return the properties of simple types that a schema declares, by their columns, up to MOST_PROPERTIES."""
    found: dict[str, Property] = {}
    if isinstance(schema, dict) and schema.get("codec") == "json":
        for path, dtype in _declared(schema, ()):
            name = METADATA + ".".join(path)
            if len(name) <= LONGEST_NAME and name.isprintable():
                found.setdefault(name, (path, dtype))
                if len(found) == MOST_PROPERTIES:
                    break
    return found


def _declared(schema: dict[str, Any], above: tuple[str, ...]) -> Iterator[Property]:
    properties = schema.get("properties")
    for name, described in properties.items() if isinstance(properties, dict) else ():
        if isinstance(described, dict):
            path, dtype = (*above, name), _type(described)
            if dtype is not None:
                yield path, dtype
            elif described.get("type") == "object" and len(path) < DEEPEST:
                yield from _declared(described, path)


def _type(described: dict[str, Any]) -> str | None:
    """Return the type of the column of a property; None if it is not simple. Any value may also be null."""
    kinds = described.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        return None
    found = set(kinds) - {"null"}
    if found == {"array"}:
        items = described.get("items")
        return TEXTS if isinstance(items, dict) and items.get("type") == "string" else None
    if found == {"integer", "number"}:
        return NUMBER
    return _TYPES.get(found.pop()) if len(found) == 1 else None


def _value(metadata: Any, path: tuple[str, ...], dtype: str) -> Any:
    for name in path:
        metadata = metadata.get(name) if isinstance(metadata, dict) else None
    if dtype == INTEGER and isinstance(metadata, float) and metadata.is_integer():
        return int(metadata)  # JSON Schema: a number without a fraction is an integer
    return metadata


def _num_samples(sequence: TreeSequence) -> int | None:
    """Return how many nodes are samples; None if there are too many nodes to be counted."""
    flags = sequence.column("nodes/flags", "uint32")
    if flags is None or flags.data.size > LARGEST_READ:
        return None
    # The lowest flag of a node says that it is a sample.
    return sum(int(np.count_nonzero(np.frombuffer(piece, "<u4") & 1)) for piece in flags.data.pieces())


def _num_trees(sequence: TreeSequence) -> int | None:
    """Return the number of trees: a new one begins wherever an edge begins or ends.

    None if there are too many edges, or one is not an interval of the sequence.
    """
    length = sequence.sequence_length()
    left, right = sequence.column("edges/left", "float64"), sequence.column("edges/right", "float64")
    if left is None or right is None or not 0 < length < math.inf:
        return None
    if length_of(left) != length_of(right) or left.data.size + right.data.size > LARGEST_READ:
        return None
    points = [np.array([0.0, length])]
    for pieces in zip(left.data.pieces(), right.data.pieces(), strict=True):
        begin, end = (np.frombuffer(piece, "<f8") for piece in pieces)
        if not ((begin >= 0) & (begin < end) & (end <= length)).all():
            return None
        points += [np.unique(begin), np.unique(end)]  # edges of a stretch often begin and end together
    return len(np.unique(np.concatenate(points))) - 1
