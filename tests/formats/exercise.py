"""Read all of a container, however damaged, and measure the memory that takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from glassfs.content import Array, Collection, Content, Document, RaggedText, Recording, Records, Series, members_of
from glassfs.content.model import Stored
from glassfs.content.table import Ragged, Table
from glassfs.errors import GlassfsError
from tests.helpers import open_bytes, open_path

MOST_MEMBERS, MOST_ITEMS, MOST_BYTES = 100, 5, 64 << 10


def exercise(source: bytes | Path) -> None:
    """Open, list, read and check a container. Raises whatever is no error of glassfs."""
    try:
        container = open_bytes(source) if isinstance(source, bytes) else open_path(source)
    except GlassfsError:
        return
    visit(container.root)
    try:
        for fault in islice(container.check(), 500):
            assert fault.reason
    except GlassfsError:
        pass


def visit(content: Content) -> None:
    """Read a bounded part of a content and of all inside it."""
    try:
        content.attributes()
        for inner in _read(content):
            visit(inner)
    except GlassfsError:
        pass


def _read(content: Content) -> list[Content]:
    """Read a bounded part of a content, and return the contents inside it."""
    if isinstance(content, Series):
        return [content.item(number) for number in content.numbers[:MOST_ITEMS]]
    if isinstance(content, Collection):
        return [member.content for member in islice(members_of(content), MOST_MEMBERS)]
    if isinstance(content, Table):
        return [column.content for column in content.columns()]
    if isinstance(content, Document):
        content.value()
    elif isinstance(content, Recording):
        content.record()
    elif isinstance(content, Records):
        for block in range(min(content.blocks, MOST_ITEMS)):
            content.block(block)
    elif isinstance(content, (RaggedText, Ragged)):
        content.offsets.read(0, min(content.offsets.size, MOST_BYTES))
    elif isinstance(content, (Array, Stored)):
        size = content.data.size
        for start in {0, size // 2, max(0, size - 999)}:
            content.data.read(start, min(MOST_BYTES, size - start))
    return []


def peak_memory(work: Callable[[], object]) -> int:
    """Return the most bytes of Python objects that ``work`` holds at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
