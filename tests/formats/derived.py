"""What a tree with all views shows, for tests: files by their paths, sizes, ranges."""

from __future__ import annotations

import io
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from glassfs.content import Container, Data, Table, members_of
from glassfs.library import open_tree
from glassfs.tree import File

BUDGET = 8 << 20
LARGEST = 4 << 20
"""Files up to this are read whole."""


def shown_in(source: Path | bytes, views: str = "all", cache_size: int = BUDGET) -> dict[str, File]:
    """All files below a container. One that was made of bytes stays readable."""
    if isinstance(source, bytes):
        with tempfile.NamedTemporaryFile(suffix=".made") as file:
            file.write(source)
            file.flush()
            return {path: node for path, node in shown_in(Path(file.name), views, cache_size).items() if node.size >= 0}
    tree = open_tree(source, cache_size=cache_size, views=views)
    return {path: node for path, node in tree.walk(on_error=lambda place, error: None) if isinstance(node, File)}


def whole(file: File | Data) -> bytes:
    """All bytes. The size that was said before agrees, and so do ranges."""
    size = file.size
    found = file.read(0, size)
    assert len(found) == size and (isinstance(file, Data) or file.read(size, 1) == b"")
    chance = random.Random(size)
    for _ in range(30 if size else 0):
        start = chance.randrange(size)
        length = min(size - start, chance.choice((1, 3, 17, 1000, 70_000)))
        assert file.read(start, length) == found[start : start + length]
    return found


def table_file(path: Path, name: str) -> pa.Table:
    """Read a table in the tree of a container; check its size and ranges."""
    with open_tree(path, views="parquet") as tree:
        return pq.read_table(io.BytesIO(whole(tree.file(name))))


def tables_of(container: Container) -> dict[bytes, Table]:
    return {name[-1]: content for name, content in members_of(container.root) if isinstance(content, Table)}
