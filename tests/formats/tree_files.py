"""Files of tree sequences, written by tskit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tskit


def write_trees(
    path: Path, trees: int = 3, samples: int = 4, schema: Any = None, metadata: Any = None, units: str = "",
) -> tskit.TreeSequence:
    """Write a sequence of so many trees, each a star over the samples."""
    tables = tskit.TableCollection(100.0)
    if schema is not None:
        tables.metadata_schema = tskit.MetadataSchema(schema)
        tables.metadata = metadata
    if units:
        tables.time_units = units
    for _ in range(samples):
        tables.nodes.add_row(flags=tskit.NODE_IS_SAMPLE, time=0)
    for number in range(trees):
        parent = tables.nodes.add_row(time=number + 1)
        for child in range(samples):
            tables.edges.add_row(100 * number / trees, 100 * (number + 1) / trees, parent, child)
    tables.sites.add_row(position=1, ancestral_state="A")
    tables.sort()
    path.parent.mkdir(parents=True, exist_ok=True)
    return dumped(tables, path)


def write_random(path: Path, seed: int, nodes: int = 60, length: float = 1000.0) -> tskit.TreeSequence:
    """Write a sequence of random trees: the samples and the parents of nodes differ along the sequence."""
    rng = np.random.default_rng(seed)
    tables = tskit.TableCollection(length)
    for number in range(nodes):
        tables.nodes.add_row(flags=int(rng.integers(0, 4)), time=number)
    for child in range(nodes - 1):
        marks = np.unique([0.0, length, *rng.uniform(0, length, int(rng.integers(0, 6))), *rng.integers(1, 99, 2)])
        for left, right in pairwise(marks):
            if rng.random() < 0.9:
                tables.edges.add_row(left, right, int(rng.integers(child + 1, nodes)), child)
    for position in np.unique(rng.integers(0, int(length), 20)):
        tables.sites.add_row(position=position, ancestral_state="A")
    tables.sort()
    tables.edges.squash()
    tables.sort()
    return dumped(tables, path)


def dumped(tables: tskit.TableCollection, path: Path) -> tskit.TreeSequence:
    sequence = tables.tree_sequence()
    sequence.dump(path)
    return sequence
