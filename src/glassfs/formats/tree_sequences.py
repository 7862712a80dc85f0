"""One row for each tree sequence, what the table ``trees`` over a folder has of it, and its genotypes
(docs/formats/kastore.md §6, §7).

Counts come from the lengths of columns; samples and trees are counted in one pass over their columns, unless these are
very large. Top-level metadata have columns where their schema has ``codec: json`` and declares properties of simple
types, also those of objects in it. Any thread. Reading raises the errors of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from glassfs.content import Member
from glassfs.content.allowance import EXPANSION
from glassfs.content.episodes import TEXT, TEXTS
from glassfs.content.model import GenotypeFacts, Genotypes
from glassfs.content.summary import BOOLEAN, INTEGER, NUMBER, Columns
from glassfs.errors import Damaged
from glassfs.formats.tskit import LONGEST_NAME, RULES, TreeSequence, length_of
from glassfs.lazy import np
from glassfs.once import once

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


# Genotypes, which tskit finds in a worker process. It gets the places of the columns that genotypes depend on,
# reads them once, and keeps its place between requests. What it sends is checked for its size.

if TYPE_CHECKING:
    from glassfs.sandbox.client import Sandbox

Places: TypeAlias = "dict[str, dict[str, tuple[int, int, str]]]"
"""Offset, number of elements, and dtype of each column, by table."""
_NEEDED = (
    "individuals/flags", "nodes/flags", "nodes/time", "nodes/individual",
    "edges/left", "edges/right", "edges/parent", "edges/child",
    "sites/position", "sites/ancestral_state", "sites/ancestral_state_offset",
    "mutations/site", "mutations/node", "mutations/parent", "mutations/derived_state", "mutations/derived_state_offset",
)
_OPTIONAL = "mutations/time", "indexes/edge_insertion_order", "indexes/edge_removal_order"


@dataclass
class _GenotypeRequests:
    """Requests to the worker for the genotypes of a tree sequence."""

    _sequence: TreeSequence
    _columns: Places
    step = 4096
    """Individuals, or sites, whose lines are described together."""

    def facts(self) -> GenotypeFacts:
        """Return what there is, no more than tskit can number and the file can describe."""
        answer, step = self._ask(0, do="describe", step=self.step)[0], self.step
        most = EXPANSION * self._sequence.opening.source.size
        with suppress(TypeError, ValueError):
            individuals, names, sites, texts, omitted = answer
            numbers = (individuals, sites, *names, *texts)
            if all(isinstance(number, int) and 0 <= number <= most for number in numbers) and (
                (len(names), len(texts)) == (-(-individuals // step), -(-sites // step))
                and max(individuals, sites) < 1 << 31
            ):
                return GenotypeFacts(individuals, names, sites, texts, step, list(map(str, omitted)))
        raise Damaged("its worker process sends a wrong description")

    def part(self, do: str, first: int, count: int, size: int) -> bytearray:
        return self._ask(size, do=do, first=first, count=count)[1]

    def _ask(self, most: int, **request: Any) -> tuple[Any, bytearray]:
        length = self._sequence.sequence_length()
        return self._sandbox.ask({"length": length, "columns": self._columns, **request}, most)

    @once
    def _sandbox(self) -> Sandbox:
        # tskit and the worker need up to 180 bytes for each row, and text several times. The first column of each table
        # has one value for each row.
        counts = [[count for _, count, _ in places.values()] for places in self._columns.values()]
        return self._sequence.opening.sandbox("genotypes", sum(256 * table[0] + 4 * max(table) for table in counts))


def lacks() -> str:
    """Return what to install; empty if tskit is there."""
    return "" if find_spec("tskit") else "needs tskit: install glassfs[tskit]"


def members(sequence: TreeSequence) -> Iterator[Member]:
    """Yield the genotypes, named like the file without its suffix, unless columns that they need are missing."""
    columns: Places = {}
    for key in (*_NEEDED, *_OPTIONAL):
        column = sequence.column(key, RULES[key].kind if key in RULES else None)
        location = column and column.data.location()
        if column and location:
            table, _, name = key.partition("/")
            dtype = column.dtype.replace("u1", "i1")  # tskit's states
            columns.setdefault(table, {})[name] = location.offset, length_of(column), dtype
        elif key in _NEEDED:
            return
    name = sequence.opening.source.name.rpartition("/")[2]
    stem = (name.rpartition(".")[0] or name).encode("utf-8", "surrogateescape")
    asked = _GenotypeRequests(sequence, columns)
    names, texts, packed = (partial(asked.part, do) for do in ("names", "texts", "genotypes"))
    yield Member((stem,), Genotypes(stem, asked.facts, names, texts, packed, lacks))
