"""What a worker does with tskit: genotypes of diploid individuals in a tree sequence. Only workers import this module.

Its tables are made of the columns that genotypes depend on, so metadata take no memory. tskit checks them, finds the
samples of each individual, names individuals and rounds positions as for VCF, and finds alleles and genotypes. Each
request names the columns, as the worker may be a new one. Facts: docs/formats/kastore.md §6.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import tskit

from glassfs.sandbox.server import Answer, Handler, RemoteFile
from glassfs.sizes import PIECE

Places: TypeAlias = dict[str, tuple[int, int, str]]
"""The offset of a column in the container, its number of elements, and its dtype, by its name."""
_NONE = (np.zeros(0, np.int64),)
_CODES = bytes([3, 2, 0, 1, 1, 0, 1]).ljust(256)
"""The code of a genotype, by the sum of two alleles of which each is 0 or 1, or 3 where it is missing."""


def open_container(file: RemoteFile) -> Handler:
    return _Genotypes(file)


class _Genotypes:
    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self._sequence: tskit.TreeSequence | None = None

    def __call__(self, request: dict[str, Any]) -> Answer:
        length, columns = request.pop("length"), request.pop("columns")
        if self._sequence is None:
            self.use(self._loaded(length, columns))
        answer: Answer = getattr(self, "_" + request.pop("do"))(**request)
        return answer

    def _loaded(self, length: float, columns: dict[str, Places]) -> tskit.TreeSequence:
        tables = tskit.TableCollection(length)
        for table, places in columns.items():
            if table == "indexes":
                tables.indexes = tskit.TableCollectionIndexes(**self._columns(places))
            else:
                getattr(tables, table).set_columns(**self._columns(places))
        return tables.tree_sequence()

    def _columns(self, places: Places) -> dict[str, Any]:
        found = {}
        for name, (offset, count, dtype) in places.items():
            self._file.seek(offset)
            found[name] = np.frombuffer(self._file.read(count * np.dtype(dtype).itemsize), dtype)
        return found

    def use(self, sequence: tskit.TreeSequence) -> None:
        """Answer for this sequence."""
        self._omitted: list[str] = []
        self._named = self._individuals(sequence)
        self._shown = self._sites(sequence) if len(self._named[0]) else _NONE
        self._variant, self._next, self._sequence = tskit.Variant(sequence), 0, sequence

    def _individuals(self, sequence: tskit.TreeSequence) -> tuple[Any, ...]:
        """Return the names of individuals, after finding which genotypes are those of their two samples."""
        try:
            model = sequence.map_to_vcf_model(ploidy=None if sequence.num_individuals else 2)
        except ValueError as error:  # samples without individuals are paired
            self._omitted.append(f"ploidy: {error}")
            return _NONE
        counts = (model.individuals_nodes != tskit.NULL).sum(axis=1)
        is_sampled = counts > 0
        ploidies = np.unique(counts[is_sampled]).tolist()
        if ploidies != [2]:
            self._omitted.append(f"ploidy: individuals have {ploidies[:9]} samples, and only pairs are shown")
            return _NONE
        self._positions = model.transformed_positions
        nodes, samples = model.individuals_nodes[is_sampled, :2].ravel(), sequence.samples()
        self._order = None if np.array_equal(nodes, samples) else np.searchsorted(samples, nodes)
        if len(nodes) < len(samples):
            self._omitted.append(f"individuals: {len(samples) - len(nodes)} samples belong to none")
        return (model.individuals_name[is_sampled].astype("T"),)

    def _sites(self, sequence: tskit.TreeSequence) -> tuple[Any, ...]:
        """Return number, position, first and second allele of the sites with two alleles that are words.

        As in ``tskit.Variant``, alleles are the ancestral state and the derived states of all mutations at a site.
        """
        ancestral, derived = sequence.sites_ancestral_state, sequence.mutations_derived_state
        is_change = derived != ancestral[sequence.mutations_site]
        derived = derived[is_change]
        sites, first, rows = np.unique(sequence.mutations_site[is_change], return_index=True, return_inverse=True)
        second = derived[first]
        has_two = np.ones(len(sites), bool)
        has_two[rows[derived != second[rows]]] = False
        sites, second = sites[has_two], second[has_two]
        words = np.flatnonzero(_are_words(ancestral[sites].tolist()) & _are_words(second.tolist()))
        two, sites, total = len(sites), sites[words], len(ancestral)
        for left, reason in ((total - two, "two alleles"), (two - len(sites), "alleles that are words in ASCII")):
            if left:
                self._omitted.append(f"sites: {left} of {total} do not have {reason}")
        return sites, self._positions[sites], ancestral[sites], second[words]

    def _describe(self, step: int) -> Answer:
        """Return the numbers of individuals and sites, each with the bytes of the lines of ``step`` at a time."""
        def sizes(columns: tuple[Any, ...]) -> list[int]:
            lines: Any = sum(np.strings.str_len(column.astype("T")) + 1 for column in columns)
            return [int(lines[first : first + step].sum()) for first in range(0, len(lines), step)]

        named, shown = self._named, self._shown
        return [len(named[0]), sizes(named), len(shown[0]), sizes(shown), self._omitted], ()

    def _names(self, first: int, count: int) -> Answer:
        return self._lines(self._named, first, count)

    def _texts(self, first: int, count: int) -> Answer:
        return self._lines(self._shown, first, count)

    def _lines(self, columns: tuple[Any, ...], first: int, count: int) -> Answer:
        rows = zip(*(column[first : first + count].tolist() for column in columns), strict=True)
        return None, ["".join("\t".join(map(str, row)) + "\n" for row in rows).encode()]

    def _genotypes(self, first: int, count: int) -> Answer:
        return None, self._packed(first, first + count)

    def _packed(self, first: int, end: int) -> Iterator[bytes]:
        # The tree of a distant site is found faster from no tree than from another one.
        if first != self._next:
            self._variant = tskit.Variant(self._sequence)
        self._next = -1
        variant, samples = self._variant, len(self._variant.samples)
        step, count = max(1, PIECE // samples), len(self._named[0])
        for start in range(first, end, step):
            sites = self._shown[0][start : min(start + step, end)]
            alleles = np.empty((len(sites), samples), np.uint8)
            for row, site in enumerate(sites.tolist()):
                variant.decode(site)
                alleles[row] = variant.genotypes
            alleles &= 3  # -1 is missing
            if self._order is not None:
                alleles = alleles[:, self._order]
            # Translating bytes takes a fifth of the time that NumPy takes for indexing.
            found = (alleles[:, ::2] + alleles[:, 1::2]).tobytes().translate(_CODES)
            codes = np.zeros((len(sites), -(-count // 4) * 4), np.uint8)
            codes[:, :count] = np.frombuffer(found, np.uint8).reshape(-1, count)
            # Four codes are the bytes of a word; together they fill its first byte.
            words = codes.view("<u4")
            yield (words | words >> 6 | words >> 12 | words >> 18).astype(np.uint8).tobytes()
        self._next = end


def _are_words(states: list[str]) -> Any:
    words = {text for text in set(states) if text.isascii() and text.isprintable() and text.split() == [text]}
    return np.array([text in words for text in states], bool)


def _warm_up() -> None:
    """Do once what a worker, which cannot open files, does at first."""
    tables = tskit.Tree.generate_balanced(2).tree_sequence.dump_tables()
    tables.sites.add_row(0, "A")
    tables.mutations.add_row(0, 0, "T")
    answer = _Genotypes(io.RawIOBase())
    answer.use(tables.tree_sequence())
    json.dumps(answer({"do": "describe", "step": 1, "length": 1, "columns": {}})[0])
    list(answer({"do": "genotypes", "first": 0, "count": 1, "length": 1, "columns": {}})[1])


if not hasattr(tskit.TreeSequence, "map_to_vcf_model"):
    raise ImportError("tskit is too old: install glassfs[tskit]")
warnings.simplefilter("ignore")  # showing one reads a file
_warm_up()
