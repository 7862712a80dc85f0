"""Damaged containers with all views, in process: lost data raise errors, and the tree is unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.errors import GlassfsError
from glassfs.library import open_tree
from glassfs.tree import File
from tests.conftest import SAMPLES
from tests.formats.derived import BUDGET, LARGEST
from tests.view.test_samples import nodes_of, outcome

CORPORA = ("malformed", "odd", "ambiguous", "upstream-v1")
LONG_TO_READ = "zstd_bomb_1GiB"
SHORT = 10
"""Short runs read one container of this many."""


def broken() -> Iterator[Path]:
    """Yield the invalid containers among the samples."""
    for path in sorted(SAMPLES.rglob("*")):
        if path.is_file() and path.suffix not in (".json", ".md") and set(CORPORA) & set(path.parts):
            yield path


@pytest.mark.parametrize("path", [
    pytest.param(
        path, id="/".join(path.parts[-3:]),
        marks=[pytest.mark.slow] * (number % SHORT > 0 or path.stem == LONG_TO_READ),
    )
    for number, path in enumerate(broken())
])
def test_damaged_containers_are_unchanged_by_views(path: Path) -> None:
    """What cannot be read raises a GlassfsError, in that file only."""
    try:
        plain = open_tree(path, cache_size=BUDGET)
    except GlassfsError as refused:
        with pytest.raises(type(refused)):
            open_tree(path, views="all")
        return
    with plain, open_tree(path, views="all", cache_size=BUDGET) as tree:
        known = set()
        for place, node in nodes_of(plain):
            known.add(place)
            viewed = tree.lookup(place)
            assert (viewed.ino, viewed.mode) == (node.ino, node.mode), place
            if isinstance(node, File) and isinstance(viewed, File):
                assert outcome(viewed) == outcome(node), place
        for place, node in nodes_of(tree):
            if place not in known and isinstance(node, File):
                read_ends(node)


def read_ends(file: File) -> None:
    try:
        size = file.size
        for start in {0, size // 2, max(0, size - LARGEST)}:
            assert len(file.read(start, LARGEST // 4)) == min(LARGEST // 4, size - start)
    except GlassfsError:
        return
