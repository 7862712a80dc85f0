"""Genotypes of a tskit tree sequence (docs/formats/kastore.md §7), which tskit finds in a worker process. Any thread.

The worker gets the places of the columns that genotypes depend on, reads them once, and keeps its place between
requests. What it sends is checked for its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from glassfs.content import Member
from glassfs.content.allowance import EXPANSION
from glassfs.content.genotypes import GenotypeFacts, Genotypes
from glassfs.errors import Damaged
from glassfs.formats.tskit import RULES, TreeSequence, length_of
from glassfs.once import once

if TYPE_CHECKING:
    from glassfs.sandbox.client import Sandbox

Columns: TypeAlias = "dict[str, dict[str, tuple[int, int, str]]]"
"""Offset, number of elements, and dtype of each column, by table."""
_NEEDED = (
    "individuals/flags", "nodes/flags", "nodes/time", "nodes/individual",
    "edges/left", "edges/right", "edges/parent", "edges/child",
    "sites/position", "sites/ancestral_state", "sites/ancestral_state_offset",
    "mutations/site", "mutations/node", "mutations/parent", "mutations/derived_state", "mutations/derived_state_offset",
)
_OPTIONAL = "mutations/time", "indexes/edge_insertion_order", "indexes/edge_removal_order"


class _GenotypeRequests:
    """Requests to the worker for the genotypes of a tree sequence."""

    step = 4096
    """Individuals, or sites, whose lines are described together."""

    def __init__(self, sequence: TreeSequence, columns: Columns) -> None:
        self._sequence = sequence
        self._columns = columns

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
    columns: Columns = {}
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
